"""What the controller knows right now, as one record for all who only look.

:func:`picture` takes in the loop's thread what may change under another one: a thousand references, in less
than a millisecond. :class:`LiveStatusMaker` makes the record of it in whatever thread: it reads nothing else.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import structs

from slurm_robust.config.job import Timings
from slurm_robust.engine import transitions as to
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core, Stage
from slurm_robust.engine.stages.checkpointing import Checkpointing
from slurm_robust.engine.stages.running import Launching
from slurm_robust.engine.stages.stopping import Stopping
from slurm_robust.engine.stages.testing import Testing
from slurm_robust.engine.stages.unreachable import Unreachable
from slurm_robust.evidence.live_status import MAX_TEXT, IncidentFollower, of_state
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import Summary
from slurm_robust.ledger.totals import Tally
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.live_status import (
    MAX_ALERTS,
    LiveNode,
    LiveStatus,
    LiveTier,
    NodeState,
    newest_whole,
)
from slurm_robust.model.progress import Progress
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.state import JobState
from slurm_robust.util.text import count, first_sentence, one_line
from slurm_robust.wire.messages import Heartbeat, Phase

NODES_AT_ONCE = 256
"""One live status looks at the copies of so many nodes, the next at others: each node has forty and more."""

_Copies: TypeAlias = Mapping[Tier, Mapping[int, frozenset[int]]]
"""By tier and rank the copies, as numbers."""

_NO_COPIES: _Copies = {}
_WINDOW = 8  # live statuses from which seconds per step are measured
_GENERATION = 1 << 40  # a checkpoint as one number: its generation times this, and its step
_ORDERED = (signal.SIGTERM, signal.SIGKILL)
_STATES = {
    Phase.IDLE: NodeState.IDLE,
    Phase.FREEING: NodeState.STARTING,
    Phase.STARTING: NodeState.STARTING,
    Phase.RUNNING: NodeState.TRAINING,
    Phase.STOPPING: NodeState.STOPPING,
    Phase.ENDED: NodeState.ENDED,
}


# -- in the loop's thread --------------------------------------------------------------------------


class AgentPicture(NamedTuple):
    """One agent, as :class:`~slurm_robust.engine.units.fleet.AgentView` has it at this moment."""

    heartbeat: Heartbeat
    heard: float
    received: float
    dead: str
    """Why the node is known to be dead; "" for one that is not."""


class Storage(NamedTuple):
    """How the journal is."""

    behind: int = 0
    trouble: str = ""


class Picture(NamedTuple):
    """All that a live status is made of; nothing in it changes any more."""

    now: Now
    state: JobState
    agents: Mapping[str, AgentPicture]
    stage: str
    entered_by: to.Transition
    stage_since: float
    mode: str
    node_dead_s: float
    usual_step_s: float
    hang_s: float
    """How long no step may come before that is a hang; infinite if it never is one."""
    stage_most_s: float | None
    ending: str
    held: bool
    listed: Mapping[CheckpointId, Tier]
    """What is complete on storage, by its last answer."""
    storage: Storage
    news: Sequence[ev.AnyEvent]
    """Events since the last picture."""
    turn_s: float | None = None
    """The longest turn of the loop lately; None if it was not measured."""
    trial: str = ""
    """What the trial of an update is at."""


def picture(
    core: Core, now: Now, news: Sequence[ev.AnyEvent], storage: Storage, turn_s: float | None = None
) -> Picture:
    """Return the job as it is ``now``. Only from the loop's thread."""
    agents = {
        node: AgentPicture(view.heartbeat, view.heard, view.received, view.dead[0] if view.dead else "")
        for node, view in core.fleet.views.items()
    }
    return Picture(
        now=now,
        state=core.state,
        agents=agents,
        stage=type(core.stage).__name__.lower(),
        entered_by=core.entered_by,
        stage_since=core.stage_since,
        mode=core.config.mode,
        node_dead_s=core.config.timings.node_dead_s,
        usual_step_s=core.monitor.pace.p50_s,
        hang_s=core.monitor.hang_s(now),
        stage_most_s=_most_s(core.stage, core.config.timings),
        ending=core.leaving or core.ending or "",
        held=core.held,
        listed=core.storage.listed or {},
        storage=storage,
        news=news,
        turn_s=turn_s,
        trial=core.trials.doing,
    )


def _most_s(stage: Stage, timings: Timings) -> float | None:
    """Return how long the job stays in a stage at most; None where that is not known."""
    if isinstance(stage, Testing):
        return stage.most_s
    return {
        Checkpointing: timings.checkpoint_s,
        Launching: timings.launch_s,
        Stopping: timings.stop_grace_s + timings.kill_wait_s,
        Unreachable: timings.unreachable_s,
    }.get(type(stage))


# -- in any thread ---------------------------------------------------------------------------------


class LiveStatusMaker:
    """Makes one live status after another; remembers what only two of them together tell."""

    def __init__(self) -> None:
        self._number = 0
        self._generation = -1
        self._job = _StepTimes()
        self._nodes: dict[str, _StepTimes] = {}
        self._copies: dict[str, _Copies] = {}
        self._turn = 0  # the slot whose copies are looked at next
        self._incident = IncidentFollower()
        self._kept: tuple[CheckpointId | None, float] = None, 0.0  # the newest that is whole, since when
        self._ettr: tuple[float, float, float] | None = None
        self._tally = Tally()
        self._classes: dict[TimeClass, int] = {}

    def on_ledger(self, found: Summary, mono: float) -> None:
        """Take in the ledger of the journal as it was at ``mono``."""
        self._ettr = found.ettr, found.ettr_window, mono
        self._classes = found.classes

    def make(self, seen: Picture, missed: int = 0, *, final: bool = False) -> LiveStatus:
        """Return the moment of a picture. ``missed``: how many before it storage did not take."""
        self._number += 1
        self._tally.see(seen.news)
        for event in seen.news:
            self._incident.read(event)
        state, mono = seen.state, seen.now.mono
        if self._generation != state.world.generation:
            self._generation, self._job, self._nodes = state.world.generation, _StepTimes(), {}
            self._kept = None, mono
        copies = self._look_at_copies(seen)
        own = [_Own(node, seen, copies.get(node, _NO_COPIES)) for node in state.world.slots]
        slots = [self._node(one, slot, seen) for slot, one in enumerate(own)]
        ettr, ettr_hour, at = self._ettr or (None, None, mono)
        known = of_state(state, seen.now.wall)
        tiers = tuple(_tiers(own, seen))
        beats = {one.node: one.heartbeat for one in own if one.heartbeat is not None}
        update = known.update
        if update is not None and not update.tried:
            update = structs.replace(update, doing=one_line(seen.trial, MAX_TEXT))
        status = structs.replace(
            known,
            update=update,
            number=self._number,
            mode=seen.mode,
            stage=seen.stage,
            stage_why=one_line(why(seen.entered_by, seen.ending), MAX_TEXT),
            stage_s=max(0.0, mono - seen.stage_since),
            stage_most_s=seen.stage_most_s,
            usual_step_s=seen.usual_step_s or None,
            hang_s=_finite(seen.hang_s) if seen.stage == "running" else None,
            nodes=(*slots, *_without_slot(seen)),
            incident=self._incident.at(state, seen.now.wall),
            tiers=tiers,
            unkept={node: one_line(b.unkept, MAX_TEXT) for node, b in beats.items() if b.unkept},
            unkept_peers={
                node: one_line(b.unkept_peers, MAX_TEXT) for node, b in beats.items() if b.unkept_peers
            },
            kept_age_s=self._kept_age_s(tiers, mono) if seen.stage == "running" else None,
            kept_every_s=max((b.snapshots.apart_s for b in beats.values() if b.snapshots), default=None),
            ettr=ettr,
            ettr_hour=ettr_hour,
            ettr_age_s=mono - at if self._ettr else None,
            totals=self._tally.totals(self._classes),
            turn_s=seen.turn_s,
            ending=one_line(seen.ending, MAX_TEXT),
            held=seen.held,
            behind=seen.storage.behind,
            trouble=one_line(seen.storage.trouble, MAX_TEXT),
            missed=missed,
            final=final,
        )
        # Compared by when the step was completed, since heartbeats are of different ages.
        lasts = [one.last for one in own if one.last is not None]
        last = min(lasts, key=lambda each: (each.step, each.age_s), default=None)
        ranks = sum(one.ranks for one in own)
        if last is None:
            return status
        whole = ranks >= status.world
        if whole:
            self._job.see(last.step, mono - last.age_s)
        reports = all(one.reported for one in own)
        # The journal, from which the best step is known, learns of a new one every few seconds only.
        newest = last.step if whole and reports else -1
        return structs.replace(
            status,
            ranks=ranks,
            step=last.step if whole else -1,
            step_age_s=last.age_s,
            step_s=self._job.seconds_per_step,
            best_step=max(status.best_step, newest),
            reports=reports,
            loss=_finite(last.loss),
            grad_norm=_finite(last.grad_norm),
            non_finite=any(one.non_finite for one in own),
        )

    def _kept_age_s(self, tiers: Sequence[LiveTier], mono: float) -> float:
        newest = newest_whole(tiers)
        if newest != self._kept[0]:
            self._kept = newest, mono
        return mono - self._kept[1]

    def _look_at_copies(self, seen: Picture) -> Mapping[str, _Copies]:
        """Look at the copies on nodes with slots, anew on :data:`NODES_AT_ONCE` of them."""
        slots, agents = seen.state.world.slots, seen.agents
        self._copies = {node: self._copies[node] for node in slots if node in agents and node in self._copies}
        for index in range(min(NODES_AT_ONCE, len(slots))):
            node = slots[(self._turn + index) % len(slots)]
            if node in agents:
                self._copies[node] = _newest(agents[node].heartbeat.copies)
        self._turn = (self._turn + NODES_AT_ONCE) % max(1, len(slots))
        return self._copies

    def _node(self, own: _Own, slot: int, seen: Picture) -> LiveNode:
        node, last = own.node, own.last
        state, reason = _state_of(own, seen)
        step_times = self._nodes.setdefault(node, _StepTimes())
        if last is not None:
            step_times.see(last.step, seen.now.mono - last.age_s)
        return LiveNode(
            node=node,
            state=state,
            slot=slot,
            why=one_line(reason, MAX_TEXT) if reason else "",
            heard_s=own.heard_s,
            step=last.step if last is not None else -1,
            step_age_s=last.age_s if last is not None else None,
            step_s=step_times.seconds_per_step,
            phase=one_line(last.phase, MAX_TEXT) if last is not None and last.phase else "",
            failed=own.failed,
            memory_step=own.newest_step(Tier.MEMORY),
            peer_step=own.newest_step(Tier.PEER),
            local_step=own.newest_step(Tier.LOCAL),
            alerts=_alerts(own.heartbeat),
        )


class _StepTimes:
    """Seconds per step over the last few live statuses."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_WINDOW)

    def see(self, step: int, at: float) -> None:
        """Take in that ``step`` was completed ``at`` this monotonic time."""
        if step >= 0 and (not self._seen or step > self._seen[-1][0]):
            self._seen.append((step, at))

    @property
    def seconds_per_step(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (first, begun), (last, ended) = self._seen[0], self._seen[-1]
        return max(0.0, ended - begun) / (last - first)


class _Last(NamedTuple):
    """The step record of the rank that was last, as old as it is now."""

    step: int
    age_s: float
    loss: float | None
    grad_norm: float | None
    phase: str


class _Own:
    """What the agent of one node with a slot has reported, in figures."""

    __slots__ = (
        "checkpoint",
        "copies",
        "failed",
        "heard",
        "heard_s",
        "heartbeat",
        "last",
        "node",
        "non_finite",
        "ranks",
        "reported",
    )

    def __init__(self, node: str, seen: Picture, copies: _Copies = _NO_COPIES) -> None:
        self.node, self.copies = node, copies
        self.heard = heard = seen.agents.get(node)
        self.heartbeat = heard.heartbeat if heard is not None else None
        self.heard_s = max(0.0, seen.now.mono - heard.heard) if heard is not None else None
        self.last: _Last | None = None
        self.ranks = self.failed = 0
        self.reported, self.non_finite, self.checkpoint = True, False, -1
        if heard is not None and heard.heartbeat.generation == seen.state.world.generation:
            older_s = max(0.0, seen.now.mono - heard.received)
            slow: Progress | None = None
            for record in heard.heartbeat.progress:
                step = record.step
                if slow is None or step < slow.step or (step == slow.step and record.age_s < slow.age_s):
                    slow = record
                loss = record.loss
                if loss is not None and loss - loss != 0.0:  # NaN and infinite
                    self.non_finite = True
                if not record.reported:
                    self.reported = False
            self.ranks = len(heard.heartbeat.progress)
            self.failed = len(failures(heard.heartbeat)) if heard.heartbeat.exits else 0
            if slow is not None:
                self.checkpoint = min(record.checkpoint for record in heard.heartbeat.progress)
                self.last = _Last(slow.step, slow.age_s + older_s, slow.loss, slow.grad_norm, slow.phase)

    def newest_step(self, tier: Tier) -> int:
        """Return the newest step that the copies of all ranks in ``tier`` have reached here; -1 for none."""
        ranks = self.copies.get(tier)
        return min(map(max, ranks.values())) % _GENERATION if ranks else -1


def _newest(copies: Sequence[Copy]) -> _Copies:
    found: dict[Tier, dict[int, set[int]]] = {}
    tier, ranks = None, dict[int, set[int]]()
    for copy in copies:
        if copy.tier is not tier:
            tier = copy.tier
            ranks = found.setdefault(tier, {})
        if copy.rank != SHARED:
            ranks.setdefault(copy.rank, set()).add(copy.generation * _GENERATION + copy.step)
    return {tier: {rank: frozenset(its) for rank, its in ranks.items()} for tier, ranks in found.items()}


def _whole(held: Mapping[int, frozenset[int]], *, moves: bool) -> int:
    """Return the newest copy that all ranks have, as a number, -1 for none; ``held``: copies by rank.

    ``moves``: all ranks take snapshots. Heartbeats are of different ages, so what the last of them has
    reached is whole on all of them, unless it is of an earlier generation.
    """
    reached = [max(its) for its in held.values()]
    if moves and len({number // _GENERATION for number in reached}) == 1:
        return min(reached)
    return max(frozenset.intersection(*held.values()), default=-1)


def _tiers(own: Sequence[_Own], seen: Picture) -> Iterator[LiveTier]:
    world, state = seen.state.world.placement.world_size, seen.state
    for tier in (Tier.MEMORY, Tier.PEER, Tier.LOCAL):
        held: dict[int, frozenset[int]] = {}
        for one in own:
            for rank, its in one.copies.get(tier, {}).items():
                held[rank] = its | held.get(rank, frozenset())
        if len(held) >= world > 0:
            moves = not any(one.heartbeat is not None and one.heartbeat.unkept for one in own)
            newest = _whole(held, moves=moves)
            if newest >= 0:
                yield LiveTier(tier=tier, step=newest % _GENERATION, generation=newest // _GENERATION)
    stored = [ref for ref, tier in seen.listed.items() if tier is Tier.STORAGE]
    if state.world.stored is not None:
        stored.append(CheckpointId(step=state.world.stored.step, generation=state.world.stored.generation))
    published = min((one.checkpoint for one in own), default=-1)
    if published >= 0:
        stored.append(CheckpointId(step=published, generation=state.world.generation))
    if stored:
        best = max(stored)
        known = state.world.stored is not None and (
            state.world.stored.step,
            state.world.stored.generation,
        ) == (
            best.step,
            best.generation,
        )
        age_s = (
            max(0.0, seen.now.wall - state.world.stored.t)
            if state.world.stored is not None and known
            else None
        )
        yield LiveTier(tier=Tier.STORAGE, step=best.step, generation=best.generation, age_s=age_s)


def _state_of(own: _Own, seen: Picture) -> tuple[NodeState, str]:
    heard, heartbeat = own.heard, own.heartbeat
    if heard is None or heartbeat is None or own.heard_s is None:
        return NodeState.ABSENT, ""
    if heard.dead:
        return NodeState.DEAD, heard.dead
    if own.heard_s > seen.node_dead_s:
        return NodeState.SILENT, ""
    if heartbeat.fatal:
        return NodeState.IDLE, heartbeat.fatal
    if heartbeat.generation != seen.state.world.generation:
        return NodeState.IDLE, ""
    state = _STATES[heartbeat.phase]
    if state is NodeState.TRAINING and (own.last is None or own.last.step < 0):
        state = NodeState.STARTING
    return state, next((exit.describe() for exit in failures(heartbeat)), "") if own.failed else ""


def _without_slot(seen: Picture) -> Iterator[LiveNode]:
    """List the standbys, then the evicted nodes."""
    state = seen.state
    for node in state.spares:
        own = _Own(node, seen)
        found, reason = _state_of(own, seen)
        if node in state.aside:
            found, reason = NodeState.ASIDE, state.aside[node].reason
        elif not found.is_wrong and found is not NodeState.ABSENT:
            found, reason = NodeState.STANDBY, _standby(state, node)
        yield LiveNode(
            node=node,
            state=found,
            why=one_line(reason, MAX_TEXT),
            heard_s=own.heard_s,
            alerts=_alerts(own.heartbeat),
        )
    for node, reason in state.evicted.items():
        if node not in state.world.slots and node not in state.spares:
            yield LiveNode(node=node, state=NodeState.EVICTED, why=first_sentence(reason, node))


def _standby(state: JobState, node: str) -> str:
    known = state.standbys.get(node)
    if known is None:
        return StandbyStage.LOADING.value
    return known.stage.value + (f": {known.reason}" if known.reason else "")


def failures(heartbeat: Heartbeat) -> list[WorkerExit]:
    """Return the workers that failed.

    Workers that TERM or KILL ended are left out: mostly the controller itself ordered that.
    """
    return [e for e in heartbeat.exits if e.failed and (e.signal not in _ORDERED or e.oom)]


def _alerts(heartbeat: Heartbeat | None) -> tuple[str, ...]:
    standing = [alert for alert in heartbeat.alerts if alert.ended_s is None] if heartbeat is not None else []
    newest = sorted(standing, key=lambda alert: alert.age_s)[:MAX_ALERTS]
    return tuple(one_line(f"{each.check} {each.subject}: {each.text}", MAX_TEXT) for each in newest)


def _finite(value: float | None) -> float | None:
    return value if value is not None and value - value == 0.0 else None


def why(entered_by: to.Transition, ending: str) -> str:
    """Return what brought the job to a stage: a fault, an order, an action; "" if that is plain."""
    match entered_by:
        case to.ToStopping(fault=None, reason=reason) | to.ToEnding(reason=reason):
            return reason
        case to.ToRequeueing(reason=reason, exclude=exclude):
            return reason + (f" (without {count(len(exclude), 'node')})" if exclude else "")
        case to.ToSaving(then=then):
            return then.reason
        case to.ToStoring():
            return "a checkpoint of another number of ranks goes to storage first"
        case to.ToTesting(action=action) | to.ToBorrowing(action=action):
            return action.reason
        case to.ToCheckpointing():
            return ending
        case to.ToUpdating():
            return "all ranks keep one step for an update, and wait there"
        case to.ToGathering(start=True):
            return "agents are started"
        case to.ToGathering():
            return "until every slot has a node that can start workers"
        case (
            to.ToStopping(fault=fault)
            | to.ToLocalising(fault=fault)
            | to.ToObserving(fault=fault)
            | to.ToUnreachable(fault=fault)
            | to.ToDeciding(fault=fault)
        ):
            return fault.detail if fault is not None else ""
    return ""
