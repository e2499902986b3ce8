"""Whether training hangs or slows down, by its own pace. Pure; docs/detection.md explains the rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import structs

from slurm_robust.analysis.progress import bounds
from slurm_robust.analysis.progress.bounds import FEW_STEPS, MANY_STEPS, Bound, StepTimes, span
from slurm_robust.analysis.progress.slowdown import Reminder, Slowdown
from slurm_robust.config.job import DetectConfig
from slurm_robust.model.incident import Symptom
from slurm_robust.model.progress import PaceHistory, Progress
from slurm_robust.model.record import Record

ALONE_FACTOR = 4.0
"""One rank may be still for this many bounds while others go on: ranks that wait for each other cannot."""

MAX_PHASES = 16
"""The times of this many names are learned; a script may make up a new one each time."""

CALM_S = 6 * 3600.0
"""After so long without a hang those before are forgotten."""

_NEWS_FACTOR = 1.25


class _Sample(Record):
    """The step records of all ranks at one moment, reduced to what shows progress."""

    now: float
    """Monotonic seconds of the reader."""
    records: tuple[Progress, ...]
    """The ranks that show progress: all that report steps or, if none does, those that count optimizer steps,
    or all if none does that either.
    """
    speaks: bool
    """False if none does either."""
    reported: bool
    step: int
    """The newest."""
    at: float
    """When the first rank completed ``step``."""
    still_s: float
    """Since any rank completed a step, or began or ended a phase."""
    phases: dict[str, float] = {}
    """Phases that ranks are in, each since its first rank entered."""
    phase_ended_s: float = math.inf
    """Since the last one ended."""
    in_phases: tuple[int, ...] = ()
    """Ranks that are in one."""
    silent: tuple[int, ...] = ()
    """Ranks that report nothing while others do."""

    @classmethod
    def of(cls, records: Sequence[Progress], now: float) -> _Sample:
        """Sample ``records``, which are not empty and as old as they are ``now``."""
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
        """Return ranks without a step for over ``seconds``, while others go on and none is in a phase."""
        if self.phases or self.phase_ended_s <= seconds or self.still_s > seconds:
            return ()
        return tuple(r.rank for r in self.records if 0 <= r.step < self.step and r.age_s > seconds)


class PaceVerdict(Record):
    """Training hangs or is slow; given once for each time that it does.

    For a slowdown it is given again while it goes on (:class:`.slowdown.Reminder`).
    """

    symptom: Symptom
    """A hang, or a slowdown."""
    text: str
    """What is wrong; the ranks and the limit are beside it."""
    ranks: tuple[int, ...]
    """Behind the others; none if all are equal."""
    since_s: float
    """Since the last step, or since the phase began (hang), or over how long it was measured (slow)."""
    bound_s: float
    """The seconds that are allowed, per step (slow)."""
    why: str
    """How ``bound_s`` was derived."""
    times: int = 1
    """How often this slowdown has been reported by now."""


class PaceWatch:
    """Follows the step records of one generation; ``past`` is what :attr:`history` was before it.

    Times are monotonic seconds of one clock, given by the caller.
    """

    def __init__(self, config: DetectConfig, past: PaceHistory, resumed: int = -1) -> None:
        """Take ``resumed``, the step of the checkpoint that this generation began with, -1 for none."""
        self._resumed = resumed
        self._config = config
        self._known = past  # with what was learned of seldom things since
        self._times = StepTimes()
        self._slowdown = Slowdown(config.slow_factor, past)
        self._sample: _Sample | None = None
        self._launched = 0.0
        self._first_step_s = 0.0  # the longest part of it without a phase
        self._resumed_at = -math.inf  # when the last phase ended
        self._still_s = 0.0  # the longest that was seen without a step or a phase, since the newest step
        self._phase_seen = False  # since the newest step
        self._open: dict[str, float] = {}  # phases that go on, with the longest time seen
        self._reported_s: float | None = None  # the bound of the hang that was reported and goes on
        self._calm_since = math.inf
        self._reported_alone = False
        self._reminder = Reminder(config.slow_factor)
        self._held_until = -math.inf  # no step that began before is measured
        self._sure = past  # what was known before the last hang put it into doubt

    def see(self, records: Sequence[Progress], now: float) -> None:
        """See the records of all ranks that are alive, their ages counted until ``now``.

        Ranks that have ended are left out, because nothing is expected of them any more.
        """
        if not records:
            return
        sample, before = _Sample.of(records, now), self._sample
        self._calm_since = min(self._calm_since, now)
        self._learn_phases(sample)
        if before is not None and before.is_first:
            self._measure_first(sample, before)
        if before is None or sample.reported != before.reported or sample.step < before.step:
            self._await_step(sample)
        elif sample.step > before.step:
            self._measure(sample, before)
            self._await_step(sample)
        else:
            # The first rank to report a step may not be the first that has completed it.
            sample = structs.replace(sample, at=min(sample.at, before.at))
        if sample.phases:
            self._phase_seen = True
        else:
            self._still_s = max(self._still_s, sample.still_s)
        self._resumed_at = max(self._resumed_at, sample.resumed_at)
        self._sample = sample

    def hold_up(self, now: float) -> None:
        """Note that training was held up from outside until ``now``: how long the step took says nothing."""
        self._held_until = now

    @property
    def moved_at(self) -> float:
        """When a rank last completed a step, or began or ended a phase; infinitely long ago if unknown."""
        return -math.inf if self._sample is None else self._sample.now - self._sample.still_s

    def verdict(self, now: float, held_s: float = 0.0) -> PaceVerdict | None:
        """Return what is wrong; None if nothing is, or if it was reported already.

        ``held_s``: since it last moved, training was held up for so long, which is no part of a hang.
        """
        if self._sample is None:
            return None
        return self._hang(self._sample, now, held_s) or self._alone(self._sample) or self._slow(now)

    def bound(self, now: float) -> tuple[float, str]:
        """Return how many seconds without a step are allowed at present (infinite: any), and why."""
        found = self._bound(self._sample)
        return found.seconds, found.why

    @property
    def history(self) -> PaceHistory:
        """What the next watch of this job should know; a verdict changes it, too.

        A change of the script that makes steps longer on purpose calls for an empty one.
        """
        own, known = self._times, self._known
        is_young = own.steps < FEW_STEPS <= known.steps
        p99 = known.p99_s if is_young else own.quantile(0.99)
        return structs.replace(
            known,
            steps=known.steps + own.steps,
            p50_s=self._slowdown.typical_s or known.p50_s,
            p99_s=p99 if own.steps >= MANY_STEPS else max(p99, known.p99_s),
            longest_s=max(own.longest, known.longest_s),
        )

    @property
    def undoubted(self) -> PaceHistory:
        """:attr:`history` as it was before the last hang: that one was none of the script's own doing."""
        return structs.replace(
            self.history,
            phases=self._sure.phases,
            first_step_s=self._sure.first_step_s,
            doubts=0,
            hung_after=-1,
        )

    # -- what is learned ----------------------------------------------------------------------------

    def _await_step(self, sample: _Sample) -> None:
        if sample.step < 0:
            self._launched = sample.at
        self._still_s, self._phase_seen = 0.0, False
        if sample.step > self._known.hung_after >= 0:
            self._learn(hung_after=-1)
        if self._known.doubts and sample.now - self._calm_since > CALM_S:
            self._learn(doubts=0)

    def _measure_first(self, sample: _Sample, before: _Sample) -> None:
        if self._launched < self._held_until:
            return
        stretch = self._stretch(sample, self._launched) if before.step < 0 <= sample.step else None
        self._first_step_s = max(self._first_step_s, self._still_s, stretch[0] if stretch else 0.0)
        if not sample.is_first:
            self._learn(first_step_s=max(self._first_step_s, self._known.first_step_s))

    def _measure(self, sample: _Sample, before: _Sample) -> None:
        stretch, steps = self._stretch(sample, before.at), sample.step - before.step
        if stretch is None or before.is_first or before.at < self._held_until:
            return
        seconds, is_whole = stretch
        # For several steps the mean is known, and for how long nothing was seen to move.
        longest = max(seconds / steps, self._still_s) if is_whole else seconds
        usual = bounds.usual(self._config, self._times, self._known).seconds
        hung_here = before.step == self._known.hung_after
        if longest > usual and (hung_here or self._times.steps >= FEW_STEPS):
            self._learn(pause_s=max(longest, self._known.pause_s), doubts=0)
            return
        self._times.add(longest, steps)
        if is_whole and self._times.steps > FEW_STEPS:
            self._slowdown.add(seconds, steps)

    def _stretch(self, sample: _Sample, begin: float) -> tuple[float, bool] | None:
        """Return the seconds from ``begin``, or the end of a phase after it, to the newest step; and whether
        from ``begin``.

        None if a phase hides how long it was.
        """
        resumed_at = sample.resumed_at if sample.resumed_at <= sample.at else self._resumed_at
        if sample.is_in_phase:
            return None
        if begin < resumed_at <= sample.at:
            return sample.at - resumed_at, False
        # A late heartbeat makes its step seem younger than it is, so the next may seem to be before it.
        return None if self._phase_seen else (max(0.0, sample.at - begin), True)

    def _learn_phases(self, sample: _Sample) -> None:
        """Learn from phases that are over, because all ranks have left them."""
        for name, seconds in sample.phases.items():
            self._open[name] = max(seconds, self._open.get(name, 0.0))
        for name in [name for name in self._open if name not in sample.phases]:
            longest, known = self._open.pop(name), self._known.phases
            if name in known or (len(known) < MAX_PHASES and name not in bounds.UNLEARNED):
                self._learn(phases={**known, name: max(longest, known.get(name, 0.0))})

    def _learn(self, **changes: object) -> None:
        self._known = structs.replace(self._known, **changes)

    # -- what follows from it -----------------------------------------------------------------------

    def _bound(self, sample: _Sample | None) -> Bound:
        if not self._config.hang:
            return bounds.OFF
        if sample is None or not (sample.speaks or self._known.steps or self._known.first_step_s):
            return bounds.SILENT
        if sample.phases:
            return bounds.in_phases(self._config, sample.phases, self._known.phases)
        if sample.is_first:
            hung_here = self._resumed == self._known.hung_after >= 0
            return bounds.first_step(self._config, self._known.first_step_s, hung_here=hung_here)
        hung_here = sample.step == self._known.hung_after
        return bounds.between_steps(self._config, self._times, self._known, hung_here=hung_here)

    def _hang(self, sample: _Sample, now: float, held_s: float) -> PaceVerdict | None:
        still_s = sample.still_s + now - sample.now - held_s
        if self._reported_s is not None and still_s > self._reported_s:
            return None
        bound = self._bound(sample)
        self._reported_s = bound.seconds if still_s > bound.seconds else None
        if self._reported_s is None:
            return None
        self._doubt(sample)
        return _hang(sample, sample.behind, still_s, bound, self.history.p50_s)

    def _doubt(self, sample: _Sample) -> None:
        """Doubt what was learned: if it is too short here, no hang may come of it a second time."""
        self._sure = self._known
        if sample.phases:
            kept = {
                name: longest for name, longest in self._known.phases.items() if name not in sample.phases
            }
            self._learn(phases=kept)
        elif sample.is_first:
            self._learn(first_step_s=0.0)
        else:
            self._learn(hung_after=sample.step, doubts=self._known.doubts + 1)
            self._calm_since = sample.now

    def _alone(self, sample: _Sample) -> PaceVerdict | None:
        """Return the verdict if some ranks are still while others go on, so that none waits for another."""
        bound = self._bound(sample)
        allowed = Bound(
            seconds=ALONE_FACTOR * bound.seconds,
            why=f"{ALONE_FACTOR:g} times the bound, since others go on; the bound is {bound.why}",
        )
        ranks = sample.left_behind(allowed.seconds)
        was_reported, self._reported_alone = self._reported_alone, bool(ranks)
        if was_reported or not ranks:
            return None
        since_s = max(r.age_s for r in sample.records if r.rank == ranks[0])
        return _hang(sample, ranks, since_s, allowed, self.history.p50_s)

    def _slow(self, now: float) -> PaceVerdict | None:
        if not self._slowdown.is_slow:
            self._reminder.forget()
            return None
        recent, reference = self._slowdown.recent_s, self._slowdown.reference_s
        if not self._reminder.is_due(recent, now):
            return None
        why = f"{self._config.slow_factor:g} x {span(reference)}, the training's own median"
        return PaceVerdict(
            symptom=Symptom.SLOW,
            text=f"steps take {span(recent)} (usual {span(reference)})",
            ranks=(),
            since_s=self._slowdown.measured_s,
            bound_s=self._slowdown.limit_s,
            why=why,
            times=self._reminder.times,
        )


def is_news(before: PaceHistory, after: PaceHistory) -> bool:
    """Return whether the change is worth a line in the journal: over a quarter, or a new figure."""
    if before.hung_after != after.hung_after or before.phases.keys() != after.phases.keys():
        return True
    names = ("steps", "p50_s", "p99_s", "longest_s", "first_step_s", "pause_s", "doubts")
    pairs = [(getattr(before, name), getattr(after, name)) for name in names]
    pairs += [(before.phases[name], after.phases[name]) for name in after.phases]
    return any(max(pair) > _NEWS_FACTOR * min(pair) for pair in pairs)


def _hang(
    sample: _Sample, ranks: tuple[int, ...], since_s: float, bound: Bound, usual_s: float
) -> PaceVerdict:
    if sample.phases:
        what, at = f"phase {', '.join(sample.phases)} goes on", ""
    elif sample.is_first:
        what, at = "no first step", ""
    else:
        what, at = "no step", f" since step {min(r.step for r in sample.records)}"
        at += f" (usual {span(usual_s)})" if usual_s else ""
    text = f"{what} for {span(since_s)}{at}"
    return PaceVerdict(
        symptom=Symptom.HANG, text=text, ranks=ranks, since_s=since_s, bound_s=bound.seconds, why=bound.why
    )
