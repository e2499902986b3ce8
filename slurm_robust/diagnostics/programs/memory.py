"""The memory of the host: patterns, written everywhere before the first is read back."""

from __future__ import annotations

import time
from typing import TypeAlias

import numpy as np

from slurm_robust.diagnostics.part import Measurement, NotHere, TestPart, failed
from slurm_robust.util import numa
from slurm_robust.util.proc import memory_cgroups

_SHARE = 1 / 16  # of what is available: other processes may need memory
_MAX_BYTES = 8 << 30  # bytes
_CHUNK = 1 << 26  # bytes
_SECONDS = 10.0
_PATTERNS = (0x5555555555555555, 0xAAAAAAAAAAAAAAAA)

Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]


def run(part: TestPart) -> Measurement:
    """Walk over a bounded part of the free memory for a bounded time. Raises ``NotHere``."""
    wanted = min(_MAX_BYTES, int(available() * _SHARE)) // _CHUNK
    if wanted == 0:
        raise NotHere("too little memory is free")
    return walk(wanted, _CHUNK // 8, time.monotonic() + min(_SECONDS, part.limit_s / 3))


def available() -> int:
    """Return the bytes that may safely be taken: what the host and the process's cgroups have left."""
    memory = numa.read_memory()
    free = 0 if memory is None else memory.available
    rooms = (group.free() for group in memory_cgroups())
    return max(0, min([free, *(room for room in rooms if room is not None)]))


def walk(chunks: int, words: int, until: float) -> Measurement:
    """Fill up to ``chunks`` of ``words`` of 64 bits; less if ``time.monotonic()`` passes ``until``."""
    held: list[Words] = []
    for pattern in _PATTERNS:
        for number in range(chunks):
            if number == len(held):
                if held and time.monotonic() > until:
                    break
                held.append(np.empty(words, dtype=np.uint64))
            fill(held[number], number, pattern)
        chunks = len(held)
        for number, chunk in enumerate(held):
            if wrong := unlike(chunk, number, pattern):
                return failed(f"{wrong} words changed within {words * 8 >> 20} MiB")
    return Measurement(value=f"{chunks * words * 8 >> 20} MiB")


def fill(chunk: Words, number: int, pattern: int) -> None:
    """Write the pattern, crossed with each word's own place, into chunk ``number``."""
    np.bitwise_xor(_places(chunk, number), np.uint64(pattern), out=chunk)


def unlike(chunk: Words, number: int, pattern: int) -> int:
    """Return how many words are not as :func:`fill` wrote them."""
    return int(np.count_nonzero(chunk ^ np.uint64(pattern) != _places(chunk, number)))


def _places(chunk: Words, number: int) -> Words:
    first = number * chunk.size
    return np.arange(first, first + chunk.size, dtype=np.uint64)
