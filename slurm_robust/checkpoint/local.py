"""Copies of images on a node's own disk.

They outlive the memory of a job whose nodes stay up, and a reboot. Layout::

    <folder>/srobust-<uid>-<run id>/own-00003/gen-0003/step-00000120.img
                                    shared/gen-0003/step-00000120.img

An image appears under its name only when it is whole and durable; readers compare its sums.

Other users may be able to write beside the folder. It counts only if it is this user's and closed to others,
and a file in it only if it is this user's. Behind the image each file has a *seal*: 8 bytes of magic, and
BLAKE2b (256 bits) of all that is in front of the data, under a key that only the job has. A file without it
does not count.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.checkpoint.image import Image, read_front
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.nodefolders import folder_name
from slurm_robust.util.files import names_in, replacing, sync
from slurm_robust.util.ours import NotOurs, check_own_folder, make_own_folder, open_ours

_PART = re.compile(r"own-(\d{5,})|shared")
_IMAGE = ".img"
_SEAL = b"SRSEAL\0\1"
_SEAL_BYTES = len(_SEAL) + 32
_PIECE = 64 * 2**20


def seal_key(secret: str) -> bytes:
    """Return the key of a job's seals from the secret that all its agents share."""
    return hmac.new(secret.encode(), b"slurm_robust copies on disks 1", hashlib.sha256).digest()


class LocalCopies:
    """The copies of one run. Holds nothing open; every call reads the disk anew."""

    def __init__(self, directory: Path | str, run_id: str, key: bytes) -> None:
        """Copies below ``directory``; ``key`` as :func:`seal_key` gives it."""
        self.path = Path(directory) / folder_name(run_id)
        self._run_id = run_id
        self._key = key

    def part_path(self, rank: int, checkpoint: CheckpointId) -> Path:
        """Return the path of the copy of a part, whether it exists or not."""
        part = "shared" if rank == SHARED else f"own-{rank:05d}"
        return self.path / part / f"{checkpoint}{_IMAGE}"

    def find(self, rank: int, checkpoint: CheckpointId) -> Path | None:
        """Return the copy of one part, if there is a whole one of this run. Raises ``OSError``."""
        path = self.part_path(rank, checkpoint)
        return path if self._is_ours() and self._copy(path, rank, checkpoint) else None

    def publish(self, image: Image, keep: int) -> Path:
        """Copy an image that the caller holds open, durably; then keep the newest ``keep`` of its part.

        Raises ``OSError``, say when the disk is full; then nothing has changed.
        """
        header = image.header
        final = self.part_path(header.rank, header.checkpoint)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        make_own_folder(self.path)
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(final, durable=True) as beside:
            target = os.open(
                beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                at = 0
                while at < image.nbytes:
                    sent = os.sendfile(target, image.fileno, at, min(_PIECE, image.nbytes - at))
                    if not sent:
                        raise OSError(f"{image.path} is shorter than its image")
                    at += sent
                os.write(target, self._seal(image.front()))
                os.fsync(target)
            finally:
                os.close(target)
        for folder in (final.parent.parent, self.path):
            sync(folder)
        # By generation first: what a later generation wrote continues what was restored.
        found = sorted(_images(final.parent.parent), key=lambda item: (item[0].generation, item[0].step))
        for _, path in found[: -max(1, keep)]:
            path.unlink(missing_ok=True)
            try:
                path.parent.rmdir()
            except OSError:
                pass  # it holds others
        return final

    def inventory(self) -> tuple[Copy, ...]:
        """Return the whole copies here. Raises ``OSError`` when the disk does not answer."""
        found: list[Copy] = []
        if not self._is_ours():
            return ()
        for part in names_in(self.path):
            match = _PART.fullmatch(part)
            if match is not None:
                rank = SHARED if match[1] is None else int(match[1])
                copies = (
                    self._copy(path, rank, checkpoint) for checkpoint, path in _images(self.path / part)
                )
                found.extend(copy for copy in copies if copy is not None)
        return tuple(found)

    def _copy(self, path: Path, rank: int, checkpoint: CheckpointId) -> Copy | None:
        try:
            with os.fdopen(open_ours(path), "rb") as file:
                found, nbytes = read_front(file), os.fstat(file.fileno()).st_size
                file.seek(max(0, nbytes - _SEAL_BYTES))
                seal = file.read(_SEAL_BYTES)
        except (FileNotFoundError, NotOurs):
            return None
        if found is None or not hmac.compare_digest(seal, self._seal(found.content)):
            return None
        header = found.header
        if header.run_id != self._run_id:
            return None
        if (header.rank, header.checkpoint) != (rank, checkpoint):
            return None
        return Copy(
            rank=rank, generation=checkpoint.generation, step=checkpoint.step, tier=Tier.LOCAL, nbytes=nbytes
        )

    def _is_ours(self) -> bool:
        """Return whether there is a folder. Raises ``OSError``, :class:`NotOurs` for another user's."""
        try:
            check_own_folder(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _seal(self, front: bytes) -> bytes:
        return _SEAL + hashlib.blake2b(front, key=self._key, digest_size=32).digest()


def _images(part: Path) -> Iterator[tuple[CheckpointId, Path]]:
    for generation in names_in(part):
        for name in names_in(part / generation):
            try:
                checkpoint = CheckpointId.parse(f"{generation}/{name.removesuffix(_IMAGE)}")
            except ValueError:
                continue
            if name.endswith(_IMAGE):
                yield checkpoint, part / generation / name
