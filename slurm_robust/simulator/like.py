"""A spec that plays a real job again: its faults as they happened, with its own times. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.home import page
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.incident import Blame, GiveUp, Requeue, RollBack
from slurm_robust.model.progress import CHECKPOINT, UPDATE
from slurm_robust.model.record import Record
from slurm_robust.model.startup import RESTORE
from slurm_robust.simulator.happened import GO_ON, JobPast, PastFailure
from slurm_robust.simulator.spec import (
    FaultOf,
    FaultSource,
    Owner,
    Phases,
    SimulatedCheckpoints,
    SimulatedCluster,
    SimulatedDiagnostics,
    SimulatedJob,
    Spec,
)
from slurm_robust.simulator.spread import text_of
from slurm_robust.util.text import count

LONGER = {True: 10.0, False: 1.05}
"""How many times as long as it took a job is watched that did all of its steps, as other settings may be
slower, and one that gave up, as it may do so a little later."""

NEVER = 10**12
"""The interval in steps of checkpoints that a job does not write."""

MIN_S = 1e-3
"""No step and no restore takes less."""

_OWN = frozenset({RESTORE, UPDATE})  # what spent names that belongs to starts
_LATEST = 0.95  # of a step that is cut off
_TESTED = (5, 8)  # rungs on which a test has named the node


class NothingToReplay(SrobustError):
    """The journal has nothing from which other settings could be judged."""

    exit_code = ExitCode.NO_INPUT


class Reality(Record):
    """What became of the job in reality, by its ledger."""

    job_id: int
    ettr: float
    hours: float
    """Since its first start."""
    incidents: int
    evicted: int
    requeues: int
    """For a fault."""
    gpu_hours: float
    """Lost in all."""
    is_done: bool
    """It did all of its steps."""


class Likeness(Record):
    """A job as a spec, beside what it was in reality."""

    spec: Spec
    real: Reality
    assumed: tuple[str, ...]
    """What the journal does not say, and what is taken in its place."""
    left_out: tuple[str, ...]
    """What happened and is not played again."""


def like(events: Sequence[ev.AnyEvent], config: JobConfig | None, breaks_off: int = 0) -> Likeness:
    """Return the spec of a job.

    ``config``: its settings, None if they are not known. ``breaks_off``: the line of the journal that is
    torn, 0 for none. Raises :class:`NothingToReplay`.
    """
    past = JobPast(events)
    _check(past)
    pace = _Pace(past)
    faults = tuple(_sources(past, pace))
    if not faults and not past.preempted and not past.lost:
        raise NothingToReplay(
            "no incident of this job stopped training: there is nothing to learn from it",
            fix="name another job ('srobust incidents JOB' lists what happened), or simulate a spec",
        )
    summary, wall_s, settings = past.summary, past.books.wall_ms / 1000, config or JobConfig()
    if summary.repeated is None:  # as the ledger has it, the script begins anew each time
        none = structs.replace(settings.checkpoint, memory=False, every_steps=NEVER)
        settings = structs.replace(settings, checkpoint=none)
    spec = Spec(
        name=f"job {past.books.job_id}",
        job=_job(past, pace, settings),
        time=_time(wall_s * (LONGER[past.is_done] if past.is_over else 1.0)),
        steps=summary.steps if past.is_done else 0,
        seeds=20,
        cluster=_cluster(past, pace, faults),
        phases=_phases(past, pace),
        checkpoints=_checkpoints(past, pace),
        diagnostics=_diagnostics(past),
        owner=Owner(updates_after=tuple(_time(pace.after_s(t)) for t in past.updated)),
        faults=faults,
        policy=settings,
    )
    return Likeness(
        spec=spec,
        real=_reality(past, events),
        assumed=tuple(_assumed(spec, past, config)),
        left_out=(*_left_out(past), *_torn(breaks_off)),
    )


def _check(past: JobPast) -> None:
    if not past.took.starts:
        raise NothingToReplay(
            "training never began in this job: there is nothing to play again",
            fix=f"name a job that has made steps, or simulate a spec ({page('simulator.md')})",
        )
    if not past.opened:
        raise NothingToReplay(
            "nothing went wrong in this job: there is nothing to learn from it",
            fix="name a job with incidents ('srobust incidents JOB' lists them), or simulate a spec",
        )


def _reality(past: JobPast, events: Sequence[ev.AnyEvent]) -> Reality:
    decided = [event for event in events if isinstance(event, ev.Decided) and event.carried_out]
    actions = Counter(type(action) for event in decided for action in event.actions)
    return Reality(
        job_id=past.books.job_id,
        ettr=past.summary.ettr,
        hours=(past.books.wall_ms - past.books.started_ms) / 3.6e6,
        incidents=len(past.summary.incidents),
        evicted=sum(isinstance(event, ev.NodeEvicted) for event in events),
        requeues=actions[Requeue],
        gpu_hours=past.summary.lost.gpu_hours,
        is_done=past.is_done,
    )


def _assumed(spec: Spec, past: JobPast, config: JobConfig | None) -> Iterator[str]:
    if config is None:
        yield "the default settings, as plan.json cannot be read"
    if not past.took.repairs:
        yield f"repair={spec.cluster.repair}"
    yield f"free={spec.cluster.free}"
    if not past.took.requeues:
        yield f"requeue={spec.cluster.requeue}"
    if not past.took.writes and not past.is_over:
        yield f"write={spec.checkpoints.write}"
    yield f"resubmit={spec.owner.resubmit}"


def _torn(line: int) -> Iterator[str]:
    if line:
        yield f"what follows line {line} of the journal, which breaks off there"


def _left_out(past: JobPast) -> Iterator[str]:
    if past.passed:
        yield f"{count(past.passed, 'incident')} after which training went on by itself"
    if past.summary.repeated is None:
        yield "checkpoints of its own, as the script does not report its steps"
    if past.takeovers:
        yield f"{count(past.takeovers, 'takeover')} of the controller"
    if past.refused:
        yield f"{count(past.refused, 'refusal')} to lend a node"
    if suspended := past.summary.classes.get(TimeClass.SUSPENDED):
        yield f"{suspended / 1000:.0f} s for which the job was suspended"


def _time(t: float) -> str:
    return f"{max(0.0, t):.3f} s"


# -- faults ----------------------------------------------------------------------------------------------


class _Pace:
    """Turns the time that the job had trained into that of the replay, whose steps all take as long."""

    def __init__(self, past: JobPast) -> None:
        self._past = past
        slows = any(failure.kind is FaultOf.SLOW for failure in past.failures)
        counted = (TimeClass.PRODUCTIVE,) if slows else (TimeClass.PRODUCTIVE, TimeClass.SLOW)
        took_s = sum(past.summary.classes.get(one, 0) for one in counted) / 1000
        self.step_s = max(MIN_S, took_s / max(1, past.summary.steps))
        """Without what slow nodes cost that are played again."""
        self.checkpoint_s = self._of_each_step(lambda name: name == CHECKPOINT)
        self.between_s = self._of_each_step(lambda name: name != CHECKPOINT and name not in _OWN)

    def _of_each_step(self, is_meant: Callable[[str], bool]) -> float:
        past = self._past
        found = [s for spent in past.spent.values() for name, s in spent.items() if is_meant(name)]
        return sum(found) / max(1, past.summary.steps + (past.summary.repeated or 0))

    def over_s(self, generations: int) -> float:
        """Return the training time of the replay until the first ``generations`` are over.

        It makes as many steps as they did, and is cut off within the next one.
        """
        pace_s = self.step_s + self.checkpoint_s + self.between_s
        return sum(
            steps * pace_s + min(max(took_s - steps * pace_s, MIN_S), _LATEST * pace_s)
            for took_s, steps in self._past.trained[:generations]
        )

    def after_s(self, trained_s: float) -> float:
        """Return for how long the replay has trained when the job had for ``trained_s``."""
        for number, (took_s, _) in enumerate(self._past.trained):
            if took_s > 0 and trained_s <= took_s:
                before_s, then_s = self.over_s(number), self.over_s(number + 1)
                return before_s + max(0.0, trained_s) / took_s * (then_s - before_s)
            trained_s -= took_s
        return self.over_s(len(self._past.trained)) + max(0.0, trained_s)


def _sources(past: JobPast, pace: _Pace) -> Iterator[FaultSource]:
    """Yield the faults; of one that came again, only the last persists: the others are there."""
    for trained_s, slot, kind in past.standbys_lost:
        yield FaultSource(kind=kind, after=_time(pace.after_s(trained_s)), slots=(slot,))
    nproc = past.run.nproc_per_node if past.run is not None else 1
    found = [_source(failure, pace, nproc) for failure in past.failures]
    last = {one.same: place for place, one in enumerate(found) if one.same}
    for place, one in enumerate(found):
        came_again = one.same and last[one.same] != place
        yield structs.replace(one, persists=0.0, code_persists=0.0) if came_again else one


def _source(failure: PastFailure, pace: _Pace, nproc_per_node: int) -> FaultSource:
    kind, verdict, suspects = failure.kind, failure.verdict, failure.suspects
    rung, blame = (verdict.rung, verdict.blame) if verdict is not None else (0, Blame.NOBODY)
    placed = failure.placed(nproc_per_node)
    struck = suspects or placed[:1] or [failure.first]
    if kind not in (FaultOf.NODE, FaultOf.GPU):
        struck = struck[:1]
    same = f"{', '.join(struck)} in run {failure.run}" if suspects else ""
    if verdict is not None and blame is Blame.CODE:
        same = str(verdict.signature)
    detect_s = failure.stop_t - failure.t
    after_s = pace.over_s(failure.over) - (detect_s if kind in GO_ON and not failure.starting else 0.0)
    return FaultSource(
        kind=kind,
        after=_time(after_s),
        starting=failure.starting,
        slots=tuple(failure.slots.index(node) for node in struck if node in failure.slots),
        same=same,
        at_node=float(bool(suspects)),
        named=float(rung in (1, 2)),
        placed=float(bool(placed)),
        persists=float(rung in _TESTED),
        code_persists=float(any(isinstance(action, GiveUp | RollBack) for action in failure.actions)),
        fixed_by_rollback=float(any(isinstance(action, RollBack) for action in failure.actions)),
        detect=_time(detect_s),
        lasts=_time(detect_s),
    )


# -- the job and what is around it -----------------------------------------------------------------------


def _job(past: JobPast, pace: _Pace, settings: JobConfig) -> SimulatedJob:
    first, parallel = past.taken[0], settings.parallel
    each = past.run.nproc_per_node if past.run is not None else 1
    return SimulatedJob(
        nodes=len(first.slots),
        spares=len(first.spares),
        gpus_per_node=first.gpus // len(first.nodes) if first.nodes else 0,
        step=f"{pace.step_s:.6f} s",
        between=f"{pace.between_s:.6f} s",
        layout="pipeline" if parallel.pp > 1 else "data",
        group=max(1, parallel.pp * parallel.tp * parallel.cp // each),
    )


def _cluster(past: JobPast, pace: _Pace, faults: Sequence[FaultSource]) -> SimulatedCluster:
    usual, took = SimulatedCluster(), past.took
    first, *later = past.taken
    others = {*past.nodes, *(node for one in later for node in one.nodes)} - {*first.nodes, *past.lent}
    broken = sum(one.kind in (FaultOf.NODE, FaultOf.GPU) for one in faults)
    return structs.replace(
        usual,
        shared_spares=len(past.lent),
        free=len(others) + broken,
        repair=text_of(took.repairs) if took.repairs else usual.repair,
        requeue=text_of(took.requeues) if took.requeues else usual.requeue,
        lend=text_of(took.lends) if took.lends else usual.lend,
        queue=text_of([past.books.started_ms / 1000]),
        preempted_after=tuple(_time(pace.after_s(t)) for t in past.preempted),
        lost_after=tuple(_time(pace.after_s(t)) for t in past.lost),
    )


def _phases(past: JobPast, pace: _Pace) -> Phases:
    usual, took = Phases(), past.took
    restored = [s for found in took.restores.values() for s in found]
    rest_s = pace.step_s + (fmean(restored) if restored else 0.0)
    first_s = fmean(took.starts)
    return Phases(
        decide=text_of(took.decides) if took.decides else usual.decide,
        stop=text_of(took.stops) if took.stops else usual.stop,
        agents=text_of(took.agents) if took.agents else usual.agents,
        start=text_of([max(0.0, s - rest_s) for s in took.starts]),
        start_per_1000_nodes="0 s",
        first_start=text_of([max(0.0, s - first_s) for s in took.first_starts]),
        first_start_per_1000_nodes="0 s",
        update=text_of(took.updates) if took.updates else usual.update,
    )


def _checkpoints(past: JobPast, pace: _Pace) -> SimulatedCheckpoints:
    took = past.took

    def restore_s(*tiers: Tier, otherwise: Iterable[float] = ()) -> float:
        known = [s for tier in tiers for s in took.restores.get(tier, ())]
        return max(MIN_S, fmean(known or [*otherwise] or [MIN_S]))

    memory_s = restore_s(Tier.MEMORY, otherwise=took.restores.get(Tier.PEER, ()))
    storage_s = restore_s(Tier.STORAGE, otherwise=took.writes)
    # A job that has ended without a checkpoint on storage had none to write.
    unseen = "0 s" if past.is_over else SimulatedCheckpoints().write
    return SimulatedCheckpoints(
        node_gb=1.0,
        memory_gb_s=1 / memory_s,
        peer_gb_s=1 / restore_s(Tier.PEER, otherwise=[memory_s]),
        storage_gb_s=len(past.taken[0].slots) / storage_s,
        write=text_of(took.writes) if took.writes else unseen,
        blocks=f"{past.stride * pace.checkpoint_s:.6f} s",
        stride=past.stride,
    )


def _diagnostics(past: JobPast) -> SimulatedDiagnostics:
    """Return how long tests took. They find what they have found: no more is known of the nodes."""
    usual = SimulatedDiagnostics(recall=1.0, replay_recall=1.0)
    return structs.replace(
        usual,
        takes=text_of(past.took.tests) if past.took.tests else usual.takes,
        quick=text_of(past.took.quick_tests) if past.took.quick_tests else usual.quick,
    )
