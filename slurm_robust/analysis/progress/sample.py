"""A sample of all ranks' step records, reduced to what shows progress. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_robust.model.progress import Progress
from slurm_robust.model.record import Record


class Sample(Record):
    """The records at ``now`` (monotonic seconds of the reader).

    ``records`` are those of ranks that show progress: all that report steps or, if none does, those that
    count optimizer steps, or all if none does that either (``speaks`` is False). ``step`` is the newest,
    completed by the first rank ``at``. ``still_s``: since any rank completed a step, or began or ended a
    phase. ``phases`` that ranks are in, each since its first rank entered; ``phase_ended_s``: since the last
    one ended. ``in_phases`` are the ranks that are in one, ``silent`` those that report nothing while others
    do.
    """

    now: float
    records: tuple[Progress, ...]
    speaks: bool
    reported: bool
    step: int
    at: float
    still_s: float
    phases: dict[str, float] = {}
    phase_ended_s: float = math.inf
    in_phases: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Progress], now: float) -> Sample:
        """``records`` are not empty and as old as they are ``now``."""
        reporting = tuple(r for r in records if r.reported)
        telling = reporting or tuple(r for r in records if r.step >= 0)
        speaking = telling or tuple(records)
        front = max(speaking, key=lambda r: (r.step, r.age_s))
        phases: dict[str, float] = {}
        for record in records:
            if record.phase:
                phases[record.phase] = max(record.phase_s, phases.get(record.phase, 0.0))
        return cls(
            now=now,
            records=speaking,
            speaks=bool(telling),
            reported=bool(reporting),
            step=front.step,
            at=now - front.age_s,
            still_s=min(min(r.age_s for r in speaking), min(r.phase_s for r in records)),
            phases=phases,
            phase_ended_s=min((r.phase_s for r in records if not r.phase), default=math.inf),
            in_phases=tuple(r.rank for r in records if r.phase),
            silent=tuple(r.rank for r in records if not r.reported) if reporting else (),
        )

    @property
    def is_first(self) -> bool:
        """Whether a rank that will make steps has made none yet."""
        return any(r.step < 0 for r in self.records)

    @property
    def is_in_phase(self) -> bool:
        """Whether the newest step was completed while a rank was in a phase that still goes on."""
        return any(since_s > self.now - self.at for since_s in self.phases.values())

    @property
    def resumed_at(self) -> float:
        """When the last phase ended; infinitely long ago if there was none."""
        return self.now - self.phase_ended_s

    @property
    def behind(self) -> tuple[int, ...]:
        """Ranks that the others wait for: those in a phase, or not as far; none if all are equal."""
        if self.in_phases and len(self.in_phases) < len(self.records):
            return self.in_phases
        if self.is_first and 0 < len(self.silent) < len(self.records):
            return self.silent
        least = min(r.step for r in self.records)
        found = tuple(r.rank for r in self.records if r.step == least)
        return found if len(found) < len(self.records) else ()

    def left_behind(self, seconds: float) -> tuple[int, ...]:
        """Ranks without a step for longer than ``seconds``, while others go on and none is in a phase."""
        if self.phases or self.phase_ended_s <= seconds or self.still_s > seconds:
            return ()
        return tuple(r.rank for r in self.records if 0 <= r.step < self.step and r.age_s > seconds)
