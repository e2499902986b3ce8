"""What the samples of the checkpoint benchmark say: blocking per step, and whether an aim is met. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.samples import Summary

DrainLock = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Blocking:
    """Seconds by which one checkpoint makes a step longer, in one process.

    ``every``: when each step takes one, so that a step may also wait for the checkpoint before. ``alone``:
    when nothing of an earlier one goes on. ``called``: in the call that takes it and before the optimizer's
    update, so without what the background takes from forward and backward. ``plain``: a step without.
    """

    every: float
    alone: float
    called: float
    plain: float

    @classmethod
    def of(cls, with_it: Sequence[DrainLock], without: Sequence[DrainLock]) -> Blocking:
        """From the turns of one process. Raises ``ValueError`` for turns of fewer than two steps."""
        if not with_it or not without or any(len(turn) < 2 for turn in with_it):
            raise ValueError("turns of two or more steps are needed, with checkpoints and without")
        plain = _median(step["step"] for turn in without for step in turn)
        update = _median(step["update"] for turn in without for step in turn)
        later = [step for turn in with_it for step in turn[1:]]
        return cls(
            every=_median(s["step"] for s in later) - plain,
            alone=_median(turn[0]["step"] for turn in with_it) - plain,
            called=_median(s["save"] + s["update"] for s in later) - update,
            plain=plain,
        )


@dataclass(frozen=True)
class Aim:
    """A figure beside its limit: at most ``limit``, or at least with ``at_least``."""

    what: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def text(self) -> str:
        """One line of the report."""
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if self.met else "MISSED"
        return f"{self.what}: {self.measured:.2f} {self.unit} (aim {sign} {self.limit:g}): {verdict}"


def summaries(runs: Sequence[Blocking]) -> dict[str, Summary]:
    """Each quantity over the processes that measured it."""
    return {
        name: Summary.of([getattr(r, name) for r in runs]) for name in ("every", "alone", "called", "plain")
    }


def rates(nbytes: int, seconds: Sequence[float]) -> Summary:
    """MB (10^6 bytes) per second."""
    return Summary.of([nbytes / s / 1e6 for s in seconds])


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)
