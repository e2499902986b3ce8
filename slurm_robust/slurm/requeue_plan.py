"""The next order to Slurm on a job's way out and back in. Pure, from the job as it is.

Why in this order, and what must never be done: see :mod:`slurm_robust.slurm.requeue`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.slurm.errors import (
    ControllerUnreachable,
    JobFinished,
    JobNotPending,
    PermissionDenied,
    RequeueDisabled,
    SlurmCommandError,
    SlurmTimeout,
    UpdateUnavailable,
)
from slurm_robust.slurm.need import (
    Need,
    Segments,
    Size,
    affordable,
    lack_of_segments,
    places,
    segment_of,
    size_of,
)
from slurm_robust.slurm.records import SlurmJob, SlurmNode, Switch
from slurm_robust.util.hostlist import fold

# How long a job is left pending before it is ordered to start, since a too early start kills it (see
# requeue.py). One second is what Slurm needs, the other is for the age of what we see.
SETTLE_S = 2.0

# For so long after its requeue a job waits for the nodes that alone have its newest step; then it takes any.
BY_NAME_S = 60.0

# A stage that Slurm refuses this often is given up: no unknown error text may loop for ever.
_ATTEMPTS = 5


class RequeueCommand(str, Enum):
    """One order to Slurm."""

    REQUEUE = "requeue"
    EXCLUDE = "exclude nodes"
    SIZE = "ask for as many nodes as it needs"
    UNPIN = "drop nodes from the required ones"
    PIN = "ask for nodes by name"
    RELEASE = "release"
    START = "start now"


class Until(str, Enum):
    """How far to go."""

    EXCLUDED = "excluded"  # all that can be done while the job is completing
    STARTED = "started"  # running, or pending only for want of nodes for some seconds
    RUNNING = "running"  # it holds nodes again


_STARTS_ANEW = frozenset(
    {
        RequeueCommand.EXCLUDE,
        RequeueCommand.SIZE,
        RequeueCommand.UNPIN,
        RequeueCommand.PIN,
        RequeueCommand.RELEASE,
    }
)


class StageOutcome(Record):
    """What became of one order."""

    stage: RequeueCommand
    ok: bool
    detail: str
    """Slurm's own text when it refused."""


class RequeueRequest(Record):
    """What is wanted. As JSON it is what a watcher gets."""

    job_id: int
    ending_run: int
    """The restart count of the run that ends. It makes repeating safe: a job that already runs with a
    higher count is left alone.
    """

    exclude: tuple[str, ...] = ()
    """All nodes that we leave out, for this run or an earlier one. The weakest come first, and are given up
    first if too few others are left.
    """

    need: Need | None = None
    """Without it the size that the job asks for stays as it is."""

    holders: tuple[str, ...] = ()
    """Nodes that alone have parts of the newest step, asked for by name for :data:`BY_NAME_S`."""

    pins: tuple[str, ...] = ()
    """Nodes that an earlier run asked for by name, and that are not to be required any more."""

    until: Until = Until.RUNNING
    max_releases: int = 3
    may_requeue: bool = True
    """False for a watcher, which waits for the run to end and does not end it."""

    revives: bool = False
    """Requeue also a run that Slurm has ended since it lost the batch script
    (:attr:`~slurm_robust.slurm.records.SlurmJob.has_lost_script`)."""


class _DesiredJob(Record):
    """What the job will ask for, by the nodes as they are now."""

    exclude: tuple[str, ...]
    size: Size | None = None
    holders_are_free: bool = False
    lack: str = ""
    """How many of its segments fit on the nodes that are left, if not all do."""


class RequeueMemory(Record):
    """What this process did so far. All of it may be forgotten without harm."""

    refused: frozenset[RequeueCommand] = frozenset()
    attempts: dict[RequeueCommand, int] = {}
    started: bool = False
    pending_for_s: float = 0.0
    waits: int = 0
    """Polls of the pending job since the last order to start."""

    nudge_at: int = 8
    """After that many waits the order is repeated; doubled each time."""

    refusal: str = ""
    """Slurm's newest one."""

    releases: int = 0
    extra_exclude: tuple[str, ...] = ()
    unavailable: bool = False
    """Slurm changes nothing of the job while its run is ending."""

    wanted: _DesiredJob | None = None
    """None as long as Slurm has not shown the nodes."""

    sent: dict[RequeueCommand, tuple[str, ...]] = {}
    """What Slurm has taken. It is not sent again: a user or an operator may have changed it since."""


class Do(Record):
    """Carry out ``stage``."""

    stage: RequeueCommand
    nodes: tuple[str, ...] = ()
    """The whole new list, for EXCLUDE, UNPIN and PIN."""

    size: Size | None = None
    """The size to set, for SIZE."""

    @property
    def content(self) -> tuple[str, ...]:
        """What is sent, for comparison."""
        return self.nodes if self.size is None else self.size.arguments()


class Wait(Record):
    """Poll again soon."""

    why: str


class RequeueEnd(Record):
    """Nothing more to do."""

    ok: bool
    why: str


def wanted_of(
    order: RequeueRequest,
    extra: Sequence[str],
    job: SlurmJob,
    nodes: Sequence[SlurmNode],
    topology: Sequence[Switch] = (),
) -> _DesiredJob:
    """Return what to ask for. ``extra``: nodes to leave out beside those of the order.

    ``topology``: needed for a job with segments (:func:`~slurm_robust.slurm.need.segment_of`). The nodes
    that the job holds count as free, since it gives them back.
    """
    unwanted = tuple(dict.fromkeys((*order.exclude, *extra)))
    least = order.need.least if order.need is not None else max(job.least_nodes, job.num_nodes)
    segments = Segments.of(job, order.need, topology)
    kept = affordable(unwanted, nodes, job, least, segments)
    room = segments.room if segments is not None else len
    owners = tuple(node for node in job.excluded_nodes if node not in unwanted)
    left = places(msgspec.structs.replace(job, excluded_nodes=(*owners, *kept)), nodes, own=job.nodes)
    return _DesiredJob(
        exclude=kept,
        size=size_of(order.need, job, room(left.free)) if order.need is not None else None,
        holders_are_free=bool(order.holders) and set(order.holders) <= set(left.free),
        lack=lack_of_segments(kept, nodes, job, least, segments),
    )


def decide(order: RequeueRequest, job: SlurmJob, memory: RequeueMemory) -> Do | Wait | RequeueEnd:
    """Return the next step for ``job`` as it is now."""
    has_lost_script = order.revives and job.has_lost_script and job.restart_count <= order.ending_run
    if job.is_running or has_lost_script:
        if job.restart_count > order.ending_run:
            return RequeueEnd(ok=True, why=f"running again on {fold(job.nodes)}")
        if not order.may_requeue:
            return Wait(why=f"run {job.restart_count} has not ended yet")
        if RequeueCommand.REQUEUE in memory.refused:
            return RequeueEnd(ok=False, why=f"Slurm does not requeue the job: {memory.refusal}")
        return Do(stage=RequeueCommand.REQUEUE)
    if job.is_finished and not job.is_completing:
        # Cancelled by its owner, or ended by itself: reviving it would be against the owner's will.
        return RequeueEnd(ok=False, why=f"the job has ended ({_states(job)}) and is not requeued")
    if job.restart_count <= order.ending_run:
        if job.is_completing:
            return Wait(why="the run is ending for another reason")
        if not job.is_pending:
            return Wait(why=f"the job is {_states(job)}")  # on its way to another state
        return RequeueEnd(ok=False, why=f"the job is {_states(job)} in run {job.restart_count} already")
    if job.is_completing and (memory.unavailable or not order.may_requeue):
        # A watcher has until the begin time, so it leaves slurmctld alone meanwhile.
        if order.until is Until.EXCLUDED:
            return RequeueEnd(ok=True, why="requeued; Slurm takes no exclusion before this run has ended")
        return Wait(why="the last run is still completing")
    pending = _exclude(order, job, memory) or _release(order, job, memory)
    if order.until is Until.EXCLUDED and not isinstance(pending, Do):
        # A hold by a user or an operator does not undo the requeue.
        return RequeueEnd(ok=True, why=pending.why if pending is not None else "requeued and excluded")
    return pending or _start(order, job, memory)


def _exclude(order: RequeueRequest, job: SlurmJob, memory: RequeueMemory) -> Do | None:
    unwanted = tuple(dict.fromkeys((*order.exclude, *memory.extra_exclude)))
    kept = memory.wanted.exclude if memory.wanted is not None else unwanted
    owners = [node for node in job.excluded_nodes if node not in unwanted]
    order_of_stage = Do(stage=RequeueCommand.EXCLUDE, nodes=(*owners, *kept))
    if set(order_of_stage.nodes) != set(job.excluded_nodes) and _may(order_of_stage, memory):
        return order_of_stage
    if memory.wanted is not None and memory.wanted.size is not None:
        resize = Do(stage=RequeueCommand.SIZE, size=memory.wanted.size)
        if _may(resize, memory):
            return resize
    given_up = {*kept, *(node for node in order.pins if node not in order.holders)}
    pinned = [node for node in job.required_nodes if node in given_up]
    if pinned and RequeueCommand.UNPIN not in memory.refused:
        # A job that requires a node it excludes would wait for ever.
        return Do(stage=RequeueCommand.UNPIN, nodes=tuple(n for n in job.required_nodes if n not in given_up))
    return None


def _may(order: Do, memory: RequeueMemory) -> bool:
    return order.stage not in memory.refused and memory.sent.get(order.stage) != order.content


def _release(order: RequeueRequest, job: SlurmJob, memory: RequeueMemory) -> Do | RequeueEnd | None:
    if not job.held:
        return None
    if "requeued_in_held_state" not in job.reason and not job.held_by_slurm:
        return RequeueEnd(ok=False, why=waiting_advice(job))
    if RequeueCommand.RELEASE in memory.refused:
        return RequeueEnd(ok=False, why="Slurm does not release the job")
    if memory.releases >= order.max_releases:
        return RequeueEnd(ok=False, why=f"still held ({job.reason}) after {memory.releases} releases")
    return Do(stage=RequeueCommand.RELEASE)


def _start(order: RequeueRequest, job: SlurmJob, memory: RequeueMemory) -> Do | Wait | RequeueEnd:
    if job.is_completing:
        return Wait(why="the last run is still completing")
    if memory.pending_for_s < SETTLE_S:
        return Wait(why="the last run has only just ended")
    by_name = _ask_by_name(order, job, memory)
    if by_name is not None:
        return by_name
    due = job.reason == "BeginTime" or not memory.started
    # slurmctld's answer to the first order may be "Resources" although nodes are free (they were
    # just given back), and it tries again only after 60 s, unless something asks it to.
    nudge = memory.waits >= memory.nudge_at
    if (due or nudge) and RequeueCommand.START not in memory.refused:
        return Do(stage=RequeueCommand.START)
    is_nudged = memory.nudge_at > RequeueMemory().nudge_at
    if order.until is Until.STARTED and is_nudged and not _asked_by_name(order, job):
        return RequeueEnd(ok=True, why=f"pending ({job.reason}), to be started as soon as nodes are free")
    return Wait(why=f"pending ({job.reason})")


def _ask_by_name(order: RequeueRequest, job: SlurmJob, memory: RequeueMemory) -> Do | Wait | None:
    """Require the holders only once they are free, so that a watcher that dies leaves no job that waits.

    Slurm starts no job of several segments that requires fewer nodes than it needs (eval_nodes_block.c).
    """
    if not order.holders or RequeueCommand.PIN in memory.refused or segment_of(job, order.need):
        return None
    if memory.pending_for_s >= BY_NAME_S:
        others = tuple(node for node in job.required_nodes if node not in order.holders)
        is_over = len(others) == len(job.required_nodes) or RequeueCommand.UNPIN in memory.refused
        return None if is_over else Do(stage=RequeueCommand.UNPIN, nodes=others)
    if _asked_by_name(order, job):
        return None
    if memory.wanted is not None and memory.wanted.holders_are_free:
        return Do(stage=RequeueCommand.PIN, nodes=tuple(dict.fromkeys((*job.required_nodes, *order.holders))))
    return Wait(why=f"{fold(order.holders)} alone have the newest step, and are not free yet")


def _asked_by_name(order: RequeueRequest, job: SlurmJob) -> bool:
    return bool(order.holders) and set(order.holders) <= set(job.required_nodes)


def after(memory: RequeueMemory, action: Do, error: SlurmCommandError | None) -> RequeueMemory:
    """Return what to remember after ``action`` succeeded or failed with ``error``."""
    stage = action.stage
    if error is None:
        # With another list of nodes, or released, it has to be ordered to start once more.
        started = stage is RequeueCommand.START or (memory.started and stage not in _STARTS_ANEW)
        releases = memory.releases + (stage is RequeueCommand.RELEASE)
        # An order that was due anyway does not count as a nudge.
        nudged = stage is RequeueCommand.START and memory.waits >= memory.nudge_at
        return msgspec.structs.replace(
            memory,
            started=started,
            sent={**memory.sent, stage: action.content},
            releases=releases,
            waits=0 if stage is RequeueCommand.START else memory.waits,
            nudge_at=memory.nudge_at * 2 if nudged else memory.nudge_at,
        )
    if isinstance(error, (ControllerUnreachable, SlurmTimeout, JobNotPending, JobFinished)):
        # No answer, or the job moved on meanwhile: poll again and decide anew.
        return memory
    if isinstance(error, UpdateUnavailable):
        return msgspec.structs.replace(memory, unavailable=True, refusal=error.what)
    attempts = {**memory.attempts, stage: memory.attempts.get(stage, 0) + 1}
    final = isinstance(error, (PermissionDenied, RequeueDisabled)) or attempts[stage] >= _ATTEMPTS
    refused = memory.refused | {stage} if final else memory.refused
    return msgspec.structs.replace(memory, attempts=attempts, refused=refused, refusal=error.what)


def newly_drained(before: frozenset[str] | None, nodes: Sequence[SlurmNode]) -> tuple[str, ...]:
    """Return nodes that a failed prolog has drained, without those ``before``; none if that is not known."""
    if before is None:
        return ()
    return tuple(
        node.name
        for node in nodes
        if node.is_drained and node.name not in before and "prolog" in node.reason.lower()
    )


def waiting_advice(job: SlurmJob) -> str:
    """Return why a job that is held, or that no nodes fit, waits, and who can help how; "" for any other."""
    release = f"scontrol release {job.job_id}"
    if job.reason == "BadConstraints":
        update = f"scontrol update JobId={job.job_id} ExcNodeList="
        given = f"shorten its list of excluded nodes ({fold(job.excluded_nodes)}): {update}"
        # Never to ask for fewer nodes alone: by 'srobust status' the tasks and CPUs go with them.
        way = given if job.excluded_nodes else f"'srobust status {job.job_id}' says what starts it"
        return f"no nodes fit what it asks for (BadConstraints), and a release does not help; {way}"
    if job.held_by_slurm:
        return f"Slurm holds it ({job.reason}), mostly after a failed prolog: {release}"
    if job.held_by_administrator:
        return f"an administrator holds it ({job.reason}) and only one can release it: {release}"
    return f"held ({job.reason}): {release}" if job.held else ""


def _states(job: SlurmJob) -> str:
    return "+".join(sorted(job.states))
