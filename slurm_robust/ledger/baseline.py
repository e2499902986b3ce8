"""The job's own baseline: what a step takes when nothing slows it."""

from __future__ import annotations

from bisect import insort
from collections import deque

SLOW_FACTOR = 1.2
"""Steps count as slow from this multiple of the baseline on; all beyond the baseline is lost then."""

PIECES = 60
"""Stretches of training of which one median is taken: with a line of progress every 10 s, ten minutes. (A
generation begins with shorter ones, a minute in all.)
"""

MIN_STRETCHES = 6
"""Before this many stretches are known, nothing is slow."""

MEDIANS = 144
"""How many of these medians are remembered: a day. The baseline is the lowest of them."""


class Baseline:
    """Learns what a step takes: the lowest median of a day, which neither noise nor a slow hour moves up.

    A training whose steps become longer for good (another stage, longer sequences) is slow for a day at most;
    one whose owner has changed the code, until the new release is good.
    """

    def __init__(self) -> None:
        self._sorted: list[float] = []
        self._medians: deque[float] = deque(maxlen=MEDIANS)
        self.ms: float = 0.0
        """Milliseconds a step, 0 as long as nothing is known."""

    def excess_ms(self, length_ms: float, steps: int) -> float:
        """Return what of ``length_ms`` for ``steps`` steps goes beyond the baseline; learns from it."""
        if steps <= 0 or length_ms <= 0:
            return 0.0
        each = length_ms / steps
        baseline = self.ms
        insort(self._sorted, each)
        if len(self._sorted) == PIECES:
            self._medians.append(self._sorted[PIECES // 2])
            self._sorted.clear()
            self.ms = min(self._medians)
        elif not self._medians and len(self._sorted) >= MIN_STRETCHES:
            self.ms = self._sorted[len(self._sorted) // 2]
        if not baseline or each <= SLOW_FACTOR * baseline:
            return 0.0
        return length_ms - steps * baseline
