"""Steps that take longer than they used to in the same job. Pure."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from slurm_robust.analysis.progress.bounds import FEW_STEPS, StepTimes
from slurm_robust.model.progress import PaceHistory

SUSTAINED_S = 60.0
"""A slowdown lasts at least this long,"""

SUSTAINED_MEASURES = 10
"""and for this many measurements."""

AGAIN_AFTER_S = 600.0
"""A slowdown that goes on is reported again after this time, the next time after twice as long, and so on,"""

AGAIN_AT_LEAST_S = 7200.0
"""but at least this often."""


class Slowdown:
    """Compares the median of the last minute of training with the job's own, one generation long.

    ``reference_s`` is that median in seconds per step: of what this generation did before the last minute
    or, if that is too little, of the job's past; 0 while nothing is known. Times of a slowdown do not
    count for it, so a slowdown does not become the norm.
    """

    def __init__(self, factor: float, past: PaceHistory) -> None:
        self._factor = factor
        self._past = past
        self._settled = StepTimes()
        self._recent: deque[tuple[float, float]] = deque()  # seconds measured, seconds per step
        self._recent_s = 0.0
        self.is_slow = False

    def add(self, seconds: float, steps: int) -> None:
        """Add ``steps`` made within ``seconds``, without a phase in between."""
        self._recent.append((seconds, seconds / steps))
        self._recent_s += seconds
        while len(self._recent) > SUSTAINED_MEASURES and self._recent_s - self._recent[0][0] >= SUSTAINED_S:
            measured, each = self._recent.popleft()
            self._recent_s -= measured
            if not self.is_slow:
                self._settled.add(each)
        if self.is_slow:
            # Over only at half of the excess, so that times about the limit are one slowdown and not many.
            self.is_slow = self.recent_s >= self.reference_s * (1 + self._factor) / 2
        else:
            # If steps vary by nature, several slow ones in a row are nothing.
            is_beyond = self.recent_s >= self.limit_s > 0.0
            self.is_slow = is_beyond and self.recent_s > self._usual_s

    @property
    def reference_s(self) -> float:
        """Seconds per step that count as normal."""
        if len(self._settled) >= FEW_STEPS:
            return self._settled.quantile(0.5)
        return self._past.p50_s if self._past.steps >= FEW_STEPS else 0.0

    @property
    def typical_s(self) -> float:
        """The same or, while nothing counts as normal yet, the median so far; 0 without any step."""
        return self.reference_s or (median(each for _, each in self._recent) if self._recent else 0.0)

    @property
    def recent_s(self) -> float:
        """Seconds per step of the last minute; 0 before it is full."""
        if self._recent_s < SUSTAINED_S or len(self._recent) < SUSTAINED_MEASURES:
            return 0.0
        return median(each for _, each in self._recent)

    @property
    def measured_s(self) -> float:
        """Over how many seconds :attr:`recent_s` was measured."""
        return self._recent_s

    @property
    def limit_s(self) -> float:
        """Seconds per step from which on it is a slowdown."""
        return self._factor * self.reference_s

    @property
    def _usual_s(self) -> float:
        """What nine of ten steps do not exceed."""
        return self._settled.quantile(0.9) if len(self._settled) >= FEW_STEPS else 0.0


class Reminder:
    """When to report a slowdown: immediately, when it has become as much worse again, and ever more rarely.

    The first search for the straggler may have failed because another cause hid it.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self.forget()

    def forget(self) -> None:
        """Forget the slowdown, which is over."""
        self._reported_s, self._reported_at, self._wait_s = 0.0, -math.inf, AGAIN_AFTER_S
        self.times = 0
        """How often this one was reported."""

    def is_due(self, recent_s: float, now: float) -> bool:
        """Return whether to report it ``now`` (monotonic), and count that. ``recent_s``: seconds per step."""
        since = now - self._reported_at
        if since < SUSTAINED_S:
            # What is measured was in part before the slowdown, so it rises without becoming worse.
            self._reported_s = max(self._reported_s, recent_s)
        is_worse = recent_s >= self._factor * self._reported_s
        if not is_worse and since < self._wait_s:
            return False
        if not math.isinf(since):
            self._wait_s = AGAIN_AFTER_S if is_worse else min(2 * self._wait_s, AGAIN_AT_LEAST_S)
        self._reported_s, self._reported_at = recent_s, now
        self.times += 1
        return True
