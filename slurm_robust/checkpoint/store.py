"""Checkpoints in a folder on shared storage: names, completeness, publishing and pruning.

This module imports no torch, because the controller uses it too. Layout::

    <folder>/latest                                           name of the newest complete checkpoint
    <folder>/gen-0003/step-00000120/__2_0.distcp              data of rank 2
    <folder>/gen-0003/step-00000120/rank-00002-of-00004.part  its sidecar: what is in there, with sums
    <folder>/gen-0003/step-00000120/.metadata                 for torch.distributed.checkpoint, derived

A part is whole and durable when its sidecar has its name, which is published last and says how many parts
there must be; so a checkpoint is complete exactly when all sidecars of one world size are there: no marker
that could be written too early, no rank that must wait for another. The generation is part of every path,
so a rank that lives on beyond a cut network writes beside its successors and never over them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from slurm_robust.checkpoint.errors import CheckpointError, MissingCheckpoint
from slurm_robust.checkpoint.part import read_sidecar
from slurm_robust.model.copies import CheckpointId
from slurm_robust.util.files import make_folder, names_in, replacing

METADATA = ".metadata"
LATEST = "latest"

_GENERATION = re.compile(r"gen-(\d{4,})")
_PART = re.compile(r"rank-(\d{5,})-of-(\d{5,})\.part")
_TRASH = ".trash-"
_LOCK = ".lock"
_LOCK_WAIT_S = 5.0
_LOCK_POLL_S = 0.01
# What storage answers that has no locks.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})


class CheckpointStore:
    """The checkpoints in one folder. Holds nothing open; every call reads the folder anew."""

    def __init__(
        self, path: Path | str, make: Callable[[Path], None] = make_folder, runs: Collection[str] = ()
    ) -> None:
        """``make``: makes folders at ``path`` and below; it raises ``OSError``.

        ``runs``: only what these have written is seen and removed, since others write there, too; () for all.
        """
        self.path = Path(path)
        self._make = make
        self._runs = runs
        self._ours: dict[CheckpointId, bool] = {}

    def present(self) -> list[CheckpointId]:
        """Return all that have a folder here, complete or not, in no order. Raises ``OSError``."""
        found = []
        for generation in names_in(self.path):
            if _GENERATION.fullmatch(generation):
                for step in names_in(self.path / generation):
                    try:
                        found.append(CheckpointId.parse(f"{generation}/{step}"))
                    except ValueError:
                        continue
        return [checkpoint for checkpoint in found if self._is_ours(checkpoint)]

    def _is_ours(self, checkpoint: CheckpointId) -> bool:
        """Return whether one of the runs has written it; no if none of its parts says."""
        if not self._runs or checkpoint in self._ours:
            return self._ours.get(checkpoint, True)
        for path in self.parts(checkpoint):
            with suppress(CheckpointError):
                self._ours[checkpoint] = read_sidecar(path).header.run_id in self._runs
                return self._ours[checkpoint]
        return False

    def complete(self, world_size: int | None = None) -> list[CheckpointId]:
        """Return the checkpoints of which all parts are there, newest first (by step, then by generation).

        With ``world_size`` only those written by that many ranks. A folder that does not exist holds
        none. Raises ``OSError`` when the storage does not answer.
        """
        found = []
        for checkpoint in self.present():
            size = self._world_size(checkpoint)
            if size is not None and world_size in (None, size):
                found.append(checkpoint)
        return sorted(found, reverse=True)

    def world_size(self, checkpoint: CheckpointId) -> int:
        """Return how many ranks wrote it. Raises :class:`MissingCheckpoint` if it is not complete."""
        size = self._world_size(checkpoint)
        if size is None:
            raise MissingCheckpoint(f"{self.folder(checkpoint)} is not a complete checkpoint")
        return size

    def folder(self, checkpoint: CheckpointId) -> Path:
        """Return the folder of ``checkpoint``, whether it exists or not."""
        return self.path / str(checkpoint)

    def parts(self, checkpoint: CheckpointId) -> list[Path]:
        """Return the sidecars of the published parts of ``checkpoint``, complete or not, by name."""
        folder = self.folder(checkpoint)
        return [folder / name for name in sorted(names_in(folder)) if _PART.fullmatch(name)]

    def part_path(self, checkpoint: CheckpointId, rank: int, world_size: int) -> Path:
        """Return the path of the sidecar of ``rank``, whether it exists or not."""
        return self.folder(checkpoint) / f"rank-{rank:05d}-of-{world_size:05d}.part"

    def data_path(self, checkpoint: CheckpointId, rank: int) -> Path:
        """Return the path of the data of ``rank``, existing or not, named as by torch's own writer."""
        return self.folder(checkpoint) / f"__{rank}_0.distcp"

    def newest_generation(self) -> int:
        """Return the highest generation that has a folder here, whoever made it; 0 for none."""
        return max((int(m[1]) for m in map(_GENERATION.fullmatch, names_in(self.path)) if m), default=0)

    def publishing(
        self, checkpoint: CheckpointId, rank: int, world_size: int
    ) -> AbstractContextManager[Path]:
        """Publish one sidecar, after its data: write the path that this yields. At the end it has its name.

        Whole, and durable. After an exception the unfinished file is removed. Raises ``OSError``.
        """
        return self._publishing(self.part_path(checkpoint, rank, world_size))

    def publishing_data(self, checkpoint: CheckpointId, rank: int) -> AbstractContextManager[Path]:
        """Put the data of one part in place, which count once their sidecar is there."""
        return self._publishing(self.data_path(checkpoint, rank))

    @contextmanager
    def _publishing(self, final: Path) -> Iterator[Path]:
        self._make(final.parent)
        with replacing(final, durable=True) as beside:
            yield beside

    def latest(self) -> CheckpointId | None:
        """Return what the pointer file names, None while there is none. Raises ``OSError``."""
        try:
            return CheckpointId.parse((self.path / LATEST).read_text().strip())
        except (FileNotFoundError, ValueError):
            return None

    def point_latest(self) -> CheckpointId | None:
        """Let ``latest`` name the newest complete checkpoint of the highest generation that has one.

        After a rollback that is not the highest step. Returns what it names then. Raises ``OSError``.
        """
        with self._alone() as alone:
            newest = max(
                self.complete(), key=lambda checkpoint: (checkpoint.generation, checkpoint.step), default=None
            )
            if not alone or newest is None or self.latest() == newest:
                return self.latest()
            with replacing(self.path / LATEST, durable=True) as path:
                path.write_text(str(newest) + "\n")
            return newest

    def prune(
        self,
        keep: int,
        protect: Collection[CheckpointId] = (),
        generation: int | None = None,
        keep_every: int | None = None,
    ) -> list[CheckpointId]:
        """Remove old checkpoints and leftovers; returns what was removed.

        ``generation`` is the running one (None: the highest that is here); later ones are not touched.
        Kept are ``protect``, what ``latest`` names, the newest ``keep`` complete ones, the newest ``keep``
        complete ones of the running generation even if an earlier one went further, and complete ones after
        every ``keep_every`` steps (as a script counts them with ``every``). Incomplete ones go if no rank
        will complete them any more: in ended generations, and before a complete one of the running generation
        (a rank writes its parts in the order of steps). Raises ``OSError``.
        """
        if keep < 1 or (keep_every is not None and keep_every < 1):
            raise ValueError(f"keep={keep}, keep_every={keep_every}: both are at least 1")
        current = self.newest_generation() if generation is None else generation
        with self._alone() as alone:
            removed = self._pruned(keep, protect, current, keep_every) if alone else []
        self._sweep(current)
        return removed

    def remove(
        self, checkpoints: Collection[CheckpointId], generation: int | None = None
    ) -> list[CheckpointId]:
        """Remove these, whole or not, and let ``latest`` name one that is left; returns what was removed.

        ``generation``: the running one, whose folder stays. Nothing is removed if another process prunes for
        long. Raises ``OSError``.
        """
        removed = []
        with self._alone() as alone:
            for checkpoint in sorted(checkpoints) if alone else ():
                if self.folder(checkpoint).is_dir():
                    self._remove(checkpoint)
                    removed.append(checkpoint)
            if self.latest() in removed:
                (self.path / LATEST).unlink(missing_ok=True)
        self.point_latest()
        self._sweep(self.newest_generation() + 1 if generation is None else generation)
        return removed

    def _pruned(
        self, keep: int, protect: Collection[CheckpointId], current: int, keep_every: int | None
    ) -> list[CheckpointId]:
        complete = self.complete()
        here = [checkpoint for checkpoint in complete if checkpoint.generation == current]
        kept = {*protect, self.latest(), *complete[:keep], *here[:keep]}
        if keep_every is not None:
            kept.update(checkpoint for checkpoint in complete if (checkpoint.step + 1) % keep_every == 0)
        removed = []
        for checkpoint in sorted(self.present()):
            over = (
                checkpoint in complete
                or checkpoint.generation < current
                or bool(here and checkpoint.step < here[0].step)
            )
            if checkpoint not in kept and checkpoint.generation <= current and over:
                self._remove(checkpoint)
                removed.append(checkpoint)
        return removed

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Lock out other processes that move ``latest`` or prune; False if one of them does so for long.

        Otherwise a process that read the folder a moment ago could let the pointer name what was removed
        since.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            lock = os.open(self.path / _LOCK, flags, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            yield True  # there are no checkpoints
            return
        try:
            yield _taken(lock)
        finally:
            os.close(lock)

    def _world_size(self, checkpoint: CheckpointId) -> int | None:
        """Return the world size of which all parts are there; None while some are missing."""
        ranks: dict[int, set[int]] = {}
        for name in names_in(self.folder(checkpoint)):
            if match := _PART.fullmatch(name):
                ranks.setdefault(int(match[2]), set()).add(int(match[1]))
        whole = [size for size, present in ranks.items() if size > 0 and present == set(range(size))]
        return max(whole, default=None)

    def _remove(self, checkpoint: CheckpointId) -> None:
        # Renamed first: a half deleted checkpoint must never look complete, not even with one rank.
        trash = self.path / f"{_TRASH}{str(checkpoint).replace('/', '-')}-{os.getpid()}"
        try:
            os.rename(self.folder(checkpoint), trash)
        except FileNotFoundError:
            return  # another pruner was faster

    def _sweep(self, current: int) -> None:
        """Delete what was renamed, now or by a pruner that died, and empty folders of ended generations.

        Not if others write, whose generations may not have ended.
        """
        for name in names_in(self.path):
            match = _GENERATION.fullmatch(name)
            if name.startswith(_TRASH):
                # What resists (another pruner at the same work, say) is tried again by the next prune.
                shutil.rmtree(self.path / name, ignore_errors=True)
            elif match and int(match[1]) < current and not self._runs:
                try:
                    (self.path / name).rmdir()
                except OSError:
                    pass  # not empty: it holds a checkpoint that is kept


def _taken(lock: int) -> bool:
    """Return whether this process got the lock in time, or there are no locks on this storage."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return True
        else:
            return True
