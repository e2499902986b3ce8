"""Medians, ranges and bootstrap intervals of small samples; the order of interleaved runs. Pure."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

RESAMPLES = 4000


@dataclass(frozen=True)
class Summary:
    """Of one quantity over n runs. ``low`` and ``high`` are the smallest and largest sample."""

    n: int
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Raises ``ValueError`` without samples."""
        if not samples:
            raise ValueError("there is no sample to sum up")
        return cls(len(samples), statistics.median(samples), min(samples), max(samples))

    def text(self, digits: int = 2) -> str:
        """``1.25 (1.10-1.42)``."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its 95 % bootstrap interval."""

    estimate: float
    low: float
    high: float


def median_ratio(pairs: Sequence[tuple[float, float]], seed: int = 0) -> Interval:
    """Median of ``with / without`` over pairs of neighbouring runs, pairs resampled.

    Paired, because the speed of a shared machine drifts far more than what is measured; the median,
    because somebody else's burst of work falls into one half of a pair only. Raises ``ValueError`` for
    fewer than two pairs or a time that is not positive.
    """
    if len(pairs) < 2 or any(value <= 0 for pair in pairs for value in pair):
        raise ValueError(f"a ratio needs two or more pairs of positive times, these are {list(pairs)}")
    ratios = [with_it / without for with_it, without in pairs]
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
    return Interval(statistics.median(ratios), low, high)


def interleaved(contenders: Sequence[T], reps: int) -> Iterator[tuple[int, T]]:
    """(repetition, contender): A B C, then B C A, then C A B, so that no one always follows the same."""
    for rep in range(reps):
        shift = rep % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            yield rep, contender


def windowed(
    ends: Sequence[float], windows: Sequence[tuple[float, float]], skip: int = 0
) -> list[list[float]]:
    """Durations of the steps that lie within each window, without its first ``skip`` whole ones.

    ``ends`` are the times at which steps ended, growing; a step begins where the one before ended.
    """
    found = []
    for begin, end in windows:
        inside = [t for t in ends if begin <= t <= end]
        found.append([later - earlier for earlier, later in itertools.pairwise(inside)][skip:])
    return found
