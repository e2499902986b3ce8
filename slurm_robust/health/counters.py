"""What counters of a device did since a while, from what they were at earlier runs. Pure.

A counter starts again after a reset, and may have been read by nobody for hours. So only what certainly
happened within a time counts: rises between two readings that both lie in it; a fall is no event.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from slurm_robust.health.check import View
from slurm_robust.model.record import Record

F = TypeVar("F", bound=Record)
V = TypeVar("V")

HOUR_S = 3600.0

Reading = tuple[float, int]


def readings(view: View[F], value: Callable[[F], V | None]) -> list[tuple[float, V]]:
    """``value`` over this boot with its times, oldest first; the newest is of now.

    Left out are facts without a value, and those from the future: the clock was set back since.
    """
    of_boot = [(old.at, old.facts) for old in view.before if old.boot_id == view.boot_id and old.at < view.at]
    found = [(at, value(facts)) for at, facts in (*of_boot, (view.at, view.facts))]
    return [(at, known) for at, known in found if known is not None]


def grown(track: list[Reading], window_s: float, now: float) -> int:
    """By how much a counter rose within the last ``window_s`` before ``now``."""
    return sum(rise for begin, _, rise in _rises(track) if begin >= now - window_s)


def most_within(track: list[Reading], window_s: float) -> int:
    """The most by which a counter rose within any stretch of ``window_s``."""
    rises = _rises(track)
    stretches = (
        sum(rise for _, end, rise in rises[first:] if end <= begin + window_s)
        for first, (begin, _, _) in enumerate(rises)
    )
    return max(stretches, default=0)


def _rises(track: list[Reading]) -> list[tuple[float, float, int]]:
    pairs = pairwise(track)
    return [(before, at, new - old) for (before, old), (at, new) in pairs if new > old]
