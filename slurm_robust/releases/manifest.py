"""What is in the copy of a release: names as bytes, since a file's name need not be text.

The manifest is the first member of ``code.tar``. It has a digest of every file, so two copies are compared,
and a damaged one is recognised, without the files in their place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection

import msgspec

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.record import Record, decoded
from slurm_robust.model.release import CodeRoot

DIGEST_BYTES = 16

MEMBER = "manifest"
"""Name of the manifest in the archive; folders of the copy have other names."""


class DamagedRelease(SrobustError):
    """The files of a release are not what it was taken of."""

    def __init__(self, text: str) -> None:
        super().__init__(text, fix="take the code again: 'srobust update' does, for this job")


class CodeFile(Record):
    """A file of the copy."""

    path: bytes
    """``<folder>/<relative path>``, as all paths of the copy."""
    nbytes: int
    digest: bytes
    mtime: int
    """Seconds since 1970; of no account for the name of a release."""
    x: bool = False
    """It may be executed."""


class CodeLink(Record):
    """A symbolic link of the copy."""

    path: bytes
    target: bytes
    left_out: bool = False
    """It stands for something that was not copied, and leads to its place."""


class CodeManifest(Record):
    """Everything in a copy, sorted by path. A folder is there if it has something."""

    files: tuple[CodeFile, ...]
    links: tuple[CodeLink, ...]

    def hash(self, roots: Collection[CodeRoot]) -> str:
        """Return the hash of the content: wherever it lay, whoever owns it, whenever it was written.

        What was left out does not count: outputs and data.
        """
        numbers = {os.fsencode(root.folder): b"%d" % number for number, root in enumerate(roots)}

        def place(path: bytes) -> bytes:
            folder, _, rest = path.partition(b"/")
            return numbers[folder] + b"/" + rest

        whole = hashlib.blake2b(digest_size=32)
        entries = [(place(file.path), b"x" if file.x else b"-", file.digest) for file in self.files]
        entries += [(place(link.path), b"l", link.target) for link in self.links if not link.left_out]
        for entry in sorted(entries):
            for part in entry:
                whole.update(b"%d:" % len(part) + part)
        return whole.hexdigest()


_DECODER = msgspec.msgpack.Decoder(CodeManifest)


def encode(manifest: CodeManifest) -> bytes:
    """Return the manifest as it lies in the archive."""
    return msgspec.msgpack.encode(manifest)


def decode(data: bytes, where: object) -> CodeManifest:
    """Return what :func:`encode` encoded. Raises :class:`DamagedRelease` for anything else."""
    return decoded(_DECODER, data, lambda why: DamagedRelease(f"{where} has no readable manifest: {why}"))


def digest(data: bytes) -> bytes:
    """Return the digest of a file's content."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
