"""How far one rank of the training is, as its step record says."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import structs

from slurm_robust.model.record import Record

# Ages are read a moment before or after the clock that they are compared by.
_SAME_S = 0.01


class Progress(Record, array_like=True, gc=False):
    """Step record of one rank, read from outside the worker.

    ``step`` is the newest completed step, -1 before the first. ``reported`` is False when the number
    is only a count of optimizer steps of this generation (script without the library's API).
    ``age_s``: seconds since that step was completed, by the node's monotonic clock; before the first
    step since the launch. ``phase`` is what the rank does between steps (:mod:`slurm_robust.model.pace`),
    "" for nothing of that kind; ``phase_s``: seconds since it began or, with no phase, since the last one
    ended (infinite: there was none). ``bad_step``: the first step of this generation with a loss that is no
    finite number, -1: none.
    """

    rank: int
    step: int
    reported: bool
    age_s: float
    loss: float | None = None
    grad_norm: float | None = None
    checkpoint: int = -1  # newest step whose part this rank has published in this generation
    restored_s: float | None = None  # seconds from fork until restore() had the state, None before
    phase: str = ""
    phase_s: float = math.inf
    bad_step: int = -1

    @property
    def is_finite(self) -> bool:
        """Whether the loss is a number, as far as it is told. (Single gradients may overflow.)"""
        return self.loss is None or math.isfinite(self.loss)

    @property
    def good(self) -> Progress:
        """The same without the steps from :attr:`bad_step` on, as old as the newest of them."""
        if self.bad_step < 0:
            return self
        return structs.replace(self, step=min(self.step, self.bad_step - 1), loss=None, grad_norm=None)

    def is_aged(self, before: Progress, seconds: float) -> bool:
        """Whether nothing was done in the ``seconds`` since ``before``."""
        aged = before.aged(seconds)
        ages = zip((self.age_s, self.phase_s), (aged.age_s, aged.phase_s), strict=True)
        if not all(math.isclose(mine, his, abs_tol=_SAME_S) for mine, his in ages):
            return False
        return structs.replace(self, age_s=aged.age_s, phase_s=aged.phase_s) == aged

    def aged(self, seconds: float) -> Progress:
        """The same, ``seconds`` later, if nothing was done meanwhile."""
        return structs.replace(self, age_s=self.age_s + seconds, phase_s=self.phase_s + seconds)


def slowest(records: Iterable[Progress]) -> Progress:
    """The rank that was the last to complete the newest step that all ranks have completed."""
    return min(records, key=lambda p: (p.step, p.age_s))
