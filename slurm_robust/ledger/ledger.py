"""The ledger: what each moment of a job's life went into, by its journal and by Slurm's accounting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from slurm_robust.ledger.account import MIN_MERGED_MS, PRODUCTIVE, SUSPENDED, Account, Kind, Span
from slurm_robust.ledger.accounting import AccountedRun, ends_of
from slurm_robust.ledger.baseline import Baseline
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.clock import corrected, ordered
from slurm_robust.model import events as ev
from slurm_robust.model import startup
from slurm_robust.model.incident import GiveUp, QuickTest, Requeue, RollBack, finds_out_more
from slurm_robust.model.progress import CHECKPOINT, EVALUATION, UPDATE, began_after
from slurm_robust.model.record import Record

NEWS_S = 30.0
"""Training of which nothing newer is known counts as going on for this long, or for three steps."""

MAX_POINTS = 3000
"""Most points of undisturbed training; incidents come on top."""

_AGAIN: Kind = (TimeClass.RECOMPUTING, "")
_PHASES: dict[str, Kind] = {
    CHECKPOINT: (TimeClass.CHECKPOINT, ""),
    EVALUATION: (TimeClass.EVALUATING, ""),
    UPDATE: (TimeClass.UPDATING, ""),
}
_START_ORDER = (
    startup.LAUNCH,
    startup.WORKER,
    startup.IMPORTS,
    startup.GROUP,
    startup.MODEL,
    startup.RESTORE,
    startup.FIRST_STEP,
)
_NEVER = -1
_STEPS = (ev.ProgressMade, ev.FirstStep)


class Ledger(Record):
    """What the time of a job was spent on. The ``spans`` add up to ``wall_ms`` and leave no gap."""

    job_id: int
    begin: float
    """The job's first moment, in seconds since 1970: when it was submitted or, if that is not known, when the
    journal begins."""
    spans: tuple[Span, ...]
    repeated: int | None
    """Steps that were done again. None after the first restart of a script that does not number its steps: as
    far as is known, it begins anew in each generation."""
    ended: bool
    """The job is over; else the ledger ends with what was known when it was made."""

    @property
    def wall_ms(self) -> int:
        """Time from the job's first moment to its end, or to now."""
        return self.spans[-1].end_ms if self.spans else 0

    @property
    def started_ms(self) -> int:
        """How long the job waited for its first start."""
        first = self.spans[0] if self.spans else None
        return first.end_ms if first is not None and first.parts[0].time is TimeClass.QUEUED else 0


def times_of(events: Sequence[ev.AnyEvent], runs: Sequence[AccountedRun] = ()) -> list[float]:
    """Return when each event was, in seconds since 1970, by one clock: :mod:`slurm_robust.ledger.clock`."""
    return ordered(events, corrected(events), ends_of(runs))


def ledger(
    events: Sequence[ev.AnyEvent],
    now: float,
    runs: Sequence[AccountedRun] = (),
    ended: bool = False,
    times: Sequence[float] | None = None,
    *,
    best: int = -1,
    not_before: float | None = None,
) -> Ledger:
    """Return the ledger of a journal until the job's end, or until ``now`` while it goes on.

    ``now``: seconds since 1970, by a clock that agrees with slurmctld's.
    ``runs``: Slurm's account, for what the journal does not have. ``ended``: Slurm says that the job is over.
    ``times``: what :func:`times_of` says, for who has asked it already.
    ``best``: the newest step that earlier jobs of its training had completed, -1 for none.
    ``not_before``: what was before that moment, in seconds since 1970, belongs to another job.
    """
    accounted = {run.run: run for run in runs}
    if not events:
        return Ledger(job_id=0, begin=now, spans=(), repeated=0, ended=ended)
    times = times_of(events, runs) if times is None else times
    begin = _begin(events, times, accounted)
    if not_before is not None:
        begin = max(begin, not_before)
    # A curve over the job's life has some thousand points, however long it is.
    merged_ms = max(MIN_MERGED_MS, round((max(times) - begin) * 1000 / MAX_POINTS))
    sweep = _Sweep(events, begin, accounted, merged_ms, best)
    order = sorted(range(len(events)), key=times.__getitem__)  # stable: equal times keep the journal's order
    for place in order:  # news of a step from before that time may be dated within it
        if isinstance(event := events[place], ev.Noted) and event.stood_still_s:
            end = sweep.ms(times[place])
            sweep.account.stand_still(end - round(event.stood_still_s * 1000), end)
    for place in order:
        sweep.take(events[place], sweep.ms(times[place]))
    known_end = accounted[max(accounted)].ended if accounted and ended else None
    sweep.finish(sweep.ms(known_end if known_end is not None else now), over=ended)
    started = next((e for e in events if isinstance(e, ev.RunStarted)), None)
    return Ledger(
        job_id=started.job_id if started else 0,
        begin=begin,
        spans=sweep.account.spans(),
        repeated=sweep.repeated,
        ended=sweep.over or ended,
    )


def _begin(
    events: Sequence[ev.AnyEvent], times: Sequence[float], accounted: Mapping[int, AccountedRun]
) -> float:
    """Return when the job was submitted; if that is unknown, when the journal begins."""
    if (first := accounted.get(0)) is not None and first.submitted is not None:
        return min(first.submitted, times[0])
    taken = next((e for e in events if isinstance(e, ev.AllocationTaken)), None)
    # The submit time of a later run is that of its requeue.
    if taken is not None and taken.submitted is not None:
        return min(taken.submitted, times[0])
    return times[0]


class _Sweep:
    """Goes once through the events, in the order of their times, with the account's pen in hand."""

    def __init__(
        self,
        events: Sequence[ev.AnyEvent],
        begin: float,
        accounted: Mapping[int, AccountedRun],
        merged_ms: int,
        best: int,
    ) -> None:
        self.account = Account(merged_ms)
        self.over = False
        self._repeated, self._generations, self._numbered = 0, 0, True
        self._begin = begin
        self._accounted = accounted
        self._starts = {e.generation: e for e in events if isinstance(e, ev.StartMeasured)}
        self._paces = _paces(events)
        self._generation_pace = (_NEVER, 0.0)
        self._sealed = _sealed(events)
        self._baseline = Baseline()
        self._good: set[str] = set()  # releases that set the baseline
        self._release = ""  # the one that an update brought, until it has set the baseline
        self._kind: Kind = (TimeClass.STARTING, "")
        self._trains = False  # the generation has made a step
        self._stopped_ms: int | None = None  # when the ranks were ordered to stop for an update
        self._updates = False  # from that order until the first step of the next generation
        self._step: int | None = None  # the newest of this generation
        self._spent: dict[str, float] = {}
        self._best = {True: best, False: _NEVER}
        self._again_until = _NEVER  # the step until which a release that was rolled back had come
        self._open: ev.IncidentOpened | None = None
        self._opened_ms = 0
        self._allocated = False
        self._lending: set[int] = set()  # companions whose nodes are part of the job

    @property
    def repeated(self) -> int | None:
        """See :class:`Ledger`."""
        return self._repeated if self._numbered or self._generations < 2 else None

    def ms(self, t: float) -> int:
        """Return ``t`` on the account's axis."""
        return round((t - self._begin) * 1000)

    def take(self, event: ev.AnyEvent, at: int) -> None:
        """Take an event: what was done until ``at`` is over, if ``event`` says so."""
        match event:
            case ev.ProgressMade() | ev.FirstStep():
                self._step_done(event, at)
            case ev.GenerationLaunched():
                self.account.write(at, self._kind)
                self._begin_generation(event.generation, event.restore_step)
            case ev.Continued(reports=True):
                self._best[True] = max(self._best[True], event.best_step, event.undone_step)
            case ev.AllocationTaken():
                self._took_allocation(event, at)
            case ev.IncidentOpened():
                self._opened(event, at)
            case ev.IncidentClosed():
                if self._open is not None and self._open.incident == event.incident:
                    self._open = None
                    if event.step >= self._again_until:
                        self._set(incident=0)
            case ev.UpdateApplied():
                self._release = event.release
                self._set_baseline(event.release)
            case ev.ReleaseProven():
                self._good.add(event.release)
                self._set_baseline(event.release)
            case ev.StopStarted() if event.update and self._open is None:
                if not self._trains:
                    self.account.write(at, self._kind)
                    self._kind = (TimeClass.UPDATING, startup.STOP)
                self._stopped_ms, self._updates = at, True
            case ev.GenerationEnded():
                self._generation_ended(event, at)
            case ev.Decided():
                self._decided(event, at)
            case ev.NodesTested() | ev.QuickTested():
                self._tested(event, at)
            case ev.RequeueStarted() | ev.RunEnded():
                self.account.write(at, (TimeClass.IDLE, "") if self._trains else self._kind)
                self._trains = self._updates = False
                self._kind = (TimeClass.REQUEUE_DELAY, "")
                if isinstance(event, ev.RequeueStarted) or not event.final:
                    self._set(nodes=0, gpus=0)
                else:
                    self.over = True
            case ev.NodeGivenBack() | ev.CompanionStarted() | ev.CompanionEnded():
                self._nodes_changed(event)

    def finish(self, now: int, *, over: bool) -> None:
        """Finish with the rest until ``now``, unless the job has ended before."""
        if self.over:
            return
        if self._trains:
            news_ms = max(NEWS_S * 1000, 3 * self._pace_ms())
            going_on = not over and now - self.account.at_ms <= news_ms
            self._kind = (TimeClass.PRODUCTIVE, "") if going_on else (TimeClass.IDLE, "no news")
        self.account.write(now, self._kind)

    # -- runs -----------------------------------------------------------------------------------------

    def _took_allocation(self, event: ev.AllocationTaken, at: int) -> None:
        known = self._known(event.restart_count)
        submitted = _first(event.submitted, known.submitted)
        eligible = _first(event.eligible, known.eligible)
        started = known.started
        if submitted is not None and event.queued_s is not None:
            started = submitted + event.queued_s
        is_first, self._allocated = not self._allocated, True
        account = self.account
        self._end_run_without_record(event.restart_count - 1, submitted)
        self._set(run=event.restart_count, nodes=0, gpus=0)
        waits: Kind = (TimeClass.QUEUED if is_first else TimeClass.REQUEUE_DELAY, "")
        if started is not None:
            if eligible is not None:
                account.write(min(self.ms(eligible), self.ms(started), at), waits)
                waits = (TimeClass.QUEUED, "")
            account.write(min(self.ms(started), at), waits)
            self._set(nodes=len(event.nodes), gpus=event.gpus)
            account.write(at, (TimeClass.STARTING, "controller"))
        else:
            account.write(at, waits)
        self._set(nodes=len(event.nodes), gpus=event.gpus)
        self._kind = (TimeClass.STARTING, startup.AGENT)
        self._trains, self._updates, self.over = False, False, False

    def _end_run_without_record(self, run: int, submitted: float | None) -> None:
        """End a run that died with its controller when Slurm says so, or when it was queued again."""
        end = _first(self._known(run).ended, submitted)
        if end is None or self._kind[0] is TimeClass.REQUEUE_DELAY:
            return
        if self._trains:
            self._die_unseen(self.ms(end))
        self.account.write(self.ms(end), self._kind)

    def _nodes_changed(self, event: ev.NodeGivenBack | ev.CompanionStarted | ev.CompanionEnded) -> None:
        nodes, gpus = self.account.situation.nodes, self.account.situation.gpus
        each = gpus // nodes if nodes else 0
        sign = 1 if isinstance(event, ev.CompanionStarted) else -1
        if isinstance(event, ev.CompanionEnded):
            if event.job_id not in self._lending:
                return
            self._lending.discard(event.job_id)
        elif isinstance(event, ev.CompanionStarted):
            self._lending.add(event.job_id)
        self._set(nodes=max(0, nodes + sign), gpus=max(0, gpus + sign * each))

    # -- generations ------------------------------------------------------------------------------------

    def _begin_generation(self, number: int, step: int | None) -> None:
        """Begin a generation. ``step``: it goes on from there, -1 for a fresh start, None if unknown."""
        self._set(generation=number)
        self._kind = self._start_kind(startup.LAUNCH)
        self._trains, self._step, self._spent, self.over = False, step, {}, False
        self._stopped_ms = None

    def _step_done(self, event: ev.ProgressMade | ev.FirstStep, at: int) -> None:
        account = self.account
        if event.generation > account.situation.generation:
            self._begin_generation(event.generation, None)
        if event.generation < account.situation.generation:
            # Late news of a generation that is over: its time is accounted for.
            self._best[event.reported] = max(self._best[event.reported], event.step)
            return
        late_ms = 0
        if self._stopped_ms is not None and at > self._stopped_ms:
            # The ranks of the release before made no step after that.
            at, late_ms = self._stopped_ms, at - self._stopped_ms
        if at < account.at_ms:
            return
        if self._open is not None and self._opened_ms <= at:
            self._set(incident=self._open.incident)
        elif self._again_until != _NEVER and self._step is not None and self._step >= self._again_until:
            self._again_until = _NEVER
            self._set(incident=0)
        if not self._trains:
            self._first_step(event, at)
        elif self._step is not None and event.step > self._step:
            self._steps(event, at, self._step, late_ms)

    def _first_step(self, event: ev.ProgressMade | ev.FirstStep, at: int) -> None:
        """End the start. The last part of it was the first step itself, which counts."""
        begin, length = self.account.at_ms, at - self.account.at_ms
        measured = self._starts.get(event.generation)
        times = measured.phases if measured is not None else ()
        slowest = {p.phase: max(p.nodes.values(), default=p.median_s) for p in times}
        phases = [(phase, slowest[phase]) for phase in _START_ORDER if slowest.get(phase, 0.0) > 0]
        phases = phases or [(startup.LAUNCH, 1.0)]
        total, passed = sum(seconds for _, seconds in phases), 0.0
        # Phases are measured by node, so the slowest of each add up to more than the start took.
        for phase, seconds in phases[:-1]:
            passed += seconds
            self.account.write(begin + round(length * passed / total), self._start_kind(phase))
        if event.reported and self._step == _NEVER:
            self._step = began_after(_NEVER, event.step, self._best[True])
        # Several short steps may have passed before the first one was seen.
        steps = 1 if self._step is None else max(1, event.step - self._step)
        again = min(steps, max(0, self._best[event.reported] - (event.step - steps)))
        steps_ms = min(at - self.account.at_ms, round(steps * self._pace_ms()))
        self.account.write(at - steps_ms, self._start_kind(phases[-1][0]))
        self.account.write(at - round(steps_ms * (steps - again) / steps), _AGAIN)
        self.account.write(at, PRODUCTIVE)
        self._trains, self._updates = True, False
        self._generations += 1
        self._numbered = self._numbered and event.reported
        self._repeated += again
        self._spent = event.spent
        self._reach(event)

    def _steps(self, event: ev.ProgressMade | ev.FirstStep, at: int, before: int, late_ms: int) -> None:
        """Count whole steps, after step ``before``, the newest until now.

        The ranks have been held for an update, whose time is its own, for ``late_ms`` since ``at``.
        """
        left = at - self.account.at_ms
        parts: list[tuple[Kind, int]] = []
        if event.spent != self._spent:
            for name, seconds in event.spent.items():
                ms = round((seconds - self._spent.get(name, 0.0)) * 1000)
                ms = min(left, max(0, ms - late_ms if name == UPDATE else ms))
                left -= ms
                parts.append((_PHASES.get(name) or (TimeClass.OTHER_PHASE, name), ms))
            self._spent = event.spent
        count = event.step - before
        still = min(left, self.account.stood_still_ms(at))
        suspended = min(still, left - round(count * (self._baseline.ms or self._pace_ms())))
        if 2 * suspended > still:  # else training went on, and only the controller stood still
            left -= suspended
            parts.append((SUSPENDED, suspended))
            self._set(incident=0)
        excess_ms = self._baseline.excess_ms(left, count)
        best = self._best[event.reported]
        if best > before:
            repeated = min(event.step, best) - before
            self._repeated += repeated
            parts.append((_AGAIN, round(left * repeated / count)))
            excess_ms *= 1 - repeated / count
        if excess_ms:
            parts.append(((TimeClass.SLOW, ""), round(excess_ms)))
        self.account.train(at, parts)
        self._reach(event)

    def _reach(self, event: ev.ProgressMade | ev.FirstStep) -> None:
        self._step = step = event.step
        if step > self._best[event.reported]:
            self._best[event.reported] = step
        if step > self.account.step:
            self.account.step = step

    def _generation_ended(self, event: ev.GenerationEnded, at: int) -> None:
        if event.generation != self.account.situation.generation:
            return
        opened = self._open
        self._kind = (TimeClass.CHECKPOINT, "")
        if opened is not None:
            self._set(incident=opened.incident)
            self._kind = (TimeClass.DECIDING, "")
            if self._trains:
                fault = self._opened_ms - round(opened.detect_s * 1000)
                self._stop_training(min(fault, at), min(self._opened_ms, at))
        elif self._updates:
            self._kind = (TimeClass.UPDATING, startup.STOP)
            if self._trains and self._stopped_ms is not None:
                self.account.train(min(self._stopped_ms, at), ())
        elif self._trains and event.pending:
            self._die_unseen(at)
        self._trains = False
        self.account.write(at, self._kind)

    def _die_unseen(self, at: int) -> None:
        """End the generation, which has ended at ``at`` the latest; it was not seen."""
        self._stop_training(self.account.at_ms, at)

    def _stop_training(self, fault: int, seen: int) -> None:
        """Stop training, which stopped at ``fault``, noticed when it was ``seen``."""
        account = self.account
        known = self._step if self._step is not None else _NEVER
        unseen = self._sealed.get(account.situation.generation, _NEVER) - known
        if unseen > 0 and self._pace_ms() > 0:
            # A checkpoint shows that steps were done of which no controller heard.
            step = known + unseen
            again = min(max(0, min(step, self._best[True]) - known), unseen)
            until = min(max(fault, seen), account.at_ms + round(unseen * self._pace_ms()))
            account.train(until, [(_AGAIN, round((until - account.at_ms) * again / unseen))])
            self._step, self._repeated = step, self._repeated + again
            self._best[True] = max(self._best[True], step)
            account.step = max(account.step, step)
        account.write(fault, _AGAIN)
        account.write(seen, (TimeClass.DETECTING, ""))
        self._trains = False

    def _start_kind(self, phase: str) -> Kind:
        """Return what a start phase of the generation counts as."""
        if self._updates:
            return TimeClass.UPDATING, phase
        return (TimeClass.RESTORING if phase == startup.RESTORE else TimeClass.STARTING), phase

    def _set_baseline(self, release: str) -> None:
        """Learn the baseline anew from an update's release, once that is good."""
        if release == self._release and release in self._good:
            self._baseline, self._release = Baseline(), ""

    def _pace_ms(self) -> float:
        """Return what a step takes: of this generation, else of one before; 0 if nothing is known."""
        if self._generation_pace[0] != self.account.situation.generation:
            number = self.account.situation.generation
            newest = max((known for known in self._paces if known <= number), default=0)
            self._generation_pace = number, self._paces.get(newest, 0.0)
        return self._generation_pace[1]

    # -- incidents ------------------------------------------------------------------------------------

    def _opened(self, event: ev.IncidentOpened, at: int) -> None:
        self._open, self._opened_ms, self._updates = event, at, False
        self._again_until = _NEVER
        if self._trains:
            return  # it may make more steps; what was lost shows when the generation ends
        self.account.write(at - round(event.detect_s * 1000), self._kind)
        self._set(incident=event.incident)
        self.account.write(at, (TimeClass.DETECTING, ""))
        self._kind = (TimeClass.DECIDING, "")

    def _decided(self, event: ev.Decided, at: int) -> None:
        if self._trains or not event.carried_out:
            return
        self.account.write(at, self._kind)
        if any(isinstance(action, RollBack) for action in event.actions):
            self._again_until = self._best[True]
        if finds_out_more(event.actions) or any(isinstance(a, QuickTest) for a in event.actions):
            self._kind = (TimeClass.TESTING, "")
        elif any(isinstance(action, Requeue | GiveUp) for action in event.actions):
            self._kind = (TimeClass.CHECKPOINT, "")
        else:
            self._kind = (TimeClass.RECOVERING, "")

    def _tested(self, event: ev.NodesTested | ev.QuickTested, at: int) -> None:
        if self._trains:
            return
        self.account.write(at - round(event.took_s * 1000), self._kind)
        self.account.write(at, (TimeClass.TESTING, ""))
        self._kind = (TimeClass.DECIDING, "")

    def _known(self, run: int) -> AccountedRun:
        return self._accounted.get(run, AccountedRun(run=run))

    def _set(self, **changes: int) -> None:
        changed = structs.replace(self.account.situation, **changes)
        if changed != self.account.situation:
            self.account.situation = changed


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _paces(events: Sequence[ev.AnyEvent]) -> dict[int, float]:
    """Return milliseconds that each of the first steps of a generation took, if more than one is known."""
    first: dict[int, tuple[float, int]] = {}
    found: dict[int, float] = {}
    for event in events:
        if isinstance(event, ev.Noted) and event.stood_still_s:
            first.clear()  # how much of that time was training is not known
        if not isinstance(event, _STEPS) or event.generation in found:
            continue
        t, step = first.setdefault(event.generation, (event.t, event.step))
        if event.step > step and event.t > t:
            spent = sum(event.spent.values())
            found[event.generation] = max(0.0, event.t - t - spent) * 1000 / (event.step - step)
    return found


def _sealed(events: Sequence[ev.AnyEvent]) -> dict[int, int]:
    """Return the newest step of each generation of which there is proof other than a controller's word."""
    found: dict[int, int] = {}
    for event in events:
        if isinstance(event, _STEPS):  # most of a long journal
            continue
        if isinstance(event, ev.GenerationEnded | ev.GenerationSealed):
            found[event.generation] = max(found.get(event.generation, _NEVER), event.sealed_step)
            if isinstance(event, ev.GenerationEnded):
                found[event.generation] = max(found[event.generation], event.reached_step)
        elif isinstance(event, ev.GenerationLaunched) and event.restore is not None:
            made = event.restore.generation
            found[made] = max(found.get(made, _NEVER), event.restore.step)
    return found
