"""Checkpoints in a folder on shared storage: names, completeness, publishing and pruning.

Without torch, because the controller uses it too. Layout::

    <folder>/gen-0003/step-00000120/rank-00002-of-00004.pt

A part appears under its name only when it is whole and durable, and its name says how many there must
be, so a checkpoint is complete exactly when all names of one world size are there: no marker that could
be written too early, no rank that must wait for another. The generation is part of every path, so a
rank that lives on beyond a cut network writes beside its successors and never over them.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.checkpoint.errors import CorruptPart, MissingCheckpoint
from slurm_robust.model.record import Record

_GENERATION = re.compile(r"gen-(\d{4,})")
_STEP = re.compile(r"step-(\d{8,})")
_PART = re.compile(r"rank-(\d{5,})-of-(\d{5,})\.pt")
_TRASH = ".trash-"


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

    def complete(self, world_size: int | None = None) -> list[CheckpointRef]:
        """Checkpoints of which all parts are there, newest first (by step, then by generation).

        With ``world_size`` only those written by that many ranks. A folder that does not exist holds
        none. Raises ``OSError`` when the storage does not answer.
        """
        found = []
        for ref in self._present():
            size = self._world_size(ref)
            if size is not None and world_size in (None, size):
                found.append(ref)
        return sorted(found, reverse=True)

    def world_size(self, ref: CheckpointRef) -> int:
        """Number of ranks that wrote ``ref``. Raises :class:`MissingCheckpoint` if it is not complete."""
        size = self._world_size(ref)
        if size is None:
            raise MissingCheckpoint(f"{self.path / ref.token()} is not a complete checkpoint")
        return size

    def parts(self, ref: CheckpointRef) -> list[Path]:
        """Published parts of ``ref`` in order of their names, complete or not."""
        folder = self.path / ref.token()
        return [folder / name for name in sorted(_names(folder)) if _PART.fullmatch(name)]

    def part_path(self, ref: CheckpointRef, rank: int, world_size: int) -> Path:
        """Where the part of ``rank`` is, or would be."""
        return self.path / ref.token() / f"rank-{rank:05d}-of-{world_size:05d}.pt"

    def newest_generation(self) -> int:
        """The highest generation that has a folder here, 0 for none."""
        return max((int(m[1]) for m in map(_GENERATION.fullmatch, _names(self.path)) if m), default=0)

    @contextmanager
    def publishing(self, ref: CheckpointRef, rank: int, world_size: int) -> Iterator[Path]:
        """Publish one part: write the path that this yields, and it becomes the part at the end.

        Whatever happens in between, a part that was not written to its end never gets its name. After
        an exception the unfinished file is removed. Raises ``OSError``.
        """
        final = self.part_path(ref, rank, world_size)
        _make_folder(final.parent)
        beside = final.with_name(f".{final.name}.{os.getpid()}")
        try:
            yield beside
            _sync(beside)
            os.replace(beside, final)
            _sync(final.parent)
        finally:
            beside.unlink(missing_ok=True)

    def prune(
        self, keep: int, protect: Collection[CheckpointRef] = (), generation: int | None = None
    ) -> list[CheckpointRef]:
        """Remove old checkpoints and leftovers; returns what was removed.

        ``generation`` is the running one (None: the highest that is here); later ones are not touched.
        Kept are ``protect``, the newest ``keep`` complete ones, and the newest ``keep`` complete ones of
        the running generation even where an earlier one went further. Of the incomplete ones those go
        that no rank will complete any more: of ended generations, and those before a complete one of the
        running generation (a rank writes its parts in the order of steps). Raises ``OSError``.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: keep at least 1 checkpoint")
        current = self.newest_generation() if generation is None else generation
        complete = self.complete()
        here = [ref for ref in complete if ref.generation == current]
        kept = {*protect, *complete[:keep], *here[:keep]}
        removed = []
        for ref in sorted(self._present()):
            over = ref in complete or ref.generation < current or bool(here and ref.step < here[0].step)
            if ref not in kept and ref.generation <= current and over:
                self._remove(ref)
                removed.append(ref)
        self._sweep(current)
        return removed

    def _present(self) -> list[CheckpointRef]:
        found = []
        for generation in _names(self.path):
            if _GENERATION.fullmatch(generation):
                for step in _names(self.path / generation):
                    try:
                        found.append(CheckpointRef.from_token(f"{generation}/{step}"))
                    except ValueError:
                        continue
        return found

    def _world_size(self, ref: CheckpointRef) -> int | None:
        """World size of which all parts are there; None while some are missing."""
        ranks: dict[int, set[int]] = {}
        for name in _names(self.path / ref.token()):
            if match := _PART.fullmatch(name):
                ranks.setdefault(int(match[2]), set()).add(int(match[1]))
        whole = [size for size, present in ranks.items() if size > 0 and present == set(range(size))]
        return max(whole, default=None)

    def _remove(self, ref: CheckpointRef) -> None:
        # Renamed first: a half deleted checkpoint must never look complete, not even with one rank.
        trash = self.path / f"{_TRASH}{ref.token().replace('/', '-')}-{os.getpid()}"
        try:
            os.rename(self.path / ref.token(), trash)
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


def verify_part(path: Path) -> None:
    """Read a part to its end and compare its checksums.

    A part is a ZIP file without compression, as ``torch.save`` writes it, with a CRC-32 for each of its
    records: a truncated part has no directory at its end, a changed byte of the data changes a CRC.
    Raises :class:`CorruptPart`, or :class:`MissingCheckpoint` if there is no such file.
    """
    try:
        with zipfile.ZipFile(path) as part:
            bad = part.testzip()
            listed = len(part.infolist())
    except FileNotFoundError:
        raise MissingCheckpoint(
            f"{path} is not there: restore another checkpoint; 'srobust run' does so by itself"
        ) from None
    except Exception as error:  # a damaged ZIP file makes zipfile raise almost anything
        # EINVAL is what seeking to a damaged offset gives; any other OSError is the storage's trouble.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise _corrupt(path, str(error) or type(error).__name__) from error
    if bad is not None:
        raise _corrupt(path, f"record {bad} fails its CRC-32")
    # The directory has no checksum: a changed length in it can swallow its last entries unseen.
    if listed != _records_promised(path):
        raise _corrupt(path, "its directory lost records")


def _records_promised(path: Path) -> int:
    """Number of records that the end of a ZIP file without comment gives, in 64 or in 16 bits."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 98))
        tail = file.read()
    if tail.startswith(b"PK\x06\x06") and len(tail) == 98:
        return int.from_bytes(tail[32:40], "little")
    return int.from_bytes(tail[-12:-10], "little")


def _corrupt(path: Path, what: str) -> CorruptPart:
    return CorruptPart(
        f"{path} is damaged ({what}): remove its folder {path.parent}, then an older checkpoint is "
        "restored; if this repeats, the storage loses data"
    )


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
