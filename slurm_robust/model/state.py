"""The state of a job as the fold of its events: ``state = reduce(apply, events, JobState())``."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, singledispatch

import msgspec

from slurm_robust.model import events as ev
from slurm_robust.model.companion import Companion
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import (
    Evict,
    GiveUp,
    Replace,
    Requeue,
    RollBack,
    Swap,
)
from slurm_robust.model.progress import PaceHistory
from slurm_robust.model.record import Record
from slurm_robust.model.release import Candidate, ReleaseState
from slurm_robust.model.world import World, follow

TAKEOVER_GAP = 10
"""A controller launches fewer generations before it sees that another one has taken over. Their numbers are
left out, so that no two controllers ever write checkpoints of one name.
"""

REPAIRED_S = 3 * 86400.0
"""An evicted node may serve its job again after this time, if Slurm offers it: what the site's test finds
wrong is drained. Else a job of months would shun more and more nodes that have long been repaired.
"""

MAX_REPLENISHED = 100
"""Requests for standbys that are remembered: the policy allows no more in a day."""

_MAX_OF_IT = 0.5  # of a run's time
_NEAR_S = 600.0  # hardly any job has Slurm warn earlier before a time limit


class JobState(Record, dict=True):
    """All that decisions depend on."""

    worlds: dict[str, World] = {}
    """By name."""
    focus: str = ev.TRAIN
    """The world that is decided about."""
    run_id: str = ""
    job_id: int = 0
    training: str = ""
    """The name of the training of which the job is a chapter, "" for none."""
    continued: ev.Continued | None = None
    """The point from which the job goes on, None if it began anew."""
    restart_count: int = -1
    epoch: int = 0
    own_node: str = ""
    """The node of the newest controller."""
    taken_from: str = ""
    """The node from which it took over, "" if it did not."""
    silent_since: float = 0.0
    """When the controller there was last heard, 0 if that is not known."""
    spares: tuple[str, ...] = ()
    aside: dict[str, ev.SpareSetAside] = {}
    """Those of ``spares`` that do not answer."""
    drained: dict[str, str] = {}
    """Nodes of this run that others have drained, each with who did it and why."""
    companions: dict[int, Companion] = {}
    """By job id."""
    standbys: dict[str, ev.StandbyChanged] = {}
    """How far each node of this run that stood by is, or was, on its way to be fit."""
    standby_tests: dict[str, ev.StandbyTested] = {}
    """The finished quick test of each node of this run that stood by; also of evicted ones."""
    learned: ev.ModulesLearned | None = None
    """What workers of any run were seen to import."""
    release: str = ""
    """What the next generation runs, "" for a job without releases."""
    releases: dict[str, ReleaseState] = {}
    """All that were taken, in that order."""
    taken: dict[str, ev.ReleaseTaken] = {}
    last_good: str = ""
    """The newest release that was good, "" before there is one."""
    candidate: Candidate | None = None
    """The release that runs, as long as it is neither good nor bad."""
    update: ev.UpdateRequested | None = None
    """The one that waits to be applied."""
    tried: ev.UpdateTried | None = None
    """The trial of that update, once it is over."""
    updates: int = 0
    """The number of the last one that was requested."""
    update_token: str = ""
    """The token of its request."""
    applying: int = 0
    """The update for which the last generation was ended, until the next one is launched; else 0."""
    discards: dict[str, int] = {}
    """Releases that leave out the optimizer's state of checkpoints, as their owner asked: only of those whose
    generation is lower than the number, since they have written the others.
    """
    wanted_spares: int = 0
    """How many standbys the job was submitted with."""
    replenish: ev.ReplenishBegun | None = None
    """The newest of this run that has not got a node."""
    replenished: tuple[float, ...] = ()
    """When they began in this run, by the wall clock; the newest :data:`MAX_REPLENISHED`."""
    evicted: dict[str, str] = {}
    evicted_at: dict[str, float] = {}
    """When each of them was evicted, by the wall clock."""
    unproven: tuple[str, ...] = ()
    """Those of ``evicted`` that suspicion alone speaks against."""
    quick_tested: tuple[str, ...] = ()
    """Nodes that a quick test has cleared or failed, in any run; none is tested twice."""
    held: tuple[str, ...] = ()
    """The nodes of this run's allocation that were not given back."""
    joined: dict[str, ev.AgentJoined] = {}
    """The newest agent of each node in this run."""
    fabrics: dict[str, ev.FabricSeen] = {}
    """How the GPUs of each node reach those of others, as its agents of all runs have told."""
    incidents: int = 0
    """The number of the last incident, also while it is open."""
    drills: int = 0
    """The number of the last drill."""
    allocated: float = 0.0
    """When this run of the Slurm job got its nodes."""
    segment: int = 0
    """Nodes of a segment of this run's allocation (``--segment``), 0 for none."""
    lost_node: str = ""
    """What the loss of a node does when no standby is left; "" if unknown."""
    time_limit_s: float | None = None
    """How long it has them, None if not known."""
    gpus: int = 0
    """How many they hold together, 0 also if that is not known."""
    made_progress: bool = False
    """It has made a new step."""
    runs_without_progress: int = 0
    """How many runs before it, one after the other, were :meth:`is_without_progress` at their end."""
    requeueing: ev.RequeueStarted | None = None
    excluded: tuple[str, ...] = ()
    """All nodes that a run of the Slurm job had to go on without. The weakest come first: nodes of earlier
    runs, then nodes against which only suspicion speaks.
    """
    asked_by_name: tuple[str, ...] = ()
    """All nodes that a requeue asked for by name, beside those of the owner."""
    owners_nodes: tuple[str, ...] = ()
    """Nodes that the job's owner asks for by name (``--nodelist``)."""
    start: str = ""
    """The start of ``srobust run`` that the newest controller serves."""
    stop_ordered: ev.StopOrdered | None = None
    """The first order of this start to end."""
    end_started: ev.EndStarted | None = None
    """How this run was ordered to end, also once it has."""
    ended: ev.RunEnded | None = None

    @property
    def image(self) -> str:
        """Container image that agents are started in now, "" for that of the job's configuration.

        With the ranks of the last generation its release ends, too, if an update is ready.
        """
        is_ready = self.tried is not None and self.tried.ok and not self.world.running
        return self.image_of(self.update.release if is_ready and self.update is not None else self.release)

    def image_of(self, release: str) -> str:
        """Return the container image of ``release``, "" for that of the job's configuration."""
        taken = self.taken.get(release)
        return taken.release.image if taken is not None else ""

    def configures(self, release: str) -> bool:
        """Return whether ``release`` brings a configuration: that of the job's first is the job's own."""
        taken = self.taken.get(release)
        return taken is not None and taken.by is not None and taken.release.has_config

    def configuration_of(self, release: str) -> str:
        """Return what is the same for releases that bring the same configuration, "" for the job's own."""
        return (self.taken[release].release.config or release) if self.configures(release) else ""

    def discards_optimizer_of(self, checkpoint: CheckpointId | None) -> bool:
        """Return whether the release that runs leaves out the optimizer's state of ``checkpoint``."""
        return checkpoint is not None and checkpoint.generation < self.discards.get(self.release, 0)

    @property
    def world(self) -> World:
        """The world that is decided about: :attr:`focus` of :attr:`worlds`."""
        return self.worlds.get(self.focus) or World()

    @cached_property
    def lenders(self) -> dict[str, int]:
        """The companion of each node that one lends."""
        return {companion.node: job_id for job_id, companion in self.companions.items() if companion.node}

    def shunned(self, now: float, *, anew: bool = False) -> tuple[str, ...]:
        """Return the evicted nodes that may not serve again yet, in the order in which they were evicted.

        ``anew``: another run begins, which has none of them still.
        """
        own = () if anew else (*self.held, *self.lenders)
        return tuple(
            node for node in self.evicted if node in own or now - self.evicted_at.get(node, now) < REPAIRED_S
        )

    def is_without_progress(self, now: float) -> bool:
        """Return whether this run, if it ends ``now``, had its time and made no new step.

        One that is preempted early says nothing of its time limit.
        """
        if self.made_progress or self.time_limit_s is None:
            return not self.made_progress
        ran_s = now - self.allocated
        return ran_s >= _MAX_OF_IT * self.time_limit_s or self.time_limit_s - ran_s <= _NEAR_S


@singledispatch
def apply(event: object, state: JobState) -> JobState:
    """Return ``state`` after ``event``. Events that only inform leave it as it is."""
    return state


def _serve_again(nodes: Collection[str], t: float, state: JobState, *, anew: bool = False) -> JobState:
    """Return ``state`` in which those of ``nodes`` count as repaired that were evicted long before ``t``."""
    back = set(state.evicted).intersection(nodes).difference(state.shunned(t, anew=anew))
    if not back:
        return state
    return msgspec.structs.replace(
        state,
        evicted={node: why for node, why in state.evicted.items() if node not in back},
        unproven=tuple(node for node in state.unproven if node not in back),
        quick_tested=tuple(node for node in state.quick_tested if node not in back),
    )


def _in_world(state: JobState, name: str, **changes: object) -> JobState:
    """Return ``state`` with ``changes`` in one world."""
    world = msgspec.structs.replace(state.worlds.get(name) or World(), **changes)
    return msgspec.structs.replace(state, worlds={**state.worlds, name: world})


def _followed(event: ev.WorldEvent, state: JobState) -> JobState:
    """Return ``state`` with its world after ``event``."""
    world = follow(event, state.worlds.get(event.world) or World())
    return msgspec.structs.replace(state, worlds={**state.worlds, event.world: world})


def _in_all(state: JobState, **changes: object) -> JobState:
    """Return ``state`` with ``changes`` in every world."""
    worlds = {name: msgspec.structs.replace(world, **changes) for name, world in state.worlds.items()}
    return msgspec.structs.replace(state, worlds=worlds)


@apply.register
def _(event: ev.RunStarted, state: JobState) -> JobState:
    state = _in_world(state, ev.TRAIN, nproc_per_node=event.nproc_per_node)
    return msgspec.structs.replace(
        state,
        run_id=event.run_id,
        job_id=event.job_id,
        wanted_spares=event.spares,
        training=event.training,
    )


@apply.register
def _(event: ev.ControllerStarted, state: JobState) -> JobState:
    goes_on = bool(event.start) and event.start == state.start
    ended, end_started = state.ended, state.end_started
    own = event.node or event.host
    if event.taken_from:
        worlds = {
            name: msgspec.structs.replace(world, first_unused_generation=world.generation + TAKEOVER_GAP)
            for name, world in state.worlds.items()
        }
        state = msgspec.structs.replace(state, worlds=worlds)
    return msgspec.structs.replace(
        state,
        epoch=event.epoch,
        own_node=own,
        taken_from=event.taken_from,
        silent_since=event.silent_since,
        start=event.start,
        stop_ordered=state.stop_ordered if goes_on else None,
        end_started=end_started if end_started is not None and (goes_on or end_started.final) else None,
        ended=ended if ended is not None and (goes_on or ended.final) else None,
    )


@apply.register
def _(event: ev.AllocationTaken, state: JobState) -> JobState:
    state = _serve_again(event.nodes, event.t, state, anew=True)
    state = _in_all(state, slots=(), running=False, stopping=None, saving=None)
    state = _in_world(state, ev.TRAIN, slots=event.slots)
    return msgspec.structs.replace(
        state,
        restart_count=event.restart_count,
        spares=event.spares,
        held=event.nodes,
        owners_nodes=state.owners_nodes
        if event.required is None
        else tuple(node for node in event.required if node not in state.asked_by_name),
        joined={},
        aside={},
        drained={},
        companions={},
        standbys={},
        standby_tests={},
        replenish=None,
        replenished=(),
        allocated=event.t,
        time_limit_s=event.time_limit_s,
        gpus=event.gpus,
        segment=event.segment,
        lost_node=event.lost_node,
        made_progress=False,
        requeueing=None,
        stop_ordered=None,
        end_started=state.end_started if state.end_started is not None and state.end_started.final else None,
    )


@apply.register
def _(event: ev.AgentJoined, state: JobState) -> JobState:
    return msgspec.structs.replace(state, joined={**state.joined, event.node: event})


@apply.register
def _(event: ev.FabricSeen, state: JobState) -> JobState:
    return msgspec.structs.replace(state, fabrics={**state.fabrics, event.node: event})


@apply.register
def _(event: ev.WorldEvent, state: JobState) -> JobState:
    return _followed(event, state)


@apply.register
def _(event: ev.Continued, state: JobState) -> JobState:
    return msgspec.structs.replace(_followed(event, state), continued=event)


@apply.register
def _(event: ev.GenerationLaunched, state: JobState) -> JobState:
    spares = tuple(s for s in state.spares if s not in event.slots)
    return msgspec.structs.replace(_followed(event, state), spares=spares, applying=0)


@apply.register(ev.FirstStep)
@apply.register(ev.ProgressMade)
@apply.register(ev.GenerationEnded)
def _(event: ev.WorldEvent, state: JobState) -> JobState:
    before, state = state.worlds.get(event.world, World()), _followed(event, state)
    after = state.worlds[event.world]
    if isinstance(event, ev.FirstStep) and (candidate := state.candidate) is not None and not candidate.since:
        candidate = msgspec.structs.replace(candidate, since=event.t, first_step=event.step)
        state = msgspec.structs.replace(state, candidate=candidate)
    # Without step reports it is unknown which step is new: any of them may be.
    unknown = isinstance(event, ev.FirstStep | ev.ProgressMade) and not event.reported and event.step >= 0
    if unknown or after.best_step > before.best_step:
        return msgspec.structs.replace(state, made_progress=True, runs_without_progress=0)
    return state


@apply.register
def _(event: ev.StorageWritten, state: JobState) -> JobState:
    state, written = _followed(event, state), CheckpointId(step=event.step, generation=event.generation)
    if state.candidate is None or state.candidate.checkpoint != written:
        return state
    return msgspec.structs.replace(state, candidate=msgspec.structs.replace(state.candidate, stored=True))


@apply.register
def _(event: ev.IncidentOpened, state: JobState) -> JobState:
    return msgspec.structs.replace(_followed(event, state), incidents=event.incident)


@apply.register
def _(event: ev.DrillPlanted, state: JobState) -> JobState:
    return msgspec.structs.replace(_followed(event, state), drills=event.drill)


@apply.register
def _(event: ev.Decided, state: JobState) -> JobState:
    if not event.carried_out:
        return state
    state = _followed(event, state)
    evicted = {action.node for action in event.actions if isinstance(action, Evict)}
    worlds, spares = state.worlds, state.spares
    for action in event.actions:
        if isinstance(action, Replace):
            worlds = _moved(worlds, {action.node: action.standby})
            spares = tuple(n for n in spares if n != action.standby)
            spares += () if action.node in evicted else (action.node,)
        elif isinstance(action, Swap):
            worlds = _moved(worlds, {action.first: action.second, action.second: action.first})
        elif isinstance(action, GiveUp | Requeue):
            state = msgspec.structs.replace(state, end_started=_end_by(action, event.t))
        elif isinstance(action, RollBack):
            first = state.candidate or Candidate(release=action.release, update=0, before=action.to)
            worlds = {
                name: world.without_from(first.generation, action.step, first.pace)
                for name, world in worlds.items()
            }
            again = None
            if state.releases.get(action.to) is ReleaseState.UNJUDGED:  # it goes on to be judged
                again = Candidate(
                    release=action.to,
                    update=0,
                    before="",
                    generation=worlds.get(event.world, World()).next_generation,
                    since=event.t,
                    first_step=action.step + 1,
                    applied=event.t,
                )
            state = msgspec.structs.replace(
                state,
                release=action.to,
                releases={**state.releases, action.release: ReleaseState.BAD},
                candidate=again,
            )
    return msgspec.structs.replace(state, worlds=worlds, spares=spares)


def _moved(worlds: dict[str, World], to: dict[str, str]) -> dict[str, World]:
    """Return ``worlds`` with other nodes in the slots of the keys of ``to``."""
    return {
        name: msgspec.structs.replace(world, slots=tuple(to.get(node, node) for node in world.slots))
        for name, world in worlds.items()
    }


def _end_by(action: GiveUp | Requeue, t: float) -> ev.EndStarted:
    """Return what the decision of the policy to leave the nodes binds later controllers to."""
    if isinstance(action, GiveUp):
        final = action.is_for_good
        return ev.EndStarted(t=t, code=action.code, reason=action.reason, final=final, saves=True)
    return ev.EndStarted(
        t=t,
        code=ExitCode.REQUEUED,
        reason=action.reason,
        final=False,
        saves=True,
        exclude=action.exclude,
        failure=True,
    )


@apply.register
def _(event: ev.ReleaseTaken, state: JobState) -> JobState:
    name, is_first = event.release.name, not state.releases
    taken = ReleaseState.UNJUDGED if is_first else ReleaseState.TAKEN
    states = state.releases if name in state.releases else {**state.releases, name: taken}
    state = msgspec.structs.replace(state, releases=states, taken={**state.taken, name: event})
    if not is_first:
        return state
    first = Candidate(release=name, update=0, before="", generation=state.world.next_generation)
    return msgspec.structs.replace(state, release=name, candidate=first)


@apply.register
def _(event: ev.UpdateRequested, state: JobState) -> JobState:
    return msgspec.structs.replace(
        state, update=event, tried=None, updates=event.update, update_token=event.token
    )


@apply.register
def _(event: ev.StopStarted, state: JobState) -> JobState:
    return msgspec.structs.replace(_followed(event, state), applying=event.update)


@apply.register
def _(event: ev.UpdateTried, state: JobState) -> JobState:
    if state.update is None or state.update.update != event.update:
        return state
    states, name = state.releases, state.update.release
    if not event.ok and states.get(name) is ReleaseState.TAKEN:
        states = {**states, name: ReleaseState.REFUSED}
    return msgspec.structs.replace(state, tried=event, releases=states)


@apply.register
def _(event: ev.UpdateEnded, state: JobState) -> JobState:
    if state.update is None or state.update.update != event.update:
        return state
    return msgspec.structs.replace(state, update=None, tried=None)


@apply.register
def _(event: ev.UpdateApplied, state: JobState) -> JobState:
    waits = state.update is not None and state.update.update == event.update
    asked = state.update if waits else None
    worlds, discards = state.worlds, {r: g for r, g in state.discards.items() if r != event.release}
    world = worlds.get(event.world, World())
    if asked is not None and asked.from_step >= 0 and event.checkpoint is not None:
        worlds = {**worlds, event.world: world.until(event.checkpoint.step)}
    if asked is not None and asked.discard_optimizer:
        discards[event.release] = world.next_generation
    state = msgspec.structs.replace(
        state,
        worlds=worlds,
        release=event.release,
        discards=discards,
        update=None if waits else state.update,
        tried=None if waits else state.tried,
    )
    states = {**state.releases}
    if states.get(event.before) is ReleaseState.CANDIDATE:
        states[event.before] = ReleaseState.UNJUDGED
    if states.get(event.release) is ReleaseState.GOOD:
        return msgspec.structs.replace(state, candidate=None, last_good=event.release, releases=states)
    was_bad, before = state.releases.get(event.release) is ReleaseState.BAD, _proven(state, event.before)
    candidate = Candidate(
        release=event.release,
        update=event.update,
        before="" if was_bad or before == event.release else before,  # each is rolled back once
        checkpoint=event.checkpoint,
        generation=world.next_generation,
        applied=event.t,
        pace=world.pace,
        nodes=world.trained_on,
    )
    state = _in_world(state, event.world, pace=PaceHistory())  # what the new one does may take longer
    is_candidate = bool(candidate.before)
    states[event.release] = ReleaseState.CANDIDATE if is_candidate else ReleaseState.UNJUDGED
    return msgspec.structs.replace(state, candidate=candidate, releases=states)


def _proven(state: JobState, running: str) -> str:
    """Return the newest good release; before there is one, that which made the newest steps, "" for none."""
    candidate = state.candidate
    if state.last_good or candidate is None or candidate.since:
        return state.last_good or running
    return candidate.before


@apply.register
def _(event: ev.ReleaseProven, state: JobState) -> JobState:
    candidate = state.candidate
    if candidate is not None and candidate.release == event.release:
        candidate = None
    return msgspec.structs.replace(
        state,
        releases={**state.releases, event.release: ReleaseState.GOOD},
        last_good=event.release,
        candidate=candidate,
    )


@apply.register
def _(event: ev.NodeEvicted, state: JobState) -> JobState:
    return msgspec.structs.replace(
        state,
        evicted={**state.evicted, event.node: event.reason},
        evicted_at={**state.evicted_at, event.node: event.t},
        unproven=(*state.unproven, event.node) if event.unproven else state.unproven,
        spares=tuple(s for s in state.spares if s != event.node),
    )


@apply.register
def _(event: ev.QuickTested, state: JobState) -> JobState:
    back = tuple(node for node in event.passed if node in state.evicted)
    placed = {node for world in state.worlds.values() for node in world.slots}
    return msgspec.structs.replace(
        state,
        evicted={node: why for node, why in state.evicted.items() if node not in back},
        unproven=tuple(n for n in state.unproven if n not in event.passed and n not in event.failed),
        quick_tested=tuple(dict.fromkeys((*state.quick_tested, *event.passed, *event.failed))),
        spares=(*state.spares, *(node for node in back if node not in placed)),
    )


@apply.register
def _(event: ev.NodeGivenBack, state: JobState) -> JobState:
    return msgspec.structs.replace(state, held=tuple(node for node in state.held if node != event.node))


@apply.register
def _(event: ev.NodeDrained, state: JobState) -> JobState:
    return msgspec.structs.replace(state, drained={**state.drained, event.node: event.reason})


@apply.register
def _(event: ev.NodeUndrained, state: JobState) -> JobState:
    drained = {node: why for node, why in state.drained.items() if node != event.node}
    return msgspec.structs.replace(state, drained=drained)


@apply.register
def _(event: ev.SpareSetAside, state: JobState) -> JobState:
    return msgspec.structs.replace(state, aside={**state.aside, event.node: event})


@apply.register
def _(event: ev.SpareAnswers, state: JobState) -> JobState:
    aside = {node: why for node, why in state.aside.items() if node != event.node}
    return msgspec.structs.replace(state, aside=aside)


@apply.register
def _(event: ev.CompanionSubmitted, state: JobState) -> JobState:
    companions = {**state.companions, event.job_id: Companion(source=event.source)}
    return msgspec.structs.replace(state, companions=companions)


@apply.register
def _(event: ev.CompanionStarted, state: JobState) -> JobState:
    known = state.companions.get(event.job_id)
    if known is None:
        return state
    lent = msgspec.structs.replace(known, node=event.node)
    state = _serve_again((event.node,), event.t, state)
    return msgspec.structs.replace(
        state,
        companions={**state.companions, event.job_id: lent},
        spares=(*state.spares, event.node),
        replenish=None,
    )


@apply.register
def _(event: ev.CompanionEnded, state: JobState) -> JobState:
    ended = state.companions.get(event.job_id)
    return msgspec.structs.replace(
        state,
        companions={job: one for job, one in state.companions.items() if job != event.job_id},
        spares=tuple(node for node in state.spares if ended is None or node != ended.node),
    )


@apply.register
def _(event: ev.StandbyChanged, state: JobState) -> JobState:
    return msgspec.structs.replace(state, standbys={**state.standbys, event.node: event})


@apply.register
def _(event: ev.StandbyTested, state: JobState) -> JobState:
    return msgspec.structs.replace(state, standby_tests={**state.standby_tests, event.node: event})


@apply.register
def _(event: ev.ModulesLearned, state: JobState) -> JobState:
    return msgspec.structs.replace(state, learned=event)


@apply.register
def _(event: ev.ReplenishBegun, state: JobState) -> JobState:
    return msgspec.structs.replace(
        state, replenish=event, replenished=(*state.replenished, event.t)[-MAX_REPLENISHED:]
    )


@apply.register
def _(event: ev.RequeueStarted, state: JobState) -> JobState:
    without_progress = state.runs_without_progress
    if state.requeueing is None and not event.failure and state.is_without_progress(event.t):
        without_progress += 1  # once, even if another controller has to go on asking
    now, weak, evicted_at = set(event.exclude), set(state.unproven), state.evicted_at
    earlier = [
        node
        for node in state.excluded
        if node not in now and event.t - evicted_at.get(node, event.t) < REPAIRED_S
    ]
    unproven = [node for node in event.exclude if node in weak]
    return msgspec.structs.replace(
        _in_all(state, saving=None, running=False),
        requeueing=event,
        end_started=None,
        runs_without_progress=without_progress,
        excluded=tuple(dict.fromkeys((*earlier, *unproven, *event.exclude))),
        asked_by_name=tuple(
            dict.fromkeys((*state.asked_by_name, *(n for n in event.holders if n not in state.owners_nodes)))
        ),
    )


@apply.register
def _(event: ev.StopOrdered, state: JobState) -> JobState:
    return msgspec.structs.replace(state, stop_ordered=state.stop_ordered or event)


@apply.register
def _(event: ev.EndStarted, state: JobState) -> JobState:
    return msgspec.structs.replace(state, end_started=event)


@apply.register
def _(event: ev.RunEnded, state: JobState) -> JobState:
    return msgspec.structs.replace(_in_all(state, saving=None, running=False), ended=event)
