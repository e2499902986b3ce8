"""What counters of a device did since a while, from what they were at earlier runs. Pure.

A counter starts again after a reset, and may not have been read for hours. So only what certainly
happened within a time counts: rises between two readings that both lie in it; a fall is no event.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile
from typing import TypeVar

from slurm_robust.config.node import NetworkLimits
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import View

F = TypeVar("F", bound=Record)
V = TypeVar("V")

HOUR_S = 3600.0

Reading = tuple[float, int]


def readings(view: View[F], value: Callable[[F], V | None]) -> list[tuple[float, V]]:
    """Return ``value`` over this boot with its times, oldest first; the newest is of now.

    Left out are facts without a value, and those from the future: the clock was set back since.
    """
    of_boot = [(old.at, old.facts) for old in view.before if old.boot_id == view.boot_id and old.at < view.at]
    found = [(at, value(facts)) for at, facts in (*of_boot, (view.at, view.facts))]
    return [(at, known) for at, known in found if known is not None]


def lasts(view: View[F], is_same: Callable[[F], bool]) -> float:
    """Return for how many seconds all runs of this boot, one after the other up to now, saw the same."""
    same = takewhile(lambda reading: reading[1], reversed(readings(view, is_same)))
    return view.at - min((at for at, _ in same), default=view.at)


def grown(track: list[Reading], window_s: float, now: float) -> int:
    """Return by how much a counter rose within the last ``window_s`` before ``now``."""
    return sum(rise for begin, _, rise in _rises(track) if begin >= now - window_s)


def most_within(track: list[Reading], window_s: float) -> int:
    """Return the most by which a counter rose within any stretch of ``window_s``."""
    rises = _rises(track)
    stretches = (
        sum(rise for _, end, rise in rises[first:] if end <= begin + window_s)
        for first, (begin, _, _) in enumerate(rises)
    )
    return max(stretches, default=0)


def _rises(track: list[Reading]) -> list[tuple[float, float, int]]:
    pairs = pairwise(track)
    return [(before, at, new - old) for (before, old), (at, new) in pairs if new > old]


def ignored(limits: NetworkLimits, *names: str) -> bool:
    """Return whether the site excludes it from checks."""
    return any(fnmatchcase(name, pattern) for pattern in limits.ignore for name in names)


def flaps(
    check: str, subject: str, track: list[Reading], now: float, limits: NetworkLimits, source: str
) -> Finding:
    """Return what the losses of one link within the last hour mean; ``track``: their counter's readings."""
    recent = [(at, count) for at, count in track if at >= now - HOUR_S]
    lost = grown(recent, HOUR_S, now)
    close = most_within(recent, limits.flap_window_s)
    is_fault = close >= 2 or lost > limits.max_link_downed_per_hour
    times = f"{lost} times" if lost > 1 else "once"
    return Finding(
        check=check,
        subject=subject,
        outcome=Outcome.FAIL if lost else Outcome.PASS,
        text=f"link was lost {times} within an hour" if lost else "",
        value=f"{lost} per hour, {close} within {limits.flap_window_s:g} s",
        limit=f"{limits.max_link_downed_per_hour} per hour, 1 within {limits.flap_window_s:g} s",
        source=source,
        blame=Party.FABRIC if lost else Party.NODE,
        suggestion=Suggestion.RESET if is_fault else Suggestion.MONITOR if lost else Suggestion.NONE,
        count=lost,
    )
