"""The next order to Slurm on a job's way out and back in. Pure, from the job as it is.

Why in this order, and what must never be done: see :mod:`slurm_robust.slurm.requeue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from slurm_robust.slurm.records import Job, Node
from slurm_robust.util.hostlist import fold

# How long a job is left pending before it is ordered to start, since a too early start kills it (see
# requeue.py). One second is what Slurm needs, the other is for the age of what we see.
SETTLE_S = 2.0

# A stage that Slurm refuses this often is given up: no unknown error text may loop for ever.
_ATTEMPTS = 5


class Stage(str, Enum):
    """One order to Slurm."""

    REQUEUE = "requeue"
    EXCLUDE = "exclude nodes"
    UNPIN = "drop excluded nodes from the required ones"
    RELEASE = "release"
    START = "start now"


class Until(str, Enum):
    """How far to go."""

    EXCLUDED = "excluded"  # all that can be done while the job is completing
    STARTED = "started"  # running, or pending only for want of nodes for some seconds
    RUNNING = "running"  # it holds nodes again


class StageOutcome(Record):
    """What became of one order."""

    stage: Stage
    ok: bool
    detail: str
    """Slurm's own text when it refused."""


class Order(Record):
    """What is wanted."""

    job_id: int
    ending_run: int
    """The restart count of the run that is to end. It makes repeating safe: a job that already runs with a
    higher count is left alone."""

    exclude: tuple[str, ...]
    until: Until = Until.RUNNING
    max_releases: int = 3
    may_requeue: bool = True
    """False for a watcher, which waits for the run to end and does not end it."""

    revives: bool = False
    """Requeue also a run that Slurm has ended since it lost the batch script
    (:attr:`~slurm_robust.slurm.records.Job.has_lost_script`)."""


class Memory(Record):
    """What this process did so far. All of it may be forgotten without harm."""

    refused: frozenset[Stage] = frozenset()
    attempts: dict[Stage, int] = {}
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


class Do(Record):
    """Carry out ``stage``."""

    stage: Stage
    nodes: tuple[str, ...] = ()
    """The whole new list, for EXCLUDE and UNPIN."""


class Wait(Record):
    """Poll again soon."""

    why: str


class End(Record):
    """Nothing more to do."""

    ok: bool
    why: str


def affordable(exclude: Sequence[str], nodes: Iterable[Node], job: Job, wanted: int = 0) -> tuple[str, ...]:
    """As many of ``exclude`` as leave the job enough nodes to start on; the first are given up first.

    A node counts if it is in a partition of the job and is neither down nor drained, also one that does not
    respond: none does right after a restart of slurmctld. What else the job asks of its nodes (features,
    memory) is Slurm's to judge. ``wanted``: with how many nodes the run began, and the next one will;
    ``job`` may have lost some.
    """
    partitions = set(job.partition.split(","))
    sound = (node for node in nodes if not (node.is_down or node.is_drained))
    usable = {node.name for node in sound if partitions & set(node.partitions)} - set(job.excluded_nodes)
    short = max(job.num_nodes, wanted) - len(usable - set(exclude))
    given_up = [node for node in exclude if node in usable][: max(0, short)]
    return tuple(node for node in exclude if node not in given_up)


def decide(order: Order, job: Job, memory: Memory) -> Do | Wait | End:
    """The next step for ``job`` as it is now."""
    has_lost_script = order.revives and job.has_lost_script and job.restart_count <= order.ending_run
    if job.is_running or has_lost_script:
        return _decide_running(order, job, memory)
    if job.is_finished and not job.is_completing:
        # Cancelled by its owner, or ended by itself: reviving it would be against somebody's will.
        return End(ok=False, why=f"the job has ended ({_states(job)}) and is not requeued")
    if job.restart_count <= order.ending_run:
        if job.is_completing:
            return Wait(why="the run is ending for another reason")
        if not job.is_pending:
            return Wait(why=f"the job is {_states(job)}")  # on its way to another state
        return End(ok=False, why=f"the job is {_states(job)} in run {job.restart_count} already")
    if job.is_completing and (memory.unavailable or not order.may_requeue):
        # A watcher has until the begin time, so it leaves slurmctld alone meanwhile.
        if order.until is Until.EXCLUDED:
            return End(ok=True, why="requeued; Slurm takes no exclusion before this run has ended")
        return Wait(why="the last run is still completing")
    pending = _exclude(order, job, memory) or _release(order, job, memory)
    if order.until is Until.EXCLUDED and not isinstance(pending, Do):
        # That somebody holds the job does not undo its requeue.
        return End(ok=True, why=pending.why if pending is not None else "requeued and excluded")
    return pending or _start(order, job, memory)


def _decide_running(order: Order, job: Job, memory: Memory) -> Do | Wait | End:
    if job.restart_count > order.ending_run:
        return End(ok=True, why=f"running again on {fold(job.nodes)}")
    if not order.may_requeue:
        return Wait(why=f"run {job.restart_count} has not ended yet")
    if Stage.REQUEUE in memory.refused:
        return End(ok=False, why=f"Slurm does not requeue the job: {memory.refusal}")
    return Do(stage=Stage.REQUEUE)


def _exclude(order: Order, job: Job, memory: Memory) -> Do | None:
    unwanted = dict.fromkeys((*order.exclude, *memory.extra_exclude))
    missing = [node for node in unwanted if node not in job.excluded_nodes]
    if missing and Stage.EXCLUDE not in memory.refused:
        return Do(stage=Stage.EXCLUDE, nodes=(*job.excluded_nodes, *missing))
    pinned = [node for node in job.required_nodes if node in unwanted]
    if pinned and Stage.UNPIN not in memory.refused:
        # A job that requires a node it excludes would wait for ever.
        return Do(stage=Stage.UNPIN, nodes=tuple(n for n in job.required_nodes if n not in unwanted))
    return None


def _release(order: Order, job: Job, memory: Memory) -> Do | End | None:
    if not job.held:
        return None
    if "requeued_in_held_state" not in job.reason and not job.held_by_slurm:
        return End(ok=False, why=waiting_advice(job))
    if Stage.RELEASE in memory.refused:
        return End(ok=False, why="Slurm does not release the job")
    if memory.releases >= order.max_releases:
        return End(ok=False, why=f"still held ({job.reason}) after {memory.releases} releases")
    return Do(stage=Stage.RELEASE)


def _start(order: Order, job: Job, memory: Memory) -> Do | Wait | End:
    if job.is_completing:
        return Wait(why="the last run is still completing")
    if memory.pending_for_s < SETTLE_S:
        return Wait(why="the last run has only just ended")
    due = job.reason == "BeginTime" or not memory.started
    # slurmctld's answer to the first order may be "Resources" although nodes are free (they were
    # just given back), and it tries again only after 60 s, unless something asks it to.
    nudge = memory.waits >= memory.nudge_at
    if (due or nudge) and Stage.START not in memory.refused:
        return Do(stage=Stage.START)
    if order.until is Until.STARTED and memory.nudge_at > Memory().nudge_at:
        return End(ok=True, why=f"pending ({job.reason}), to be started as soon as nodes are free")
    return Wait(why=f"pending ({job.reason})")


def after(memory: Memory, action: Do, error: SlurmCommandError | None) -> Memory:
    """What to remember after ``action`` succeeded or failed with ``error``."""
    stage = action.stage
    if error is None:
        started = stage is Stage.START or (memory.started and stage is not Stage.RELEASE)
        releases = memory.releases + (stage is Stage.RELEASE)
        # An order that was due anyway does not count as a nudge.
        nudged = stage is Stage.START and memory.waits >= memory.nudge_at
        return msgspec.structs.replace(
            memory,
            started=started,
            releases=releases,
            waits=0 if stage is Stage.START else memory.waits,
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


def newly_drained(before: frozenset[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    """Nodes that are drained by a failed prolog now and were not ``before``."""
    return tuple(
        node.name
        for node in nodes
        if node.is_drained and node.name not in before and "prolog" in node.reason.lower()
    )


def waiting_advice(job: Job) -> str:
    """Why a job that is held, or that no nodes fit, waits, and who can help how; "" for any other."""
    release = f"scontrol release {job.job_id}"
    if job.reason == "BadConstraints":
        update = f"scontrol update JobId={job.job_id} ExcNodeList="
        given = f"shorten its list of excluded nodes ({fold(job.excluded_nodes)}): {update}"
        way = given if job.excluded_nodes else f"ask for less: scontrol update JobId={job.job_id} NumNodes="
        return f"no nodes fit what it asks for (BadConstraints), and a release does not help; {way}"
    if job.held_by_slurm:
        return f"Slurm holds it ({job.reason}), mostly after a failed prolog: {release}"
    if job.held_by_administrator:
        return f"an administrator holds it ({job.reason}) and only one can release it: {release}"
    return f"held ({job.reason}): {release}" if job.held else ""


def _states(job: Job) -> str:
    return "+".join(sorted(job.states))
