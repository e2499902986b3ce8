"""When the loop turns, and when it only waits for storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

from slurm_robust.engine.clock import Now

LONGEST_S = 0.25
"""Longest time between two ticks, for what only time brings."""

REST_S = 0.1
"""Seconds between two ticks of a large job: a thousand heartbeats a second need no thousand checks of
everything.
"""

LONG_FACTOR = 2.0
"""With ten thousand nodes a tick takes longer than that; all of them together take a third of the time."""

REST_FACTOR = 9.0
"""The rest after a shorter tick is this many times as long: a small job answers in milliseconds."""


class Turns:
    """Waits for news; after a tick no sooner than its rest is over, while more news may queue."""

    def __init__(
        self,
        sources: Sequence[zmq.Socket[bytes] | int],
        urgent: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``sources`` have news to read; ``urgent`` is a descriptor that no rest holds up."""
        self._clock = clock
        self._news, self._urgent = zmq.Poller(), zmq.Poller()
        for source in (*sources, urgent):
            self._news.register(source, zmq.POLLIN)
        self._urgent.register(urgent, zmq.POLLIN)
        self._rest_until = 0.0
        self._turned = self._since = clock()
        self._longest_s = self._before_s = 0.0  # since ``_since``, and in the half minute before

    def wait(self) -> None:
        """Return when it is time for the next turn."""
        self._measure(self._clock())
        self._news.poll(int(1000 * LONGEST_S))
        if (rest_s := self.rest_s) > 0:
            self._urgent.poll(int(1000 * rest_s) + 1)
        self._turned = self._clock()

    @property
    def longest_s(self) -> float:
        """The longest turn of the last :data:`LONGEST_OF_S`, without the rest after it."""
        return max(self._longest_s, self._before_s)

    def _measure(self, now: float) -> None:
        self._longest_s = max(self._longest_s, now - self._turned)
        if now - self._since >= LONGEST_OF_S / 2:
            self._since, self._before_s, self._longest_s = now, self._longest_s, 0.0

    @property
    def rest_s(self) -> float:
        """Seconds of rest that are left."""
        return self._rest_until - self._clock()

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Measure the work that checks everything."""
        begun = self._clock()
        yield
        ended = self._clock()
        took = ended - begun
        self._rest_until = ended + min(REST_FACTOR * took, max(REST_S, LONG_FACTOR * took))


LONGEST_OF_S = 60.0
"""The longest turn is the longest of the last minute."""

MIN_SET_S = 1.0
"""Less is a clock that is kept right."""

LONGEST_HOLD_S = 1800.0
"""Administrators make room within this time, or not at all."""


def read_clocks() -> Now:
    """Return both clocks, now."""
    return Now(mono=time.monotonic(), wall=time.time())


class ClockWatch:
    """Notices that this node's clock was set."""

    def __init__(self, clocks: Callable[[], Now] = read_clocks) -> None:
        self._clocks = clocks
        self._distance_s = self._measure()
        self.ahead_s = 0.0
        """How far it is ahead of slurmctld's, by what is known."""

    def compared(self, ahead_s: float) -> None:
        """Take in that the clock was ``ahead_s`` ahead of slurmctld's a moment ago."""
        self.ahead_s, self._distance_s = ahead_s, self._measure()

    def step(self) -> float:
        """Return by how many seconds it was set since the last call, 0 for less than :data:`MIN_SET_S`."""
        set_s = self._measure() - self._distance_s
        if abs(set_s) < MIN_SET_S:
            return 0.0
        self._distance_s += set_s
        self.ahead_s += set_s
        return set_s

    def _measure(self) -> float:
        now = self._clocks()
        return now.wall - now.mono


class StorageHold:
    """Whether decisions wait for storage, and the clocks by which they are made.

    What was decided is done when the journal holds it, so until then nothing more is decided. Time that
    passes meanwhile does not count: no deadline comes nearer. A hold ends when storage has taken all,
    immediately when the end of the run is near, and after half an hour in any case. None begins again before
    the journal is whole.
    """

    def __init__(self, clocks: Callable[[], Now] = read_clocks) -> None:
        self._clocks = clocks
        self._since: float | None = None
        self._lost_s = 0.0
        self._is_over = False

    @property
    def holds(self) -> bool:
        """Whether to decide nothing, and to do nothing about what is not written."""
        return self._since is not None

    @property
    def gave_up(self) -> bool:
        """Whether the journal is behind and is not waited for."""
        return self._is_over

    def follow(self, *, behind: bool, urgent: bool) -> float:
        """Begin or end a hold; return the seconds of one that ends.

        ``behind``: the journal is; ``urgent``: nothing can wait.
        """
        mono = self._clocks().mono
        if not behind:
            self._is_over = False
        elif urgent or (self._since is not None and mono - self._since > LONGEST_HOLD_S):
            self._is_over = True
        if behind and not self._is_over:
            self._since = mono if self._since is None else self._since
            return 0.0
        if self._since is None:
            return 0.0
        seconds, self._since = mono - self._since, None
        self._lost_s += seconds
        return seconds

    def now(self) -> Now:
        """Return the clocks, of which the monotonic one stands still during a hold."""
        now = self._clocks()
        mono = now.mono if self._since is None else self._since
        return Now(mono=mono - self._lost_s, wall=now.wall)
