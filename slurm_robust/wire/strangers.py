"""Who connects without the job's key, again and again: decides only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

WINDOW_S = 10.0
"""A connection proves itself within this time."""

BAN_S = 60.0

S = TypeVar("S", bound=Hashable)


class Strangers(Generic[S]):
    """Counts the connections of each source that have proven nothing, and keeps out sources with too many.

    ``allowance``: so many within 10 s are borne. Times are monotonic seconds.
    """

    def __init__(self, allowance: int) -> None:
        self._allowance = allowance
        self._unproven: Counter[S] = Counter()
        self._window = 0.0
        self._banned: dict[S, float] = {}  # until when

    def came(self, source: S, now: float) -> bool:
        """A connection came from ``source``; whether that is to be kept out from now on."""
        if now - self._window > WINDOW_S:
            self._window = now
            self._unproven.clear()
        self._unproven[source] += 1
        if self._unproven[source] <= self._allowance or source in self._banned:
            return False
        self._banned[source] = now + BAN_S
        return True

    def proved(self, source: S) -> None:
        """A connection from ``source`` has the job's key."""
        self._unproven[source] -= 1

    def banned(self, now: float) -> frozenset[S]:
        """Sources to be kept out."""
        self._banned = {source: until for source, until in self._banned.items() if until > now}
        return frozenset(self._banned)

    def next_change(self, now: float) -> float | None:
        """Seconds until some source is let in again; None while none is kept out."""
        return max(0.0, min(self._banned.values()) - now) if self._banned else None
