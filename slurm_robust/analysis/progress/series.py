"""Jumps of one series of numbers, as a loss. Pure."""

from __future__ import annotations

import math
from collections import deque
from statistics import median, median_low

WINDOW = 50
"""So many accepted values make the rolling median,"""

FEW_VALUES = 20
"""and fewer than so many make none."""

_NOISE = 6.0
# The standard deviation of normally distributed numbers in terms of their median absolute deviation.
_SIGMA = 1.4826


class Series:
    """Values in their order, each a finite number.

    A value is a jump if it is ``factor`` times the median of the last 50 accepted ones or more, but only
    beyond all of them and beyond six standard deviations of their logarithms: a series that is noisy by
    nature, or has two levels, has such values every now and then. Multiples mean something for positive
    numbers only, so while one of the last 50 was zero or negative, nothing is a jump. Jumps are not accepted,
    until there were 50 of them in a row: then the level has changed.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._accepted: deque[float] = deque(maxlen=WINDOW)
        self._refused: list[float] = []
        self.median = 0.0

    @property
    def has_jumped(self) -> bool:
        """Whether the newest value was a jump."""
        return bool(self._refused)

    def add(self, value: float, *, judge: bool = True) -> None:
        """The next value; with ``judge`` False it is accepted whatever it is."""
        if judge and self._is_jump(value):
            self._refused.append(value)
            if len(self._refused) < WINDOW:
                return
            self._accepted.extend(self._refused)
        else:
            self._accepted.append(value)
        self._refused.clear()

    def _is_jump(self, value: float) -> bool:
        """The median is kept for who tells of it."""
        if len(self._accepted) < FEW_VALUES or min(self._accepted) <= 0 or value <= max(self._accepted):
            return False
        self.median = median_low(self._accepted)  # one of them, so that nothing overflows
        middle = math.log(self.median)
        spread = _SIGMA * median(abs(math.log(accepted) - middle) for accepted in self._accepted)
        return math.log(value) - middle >= max(math.log(self._factor), _NOISE * spread)
