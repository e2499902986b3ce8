"""Checkpoints in a folder on shared storage: names, completeness, publishing and pruning.

Without torch, because the controller uses it too. Layout::

    <folder>/latest                                           token of the newest complete checkpoint
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
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.checkpoint.errors import MissingCheckpoint
from slurm_robust.model.record import Record

METADATA = ".metadata"
LATEST = "latest"

_GENERATION = re.compile(r"gen-(\d{4,})")
_STEP = re.compile(r"step-(\d{8,})")
_PART = re.compile(r"rank-(\d{5,})-of-(\d{5,})\.part")
_OUTDATED = re.compile(r"rank-(\d{5,})-of-(\d{5,})\.pt")
_TRASH = ".trash-"
_LOCK = ".lock"
_LOCK_WAIT_S = 5.0
_LOCK_POLL_S = 0.01
# What storage answers that has no locks.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})


class CheckpointRef(Record, order=True):
    """Which checkpoint: the step after which it was taken, and the generation that took it.

    Ordered by step, then generation: the greater one is the newer.
    """

    step: int
    generation: int

    def token(self) -> str:
        """The name under which it is passed around, which is also its path inside the folder."""
        return f"gen-{self.generation:04d}/step-{self.step:08d}"

    @classmethod
    def from_token(cls, token: str) -> CheckpointRef:
        """The inverse of :meth:`token`. Raises ``ValueError`` for anything else."""
        generation, _, step = token.partition("/")
        matches = _GENERATION.fullmatch(generation), _STEP.fullmatch(step)
        if matches[0] and matches[1]:
            ref = cls(generation=int(matches[0][1]), step=int(matches[1][1]))
            if ref.token() == token:
                return ref
        raise ValueError(f"{token!r} names no checkpoint: expected something like 'gen-0003/step-00000120'")


class CheckpointStore:
    """The checkpoints in one folder. Holds nothing open; every question looks at the folder anew."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def present(self) -> list[CheckpointRef]:
        """All that have a folder here, complete or not, in no order."""
        found = []
        for generation in _names(self.path):
            if _GENERATION.fullmatch(generation):
                for step in _names(self.path / generation):
                    try:
                        found.append(CheckpointRef.from_token(f"{generation}/{step}"))
                    except ValueError:
                        continue
        return found

    def complete(self, world_size: int | None = None) -> list[CheckpointRef]:
        """Checkpoints of which all parts are there, newest first (by step, then by generation).

        With ``world_size`` only those written by that many ranks. A folder that does not exist holds
        none. Raises ``OSError`` when the storage does not answer.
        """
        found = []
        for ref in self.present():
            size = self._world_size(ref)
            if size is not None and world_size in (None, size):
                found.append(ref)
        return sorted(found, reverse=True)

    def world_size(self, ref: CheckpointRef) -> int:
        """Number of ranks that wrote ``ref``. Raises :class:`MissingCheckpoint` if it is not complete."""
        size = self._world_size(ref)
        if size is None:
            raise MissingCheckpoint(f"{self.folder(ref)} is not a complete checkpoint")
        return size

    def folder(self, ref: CheckpointRef) -> Path:
        """Where the files of ``ref`` are, or would be."""
        return self.path / ref.token()

    def parts(self, ref: CheckpointRef) -> list[Path]:
        """Sidecars of the published parts of ``ref`` in order of their names, complete or not."""
        folder = self.folder(ref)
        return [folder / name for name in sorted(_names(folder)) if _PART.fullmatch(name)]

    def part_path(self, ref: CheckpointRef, rank: int, world_size: int) -> Path:
        """Where the sidecar of ``rank`` is, or would be."""
        return self.folder(ref) / f"rank-{rank:05d}-of-{world_size:05d}.part"

    def data_path(self, ref: CheckpointRef, rank: int) -> Path:
        """Where the data of ``rank`` are, or would be, by the name that torch's own writer would give."""
        return self.folder(ref) / f"__{rank}_0.distcp"

    def outdated(self, ref: CheckpointRef) -> bool:
        """Whether ``ref`` was written in the format of slurm_robust's first version, which nobody reads."""
        return any(map(_OUTDATED.fullmatch, _names(self.folder(ref))))

    def newest_generation(self) -> int:
        """The highest generation that has a folder here, 0 for none."""
        return max((int(m[1]) for m in map(_GENERATION.fullmatch, _names(self.path)) if m), default=0)

    @contextmanager
    def publishing(self, ref: CheckpointRef, rank: int, world_size: int) -> Iterator[Path]:
        """Publish one sidecar, after its data: write the path that this yields; see :func:`publishing`."""
        with publishing(self.part_path(ref, rank, world_size)) as path:
            yield path

    @contextmanager
    def publishing_data(self, ref: CheckpointRef, rank: int) -> Iterator[Path]:
        """Put the data of one part in place, which count once their sidecar is there."""
        with publishing(self.data_path(ref, rank)) as path:
            yield path

    def latest(self) -> CheckpointRef | None:
        """What the pointer file names, None while there is none. Raises ``OSError``."""
        try:
            return CheckpointRef.from_token((self.path / LATEST).read_text().strip())
        except (FileNotFoundError, ValueError):
            return None

    def point_latest(self) -> CheckpointRef | None:
        """Let ``latest`` name the newest complete checkpoint of the highest generation that has one.

        After a rollback that is not the highest step. Returns what it names then. Raises ``OSError``.
        """
        with self._alone() as alone:
            newest = max(self.complete(), key=lambda ref: (ref.generation, ref.step), default=None)
            if not alone or newest is None or self.latest() == newest:
                return self.latest()
            with publishing(self.path / LATEST) as path:
                path.write_text(newest.token() + "\n")
            return newest

    def prune(
        self,
        keep: int,
        protect: Collection[CheckpointRef] = (),
        generation: int | None = None,
        keep_every: int | None = None,
    ) -> list[CheckpointRef]:
        """Remove old checkpoints and leftovers; returns what was removed.

        ``generation`` is the running one (None: the highest that is here); later ones are not touched.
        Kept are ``protect``, what ``latest`` names, the newest ``keep`` complete ones, the newest ``keep``
        complete ones of the running generation even where an earlier one went further, and complete ones
        after every ``keep_every`` steps (as a script counts them with ``every``). Of the incomplete ones
        those go that no rank will complete any more: of ended generations, and those before a complete
        one of the running generation (a rank writes its parts in the order of steps). Raises ``OSError``.
        """
        if keep < 1 or (keep_every is not None and keep_every < 1):
            raise ValueError(f"keep={keep}, keep_every={keep_every}: both are at least 1")
        current = self.newest_generation() if generation is None else generation
        with self._alone() as alone:
            removed = self._pruned(keep, protect, current, keep_every) if alone else []
        self._sweep(current)
        return removed

    def _pruned(
        self, keep: int, protect: Collection[CheckpointRef], current: int, keep_every: int | None
    ) -> list[CheckpointRef]:
        complete = self.complete()
        here = [ref for ref in complete if ref.generation == current]
        kept = {*protect, self.latest(), *complete[:keep], *here[:keep]}
        if keep_every is not None:
            kept.update(ref for ref in complete if (ref.step + 1) % keep_every == 0)
        removed = []
        for ref in sorted(self.present()):
            over = ref in complete or ref.generation < current or bool(here and ref.step < here[0].step)
            if ref not in kept and ref.generation <= current and over:
                self._remove(ref)
                removed.append(ref)
        return removed

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Nobody else moves ``latest`` or prunes meanwhile; False if another one does so for long.

        Else one that had looked a moment ago could let the pointer name what was removed since.
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

    def _world_size(self, ref: CheckpointRef) -> int | None:
        """World size of which all parts are there; None while some are missing."""
        ranks: dict[int, set[int]] = {}
        for name in _names(self.folder(ref)):
            if match := _PART.fullmatch(name):
                ranks.setdefault(int(match[2]), set()).add(int(match[1]))
        whole = [size for size, present in ranks.items() if size > 0 and present == set(range(size))]
        return max(whole, default=None)

    def _remove(self, ref: CheckpointRef) -> None:
        # Renamed first: a half deleted checkpoint must never look complete, not even with one rank.
        trash = self.path / f"{_TRASH}{ref.token().replace('/', '-')}-{os.getpid()}"
        try:
            os.rename(self.folder(ref), trash)
        except FileNotFoundError:
            return  # another pruner was faster

    def _sweep(self, current: int) -> None:
        """Delete what was renamed, now or by a pruner that died, and empty folders of ended generations."""
        for name in _names(self.path):
            match = _GENERATION.fullmatch(name)
            if name.startswith(_TRASH):
                # What resists (another pruner at the same work, say) is tried again by the next prune.
                shutil.rmtree(self.path / name, ignore_errors=True)
            elif match and int(match[1]) < current:
                try:
                    (self.path / name).rmdir()
                except OSError:
                    pass  # not empty: it holds a checkpoint that is kept


@contextmanager
def publishing(final: Path) -> Iterator[Path]:
    """Write the path that this yields, and at the end it is ``final``: whole, and durable.

    Whatever happens in between, a file that was not written to its end never gets its name. After an
    exception the unfinished file is removed. Raises ``OSError``.
    """
    _make_folder(final.parent)
    # Two hosts may write the same file at once (.metadata), so a process id would not do.
    beside = final.with_name(f".{final.name.lstrip('.')}.{uuid.uuid4().hex[:12]}")
    try:
        yield beside
        _sync(beside)
        os.replace(beside, final)
        _sync(final.parent)
    finally:
        beside.unlink(missing_ok=True)


def _taken(lock: int) -> bool:
    """Whether this process got the lock in time, or there are no locks on this storage."""
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


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _make_folder(folder: Path) -> None:
    """``mkdir -p`` whose result survives a crash of the machine."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
