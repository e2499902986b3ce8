"""The folders that an agent uses: its own one in memory, and what it reads and makes in the job's."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import stat
import tempfile
from pathlib import Path

from slurm_robust.model.job import JobDirectory
from slurm_robust.model.nodefolders import CODE, SHARED_MEMORY, folder_name
from slurm_robust.model.record import Record
from slurm_robust.util.files import make_folder
from slurm_robust.wire.epochs import EpochRecord, newest_epoch
from slurm_robust.wire.messages import Launch

SPREAD_S = 20.0
"""Seconds in which all agents of a job make files for its next generation: a thousand a second at 10,000
ranks, which any storage takes.
"""

FEW_RANKS = 64
"""So many files each of two streams a storage makes within a tenth of a second (reported: 2,000 a second and
more), and a folder for what may never be launched surprises people.
"""

NO_STEP_S = 60.0
"""After so many seconds a generation is taken to train, though no steps of it are seen."""

_STREAMS = ("out", "err")
_MARK = "Nothing was launched here yet: the files are made ahead, so that no restart waits for them.\n"


class RuntimeFolder:
    """A folder of this agent alone (0700), named ``srobust-<uid>-<run id>-…``; gone with the agent.

    Memory, not a disk: the records are written at every step, and must work on a node whose disk is
    full or whose network file system hangs.
    """

    def __init__(self, run_id: str, base: Path = SHARED_MEMORY) -> None:
        """Make the folder, and remove the folders that this user's dead agents left. Raises ``OSError``."""
        _remove_dead(base, folder_name(""))
        self.path = Path(tempfile.mkdtemp(prefix=folder_name(run_id, "-"), dir=base))
        # Held as long as this process lives, whatever its process id means in other namespaces. It gets its
        # name when it is locked: another agent that searches for dead ones finds it held, or not at all.
        beside = self.path / ".alive"
        self._lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        beside.rename(self.path / "alive")

    def generation(self, generation: int) -> Path:
        """Make the folder of one generation if it is not there, and remove older ones."""
        folder = self.path / f"gen-{generation:03d}"
        for other in self.path.glob("gen-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def close(self) -> None:
        """Remove everything."""
        os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)


def _remove_dead(base: Path, prefix: str) -> None:
    for folder in base.glob(f"{prefix}*"):
        if folder.name.endswith(CODE):
            continue  # what it holds has to be settled first: remove_dead_code()
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue  # any user may make such a name
            lock = os.open(folder / "alive", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # being made, copies of checkpoints, or gone meanwhile
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # its agent lives
        finally:
            os.close(lock)


class EpochRead(Record):
    """What the job directory says of controllers."""

    newest: EpochRecord | None  # None before there is one
    failed: bool = False  # the job directory could not be read


def make_log_folders(job: JobDirectory, generation: int, ranks: tuple[int, ...]) -> None:
    """Make the folders in which these workers are about to write, if they are not there. Raises ``OSError``.

    From now on they hold the output of a generation.
    """
    for folder in {job.worker_log(generation, rank, "out").parent for rank in ranks}:
        make_folder(folder, below=job.path)
    job.logs_ahead(generation).unlink(missing_ok=True)


def make_logs_ahead(job: JobDirectory, generation: int, ranks: tuple[int, ...]) -> None:
    """Make folders and empty files for workers that may be launched later. Raises ``OSError``.

    Readers see none of it before the launch: the generation's folder appears with its mark.
    """
    folder = job.logs(generation)
    if not folder.is_dir():
        made = Path(tempfile.mkdtemp(prefix=".ahead-", dir=folder.parent))
        try:
            (made / job.logs_ahead(generation).name).write_text(_MARK)
            made.rename(folder)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)  # another agent was first
    for path in (job.worker_log(generation, rank, stream) for rank in ranks for stream in _STREAMS):
        make_folder(path.parent, below=job.path)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640))


class NextLogs:
    """When an agent makes the files of the generation after one that was launched. Pure.

    Not before that one trains, since a start needs the storage itself, and not all agents at once.
    """

    def __init__(self, launch: Launch, now: float) -> None:
        self.generation, self.ranks = launch.generation + 1, launch.ranks
        self._launched = now
        self._later_s = SPREAD_S * launch.slot / launch.slots
        self._at = math.inf if launch.world_size <= FEW_RANKS else None

    def is_due(self, now: float, *, has_stepped: bool) -> bool:
        """Return whether it is time. ``has_stepped``: each rank here has made a step."""
        if self._at is None and (has_stepped or now - self._launched >= NO_STEP_S):
            self._at = now + self._later_s
        return self._at is not None and now >= self._at


def read_epoch(epochs: Path) -> EpochRead:
    """Return the epoch of the controller to obey. Never raises."""
    try:
        return EpochRead(newest=newest_epoch(epochs))
    except Exception:  # noqa: BLE001 - without an answer the agent would not read again
        return EpochRead(newest=None, failed=True)
