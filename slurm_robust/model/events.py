"""What the journal holds: one event a line, in the order in which the controller learned of them.

Every event has ``t``, seconds since 1970 by the controller's wall clock, for people. Durations are
measured by a monotonic clock before they are written, so a clock that jumps falsifies none of them.
The state of a job is the fold of its events (:mod:`slurm_robust.model.state`) and nothing else.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.drill import DrillFault, DrillPromise
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Action, NodeExit, StackLocation, Symptom, TestResult, Verdict
from slurm_robust.model.progress import PaceHistory, SnapshotTimes
from slurm_robust.model.record import UNREADABLE, Record, decoded
from slurm_robust.model.release import Release, Requester, UpdateEnd, When
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.startup import PhaseTimes


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


class Event(Record, tag_field="event", tag=_snake, kw_only=True):
    """Base of all events; ``event`` in the JSON is the class's name in snake case."""

    t: float
    """Seconds since 1970 by the controller's wall clock."""
    epoch: int = 0
    """Epoch of the controller that wrote it; 0 if that is not known."""


TRAIN = "train"
"""The world that a job of one training has."""


class WorldEvent(Event, kw_only=True):
    """Base of events that concern one world of the job: a set of ranks that train or serve together."""

    world: str = TRAIN


class RunStarted(Event):
    """The first event: what the job runs, and on how many nodes."""

    run_id: str
    job_id: int
    kind: str
    command: tuple[str, ...]
    cwd: str
    slots: int
    spares: int
    nproc_per_node: int
    version: str
    cluster: str = ""
    """"" if it is not known."""
    array_task: str = ""
    """The id that squeue shows if the job is a task of an array (``38_1``), else ""."""
    training: str = ""
    """The name of the training of which the job is a chapter, "" for none."""


class Continued(WorldEvent):
    """The job goes on from the step of an earlier one; stands right after :class:`RunStarted`.

    The checkpoints of earlier jobs that count are taken over as they were: their generations keep their
    numbers, and the first generation of this job gets the next.
    """

    from_job: int
    from_folder: str
    """The folder of that job."""
    generation: int
    """The newest of all earlier jobs."""
    training: str = ""
    """As in :class:`RunStarted`."""
    chapter: int = 0
    """How many jobs the training has with this one; 0 without a training."""
    sealed: dict[int, int] = {}
    """For each generation the step of its newest checkpoint that counts."""
    unsealed: tuple[int, ...] = ()
    """Generations for which that is not known yet: what is complete on storage counts."""
    good_steps: dict[int, int] = {}
    """The newest step that may count of generations that ended with non-finite numbers."""
    shared: tuple[int, ...] = ()
    """Generations with a part that is equal on all ranks."""
    layouts: dict[int, str] = {}
    """Identity of each generation's parallel layout."""
    banned: tuple[CheckpointId, ...] = ()
    """Checkpoints that the earlier job passed over; this one may restore them."""
    writers: dict[int, int] = {}
    """For each generation the job that ran it."""
    best_step: int = -1
    """Newest step completed by all ranks in any earlier job, N at most with ``--step N``; -1 for none."""
    undone_step: int = -1
    """The newest completed step if ``--step`` once chose an older one; -1 for none."""
    reports: bool = False
    """The script reports its steps."""
    slots: int = 0
    """How many nodes trained in the earlier job."""
    nproc_per_node: int = 1
    """Ranks per node of the earlier job."""
    runs: tuple[str, ...] = ()
    """The ``run_id`` of each earlier job, which their checkpoints bear."""
    stored: CheckpointId | None = None
    """The newest that is known to have been complete on storage."""
    reason: str = ""
    """Why from there, in words."""


class ControllerStarted(Event):
    """A controller took the job. Agents obey the highest epoch."""

    epoch: int
    host: str
    pid: int
    port: int
    node: str = ""
    """Slurm's name of ``host``."""
    known: int = -1
    """How many events it had read, -1 if that is not known: what an earlier controller wrote after them
    does not count.
    """
    taken_from: str = ""
    """The node of the controller from which this one took over, "" if it did not."""
    reason: str = ""
    """Why it took over."""
    silent_since: float = 0.0
    """When that controller was last heard, by the clock of this host; 0 if that is not known."""
    start: str = ""
    """The start of ``srobust run`` that it serves, which controllers of other hosts share; "" if unknown."""


MIN_AHEAD_S = 2.0
"""A difference of clocks that counts: slurmctld tells its time in whole seconds."""


class ClockCompared(Event):
    """The clock of this controller's node differs from slurmctld's, or was set.

    The first of a controller holds from its beginning on, each other one from here on.
    """

    ahead_s: float
    """By how much it is ahead."""


class AllocationTaken(Event):
    """The nodes of this run of the Slurm job (a requeue brings another set)."""

    restart_count: int
    nodes: tuple[str, ...]
    """In Slurm's order."""
    slots: tuple[str, ...]
    spares: tuple[str, ...]
    submitted: float | None = None
    """Slurm's submit time, which a requeue sets anew, in seconds since 1970; None if not known."""
    time_limit_s: float | None = None
    """How long this run may take; None if not known."""
    queued_s: float | None = None
    """Seconds from ``submitted`` until Slurm started it, both by slurmctld's clock; None if unknown."""
    eligible: float | None = None
    """When Slurm could first have started it, in seconds since 1970 by slurmctld's clock; None if unknown."""
    gpus: int = 0
    """GPUs that the job holds on all nodes together; 0 also if that is not known."""
    required: tuple[str, ...] | None = None
    """That the job asks for by name, ``--nodelist`` and what a requeue has added to it; None if not known."""
    segment: int = 0
    """Nodes of each segment that the job asks for (``--segment``), 0 for none."""
    lost_node: str = ""
    """What the loss of a node does when no standby is left (``costs a requeue``); "" if unknown."""


class AgentJoined(Event):
    """An agent spoke for the first time to this controller."""

    node: str
    agent: str
    address: str
    port: int = 0
    """TCP port at which other agents reach its copies, 0 for none or not yet."""
    protocol: int = 0
    """The version of the messages that it speaks; 0 if it does not say."""


class FabricSeen(Event):
    """The agent of a node has told how the node's GPUs reach those of other nodes. Empty: not known."""

    node: str
    clique: str = ""
    """NVLink clique, ``CLUSTER-UUID/ID``: GPUs of one clique reach each other over NVLink."""
    block: str = ""
    """Slurm's block that the node is in (topology/block)."""
    imex: str = ""
    """State of the IMEX daemon, by which processes on several nodes share memory of GPUs (``READY``)."""


class GenerationLaunched(WorldEvent):
    """Launch orders were sent."""

    generation: int
    slots: tuple[str, ...]
    master: str
    restore: CheckpointId | None = None
    tiers: dict[str, int] = {}
    """How many ranks get their part of ``restore`` from which tier."""
    layout: str = ""
    """Identity of the parallel layout."""
    release: str = ""
    """The release that the ranks run, "" if the job has none."""

    @property
    def restore_step(self) -> int:
        """The step of ``restore``, -1 for a fresh start."""
        return self.restore.step if self.restore is not None else -1


class FirstStep(WorldEvent):
    """All ranks of the generation completed their first step."""

    generation: int
    step: int
    reported: bool
    """The script numbers its steps."""
    spent: dict[str, float] = {}
    """As in :class:`ProgressMade`."""
    # Only ProgressMade has them.
    loss: ClassVar[None] = None
    grad_norm: ClassVar[None] = None


class StartMeasured(WorldEvent):
    """How long the phases of the generation's start took: after its first step, or at its end without one."""

    generation: int
    phases: tuple[PhaseTimes, ...]
    took_s: float | None = None
    """Seconds from the order to launch until the first step of all ranks; None without one, or if it is not
    known.
    """


class ProgressMade(WorldEvent):
    """Newest step completed by all ranks; written every second at first, then every ten seconds, and when a
    generation ends.
    """

    generation: int
    step: int
    reported: bool
    loss: float | None = None
    grad_norm: float | None = None
    spent: dict[str, float] = {}
    """Seconds of this generation in checkpoints and in phases that the script announces, by name, each of the
    rank with most.
    """


class IncidentOpened(WorldEvent):
    """Training is no longer productive."""

    incident: int
    generation: int
    symptom: Symptom
    detail: str
    """What was seen."""
    detect_s: float
    """Seconds from the fault as seen from outside until now."""
    best_step: int
    why: str = ""
    """Why that is a fault, such as the limit and where it comes from; "" if ``detail`` says all."""


class SymptomAdded(WorldEvent):
    """Something else was seen while the incident was open."""

    incident: int
    symptom: Symptom
    detail: str
    """As in :class:`IncidentOpened`."""
    why: str = ""
    """As in :class:`IncidentOpened`."""


class StopStarted(WorldEvent):
    """The workers of the generation are ended from now on: how they end later says nothing of a fault."""

    generation: int
    reason: str
    symptom: Symptom | None = None
    """Symptom of the fault for which they are; None if nothing is wrong with them."""
    update: int = 0
    """The update for which they are, 0 for none: the next generation follows at once."""
    relaunch: bool = False
    """The launch did not reach all nodes: the next generation follows at once, and nothing was at fault."""


class GenerationEnded(WorldEvent):
    """No worker of the generation counts any more: what it writes from now on does not exist."""

    generation: int
    reason: str
    exits: tuple[NodeExit, ...] = ()
    sealed_step: int = -1
    """Step of its newest checkpoint of which every part was in reach at this moment, -1 for none."""
    pending: bool = False
    """Hardly anything could be asked (nodes or storage did not answer): :class:`GenerationSealed` follows."""
    shared: bool = False
    """The generation has a part that is equal on all ranks."""
    root: int = -1
    """The rank whose exit explains the others, -1 if none does."""
    good_step: int | None = None
    """Later steps may hold numbers that are not finite, so no later checkpoint counts (-1: none of this
    generation); None if nothing speaks against them.
    """
    stored: bool = False
    """The sealed checkpoint is on storage."""
    reached_step: int = -1
    """The newest step that any rank is known to have completed, by the script's numbers; -1 if none is. Of a
    node that fell silent less is known than of its peers.
    """


class GenerationSealed(WorldEvent):
    """What counts of a generation whose end could not be sealed when it was written down."""

    generation: int
    sealed_step: int
    pending: bool = False
    """Storage has not listed what it has, so another one may follow."""
    shared: bool = False
    stored: bool = False
    """The sealed checkpoint is on storage."""


class CheckpointBanned(WorldEvent):
    """``checkpoint`` is passed over in this job: training did not get on from it."""

    checkpoint: CheckpointId
    reason: str


class StrideChanged(WorldEvent):
    """From now on snapshots of steps that are multiples of ``stride`` go to peers, and only of multiples of
    ``local_stride`` are any taken; the times are why.
    """

    generation: int
    stride: int
    seconds_per_step: float
    lag_s: float
    """Seconds from a snapshot's completion until its peer has it."""
    local_stride: int = 1
    snapshots: SnapshotTimes | None = None
    rising: bool = False
    """A larger local stride may follow: what snapshots take with this one is not known yet."""


class StorageWritten(WorldEvent):
    """The snapshot of ``step`` is on shared storage, ``seconds`` after all ranks had completed it.

    0 seconds: the ranks wrote it by themselves.
    """

    generation: int
    step: int
    seconds: float


class SavingStarted(WorldEvent):
    """The job leaves its nodes, and ``step`` is only in memory: it goes to storage first.

    ``most_s``: how long that may take, of the time that Slurm leaves.
    """

    generation: int
    step: int
    most_s: float


class Decided(WorldEvent):
    """The policy's answer to a fault: what to do, and why."""

    incident: int
    actions: tuple[Action, ...]
    reason: str
    verdict: Verdict | None = None
    """None if the exit code of the script decides by itself (``final_exit_codes``)."""
    place: StackLocation | None = None
    """The place of the fault by the stacks."""
    localise_s: float = 0.0
    """Seconds from detection until the verdict."""
    carried_out: bool = True
    """False in observe mode."""
    drill: int = 0
    """The drill that caused the fault, 0 for none: then it speaks against no node and no code."""


class NodesTested(Event):
    """Held nodes were tested, or replayed training steps, for ``took_s`` seconds."""

    incident: int
    results: tuple[TestResult, ...]
    suspects: tuple[str, ...]
    reason: str
    left_out: dict[str, str] = {}
    took_s: float = 0.0


class QuickTested(Event):
    """Nodes that suspicion alone speaks against were tested for ``took_s`` seconds."""

    incident: int
    passed: tuple[str, ...]
    """They may be used: an evicted one stands by again."""
    failed: dict[str, str] = {}
    silent: dict[str, str] = {}
    """They gave no answer, or not to everything, and are not used."""
    took_s: float = 0.0


class Unanswered(Event):
    """``nodes`` were asked for evidence in vain: the decision that follows lacks it."""

    incident: int
    """0 if none is open."""
    asked: str
    """``stacks``, ``tests`` or ``a replay``."""
    nodes: tuple[str, ...]
    why: str


class PaceLearned(WorldEvent):
    """How fast training is, so far."""

    generation: int
    pace: PaceHistory


class NodeEvicted(Event):
    """This job does not use the node any more."""

    node: str
    reason: str
    incident: int
    unproven: bool = False
    """Suspicion alone speaks against it."""
    drill: int = 0
    """The drill for which it is, 0 for none: then nothing speaks against the node outside of this job."""


class NodeReturned(Event):
    """An evicted node answers again; its old workers were ordered to stop and it is not used."""

    node: str


class NodeGivenBack(Event):
    """An evicted node is no longer part of the allocation: Slurm tests it, and may give it to others."""

    node: str
    how: str


class NodeDrained(Event):
    """A node of the job was drained from outside. Training goes on there until the next restart."""

    node: str
    reason: str
    """Who did it and why."""


class NodeUndrained(Event):
    """A node of the job is drained no more."""

    node: str


class SpareSetAside(Event):
    """A standby does not answer."""

    node: str
    reason: str
    usable: bool
    """It may still be taken if there is no other."""


class SpareAnswers(Event):
    """A standby that was set aside is counted on again."""

    node: str


class CompanionSubmitted(Event):
    """A companion waits for a node from ``source``."""

    job_id: int
    source: CompanionPool


class CompanionStarted(Event):
    """Companion ``job_id`` lends its node, which stands by."""

    job_id: int
    node: str


class CompanionEnded(Event):
    """Companion ``job_id`` was ended, or lends nothing any more."""

    job_id: int
    reason: str


class NotLent(Event):
    """A node that was asked for did not come from ``source``."""

    source: CompanionPool
    reason: str


class StandbyChanged(Event):
    """A standby got further on its way to be fit to take a slot, or it failed on it."""

    node: str
    stage: StandbyStage
    reason: str = ""
    """Why a rehearsal failed or was not possible."""
    took_s: float = 0.0
    """That the rehearsal took, if it is over."""
    loaded: int = 0
    """The newest :class:`ModulesLearned` by which its zygote was told what to import, 0 for none."""


class StandbyTested(Event):
    """The quick test of a standby is over; none is tested twice in a run."""

    node: str
    outcome: Outcome
    """UNKNOWN convicts no node."""
    text: str
    took_s: float


class ModulesLearned(Event):
    """What the job's workers import until their first step, beside what zygotes import anyway."""

    number: int
    """Later ones hold all that earlier ones did."""
    modules: tuple[str, ...]
    node: str
    """On which rank 0 was seen to import the newest of them."""


class ReplenishBegun(Event):
    """A used or bad standby is being replaced by another one, while training goes on."""

    missing: int
    attempt: int
    """1 after the last one that got a node."""
    reason: str


class IncidentClosed(WorldEvent):
    """The first new step was completed."""

    incident: int
    generation: int
    step: int
    recover_s: float | None
    """Seconds from the verdict until that step; None if training went on by itself, or if it is not known."""
    stages: dict[str, float] = {}
    """Seconds from the fault until that step, by stage, in order; none if another controller began."""


class CheckpointRequested(WorldEvent):
    """The workers were asked for a checkpoint at ``step``, since the end of the run or an update is near."""

    generation: int
    step: int
    reason: str
    update: int = 0
    """The update for which ranks begin no other step after it, 0 for none."""


class ReleaseTaken(Event):
    """The job has one more release; ``srobust run`` takes the first. Taking it changes nothing yet."""

    release: Release
    by: Requester | None = None
    """Who took it; None for the job itself."""


class UpdateRequested(Event):
    """The owner wants the job to run ``release``. An update that waits is superseded."""

    update: int
    """1 for the first of the job."""
    release: str
    when: When
    by: Requester
    deadline: float | None = None
    """When a lazy one is applied at the latest, in seconds since 1970."""
    message: str = ""
    changes: tuple[str, ...] = ()
    """What differs from the release before, a line each: files, arguments, names of variables."""
    rollback: bool = False
    """It goes back to a release that the job has run."""
    from_step: int = -1
    """The step of the checkpoint to go on from; -1 for the newest."""
    discard_optimizer: bool = False
    """The optimizer's state in the checkpoint is left out."""
    token: str = ""
    """Of the request, by which it is recognised if it comes again."""


class UpdateTried(Event):
    """The trial of an update is over: it may be applied, or it was refused."""

    update: int
    ok: bool
    took_s: float
    node: str = ""
    """Where it failed."""
    text: str = ""
    """Why it failed, one line."""
    traceback: str = ""
    untried: tuple[str, ...] = ()
    """What could not be tried, and why."""


class UpdateApplied(WorldEvent):
    """From now on generations run ``release``: the next one is launched right after this event."""

    update: int
    release: str
    before: str
    """The release that ran until now."""
    step: int
    """Newest step that the release before has completed, -1 for none."""
    checkpoint: CheckpointId | None = None
    """From which the first generation of ``release`` goes on."""
    recovery: bool = False
    """A recovery took it along."""


class UpdateEnded(Event):
    """An update was not applied, and never is."""

    update: int
    how: UpdateEnd
    reason: str = ""


class ReleaseProven(Event):
    """A release has made its steps and is good. A bad one is in the :class:`Decided` that rolls it back."""

    release: str
    reason: str
    step: int = -1
    """Newest step that it has completed."""


class RequeueStarted(Event):
    """The job is being requeued."""

    exclude: tuple[str, ...]
    reason: str
    failure: bool
    """False for a time limit or a preemption."""
    holders: tuple[str, ...] = ()
    """Nodes that alone have parts of the newest step, and that the next run asks for by name for a while."""


class DrillPlanted(WorldEvent):
    """The owner has a fault planted; the decision on an incident that it causes names the drill."""

    drill: int
    """1 for the first of the job."""
    fault: DrillFault
    rank: int
    """Its global rank; -1 for a fault of the controller."""
    node: str
    generation: int
    step: int
    """Newest step completed by all ranks of the generation."""
    by: Requester | None = None
    """None if who asked did not say."""
    promise: DrillPromise | None = None


class DrillOver(WorldEvent):
    """No fault that begins from now on is the drill's."""

    drill: int
    reason: str
    ok: bool
    """False if the fault could not be planted."""


class StageDone(Event):
    """One stage of a longer doing with Slurm (requeue, shrink, exclude), with its outcome."""

    what: str
    ok: bool
    detail: str


class StopOrdered(Event):
    """Slurm or the owner ordered the run to end.

    It binds each later controller of the same start of ``srobust run``.
    """

    reason: str
    code: int
    """The exit code if nothing else ended the run before."""


class EndStarted(Event):
    """It is decided how the run ends, and done from now on. It binds each later controller.

    A run that is not over for good it binds only within the same start of ``srobust run``.
    """

    code: int
    reason: str
    final: bool = True
    """As in :class:`RunEnded`."""
    saves: bool = False
    """What only memory holds goes to storage first."""
    exclude: tuple[str, ...] = ()
    """If ``code`` says that the job is requeued: without these nodes."""
    failure: bool = False
    """The same: as in :class:`RequeueStarted`."""


class RunEnded(Event):
    """The run is over."""

    code: int
    reason: str
    final: bool = True
    """Whether the end is for good; else the same job may be started again and goes on from here."""
    preempted: bool = False
    """Slurm has taken its nodes for another job."""
    requeued: bool = False
    """Slurm had queued the job again by then: it goes on by itself."""


class Noted(Event):
    """A fact that changes nothing: what could not be done, what was odd."""

    text: str
    node: str = ""
    stood_still_s: float = 0.0
    """Seconds before ``t`` in which the controller did nothing: the job was suspended, or its node hung."""


AnyEvent: TypeAlias = (
    RunStarted
    | Continued
    | ControllerStarted
    | ClockCompared
    | AllocationTaken
    | AgentJoined
    | FabricSeen
    | GenerationLaunched
    | FirstStep
    | StartMeasured
    | ProgressMade
    | IncidentOpened
    | SymptomAdded
    | StopStarted
    | GenerationEnded
    | GenerationSealed
    | CheckpointBanned
    | StrideChanged
    | StorageWritten
    | SavingStarted
    | Decided
    | NodesTested
    | QuickTested
    | Unanswered
    | PaceLearned
    | NodeEvicted
    | NodeReturned
    | NodeGivenBack
    | NodeDrained
    | NodeUndrained
    | SpareSetAside
    | SpareAnswers
    | CompanionSubmitted
    | CompanionStarted
    | CompanionEnded
    | NotLent
    | StandbyChanged
    | StandbyTested
    | ReplenishBegun
    | ModulesLearned
    | IncidentClosed
    | CheckpointRequested
    | ReleaseTaken
    | UpdateRequested
    | UpdateTried
    | UpdateApplied
    | UpdateEnded
    | ReleaseProven
    | DrillPlanted
    | DrillOver
    | RequeueStarted
    | StageDone
    | StopOrdered
    | EndStarted
    | RunEnded
    | Noted
)

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode_event(event: AnyEvent) -> bytes:
    """Encode one event as one line of JSON, without the newline."""
    return msgspec.json.encode(event)


def decode_events(lines: bytes) -> list[AnyEvent]:
    """Decode the events of whole lines. Raises ``msgspec.DecodeError`` if one of them is anything else."""
    try:
        found = _decoder.decode_lines(lines)
    except UNREADABLE as reason:
        raise msgspec.DecodeError(str(reason)) from reason
    if len(found) != lines.count(b"\n"):
        raise msgspec.DecodeError("lines that hold no event, or several")
    return found


def decode_event(line: bytes) -> AnyEvent:
    """Decode the event of one line. Raises ``msgspec.DecodeError`` for whatever else it is."""
    return decoded(_decoder, line, msgspec.DecodeError)
