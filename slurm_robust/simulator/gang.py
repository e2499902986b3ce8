"""The ranks of one generation, which make all steps together: how far they are at any time. Pure.

Nothing is played step by step: where training is, is computed when somebody asks.
"""

from __future__ import annotations

import math

from slurm_robust.model.copies import CheckpointId


class Gang:
    """One generation of ranks. Times are seconds of the life."""

    def __init__(self, generation: int, restore: CheckpointId | None, pace_s: float, steps: int) -> None:
        """``pace_s``: seconds of a step; ``steps``: how many there are, 0 without end."""
        self.generation, self.restore, self.pace_s, self.steps = generation, restore, pace_s, steps
        self.first = restore.step + 1 if restore is not None else 0
        """The first step that it makes."""
        self.is_slow = False
        """A node makes its steps longer."""
        self.begun = 0.0
        """When it began with its first step."""
        self.is_restored = False
        self.is_over = False
        """It makes no step any more: a rank has ended, or a node is gone."""
        self.holds_at: int | None = None
        """No step after this one is begun: an update is about to end the ranks."""
        self._newest, self._at = self.first - 1, 0.0  # the newest step when it was last looked at, and when
        self._since = math.inf  # since when the step after that is made
        self._held_up = 0  # the number of reasons for which no step is made

    def start(self, now: float) -> None:
        """Begin with the first step: all ranks have restored."""
        self.is_restored, self.begun = True, now
        if not self._held_up:
            self._since = now

    def hold_up(self, now: float) -> None:
        """Let nothing be done any more; each call needs a :meth:`go_on`."""
        self._settle(now)
        self._held_up += 1
        self._since = math.inf

    def go_on(self, now: float) -> None:
        """Take back one :meth:`hold_up`."""
        self._held_up -= 1
        if not self._held_up and self.is_restored and not self.is_over:
            self._since = now

    def end(self, now: float) -> None:
        """Make no step any more, for good."""
        self._settle(now)
        self.is_over, self._since = True, math.inf

    def slow_down(self, factor: float, now: float) -> None:
        """Have steps take ``factor`` times as long, from the one on that is made ``now``."""
        self._settle(now)
        if self._since < math.inf:
            self._since = now
        self.pace_s, self.is_slow = self.pace_s * factor, True

    def _settle(self, now: float) -> None:
        newest, at = self.newest(now), self.completed_at(now)
        if newest > self._newest:
            self._newest, self._at, self._since = newest, at, at

    @property
    def starts(self) -> bool:
        """Whether its ranks are about to restore."""
        return not (self.is_restored or self.is_over or self._held_up)

    @property
    def moves(self) -> bool:
        """Whether it makes steps."""
        return self._since < math.inf

    def newest(self, now: float) -> int:
        """Return the newest step that is done, one before the first if none is."""
        if self._since >= now:
            return self._newest
        step = self._newest + int((now - self._since) / self.pace_s + 1e-9)
        if self.steps:
            step = min(step, self.steps - 1)
        return step if self.holds_at is None else max(self._newest, min(step, self.holds_at))

    def has_stepped(self, now: float) -> bool:
        """Return whether a step is done."""
        return self.newest(now) >= self.first

    def completed_at(self, now: float) -> float:
        """Return when the newest step was done."""
        newest = self.newest(now)
        return self._at if newest == self._newest else self._since + (newest - self._newest) * self.pace_s

    def done_at(self, step: int) -> float:
        """Return when ``step`` will be done, if nothing happens; infinite if it will not."""
        if step <= self._newest:
            return self._at
        if self.holds_at is not None and step > self.holds_at:
            return math.inf
        return self._since + (step - self._newest) * self.pace_s
