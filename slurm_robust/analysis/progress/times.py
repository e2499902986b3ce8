"""Step times of one generation: the newest of them, with their quantiles."""

from __future__ import annotations

import math
from collections import deque

WINDOW = 1000


class StepTimes:
    """The newest 1000 measured times, in seconds. ``steps`` and ``longest`` are of all that ever were."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._ordered: list[float] | None = None
        self.steps = 0
        self.longest = 0.0

    def add(self, seconds: float, steps: int = 1) -> None:
        """One measurement, over ``steps`` steps that took ``seconds`` each, or at least one of them."""
        self._window.append(seconds)
        self._ordered = None
        self.steps += steps
        self.longest = max(self.longest, seconds)

    def __len__(self) -> int:
        return len(self._window)

    def quantile(self, share: float) -> float:
        """The least measured time that ``share`` of all do not exceed; 0 without any."""
        if self._ordered is None:
            self._ordered = sorted(self._window)
        if not self._ordered:
            return 0.0
        return self._ordered[max(0, math.ceil(share * len(self._ordered)) - 1)]
