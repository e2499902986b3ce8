"""Reading the data of an image straight into their place, and summing them up while they are in cache."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import xxhash

CHUNK_BYTES = 4 * 2**20

# Bytes that are read and then summed up, so few that the sum finds them in a core's own cache.
_STRETCH_BYTES = 2**19

_IOV_MAX = os.sysconf("SC_IOV_MAX")


class Piece(NamedTuple):
    """A stretch of the data."""

    view: memoryview
    read: bool  # whether it must be read into ``view``; else it is there already


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


def filled_sums(file: int, begin: int, pieces: Iterable[Piece], threads: int) -> bytes:
    """Fill the data, which begin there in ``file``, chunk by chunk; return their :func:`sums_of`.

    If the file ends too early, the sums are those of what was in the views before. Raises ``OSError``.
    """
    chunks = list(_cut(pieces, CHUNK_BYTES))
    begins = itertools.count(begin, CHUNK_BYTES)
    with ThreadPoolExecutor(threads) as pool:  # reading and hashing let go of the interpreter lock
        return b"".join(pool.map(_filled_sum, itertools.repeat(file), begins, chunks))


def _cut(pieces: Iterable[Piece], size: int) -> Iterator[list[Piece]]:
    """Yield the pieces of every ``size`` bytes; pieces that straddle the end of such a stretch are cut."""
    stretch, room = [], size
    for view, read in pieces:
        while view:
            stretch.append(Piece(view[:room], read))
            view, room = view[room:], room - len(stretch[-1].view)
            if not room:
                yield stretch
                stretch, room = [], size
    if stretch:
        yield stretch


def _filled_sum(file: int, begin: int, chunk: list[Piece]) -> bytes:
    found = xxhash.xxh3_64()
    for stretch in _cut(chunk, _STRETCH_BYTES):
        for read, pieces in itertools.groupby(stretch, key=lambda piece: piece.read):
            views = [piece.view for piece in pieces]
            if read:
                _read(file, begin, list(views))
            begin += sum(map(len, views))
        for piece in stretch:
            found.update(piece.view)
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
