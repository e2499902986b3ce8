"""The sidecar of one rank's part on shared storage: what its data file holds, at which offsets, with sums.

This module imports no torch, so that tools can verify. A sidecar is 8 bytes of magic, u32 version, u32 zero,
u64 sum (XXH3) of the rest, and MessagePack of :class:`Sidecar`. Reading it executes nothing. The data file
beside it is in the encoding of ``torch.distributed.checkpoint``: an item is what ``torch.save`` writes for
one value.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from slurm_robust.checkpoint.errors import CorruptPart, ForeignPart, MissingCheckpoint
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.model.record import Record, decoded
from slurm_robust.util.ours import open_plain

MAGIC = b"SRPART\0\n"
VERSION = 3

_HEAD = struct.Struct("<8sIIQ")
_READ_BYTES = 4 * 2**20


class PartItem(Record):
    """One value in the data file."""

    path: tuple[str | int, ...]
    """Leads to it in the state that was saved, as ``torch.distributed.checkpoint`` flattens that; an item
    without path is of no use there.
    """
    offset: int
    length: int
    sum: int
    """XXH3 of its bytes."""
    dtype: str = ""
    """torch's name of it, "" for anything but a tensor."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    raw: int = -1
    """Bytes from ``offset`` to its bare numbers, -1 if only torch can read them."""
    whole: tuple[int, ...] | None = None
    """For a shard: the shape of the tensor that it belongs to."""
    at: tuple[int, ...] = ()
    """For a shard: its beginning in that tensor."""
    shared: bool = False
    """Equal on all ranks."""


class Sidecar(Record):
    """All but the data."""

    header: PartHeader
    entries: tuple[str, ...]
    """The names under which state was saved."""
    data: str
    """The name of the data file, which is beside this one."""
    data_bytes: int
    items: tuple[PartItem, ...]
    own: bytes
    """The tree to which the tensors belong, in the order of items (:mod:`slurm_robust.checkpoint.tree`)."""
    shared: bytes
    """The same of the shared state, in rank 0's part; empty in all others."""


# Made while there is one thread; see Record.
_sidecars = msgspec.msgpack.Decoder(Sidecar)


def encode_sidecar(sidecar: Sidecar) -> bytes:
    """Return the bytes of the file."""
    content = msgspec.msgpack.encode(sidecar)
    return _HEAD.pack(MAGIC, VERSION, 0, xxhash.xxh3_64_intdigest(content)) + content


def read_sidecar(path: Path) -> Sidecar:
    """Return a sidecar that was verified to its last byte; the data were not read.

    Raises :class:`CorruptPart`, :class:`MissingCheckpoint`, :class:`ForeignPart` for another format, or
    ``OSError``.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise _missing(path) from None
    if len(content) < _HEAD.size:
        raise corrupt(path, "truncated")
    magic, version, _, total = _HEAD.unpack_from(content)
    if magic != MAGIC:
        raise ForeignPart(f"{path} was not written by slurm_robust: remove it from the checkpoint folder")
    if version != VERSION:
        raise ForeignPart(
            f"{path} has format version {version}, this slurm_robust reads version {VERSION}: "
            "continue with the slurm_robust that wrote it"
        )
    rest = memoryview(content)[_HEAD.size :]
    if xxhash.xxh3_64_intdigest(rest) != total:
        raise corrupt(path, "it fails its checksum")
    return decoded(_sidecars, rest, lambda why: corrupt(path, why))


def verify_part(path: Path) -> int:
    """Read a part, named by its sidecar, to its end and compare all sums; returns the bytes read.

    Raises :class:`CorruptPart`, :class:`ForeignPart` for another format, :class:`MissingCheckpoint` if
    there is no such file, or ``OSError``.
    """
    sidecar = read_sidecar(path)
    return path.stat().st_size + verify_items(path, sidecar, sidecar.items)


def verify_items(path: Path, sidecar: Sidecar, items: Iterable[PartItem]) -> int:
    """Compare the sums of some items of the part whose sidecar is ``path``; returns the bytes read.

    Raises as :func:`verify_part`.
    """
    # Read, not mapped: storage that fails gives an error here and would give SIGBUS there.
    data, buffer, done = data_of(path, sidecar), memoryview(bytearray(_READ_BYTES)), 0
    try:
        with os.fdopen(open_plain(data), "rb", buffering=0) as file:
            if file.seek(0, 2) != sidecar.data_bytes:
                raise corrupt(data, f"{file.tell()} bytes instead of {sidecar.data_bytes}")
            for item in items:
                if not (item.offset >= 0 and 0 <= item.length <= sidecar.data_bytes - item.offset):
                    raise corrupt(path, f"{name_of(item)} is not in its data")
                file.seek(item.offset)
                digest, left = xxhash.xxh3_64(), item.length
                while left and (count := file.readinto(buffer[: min(left, _READ_BYTES)])):
                    digest.update(buffer[:count])
                    left -= count
                if left or digest.intdigest() != item.sum:
                    raise corrupt(data, f"{name_of(item)} fails its checksum")
                done += item.length
    except FileNotFoundError:
        raise _missing(data) from None
    return done


def data_of(path: Path, sidecar: Sidecar) -> Path:
    """Return the data file of the sidecar ``path``. Raises :class:`CorruptPart` if it is elsewhere."""
    if Path(sidecar.data).name != sidecar.data or sidecar.data in ("", "..") or "\0" in sidecar.data:
        raise corrupt(path, f"it names {sidecar.data!r} as its data")
    return path.with_name(sidecar.data)


def name_of(item: PartItem) -> str:
    """Return the item's key in ``torch.distributed.checkpoint``."""
    return ".".join(map(str, item.path)) or f"the item at {item.offset}"


def corrupt(path: Path, what: str) -> CorruptPart:
    """Return the error for a damaged file of a part."""
    return CorruptPart(
        f"{path} is damaged ({what}): remove its folder {path.parent}, then an older checkpoint is "
        "restored; if this repeats, the storage loses data"
    )


def _missing(path: Path) -> MissingCheckpoint:
    return MissingCheckpoint(
        f"{path} is not there: restore another checkpoint; 'srobust run' does so by itself"
    )
