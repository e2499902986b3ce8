"""Copies of images on a node's own disk.

They outlive the memory of a job whose nodes stay up, and a reboot. Layout::

    <folder>/srobust-<uid>-<run id>/own-00003/gen-0003/step-00000120.img
                                    shared/gen-0003/step-00000120.img

An image appears under its name only when it is whole and durable; who reads it compares its sums.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.checkpoint.image import Image, read_header
from slurm_robust.checkpoint.store import CheckpointRef
from slurm_robust.model.copies import SHARED, Copy, Tier

_PART = re.compile(r"own-(\d{5,})|shared")
_IMAGE = ".img"
_PIECE = 64 * 2**20


def local_path(directory: Path | str, run_id: str) -> Path:
    """The folder of one run's copies below ``directory``."""
    return Path(directory) / f"srobust-{os.getuid()}-{run_id}"


class LocalCopies:
    """The copies of one run. Holds nothing open; every question looks at the disk anew."""

    def __init__(self, path: Path | str, run_id: str) -> None:
        """``path`` as :func:`local_path` gives it."""
        self.path = Path(path)
        self._run_id = run_id

    def part_path(self, rank: int, ref: CheckpointRef) -> Path:
        """Where the copy of a part is, or would be."""
        part = "shared" if rank == SHARED else f"own-{rank:05d}"
        return self.path / part / f"{ref.token()}{_IMAGE}"

    def find(self, rank: int, ref: CheckpointRef) -> Path | None:
        """The copy of one part, if there is a whole one of this run. Raises ``OSError``."""
        path = self.part_path(rank, ref)
        return path if self._copy(path, rank, ref) else None

    def publish(self, image: Image, keep: int) -> Path:
        """Copy an image that somebody holds open, durably; then keep the newest ``keep`` of its part.

        Raises ``OSError``, say when the disk is full; then nothing has changed.
        """
        header = image.header
        final = self.part_path(header.rank, CheckpointRef(generation=header.generation, step=header.step))
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = final.with_name(f".{final.name}.{os.getpid()}")
        try:
            _write(image, beside)
            os.replace(beside, final)
        finally:
            beside.unlink(missing_ok=True)
        for folder in (final.parent, final.parent.parent, self.path):
            _sync(folder)
        self._prune(final.parent.parent, keep)
        return final

    def inventory(self) -> tuple[Copy, ...]:
        """The whole copies here. Raises ``OSError`` when the disk does not answer."""
        found = []
        for rank, ref, path in self._named():
            copy = self._copy(path, rank, ref)
            if copy is not None:
                found.append(copy)
        return tuple(found)

    def _copy(self, path: Path, rank: int, ref: CheckpointRef) -> Copy | None:
        try:
            header, nbytes = read_header(path), path.stat().st_size
        except FileNotFoundError:
            return None
        if header is None or header.run_id != self._run_id:
            return None
        if (header.rank, header.generation, header.step) != (rank, ref.generation, ref.step):
            return None
        return Copy(rank=rank, generation=ref.generation, step=ref.step, tier=Tier.LOCAL, nbytes=nbytes)

    def _named(self) -> Iterator[tuple[int, CheckpointRef, Path]]:
        for part in _names(self.path):
            match = _PART.fullmatch(part)
            if match is not None:
                rank = SHARED if match[1] is None else int(match[1])
                yield from ((rank, ref, path) for ref, path in _images(self.path / part))

    def _prune(self, part: Path, keep: int) -> None:
        # By generation first: what a later generation wrote continues what was restored.
        found = sorted(_images(part), key=lambda item: (item[0].generation, item[0].step))
        for _, path in found[: -max(1, keep)]:
            path.unlink(missing_ok=True)
            try:
                path.parent.rmdir()
            except OSError:
                pass  # it holds others


def _images(part: Path) -> Iterator[tuple[CheckpointRef, Path]]:
    for generation in _names(part):
        for name in _names(part / generation):
            try:
                ref = CheckpointRef.from_token(f"{generation}/{name.removesuffix(_IMAGE)}")
            except ValueError:
                continue
            if name.endswith(_IMAGE):
                yield ref, part / generation / name


def _write(image: Image, path: Path) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        at = 0
        while at < image.nbytes:
            sent = os.sendfile(target, image.fileno, at, min(_PIECE, image.nbytes - at))
            if not sent:
                raise OSError(f"{image.path} is shorter than its image")
            at += sent
        os.fsync(target)
    finally:
        os.close(target)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
