"""What happens when, in a simulated world: a heap of events, and a clock that jumps to the next one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from slurm_robust.testing.clock import FakeClock


class Timeline:
    """Events by the time at which they are due; those of one time happen in the order of their planning."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._begun = clock.now

    @property
    def now(self) -> float:
        """Seconds since the simulated world began."""
        return self.clock.now - self._begun

    @property
    def next_at(self) -> float:
        """When the next event is due, in the same seconds; infinite without any."""
        return self._due[0][0] if self._due else math.inf

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Plan ``act`` in so many seconds."""
        self._count += 1
        heapq.heappush(self._due, (self.now + max(0.0, seconds), self._count, act))

    def step(self, until: float) -> bool:
        """Let the next event happen; False, with the clock at ``until``, if none is due by then."""
        if not self._due or self._due[0][0] > until:
            self._jump(until)
            return False
        when, _, act = heapq.heappop(self._due)
        self._jump(when)
        act()
        return True

    def suspend(self, seconds: float) -> None:
        """Let time pass in which nothing happens: all that is planned comes so much later."""
        self._due = [(when + seconds, number, act) for when, number, act in self._due]
        self.clock.advance(seconds)

    def _jump(self, when: float) -> None:
        if when > self.now:
            self.clock.advance(when - self.now)
