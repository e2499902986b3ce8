"""What happened in a job, by its journal: its failures, and how long things took. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_robust.ledger.ledger import Ledger, ledger, times_of
from slurm_robust.ledger.summary import Summary, summarise
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.incident import Action, Blame, Borrow, FaultKind, Symptom, Verdict
from slurm_robust.model.startup import RESTORE
from slurm_robust.simulator.spec import FaultOf

GO_ON = (FaultOf.SLOW, FaultOf.NAN, FaultOf.CORRUPTION)
"""Training goes on until these are seen."""

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


@dataclass
class PastFailure:
    """What ended one generation. Times are in seconds since the job's first moment."""

    t: float
    trained_s: float
    """For how long the job had trained in all."""
    signs: list[Symptom]
    slots: tuple[str, ...]
    """The nodes of the generation."""
    starting: bool
    """The generation had made no step."""
    stop_t: float
    """When its workers were ordered to stop."""
    over: int = 0
    """How many generations had trained when it was over."""
    run: int = 0
    """The number of the run of the job, from 1."""
    ended: ev.GenerationEnded | None = None
    ended_t: float = 0.0
    decided: list[ev.Decided] = field(default_factory=list)
    decided_t: float = 0.0
    """When it was first decided what to do."""
    tested_s: float = 0.0

    @property
    def verdict(self) -> Verdict | None:
        """The last one."""
        return next((one.verdict for one in reversed(self.decided) if one.verdict is not None), None)

    @property
    def actions(self) -> list[Action]:
        """All that was decided."""
        return [action for one in self.decided for action in one.actions]

    @property
    def kind(self) -> FaultOf:
        """What went wrong, by the verdict and by what was seen."""
        verdict = self.verdict
        if verdict is not None:
            if verdict.signature.kind in _BY_SIGNATURE:
                return _BY_SIGNATURE[verdict.signature.kind]
            if verdict.blame is Blame.NODE and verdict.rung == 2:
                return FaultOf.NETWORK
            if verdict.blame is Blame.NODE and verdict.rung == 1:
                return FaultOf.NODE if "does not respond" in verdict.reason else FaultOf.GPU
        return next((_BY_SYMPTOM[one] for one in self.signs if one in _BY_SYMPTOM), FaultOf.CRASH)

    @property
    def suspects(self) -> list[str]:
        """The nodes of the generation that were blamed."""
        verdict = self.verdict
        blamed = verdict.suspects if verdict is not None and verdict.blame is Blame.NODE else ()
        return [node for node in blamed if node in self.slots]

    def placed(self, nproc_per_node: int) -> list[str]:
        """Return the nodes at which stacks place it."""
        found = [node for one in self.decided if one.place is not None for node in one.place.nodes]
        verdict = self.verdict
        if verdict is not None and verdict.signature.kind is FaultKind.RANKS:
            rank = _NUMBER.search(verdict.signature.key)
            slot = int(rank[0]) // nproc_per_node if rank is not None else len(self.slots)
            found += self.slots[slot : slot + 1]
        return [node for node in found if node in self.slots]

    @property
    def first(self) -> str:
        """The node of the rank whose exit explains the others, "" if none does."""
        ended = self.ended
        exits = ended.exits if ended is not None else ()
        return next((one.node for one in exits if ended is not None and one.exit.rank == ended.root), "")


@dataclass
class Durations:
    """How long each thing took, in seconds, each time."""

    first_starts: list[float] = field(default_factory=list)
    """From Slurm's start of a run until its first step."""
    starts: list[float] = field(default_factory=list)
    """From the launch until the first step."""
    restores: dict[Tier, list[float]] = field(default_factory=dict)
    stops: list[float] = field(default_factory=list)
    decides: list[float] = field(default_factory=list)
    agents: list[float] = field(default_factory=list)
    """Until agents that had ended were there again."""
    lends: list[float] = field(default_factory=list)
    requeues: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)
    repairs: list[float] = field(default_factory=list)
    """From the eviction of a node until it was seen again."""
    writes: list[float] = field(default_factory=list)
    tests: list[float] = field(default_factory=list)
    quick_tests: list[float] = field(default_factory=list)


class JobPast:
    """What a journal shows."""

    def __init__(self, events: Sequence[ev.AnyEvent]) -> None:
        times = times_of(events)
        self.books: Ledger = ledger(events, max(times, default=0.0), times=times)
        self.summary: Summary = summarise(self.books, events)
        self.run = next((e for e in events if isinstance(e, ev.RunStarted)), None)
        self.took = Durations()
        self.failures: list[PastFailure] = []
        self.standbys_lost: list[tuple[float, int, FaultOf]] = []
        """For how long the job had trained, the slot after those of the ranks, and what was wrong."""
        self.taken: list[ev.AllocationTaken] = []
        self.nodes: dict[str, None] = {}
        """All that held a slot."""
        self.lent: dict[str, None] = {}
        """Nodes that a reservation has lent."""
        self.updated: list[float] = []
        """For how long the job had trained when its code was updated."""
        self.preempted: list[float] = []
        """The same for requeues without a fault."""
        self.lost: list[float] = []
        """The same for runs that died with their controller."""
        self.trained: list[tuple[float, int]] = []
        """For how long each generation trained, and how many steps it made."""
        self.spent: dict[int, dict[str, float]] = {}
        self.stride = 1
        self.opened = self.passed = self.takeovers = self.refused = 0
        """Incidents, those after which training went on by itself, takeovers, and nodes not lent."""
        self.is_over = self.is_done = False
        self._lenders: set[int] = set()
        self._evicted: dict[str, float] = {}
        self._spares: tuple[str, ...] = ()
        self._run_started: float | None = None  # of a run that has made no step yet
        self._left: float | None = None  # when the run before was requeued
        self._launched: dict[int, tuple[float, ev.GenerationLaunched]] = {}
        self._stepped: set[int] = set()
        self._running = 0
        self._last_t = 0.0  # of the newest event of a run
        self._failure: PastFailure | None = None  # that is dealt with
        self._update_t: float | None = None
        self._trains_since: float | None = None
        self._trained_before_s = 0.0
        self._first = self._newest = 0  # steps of the generation that trains
        for event, t in zip(events, times, strict=True):
            self._take(event, t - self.books.begin)
            if not isinstance(event, ev.ControllerStarted):
                self._last_t = t - self.books.begin
        self._flush()

    def _take(self, event: ev.AnyEvent, t: float) -> None:
        match event:
            case ev.ProgressMade():
                self.spent[event.generation] = event.spent
                if event.generation == self._running:
                    self._reach(event.step)
            case ev.AllocationTaken():
                self._allocated(event, t)
            case ev.GenerationLaunched():
                self._launch(event, t)
            case ev.FirstStep():
                self._first_step(event, t)
            case ev.StartMeasured():
                self._measured(event)
            case ev.IncidentOpened():
                self.opened += 1
                self._failure = self._new_failure(t - event.detect_s, t, event.symptom)
            case ev.SymptomAdded():
                self._added(event, t)
            case ev.StopStarted():
                if event.update:
                    self._update_t = t
                    self._stop_training(t)
                elif self._failure is not None:
                    self._failure.stop_t = t
                elif event.symptom is not None:  # the incident is open, and its first sign is known
                    self._failure = self._new_failure(t, t, event.symptom)
            case ev.GenerationEnded():
                self._ended(event, t)
            case ev.Decided():
                if self._failure is not None:
                    self._failure.decided.append(event)
                    if len(self._failure.decided) == 1:
                        self._failure.decided_t = t
            case ev.NodesTested() | ev.QuickTested():
                kept = self.took.tests if isinstance(event, ev.NodesTested) else self.took.quick_tests
                kept.append(event.took_s)
                if self._failure is not None:
                    self._failure.tested_s += event.took_s
            case ev.IncidentClosed():
                self.passed += self._failure is not None and self._failure.ended is None
                self._failure = None
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
            case ev.NotLent():
                self.refused += 1
            case ev.StorageWritten() if event.seconds > 0:
                self.took.writes.append(event.seconds)
            case ev.StrideChanged():
                self.stride = event.local_stride
            case ev.CompanionSubmitted():
                self._lenders |= {event.job_id} if event.source.reservation else set()
            case ev.CompanionStarted():
                self.lent |= {event.node: None} if event.job_id in self._lenders else {}
            case ev.UpdateApplied() if event.recovery:
                self._update_t = None
            case ev.NodeEvicted():
                self._evicted[event.node] = t
                if event.incident == 0:
                    self._lost_standby(event.node, FaultOf.GPU, t)
            case ev.NodeReturned():
                self._back(event.node, t)
            case ev.SpareSetAside() if not event.usable:
                self._lost_standby(event.node, FaultOf.NODE, t)

    def _allocated(self, event: ev.AllocationTaken, t: float) -> None:
        started = t
        if event.submitted is not None and event.queued_s is not None:
            started = min(t, event.submitted + event.queued_s - self.books.begin)
        if self.taken and self._left is None:  # the run before died with its controller
            self._stop_training(self._last_t)
            self.lost.append(self._trained(self._last_t))
            self._left, self._failure, self._running = self._last_t, None, 0
        self.taken.append(event)
        self._run_started = started
        self._spares = event.spares
        for node in event.nodes:
            self._back(node, started)
        if self._left is not None:
            self.took.requeues.append(max(0.0, started - self._left))
            self._left = None

    def _back(self, node: str, t: float) -> None:
        if (since := self._evicted.pop(node, None)) is not None:
            self.took.repairs.append(t - since)

    def _launch(self, event: ev.GenerationLaunched, t: float) -> None:
        failure, update_t = self._failure, self._update_t
        if failure is not None and failure.ended is not None and self._run_started is None:
            self._recovered(failure, t)
        elif update_t is not None:
            self.updated.append(self._trained(update_t))
            self.took.updates.append(t - update_t)
        self._flush()
        self._update_t = None
        self._launched[event.generation] = (t, event)
        self.nodes |= dict.fromkeys(event.slots)
        self._running = event.generation

    def _recovered(self, failure: PastFailure, t: float) -> None:
        """Note how long each part of a recovery took, whose generation is launched at ``t``."""
        if not failure.decided:
            return
        last = max(0.0, t - failure.decided_t - failure.tested_s)
        decide = max(0.0, failure.decided_t - failure.ended_t)
        if any(isinstance(action, Borrow) for action in failure.actions):
            self.took.lends.append(last)
        elif failure.kind is FaultOf.AGENT:
            self.took.agents.append(last)
        else:
            decide += last
        self.took.decides.append(decide)

    def _leave(self, t: float) -> None:
        failure = self._failure
        if failure is not None and failure.decided and failure.ended is not None:
            self.took.decides.append(max(0.0, failure.decided_t - failure.ended_t))
        self._flush()
        self._running = 0

    def _first_step(self, event: ev.FirstStep, t: float) -> None:
        if event.generation in self._stepped or event.generation not in self._launched:
            return
        self._stepped.add(event.generation)
        took = t - self._launched[event.generation][0]
        if self._run_started is not None:
            self.took.first_starts.append(max(0.0, t - self._run_started))
            self._run_started = None
        self.took.starts.append(took)
        self._trains_since = t
        self._first = self._newest = event.step

    def _measured(self, event: ev.StartMeasured) -> None:
        launched = self._launched.get(event.generation)
        if launched is None or launched[1].restore is None or event.took_s is None:
            return
        tiers = launched[1].tiers
        tier = Tier.PEER if Tier.PEER.value in tiers else Tier.MEMORY
        if Tier.STORAGE.value in tiers or Tier.LOCAL.value in tiers:
            tier = Tier.STORAGE
        found = [max(p.nodes.values(), default=p.median_s) for p in event.phases if p.phase == RESTORE]
        self.took.restores.setdefault(tier, []).extend(found)

    def _added(self, event: ev.SymptomAdded, t: float) -> None:
        if self._failure is not None and self._failure.ended is None:
            self._failure.signs.append(event.symptom)
        elif self._running:
            self._failure = self._new_failure(t, t, event.symptom)

    def _reach(self, step: int) -> None:
        """Note that the generation has made ``step``, also if it is known only when training has stopped."""
        self._newest = max(self._newest, step)
        if self._trains_since is None and self._running in self._stepped and self.trained:
            self.trained[-1] = (self.trained[-1][0], self._newest - self._first)

    def _new_failure(self, t: float, seen_t: float, symptom: Symptom) -> PastFailure:
        """Return a failure at ``t`` of what runs; what makes no step fails at its launch."""
        starting = self._trains_since is None
        launched = self._launched.get(self._running)
        t = launched[0] if starting and launched is not None else t
        return PastFailure(
            t=t,
            trained_s=self._trained(t),
            signs=[symptom],
            slots=launched[1].slots if launched is not None else (),
            run=len(self.taken),
            starting=starting,
            stop_t=seen_t,
        )

    def _trained(self, t: float) -> float:
        """Return for how long the job had trained in all by then."""
        since = self._trains_since
        return self._trained_before_s + (max(0.0, t - since) if since is not None else 0.0)

    def _stop_training(self, t: float) -> None:
        if self._trains_since is not None:
            self.trained.append((max(0.0, t - self._trains_since), self._newest - self._first))
        self._trained_before_s, self._trains_since = self._trained(t), None

    def _ended(self, event: ev.GenerationEnded, t: float) -> None:
        if event.generation != self._running:
            return
        self._reach(max(event.sealed_step, event.reached_step))
        self._running = 0
        failure = self._failure
        if failure is not None and failure.ended is None:
            failure.ended, failure.ended_t = event, t
            self.took.stops.append(max(0.0, t - failure.stop_t))
            self._stop_training(failure.stop_t if failure.kind in GO_ON else failure.t)
            failure.over = len(self.trained)
        else:
            self._stop_training(t)

    def _lost_standby(self, node: str, kind: FaultOf, t: float) -> None:
        if self.run is not None and node in self._spares:
            slot = self.run.slots + self._spares.index(node)
            self.standbys_lost.append((self._trained(t), slot, kind))

    def _flush(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None and failure.ended is not None:
            self.failures.append(failure)
