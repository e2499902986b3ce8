"""The state of a job as the fold of its events: ``state = reduce(apply, events, JobState())``."""

from __future__ import annotations

from functools import cached_property, singledispatch

import msgspec

from slurm_robust.model import events as ev
from slurm_robust.model.companion import Companion
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import (
    Blame,
    Evict,
    GiveUp,
    Replace,
    Requeue,
    Signature,
    StackLocation,
    Swap,
    Symptom,
    finds_out_more,
    is_final,
)
from slurm_robust.model.layout import Placement
from slurm_robust.model.progress import PaceHistory
from slurm_robust.model.record import Record

REPEAT_S = 2.0
"""Less than this is no progress: the end of training is not known more precisely."""


MAX_PLACES = 32
"""Places of hangs and slowdowns that are remembered."""


TAKEOVER_GAP = 10
"""A controller launches fewer generations before it sees that another one has taken over. Their numbers are
left out, so that no two worlds ever write checkpoints of one name."""

_MAX_OF_IT = 0.5  # of a run's time
_NEAR_S = 600.0  # hardly anybody has Slurm warn earlier before a time limit


class Attempt(Record):
    """One answer to a fault, and how far training was."""

    signature: Signature
    t: float
    """When, by the wall clock."""
    step: int
    """Newest step completed by all ranks in any generation."""
    work: int = -1
    """Steps that the generation which failed had completed where the script does not report them, else -1."""
    blame: Blame = Blame.NOBODY


class OpenIncident(Record):
    """The incident that is open now."""

    number: int
    symptom: Symptom
    step: int
    """Newest completed step when it began."""
    generation: int
    signed: int = -1
    """The generation in which its newest sign was seen."""
    decided: float | None = None
    """When it was first decided what to do, by the wall clock; None as long as it was not."""


class JobState(Record, dict=True):
    """All that decisions depend on."""

    run_id: str = ""
    job_id: int = 0
    training: str = ""
    """The name of the training of which the job is a chapter, "" for none."""
    continued: ev.Continued | None = None
    """From where the job goes on, None for one that began anew."""
    nproc_per_node: int = 1
    restart_count: int = -1
    epoch: int = 0
    own_node: str = ""
    """Where the newest controller runs."""
    taken_from: str = ""
    """The node from which it took over, "" where it did not."""
    silent_since: float = 0.0
    """When the controller there was last heard, 0 where that is not known."""
    fresh_generation: int = 0
    """Numbers below this may have been used by a controller that was taken over, unknown to the newer one."""
    slots: tuple[str, ...] = ()
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
    """The quick test of each node of this run that stood by, as far as it is over; also of evicted ones."""
    learned: ev.ModulesLearned | None = None
    """What workers of any run were seen to import."""
    wanted_spares: int = 0
    """How many standbys the job was submitted with."""
    replenish: ev.ReplenishBegun | None = None
    """The newest of this run that has not got a node."""
    replenished: int = 0
    """How many there were in this run."""
    evicted: dict[str, str] = {}
    unproven: tuple[str, ...] = ()
    """Those of ``evicted`` that suspicion alone speaks against."""
    quick_tested: tuple[str, ...] = ()
    """Nodes that a quick test has cleared or failed, in any run; none is tested twice."""
    held: tuple[str, ...] = ()
    """The nodes of this run's allocation that were not given back."""
    joined: dict[str, ev.AgentJoined] = {}
    """The newest agent of each node in this run."""
    generation: int = 0
    trained_on: tuple[str, ...] = ()
    """Its slots when it was launched."""
    running: bool = False
    """The generation was launched and has not ended."""
    stopping: ev.StopStarted | None = None
    """Its workers are being ended."""
    best_step: int = -1
    """Newest step completed by all ranks in any generation, by the script's numbers; -1 before the first."""
    steps_here: int = -1
    """The newest of this generation: a count of its optimizer steps where the script does not report any."""
    reports: bool = False
    """The script reports its steps."""
    attempts: tuple[Attempt, ...] = ()
    places: tuple[StackLocation, ...] = ()
    """Where stacks placed the faults of earlier generations."""
    incidents: int = 0
    """The number of the last incident, also while it is open."""
    incident: OpenIncident | None = None
    sealed: dict[int, int] = {}
    """For each ended generation the step of the newest checkpoint that counts."""
    unsealed: tuple[int, ...] = ()
    """Ended generations for which that is not known yet."""
    good_steps: dict[int, int] = {}
    """The newest step that may count of generations that ended with non-finite numbers."""
    shared: tuple[int, ...] = ()
    """Generations with a part that is equal on all ranks."""
    layouts: dict[int, str] = {}
    """Identity of each generation's parallel layout."""
    banned: dict[CheckpointId, str] = {}
    """Checkpoints that are passed over in this job, with the reason."""
    restored: CheckpointId | None = None
    """The checkpoint that the generation began with, None for a fresh start."""
    restored_tiers: dict[str, int] = {}
    stride: int = 1
    """Snapshots of steps that are multiples of it go to peers."""
    stored: ev.StorageWritten | None = None
    """The newest that went from memory to storage."""
    was_stored: CheckpointId | None = None
    """The newest of any job of the training that is known to have been complete on storage."""
    saving: ev.SavingStarted | None = None
    """What goes there before the job leaves its nodes, as long as it is under way."""
    pace: PaceHistory = PaceHistory()
    allocated: float = 0.0
    """When this run of the Slurm job got its nodes."""
    time_limit_s: float | None = None
    """How long it has them, None if not known."""
    got_on: bool = False
    """It has made a new step."""
    runs_in_vain: int = 0
    """How many runs before it, one after the other, were :meth:`is_in_vain` at their end."""
    requeueing: ev.RequeueStarted | None = None
    excluded: tuple[str, ...] = ()
    """All nodes without which a run of the Slurm job was to go on. The weakest come first: those of earlier
    runs, then those that suspicion alone speaks against."""
    asked_by_name: tuple[str, ...] = ()
    """All nodes that a requeue asked for by name, beside those of the owner."""
    owners_nodes: tuple[str, ...] = ()
    """Those that the job's owner asks for by name (``--nodelist``)."""
    start: str = ""
    """The start of ``srobust run`` that the newest controller serves."""
    stop_ordered: ev.StopOrdered | None = None
    """The first order of this start to end."""
    end_started: ev.EndStarted | None = None
    """How this run was to end, also once it has."""
    ended: ev.RunEnded | None = None

    @property
    def next_generation(self) -> int:
        """Number of the generation to launch; no other controller has used it."""
        return max(self.generation + 1, self.fresh_generation)

    @cached_property
    def placement(self) -> Placement:
        """Nodes in their slots."""
        return Placement(slots=self.slots, nproc_per_node=self.nproc_per_node)

    @cached_property
    def lenders(self) -> dict[str, int]:
        """The companion of each node that one lends."""
        return {companion.node: job_id for job_id, companion in self.companions.items() if companion.node}

    @property
    def work(self) -> int:
        """Steps of this generation where only they can be counted, else -1."""
        return -1 if self.reports else self.steps_here

    def is_in_vain(self, now: float) -> bool:
        """Whether this run, if it ends ``now``, had its time and made no new step.

        One that is preempted early says nothing of its time limit.
        """
        if self.got_on or self.time_limit_s is None:
            return not self.got_on
        ran_s = now - self.allocated
        return ran_s >= _MAX_OF_IT * self.time_limit_s or self.time_limit_s - ran_s <= _NEAR_S

    @property
    def in_vain(self) -> tuple[Attempt, ...]:
        """Attempts since which training has made no new progress.

        A script that does not report its steps begins anew in each generation, as far as anybody knows: one
        that ends after the same work as before has done the same again.
        """
        slack = self.slack
        if self.reports:
            return tuple(a for a in self.attempts if self.best_step - a.step <= slack)
        if self.steps_here <= slack:
            return self.attempts
        return tuple(a for a in self.attempts if abs(self.steps_here - a.work) <= slack)

    @property
    def restored_step(self) -> int:
        """The step of ``restored``, -1 for a fresh start."""
        return self.restored.step if self.restored is not None else -1

    @property
    def slack(self) -> int:
        """This many steps are no progress: those of :data:`REPEAT_S`, at least one."""
        return max(1, int(REPEAT_S / self.pace.p50_s)) if self.pace.p50_s > 0 else 1


@singledispatch
def apply(event: object, state: JobState) -> JobState:
    """``state`` after ``event``. Events that only inform leave it as it is."""
    return state


@apply.register
def _(event: ev.RunStarted, state: JobState) -> JobState:
    return msgspec.structs.replace(
        state,
        run_id=event.run_id,
        job_id=event.job_id,
        nproc_per_node=event.nproc_per_node,
        wanted_spares=event.spares,
        training=event.training,
    )


@apply.register
def _(event: ev.Continued, state: JobState) -> JobState:
    return msgspec.structs.replace(
        state,
        continued=event,
        was_stored=event.stored,
        generation=event.generation,
        best_step=event.best_step,
        reports=event.reports,
        sealed=event.sealed,
        unsealed=event.unsealed,
        good_steps=event.good_steps,
        shared=event.shared,
        layouts=event.layouts,
        banned={},  # what an earlier job passed over may be taken again
    )


@apply.register
def _(event: ev.ControllerStarted, state: JobState) -> JobState:
    goes_on = bool(event.start) and event.start == state.start
    ended, end_started = state.ended, state.end_started
    own = event.node or event.host
    fresh = state.generation + TAKEOVER_GAP if event.taken_from else state.fresh_generation
    return msgspec.structs.replace(
        state,
        epoch=event.epoch,
        own_node=own,
        taken_from=event.taken_from,
        silent_since=event.silent_since,
        fresh_generation=fresh,
        start=event.start,
        stop_ordered=state.stop_ordered if goes_on else None,
        end_started=end_started if end_started is not None and (goes_on or end_started.final) else None,
        ended=ended if ended is not None and (goes_on or ended.final) else None,
    )


@apply.register
def _(event: ev.AllocationTaken, state: JobState) -> JobState:
    return msgspec.structs.replace(
        state,
        restart_count=event.restart_count,
        slots=event.slots,
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
        replenished=0,
        running=False,
        allocated=event.t,
        time_limit_s=event.time_limit_s,
        got_on=False,
        requeueing=None,
        stop_ordered=None,
        end_started=state.end_started if state.end_started is not None and state.end_started.final else None,
        stopping=None,
        saving=None,
    )


@apply.register
def _(event: ev.AgentJoined, state: JobState) -> JobState:
    return msgspec.structs.replace(state, joined={**state.joined, event.node: event})


@apply.register
def _(event: ev.GenerationLaunched, state: JobState) -> JobState:
    spares = tuple(s for s in state.spares if s not in event.slots)
    return msgspec.structs.replace(
        state,
        generation=event.generation,
        slots=event.slots,
        trained_on=event.slots,
        spares=spares,
        running=True,
        stopping=None,
        saving=None,
        steps_here=-1,
        restored=event.restore,
        restored_tiers=event.tiers,
        layouts={**state.layouts, event.generation: event.layout} if event.layout else state.layouts,
    )


def _advance(state: JobState, step: int, reported: bool) -> JobState:
    best = max(state.best_step, step) if reported else state.best_step
    # Without step reports nobody knows which step is new: any of them may be.
    is_new = best > state.best_step if reported else step >= 0
    incident = state.incident
    if incident is not None and incident.generation == state.generation and reported:
        # Heartbeats lag by up to a heartbeat: how far training really was is known a moment later.
        incident = msgspec.structs.replace(incident, step=max(incident.step, step))
    return msgspec.structs.replace(
        state,
        best_step=best,
        got_on=state.got_on or is_new,
        runs_in_vain=0 if is_new else state.runs_in_vain,
        reports=reported,
        steps_here=max(state.steps_here, step),
        incident=incident,
    )


@apply.register
def _(event: ev.FirstStep, state: JobState) -> JobState:
    return _advance(state, event.step, event.reported)


@apply.register
def _(event: ev.ProgressMade, state: JobState) -> JobState:
    return _advance(state, event.step, event.reported)


@apply.register
def _(event: ev.IncidentOpened, state: JobState) -> JobState:
    incident = OpenIncident(
        number=event.incident, symptom=event.symptom, step=event.best_step, generation=event.generation
    )
    return msgspec.structs.replace(state, incidents=event.incident, incident=incident)


@apply.register
def _(event: ev.SymptomAdded, state: JobState) -> JobState:
    if state.incident is None:
        return state
    return msgspec.structs.replace(
        state, incident=msgspec.structs.replace(state.incident, signed=state.generation)
    )


@apply.register
def _(event: ev.StopStarted, state: JobState) -> JobState:
    return msgspec.structs.replace(state, stopping=event)


@apply.register
def _(event: ev.GenerationEnded, state: JobState) -> JobState:
    unsealed = (*state.unsealed, event.generation) if event.pending else state.unsealed
    state = _seal(state, event.generation, event.sealed_step, event.shared, event.stored)
    good_steps = state.good_steps
    if event.good_step is not None:
        # Non-finite numbers count as no progress, so this is how far training was.
        state = _advance(state, event.good_step, True)
        good_steps = {**good_steps, event.generation: event.good_step}
    return msgspec.structs.replace(
        state, running=False, stopping=None, unsealed=unsealed, good_steps=good_steps
    )


@apply.register
def _(event: ev.GenerationSealed, state: JobState) -> JobState:
    unsealed = tuple(g for g in state.unsealed if g != event.generation or event.pending)
    state = _seal(state, event.generation, event.sealed_step, event.shared, event.stored)
    return msgspec.structs.replace(state, unsealed=unsealed)


def _newer(known: CheckpointId | None, found: CheckpointId) -> CheckpointId:
    return found if known is None else max(known, found)


def _seal(state: JobState, generation: int, step: int, shared: bool, stored: bool) -> JobState:
    found = CheckpointId(step=step, generation=generation)
    return msgspec.structs.replace(
        state,
        was_stored=_newer(state.was_stored, found) if stored and step >= 0 else state.was_stored,
        sealed={**state.sealed, generation: step} if step >= 0 else state.sealed,
        shared=tuple(sorted({*state.shared, generation})) if shared else state.shared,
    )


@apply.register
def _(event: ev.CheckpointBanned, state: JobState) -> JobState:
    return msgspec.structs.replace(state, banned={**state.banned, event.checkpoint: event.reason})


@apply.register
def _(event: ev.StrideChanged, state: JobState) -> JobState:
    return msgspec.structs.replace(state, stride=event.stride)


@apply.register
def _(event: ev.PaceLearned, state: JobState) -> JobState:
    return msgspec.structs.replace(state, pace=event.pace)


@apply.register
def _(event: ev.StorageWritten, state: JobState) -> JobState:
    found = CheckpointId(step=event.step, generation=event.generation)
    return msgspec.structs.replace(
        state, stored=event, was_stored=_newer(state.was_stored, found), saving=None
    )


@apply.register
def _(event: ev.SavingStarted, state: JobState) -> JobState:
    return msgspec.structs.replace(state, saving=event)


@apply.register
def _(event: ev.Decided, state: JobState) -> JobState:
    if not event.carried_out:
        return state
    slots, spares = state.slots, state.spares
    evicted = {action.node for action in event.actions if isinstance(action, Evict)}
    for action in event.actions:
        if isinstance(action, Replace):
            slots = tuple(action.standby if n == action.node else n for n in slots)
            spares = tuple(n for n in spares if n != action.standby)
            spares += () if action.node in evicted else (action.node,)
        elif isinstance(action, Swap):
            other = {action.first: action.second, action.second: action.first}
            slots = tuple(other.get(n, n) for n in slots)
        elif isinstance(action, GiveUp | Requeue):
            state = msgspec.structs.replace(state, end_started=_end_by(action, event.t))
    attempts, incident = state.attempts, state.incident
    if incident is not None and incident.decided is None and not finds_out_more(event.actions):
        incident = msgspec.structs.replace(incident, decided=event.t)
    # Where another decision follows, that one is the attempt.
    if event.verdict is not None and is_final(event.actions):
        attempt = Attempt(
            signature=event.verdict.signature,
            t=event.t,
            step=state.best_step,
            work=state.work,
            blame=event.verdict.blame,
        )
        attempts = (*attempts, attempt)
    places = (*state.places, event.place)[-MAX_PLACES:] if event.place is not None else state.places
    return msgspec.structs.replace(
        state, slots=slots, spares=spares, attempts=attempts, incident=incident, places=places
    )


def _end_by(action: GiveUp | Requeue, t: float) -> ev.EndStarted:
    """What the decision of the policy to leave the nodes binds later controllers to."""
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
def _(event: ev.NodeEvicted, state: JobState) -> JobState:
    return msgspec.structs.replace(
        state,
        evicted={**state.evicted, event.node: event.reason},
        unproven=(*state.unproven, event.node) if event.unproven else state.unproven,
        spares=tuple(s for s in state.spares if s != event.node),
    )


@apply.register
def _(event: ev.QuickTested, state: JobState) -> JobState:
    back = tuple(node for node in event.passed if node in state.evicted)
    return msgspec.structs.replace(
        state,
        evicted={node: why for node, why in state.evicted.items() if node not in back},
        unproven=tuple(n for n in state.unproven if n not in event.passed and n not in event.failed),
        quick_tested=tuple(dict.fromkeys((*state.quick_tested, *event.passed, *event.failed))),
        spares=(*state.spares, *(node for node in back if node not in state.slots)),
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
    return msgspec.structs.replace(state, replenish=event, replenished=state.replenished + 1)


@apply.register
def _(event: ev.IncidentClosed, state: JobState) -> JobState:
    return msgspec.structs.replace(state, incident=None)


@apply.register
def _(event: ev.RequeueStarted, state: JobState) -> JobState:
    in_vain = state.runs_in_vain
    if state.requeueing is None and not event.failure and state.is_in_vain(event.t):
        in_vain += 1  # once, also where another controller has to go on asking
    earlier = [node for node in state.excluded if node not in event.exclude]
    unproven = [node for node in event.exclude if node in state.unproven]
    return msgspec.structs.replace(
        state,
        requeueing=event,
        end_started=None,
        saving=None,
        running=False,
        runs_in_vain=in_vain,
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
    return msgspec.structs.replace(state, ended=event, saving=None, running=False)
