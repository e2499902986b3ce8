"""Earlier jobs beside a new one: what they left, and the line in which a new job says so."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.journal import JournalDamaged, fold, minute, read
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.model.state import JobState
from slurm_robust.model.training import ASIDE, Chapter, storage_of, training_of
from slurm_robust.policy.continuing import counted, lineage, tells
from slurm_robust.policy.holding import end_of
from slurm_robust.util.files import names_in
from slurm_robust.util.ours import check_own_folder, read_ours

MAX_JOBS = 200
"""In a folder with more, only those whose journals changed last are looked at."""

MAX_READ = 20
"""For the same script; a journal of months takes seconds."""

_FIRST_LINE = 65536  # bytes


class Earlier(Record):
    """An earlier job as its folder shows it."""

    directory: JobDirectory
    started: ev.RunStarted
    state: JobState
    submitted: float | None
    storage: Path
    """The folder in which its checkpoints are now."""
    events: list[ev.AnyEvent] = []
    """Its journal."""

    @property
    def name(self) -> str:
        """The id that squeue shows."""
        return self.started.array_task or str(self.started.job_id)

    @property
    def jobs(self) -> dict[int, str]:
        """The id that squeue shows of this job, by its own."""
        return {self.started.job_id: self.name}

    @property
    def chapter(self) -> Chapter:
        """The job, as a training would have it."""
        started = self.started
        return Chapter(
            job_id=started.job_id,
            run_id=started.run_id,
            folder=self.directory.path.name,
            t=started.t,
            cluster=started.cluster,
            submitted=self.submitted,
            array_task=started.array_task,
            node=self.state.own_node,
        )

    @property
    def end(self) -> ev.RunEnded | None:
        """Its end, if it does not go on by itself."""
        return end_of(self.state.ended)

    @property
    def newest(self) -> CheckpointId | None:
        """The checkpoint from which a new job would go on; None without one, or if storage refuses."""
        event = lineage(self.state, str(self.directory.path), 0.0)
        try:
            found = counted(event, CheckpointStore(self.storage).complete())
        except OSError:
            return None
        return found[0] if found else None

    def hint(self, training: str = "") -> str:
        """Return the line for a new job of the same script, which begins ``training`` anew."""
        ended = self.state.ended
        end = f" (ended with {ended.code} at {minute(ended.t)})" if ended is not None else ""
        step = self.newest.step if self.newest is not None else 0
        if self.started.training:
            option = f"--training {self.started.training}"
        else:
            option = f"--training {training} --from {self.name}" if training else f"--from {self.name}"
        habit = "" if "--training" in option else "; with --training NAME each new job goes on by itself"
        return (
            f"job {self.name} of the same script{end} has left a checkpoint of step {step}, and this job "
            f"begins anew; to go on from there instead, cancel it and submit: srobust run {option} …{habit}"
        )

    def loss(self) -> str:
        """Return the line for a job that begins this training anew, as nothing of it is left; else ""."""
        if self.state.world.best_step < 0 or self.newest is not None:
            return ""
        return (
            f"job {self.name} of training {self.started.training} had done step "
            f"{self.state.world.best_step}, and no checkpoint of it is left"
        )


def earlier_job(directory: JobDirectory, run_id: str = "") -> Earlier | None:
    """Return the job of a folder, of this run unless it is ""; None if there is no journal of it.

    A folder of the same name that was moved aside is found, too. Raises ``JournalDamaged``, ``OSError``.
    """
    for path in (directory.path, *_aside(directory.path)):
        found = _read(JobDirectory(path))
        if found is not None and run_id in ("", found.started.run_id):
            return found
    return None


def _aside(path: Path) -> list[Path]:
    names = (name for name in names_in(path.parent) if name.startswith(f"{path.name}{ASIDE}"))
    return [path.with_name(name) for name in sorted(names, reverse=True)]


def _read(directory: JobDirectory) -> Earlier | None:
    events = read(directory.journal)
    started = next((event for event in events if isinstance(event, ev.RunStarted)), None)
    if started is None:
        return None
    try:
        spec = msgspec.json.decode(directory.spec.read_bytes(), type=JobSpec)
        storage = storage_of(directory, spec, started.training)
    except (FileNotFoundError, *UNREADABLE):
        training = training_of(directory, started.training, started.run_id) if started.training else None
        storage = training.checkpoints if training is not None else directory.checkpoints
    runs = [event.submitted for event in events if isinstance(event, ev.AllocationTaken)]
    return Earlier(
        directory=directory,
        started=started,
        state=fold(events),
        submitted=runs[0] if runs else None,
        storage=storage,
        events=events,
    )


def newest_of_script(root: Path, own: Path, kind: str, command: tuple[str, ...], cwd: str) -> Earlier | None:
    """Return the newest of :func:`jobs_of_script` that has left a checkpoint."""
    return next(
        (job for job in jobs_of_script(root, own, kind, command, cwd) if job.newest is not None), None
    )


def jobs_of_script(root: Path, own: Path, kind: str, command: tuple[str, ...], cwd: str) -> Iterator[Earlier]:
    """Yield jobs below ``root`` of the same script and folder that began to train; the newest first.

    ``own``: the folder of the job that asks. Jobs whose folders cannot be read do not count.
    """
    folders = []
    for name in names_in(root):
        journal = JobDirectory(root / name).journal
        try:
            folders.append((journal.stat().st_mtime, root / name))
        except OSError:
            continue
    newest = (path for _, path in sorted(folders, reverse=True)[:MAX_JOBS] if path != own)
    alike = (path for path in newest if _is_of(JobDirectory(path), kind, command, cwd))
    for path in islice(alike, MAX_READ):
        try:
            check_own_folder(path)
            found = _read(JobDirectory(path))
        except (OSError, JournalDamaged):
            continue
        if found is not None and tells(found.state):
            yield found


def _is_of(directory: JobDirectory, kind: str, command: tuple[str, ...], cwd: str) -> bool:
    try:
        first = ev.decode_event(read_ours(directory.journal, _FIRST_LINE).partition(b"\n")[0])
    except (OSError, msgspec.DecodeError):
        return False
    return (
        isinstance(first, ev.RunStarted)
        and first.kind == kind
        and first.cwd == cwd
        and first.command[:1] == command[:1]
    )
