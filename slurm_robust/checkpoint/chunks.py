"""Reading the data of an image straight into their place, and summing them up while they are in cache."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol, cast

import xxhash

CHUNK_BYTES = 4 * 2**20

# Bytes that are read and then summed up, so few that the sum finds them in a core's own cache.
_STRETCH_BYTES = 2**19

_IOV_MAX = os.sysconf("SC_IOV_MAX")


class DeviceBytes(Protocol):
    """Memory of a GPU, byte by byte: a tensor of ``uint8``."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> DeviceBytes: ...


class Piece(NamedTuple):
    """A stretch of the data."""

    view: memoryview | DeviceBytes
    read: bool  # whether it must be read into ``view``; else it is there already


class Staging(Protocol):
    """Memory of this machine on the way to a GPU's, in rooms of :data:`CHUNK_BYTES`; for several threads."""

    def take(self) -> memoryview:
        """Take a room; waits until one is free. Raises ``RuntimeError`` if the GPU has failed."""

    def give_back(self, room: memoryview, copies: list[tuple[DeviceBytes, memoryview]]) -> None:
        """Begin to copy parts of ``room`` to where they belong, behind which it is free."""


def sums_of(data: memoryview, threads: int = 1) -> bytes:
    """Return the XXH3 of every chunk of ``data``, little-endian.

    ``threads``: this one, and as many others as are missing, unless the node refuses them.
    """
    chunks = iter(range(0, len(data), CHUNK_BYTES))  # of which each thread takes the next one
    sums = bytearray(8 * -(-len(data) // CHUNK_BYTES))

    def work() -> None:
        for at in chunks:
            one = xxhash.xxh3_64_intdigest(data[at : at + CHUNK_BYTES])  # lets go of the interpreter lock
            struct.pack_into("<Q", sums, at // CHUNK_BYTES * 8, one)

    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        with suppress(RuntimeError):
            for _ in range(threads - 1):
                pool.submit(work)
        work()
    return bytes(sums)


def fill(
    file: int, begin: int, pieces: Iterable[Piece], sums: bytes, threads: int, staging: Staging | None = None
) -> int:
    """Fill the data, which begin there in ``file``, chunk by chunk; return how many are not as ``sums`` say.

    ``sums`` are their :func:`sums_of`. A damaged chunk reaches no GPU; whatever else of the machine's memory
    it was read into holds it. If the file ends too early, what was in the views before is summed up. Raises
    ``OSError``, or ``RuntimeError`` if a GPU fails.
    """
    chunks = list(_cut(pieces, CHUNK_BYTES))
    begins = itertools.count(begin, CHUNK_BYTES)
    expected = (sums[at : at + 8] for at in range(0, len(sums), 8))
    with ThreadPoolExecutor(threads) as pool:  # reading and hashing let go of the interpreter lock
        for_all = itertools.repeat(file), itertools.repeat(staging)
        return sum(not whole for whole in pool.map(_is_whole, *for_all, begins, chunks, expected))


def _is_whole(file: int, staging: Staging | None, begin: int, chunk: list[Piece], expected: bytes) -> bool:
    if all(isinstance(piece.view, memoryview) for piece in chunk):
        return _filled_sum(file, begin, chunk) == expected
    assert staging is not None
    room = staging.take()
    copies: list[tuple[DeviceBytes, memoryview]] = []
    whole = False
    try:
        staged, at = [], 0
        for piece in chunk:
            if isinstance(piece.view, memoryview):
                staged.append(piece)
                continue
            copies.append((piece.view, room[at : at + len(piece.view)]))
            staged.append(Piece(copies[-1][1], read=True))
            at += len(piece.view)
        whole = _filled_sum(file, begin, staged) == expected
    finally:
        staging.give_back(room, copies if whole else [])
    return whole


def _cut(pieces: Iterable[Piece], size: int) -> Iterator[list[Piece]]:
    """Yield the pieces of every ``size`` bytes; pieces that straddle the end of such a stretch are cut."""
    stretch, room = [], size
    for view, read in pieces:
        while len(view):
            stretch.append(Piece(view[:room], read))
            view, room = view[room:], room - len(stretch[-1].view)
            if not room:
                yield stretch
                stretch, room = [], size
    if stretch:
        yield stretch


def _filled_sum(file: int, begin: int, chunk: list[Piece]) -> bytes:
    """All pieces are in this machine's memory."""
    found = xxhash.xxh3_64()
    for stretch in _cut(chunk, _STRETCH_BYTES):
        for read, pieces in itertools.groupby(stretch, key=lambda piece: piece.read):
            views = [cast(memoryview, piece.view) for piece in pieces]
            if read:
                _read(file, begin, list(views))
            begin += sum(map(len, views))
        for piece in stretch:
            found.update(cast(memoryview, piece.view))
    return struct.pack("<Q", found.intdigest())


def _read(file: int, at: int, views: list[memoryview]) -> None:
    """Fill ``views``, which are used up, one after the other from ``at`` on."""
    first = 0
    while first < len(views):
        got = os.preadv(file, views[first : first + _IOV_MAX], at)
        if not got:
            return
        at += got
        while got:
            taken = min(got, len(views[first]))
            views[first] = views[first][taken:]
            got -= taken
            first += not views[first]
