"""A spec that plays a real job again, by its journal: its faults, and how long things took. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.ledger import Ledger, ledger, times_of
from slurm_robust.ledger.summary import Summary, summarise
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.incident import Blame, Borrow, FaultKind, GiveUp, Requeue, RollBack, Symptom, Verdict
from slurm_robust.model.progress import CHECKPOINT, UPDATE
from slurm_robust.model.record import Record
from slurm_robust.model.startup import RESTORE
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

MIN_S = 1e-3
"""No restore takes less."""

_OWN = frozenset({RESTORE, UPDATE})  # what spent names that belongs to starts
_BY_SYMPTOM = {
    Symptom.NODE_LOST: FaultOf.NODE,
    Symptom.NODE_FAULT: FaultOf.GPU,
    Symptom.NETWORK: FaultOf.NETWORK,
    Symptom.UNREACHABLE: FaultOf.SWITCH,
    Symptom.LAUNCH_FAILED: FaultOf.AGENT,
    Symptom.AGENTS_LOST: FaultOf.AGENT,
    Symptom.USER_EXCEPTION: FaultOf.EXCEPTION,
    Symptom.HANG: FaultOf.HANG,
    Symptom.SLOW: FaultOf.SLOW,
    Symptom.NON_FINITE: FaultOf.NAN,
    Symptom.SPIKE: FaultOf.CORRUPTION,
}
_BY_SIGNATURE = {
    FaultKind.OUT_OF_MEMORY: FaultOf.OUT_OF_MEMORY,
    FaultKind.EXCEPTION: FaultOf.EXCEPTION,
    FaultKind.AGENTS_LOST: FaultOf.AGENT,
    FaultKind.AGENT_ENDED: FaultOf.AGENT,
    FaultKind.AGENTS_REFUSED: FaultOf.AGENT,
}
_NUMBER = re.compile(r"\d+")
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
    faults: int
    """How many are played again."""
    assumed: tuple[str, ...]
    """What the journal does not say, and what is taken in its place."""
    left_out: tuple[str, ...]
    """What happened and is not played again."""


def like(events: Sequence[ev.AnyEvent], config: JobConfig | None) -> Likeness:
    """Return the spec of a job; ``config``: its settings, None if they are not known.

    Raises :class:`NothingToReplay`.
    """
    seen = _Seen(events)
    if not seen.starts:
        raise NothingToReplay(
            "training never began in this job: there is nothing to play again",
            fix="name a job that has made steps, or simulate a spec: docs/simulator.md",
        )
    if not seen.opened:
        raise NothingToReplay(
            "nothing went wrong in this job: there is nothing to learn from it",
            fix="name a job with incidents ('srobust incidents JOB' lists them), or simulate a spec",
        )
    faults = tuple(seen.sources())
    at_nodes = sum(one.kind in (FaultOf.NODE, FaultOf.GPU) for one in faults)
    other = seen.others()
    settings = config or JobConfig()
    summary = seen.summary
    wall_s = seen.books.wall_ms / 1000
    spec = Spec(
        name=f"job {seen.books.job_id}",
        job=seen.job(settings),
        time=_time(wall_s * (LONGER[seen.is_done] if seen.is_over else 1.0)),
        steps=summary.steps if seen.is_done else 0,
        seeds=20,
        cluster=SimulatedCluster(
            shared_spares=len(seen.lent),
            free=len(other) + at_nodes,
            requeue=text_of(seen.requeues) if seen.requeues else SimulatedCluster().requeue,
            lend=text_of(seen.lends) if seen.lends else SimulatedCluster().lend,
            queue=text_of([seen.books.started_ms / 1000]),
            preempted_after=tuple(map(_time, seen.preempted)),
        ),
        phases=seen.phases(),
        checkpoints=seen.checkpoints(),
        diagnostics=seen.diagnostics(),
        owner=Owner(updates_after=tuple(map(_time, seen.updated))),
        faults=faults,
        policy=settings,
    )
    actions = Counter(type(action) for one in seen.decided if one.carried_out for action in one.actions)
    real = Reality(
        job_id=seen.books.job_id,
        ettr=summary.ettr,
        hours=(seen.books.wall_ms - seen.books.started_ms) / 3.6e6,
        incidents=len(summary.incidents),
        evicted=seen.evicted,
        requeues=actions[Requeue],
        gpu_hours=summary.lost.gpu_hours,
        is_done=seen.is_done,
    )
    return Likeness(
        spec=spec,
        real=real,
        faults=len(faults),
        assumed=tuple(_assumed(spec, seen, config)),
        left_out=tuple(seen.left_out()),
    )


def _assumed(spec: Spec, seen: _Seen, config: JobConfig | None) -> Iterator[str]:
    if config is None:
        yield "the default settings, as plan.json cannot be read"
    yield f"repair={spec.cluster.repair}"
    yield f"free={spec.cluster.free}"
    if not seen.requeues:
        yield f"requeue={spec.cluster.requeue}"
    if not seen.writes:
        yield f"write={spec.checkpoints.write}"
    yield f"resubmit={spec.owner.resubmit}"


def _time(t: float) -> str:
    return f"{max(0.0, t):.3f} s"


@dataclass
class _Draft:
    """A failure of one generation, as far as it is known."""

    t: float
    """When it happened, since the job's first moment."""
    trained_s: float
    """For how long the job had trained then."""
    signs: list[Symptom]
    generation: int
    starting: bool
    """The generation had made no step."""
    stop_t: float = 0.0
    ended: ev.GenerationEnded | None = None
    ended_t: float = 0.0
    verdict: Verdict | None = None
    decided: list[ev.Decided] = field(default_factory=list)
    decided_t: float = 0.0
    """When it was first decided."""
    tested_s: float = 0.0


class _Seen:
    """What a journal shows, gathered in one pass."""

    def __init__(self, events: Sequence[ev.AnyEvent]) -> None:
        times = times_of(events)
        self.books: Ledger = ledger(events, max(times, default=0.0), times=times)
        self.summary: Summary = summarise(self.books, events)
        self.run = next((e for e in events if isinstance(e, ev.RunStarted)), None)
        self.opened = sum(isinstance(event, ev.IncidentOpened) for event in events)
        self.evicted = sum(isinstance(event, ev.NodeEvicted) for event in events)
        self.decided = [event for event in events if isinstance(event, ev.Decided)]
        self.taken: list[ev.AllocationTaken] = []
        self.lent: dict[str, bool] = {}  # nodes that a reservation has lent
        self.lenders: dict[int, bool] = {}
        self.first_starts: list[float] = []  # from Slurm's start until the first step
        self.starts: list[float] = []  # from the launch until the first step
        self.restores: dict[str, list[float]] = {}
        self.stops: list[float] = []
        self.decides: list[float] = []
        self.agents: list[float] = []
        self.lends: list[float] = []
        self.requeues: list[float] = []
        self.updates: list[float] = []
        self.updated: list[float] = []
        self.preempted: list[float] = []
        self.writes = [e.seconds for e in events if isinstance(e, ev.StorageWritten) and e.seconds > 0]
        self.tests: list[float] = []
        self.quick_tests: list[float] = []
        self.replays = 0
        self.spent: dict[int, dict[str, float]] = {}
        self.stride = 1
        self.passed = self.takeovers = 0
        self.is_over = self.is_done = False
        self._faults: list[FaultSource] = []
        self._sweep(events, times)

    # -- the pass --------------------------------------------------------------------------------------

    def _sweep(self, events: Sequence[ev.AnyEvent], times: Sequence[float]) -> None:
        self._begin = self.books.begin
        self._run_started: float | None = None  # of a run that has made no step yet
        self._left: float | None = None  # when the run before was requeued
        self._launched: dict[int, tuple[float, ev.GenerationLaunched]] = {}
        self._stepped: set[int] = set()
        self._running = 0
        self._draft: _Draft | None = None
        self._update_t: float | None = None
        self._trains_since: float | None = None
        self._trained_before_s = 0.0
        for event, t in zip(events, times, strict=True):
            self._take(event, t - self._begin)
        self._flush()

    def _take(self, event: ev.AnyEvent, t: float) -> None:
        match event:
            case ev.ProgressMade():
                self.spent[event.generation] = event.spent
            case ev.AllocationTaken():
                self._allocated(event, t)
            case ev.GenerationLaunched():
                self._launch(event, t)
            case ev.FirstStep():
                self._first_step(event, t)
            case ev.StartMeasured():
                self._measured(event)
            case ev.IncidentOpened():
                self._draft = self._drafted(t - event.detect_s, t, event.symptom)
            case ev.SymptomAdded():
                self._added(event, t)
            case ev.StopStarted():
                if event.update:
                    self._update_t = t
                    self._stop_training(t)
                elif self._draft is not None:
                    self._draft.stop_t = t
            case ev.GenerationEnded():
                self._ended(event, t)
            case ev.Decided():
                if self._draft is not None:
                    self._draft.decided.append(event)
                    self._draft.verdict = event.verdict or self._draft.verdict
                    if len(self._draft.decided) == 1:
                        self._draft.decided_t = t
            case ev.NodesTested() | ev.QuickTested():
                kept = self.tests if isinstance(event, ev.NodesTested) else self.quick_tests
                kept.append(event.took_s)
                if self._draft is not None:
                    self._draft.tested_s += event.took_s
            case ev.IncidentClosed():
                self.passed += self._draft is not None and self._draft.ended is None
                self._draft = None
            case ev.RequeueStarted():
                if not event.failure:
                    self.preempted.append(self._trained(t))
                self._leave(t)
                self._left = t
            case ev.RunEnded():
                self.is_over, self.is_done = event.final, event.final and event.code == 0
                self._leave(t)
            case _:
                self._take_rare(event, t)

    def _take_rare(self, event: ev.AnyEvent, t: float) -> None:
        match event:
            case ev.ControllerStarted():
                self.takeovers += bool(event.taken_from)
            case ev.StrideChanged():
                self.stride = event.local_stride
            case ev.CompanionSubmitted():
                self.lenders[event.job_id] = bool(event.source.reservation)
            case ev.CompanionStarted():
                self.lent |= {event.node: True} if self.lenders.get(event.job_id) else {}
            case ev.UpdateApplied() if event.recovery:
                self._update_t = None
            case ev.NodeEvicted() if event.incident == 0:
                self._lost_standby(event.node, FaultOf.GPU, t)
            case ev.SpareSetAside() if not event.usable:
                self._lost_standby(event.node, FaultOf.NODE, t)

    def _allocated(self, event: ev.AllocationTaken, t: float) -> None:
        started = t
        if event.submitted is not None and event.queued_s is not None:
            started = min(t, event.submitted + event.queued_s - self._begin)
        self.taken.append(event)
        self._run_started = started
        self._spares = event.spares
        if self._left is not None:
            self.requeues.append(max(0.0, started - self._left))
            self._left = None

    def _launch(self, event: ev.GenerationLaunched, t: float) -> None:
        draft, update_t = self._draft, self._update_t
        if draft is not None and draft.ended is not None and self._run_started is None:
            self._recovered(draft, t)
        elif update_t is not None:
            self.updated.append(self._trained(update_t))
            self.updates.append(t - update_t)
        self._flush()
        self._update_t = None
        self._launched[event.generation] = (t, event)
        self._running = event.generation

    def _recovered(self, draft: _Draft, t: float) -> None:
        """Note how long each part of a recovery took, whose generation is launched at ``t``."""
        if not draft.decided:
            return
        last = max(0.0, t - draft.decided_t - draft.tested_s)
        decide = max(0.0, draft.decided_t - draft.ended_t)
        if any(isinstance(a, Borrow) for one in draft.decided for a in one.actions):
            self.lends.append(last)
        elif _kind(draft) is FaultOf.AGENT:
            self.agents.append(last)
        else:
            decide += last
        self.decides.append(decide)

    def _leave(self, t: float) -> None:
        draft = self._draft
        if draft is not None and draft.decided and draft.ended is not None:
            self.decides.append(max(0.0, draft.decided_t - draft.ended_t))
        self._flush()
        self._running = 0

    def _first_step(self, event: ev.FirstStep, t: float) -> None:
        if event.generation in self._stepped or event.generation not in self._launched:
            return
        self._stepped.add(event.generation)
        took = t - self._launched[event.generation][0]
        if self._run_started is not None:
            self.first_starts.append(max(0.0, t - self._run_started))
            self._run_started = None
        self.starts.append(took)
        self._trains_since = t

    def _measured(self, event: ev.StartMeasured) -> None:
        launched = self._launched.get(event.generation)
        if launched is None or launched[1].restore is None or event.took_s is None:
            return
        tiers = launched[1].tiers
        tier = Tier.PEER if Tier.PEER.value in tiers else Tier.MEMORY
        if Tier.STORAGE.value in tiers or Tier.LOCAL.value in tiers:
            tier = Tier.STORAGE
        found = [max(p.nodes.values(), default=p.median_s) for p in event.phases if p.phase == RESTORE]
        self.restores.setdefault(tier.value, []).extend(found)

    def _added(self, event: ev.SymptomAdded, t: float) -> None:
        if self._draft is not None and self._draft.ended is None:
            self._draft.signs.append(event.symptom)
        elif self._running:
            self._draft = self._drafted(t, t, event.symptom)

    def _drafted(self, t: float, seen_t: float, symptom: Symptom) -> _Draft:
        """Return a failure at ``t`` of what runs; what makes no step fails at its launch."""
        starting = self._trains_since is None
        launched = self._launched.get(self._running)
        t = launched[0] if starting and launched is not None else t
        return _Draft(
            t=t,
            trained_s=self._trained(t),
            signs=[symptom],
            generation=self._running,
            starting=starting,
            stop_t=seen_t,
        )

    def _trained(self, t: float) -> float:
        """Return for how long the job had trained in all by then."""
        since = self._trains_since
        return self._trained_before_s + (max(0.0, t - since) if since is not None else 0.0)

    def _stop_training(self, t: float) -> None:
        self._trained_before_s, self._trains_since = self._trained(t), None

    def _ended(self, event: ev.GenerationEnded, t: float) -> None:
        if event.generation != self._running:
            return
        self._running = 0
        draft = self._draft
        if draft is not None and draft.ended is None:
            draft.ended, draft.ended_t = event, t
            self.stops.append(max(0.0, t - draft.stop_t))
            self._stop_training(draft.stop_t if _goes_on(draft) else draft.t)
        else:
            self._stop_training(t)

    # -- faults ----------------------------------------------------------------------------------------

    def _lost_standby(self, node: str, kind: FaultOf, t: float) -> None:
        if self.run is not None and node in self._spares:
            slot = self.run.slots + self._spares.index(node)
            self._faults.append(FaultSource(kind=kind, after=_time(self._trained(t)), slots=(slot,)))

    def _flush(self) -> None:
        draft, self._draft = self._draft, None
        if draft is None or draft.ended is None:
            return
        kind, verdict = _kind(draft), draft.verdict
        slots = self._launched[draft.generation][1].slots
        root = next((one.node for one in draft.ended.exits if one.exit.rank == draft.ended.root), "")
        suspects = verdict.suspects if verdict is not None and verdict.blame is Blame.NODE else ()
        placed = {node for one in draft.decided if one.place is not None for node in one.place.nodes}
        placed |= {slots[slot] for slot in self._slots_of(verdict) if slot < len(slots)}
        struck = [node for node in suspects if node in slots] or sorted(placed)[:1] or [root]
        if kind not in (FaultOf.NODE, FaultOf.GPU):
            struck = struck[:1]
        actions = [action for one in draft.decided for action in one.actions]
        detect = _time(draft.stop_t - draft.t)
        is_over = any(isinstance(action, GiveUp | RollBack) for action in actions)
        at_node = bool(suspects)
        same = f"{', '.join(struck)} in run {len(self.taken)}" if at_node else ""
        if verdict is not None and verdict.blame is Blame.CODE:
            same = str(verdict.signature)
        self._faults.append(
            FaultSource(
                kind=kind,
                after=_time(draft.trained_s),
                starting=draft.starting,
                slots=tuple(slots.index(node) for node in struck if node in slots),
                same=same,
                at_node=float(at_node),
                named=float(verdict is not None and verdict.rung in (1, 2)),
                placed=float(bool(placed)),
                persists=float(verdict is not None and verdict.rung in _TESTED),
                code_persists=float(is_over),
                fixed_by_rollback=float(any(isinstance(action, RollBack) for action in actions)),
                detect=detect,
                lasts=detect,
            )
        )

    def _slots_of(self, verdict: Verdict | None) -> Iterator[int]:
        """Yield the slot of the first rank that a verdict by stacks names."""
        by_stacks = verdict is not None and verdict.signature.kind is FaultKind.RANKS
        rank = _NUMBER.search(verdict.signature.key) if verdict is not None and by_stacks else None
        if rank is not None and self.run is not None:
            yield int(rank[0]) // self.run.nproc_per_node

    def sources(self) -> Iterator[FaultSource]:
        """Yield the faults; of one that came again, only the last persists: the others are there."""
        last = {one.same: place for place, one in enumerate(self._faults) if one.same}
        for place, one in enumerate(self._faults):
            if one.same and last[one.same] != place:
                one = structs.replace(one, persists=0.0, code_persists=0.0)
            yield one

    # -- what the spec says ----------------------------------------------------------------------------

    def others(self) -> set[str]:
        """Return nodes that the job has had beside those with which it began, of the partition."""
        first, *later = self.taken
        launched = {node for _, one in self._launched.values() for node in one.slots}
        return {*launched, *(node for one in later for node in one.nodes)} - {*first.nodes, *self.lent}

    def left_out(self) -> Iterator[str]:
        """Yield what happened and is not played again."""
        if self.passed:
            yield f"{count(self.passed, 'incident')} after which training went on by itself"
        if self.takeovers:
            yield f"{count(self.takeovers, 'takeover')} of the controller"
        if suspended := self.summary.classes.get(TimeClass.SUSPENDED):
            yield f"{suspended / 1000:.0f} s for which the job was suspended"

    def job(self, settings: JobConfig) -> SimulatedJob:
        """Return the job of the spec."""
        first, parallel = self.taken[0], settings.parallel
        each = self.run.nproc_per_node if self.run is not None else 1
        return SimulatedJob(
            nodes=len(first.slots),
            spares=len(first.spares),
            gpus_per_node=first.gpus // len(first.nodes) if first.nodes else 0,
            step=f"{self.step_s:.6f} s",
            between=f"{self._of_each_step(lambda name: name not in (CHECKPOINT, *_OWN)):.6f} s",
            layout="pipeline" if parallel.pp > 1 else "data",
            group=max(1, parallel.pp * parallel.tp * parallel.cp // each),
        )

    @property
    def step_s(self) -> float:
        """Time of one step, without what slow nodes cost."""
        return self.summary.classes.get(TimeClass.PRODUCTIVE, 0) / 1000 / max(1, self.summary.steps)

    def _of_each_step(self, is_meant: Callable[[str], bool]) -> float:
        found = [s for spent in self.spent.values() for name, s in spent.items() if is_meant(name)]
        return sum(found) / max(1, self.summary.steps + (self.summary.repeated or 0))

    def phases(self) -> Phases:
        """Return how long the parts of a start and of a recovery took."""
        usual = Phases()
        restore_s = fmean(self._restored()) if any(self.restores.values()) else 0.0
        first_s = self.starts[0] if len(self.starts) == 1 else fmean(self.starts)
        starts = [max(0.0, took - restore_s - self.step_s) for took in self.starts]
        return Phases(
            decide=text_of(self.decides) if self.decides else usual.decide,
            stop=text_of(self.stops) if self.stops else usual.stop,
            agents=text_of(self.agents) if self.agents else usual.agents,
            start=text_of(starts),
            start_per_1000_nodes="0 s",
            first_start_per_1000_nodes="0 s",
            first_start=text_of([max(0.0, took - first_s) for took in self.first_starts]),
            update=text_of(self.updates) if self.updates else usual.update,
        )

    def _restored(self) -> list[float]:
        return [s for found in self.restores.values() for s in found]

    def checkpoints(self) -> SimulatedCheckpoints:
        """Return where checkpoints come from, and how long that takes."""
        slots = len(self.taken[0].slots)

        def took(*tiers: Tier, otherwise: Iterable[float]) -> float:
            known = [s for tier in tiers for s in self.restores.get(tier.value, ())]
            return max(MIN_S, fmean([*known] or [*otherwise] or [MIN_S]))

        memory_s = took(Tier.MEMORY, otherwise=self.restores.get(Tier.PEER.value, ()))
        storage_s = took(Tier.STORAGE, otherwise=self.writes)
        return SimulatedCheckpoints(
            node_gb=1.0,
            memory_gb_s=1 / memory_s,
            peer_gb_s=1 / took(Tier.PEER, otherwise=[memory_s]),
            storage_gb_s=slots / storage_s,
            write=text_of(self.writes) if self.writes else SimulatedCheckpoints().write,
            blocks=f"{self.stride * self._of_each_step(lambda name: name == CHECKPOINT):.6f} s",
            stride=self.stride,
        )

    def diagnostics(self) -> SimulatedDiagnostics:
        """Return how long tests took. They find what they have found: no more is known of the nodes."""
        usual = SimulatedDiagnostics(recall=1.0, replay_recall=1.0)
        return structs.replace(
            usual,
            takes=text_of(self.tests) if self.tests else usual.takes,
            quick=text_of(self.quick_tests) if self.quick_tests else usual.quick,
        )


def _goes_on(draft: _Draft) -> bool:
    """Return whether training went on until the fault was seen."""
    return _kind(draft) in (FaultOf.SLOW, FaultOf.NAN, FaultOf.CORRUPTION)


def _kind(draft: _Draft) -> FaultOf:
    """Return what went wrong, by the verdict and by what was seen."""
    verdict, signs = draft.verdict, draft.signs
    if verdict is not None:
        if verdict.signature.kind in _BY_SIGNATURE:
            return _BY_SIGNATURE[verdict.signature.kind]
        if verdict.blame is Blame.NODE and verdict.rung == 2:
            return FaultOf.NETWORK
        if verdict.blame is Blame.NODE and verdict.rung == 1:
            return FaultOf.NODE if "does not respond" in verdict.reason else FaultOf.GPU
    return next((_BY_SYMPTOM[one] for one in signs if one in _BY_SYMPTOM), FaultOf.CRASH)
