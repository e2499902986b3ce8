"""A training as a controller sees it: by heartbeats of each node, a second apart, sampled more often."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slurm_robust.analysis.progress.pace import PaceVerdict, PaceWatch
from slurm_robust.config.job import DetectConfig
from slurm_robust.model.progress import PaceHistory, Progress

BEAT_S = 1.0
LOOK_S = 0.25


@dataclass
class Rank:
    """``done`` are the times at which its steps were completed, the launch is at 0."""

    done: list[float]
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    first: int = 0  # number of the first step
    reported: bool = True

    def progress(self, rank: int, at: float) -> Progress:
        count = bisect.bisect_right(self.done, at)
        phase, phase_s = "", math.inf
        for name, begin, end in self.phases:
            if begin <= at < end:
                phase, phase_s = name, at - begin
            elif end <= at:
                phase, phase_s = "", at - end
        return Progress(
            rank=rank,
            step=self.first + count - 1 if count else -1,
            reported=self.reported,
            age_s=at - (self.done[count - 1] if count else 0.0),
            phase=phase,
            phase_s=phase_s,
        )


def times(steps: Sequence[float], begin: float = 5.0) -> list[float]:
    """When steps that take ``steps`` seconds each are completed, the first one at ``begin``."""
    found = [begin]
    for step in steps:
        found.append(found[-1] + step)
    return found


class Training:
    """Plays ranks, one per node, to a watch. ``until`` may be asked for again, later."""

    def __init__(
        self, ranks: list[Rank], config: DetectConfig | None = None, past: PaceHistory | None = None
    ) -> None:
        self.ranks = ranks
        self.watch = PaceWatch(config or DetectConfig(), past or PaceHistory())
        self.now = 0.0

    def records(self, now: float) -> list[Progress]:
        found = []
        for rank, source in enumerate(self.ranks):
            offset = BEAT_S * rank / len(self.ranks)
            heartbeat = max(0.0, math.floor((now - offset) / BEAT_S) * BEAT_S + offset)
            found.append(source.progress(rank, heartbeat).aged(now - heartbeat))
        return found

    def until(self, end: float) -> Iterator[PaceVerdict]:
        """Verdicts until ``end``, as they come; ``now`` is the time of the newest sample."""
        while self.now < end:
            self.now += LOOK_S
            self.watch.see(self.records(self.now), self.now)
            found = self.watch.verdict(self.now)
            if found is not None:
                yield found

    def verdicts(self, end: float) -> list[PaceVerdict]:
        return list(self.until(end))

    def first_verdict(self, end: float) -> PaceVerdict:
        return next(self.until(end))


def steady(step_s: float, steps: int, begin: float = 5.0, **options: object) -> Rank:
    """A rank with ``steps`` equal steps, the first completed at ``begin``."""
    return Rank(times([step_s] * (steps - 1), begin), **options)  # type: ignore[arg-type]
