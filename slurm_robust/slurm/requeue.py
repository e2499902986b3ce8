"""The way of a job out of its allocation and back into one without some nodes.

What Slurm accepts when, measured on 22.05.8 from inside the batch script of the job:

=====================  ============================================  ================================
order                  while COMPLETING (batch script still alive)   once PENDING
=====================  ============================================  ================================
update ExcNodeList     accepted immediately, survives                accepted
update ReqNodeList     accepted immediately, survives                accepted
release                accepted immediately, survives                accepted (the begin time stays)
update StartTime=now   accepted (rc 0) but LOST: when COMPLETING     accepted; RUNNING 0.06 to 1 s
                       ends slurmctld sets a begin time 121 s ahead  later; DEADLY in the first second
=====================  ============================================  ================================

Nothing of the middle column is accepted for a run that was resized on a site without slurmdbd: each order
is refused after 5 s (:class:`~slurm_robust.slurm.errors.UpdateUnavailable`). A watcher excludes nodes then.

Deadly: a start in the same second as the end of the last run, on one of its nodes, is refused there
("Job credential revoked", credentials are told apart by seconds of slurmctld's clock) and Slurm
then ends the job as FAILED for good. So a job is left PENDING for
:data:`~slurm_robust.slurm.requeue_plan.SETTLE_S` first.

So the fastest safe order is: ``requeue``, exclude, (release,) all within 20 ms and from inside the dying
batch script; end immediately; and 2 s after the job is PENDING, ``StartTime=now``, from a process that is no
part of the job any more. A detached one (setsid and double fork) on the batch host survives the end of the
job under proctrack/linuxproc, and dies with it under proctrack/cgroup; there a small job can do it instead
(:mod:`slurm_robust.slurm.watcher` has both); without either the job comes back after those 121 s, still
without the excluded nodes.

The job is not held: it cannot start before its batch script has ended and the begin time has passed.
So a controller that dies half-way leaves a job that starts again by itself, not one that waits for ever.

Two things for the caller: Slurm sends SIGTERM to the batch script *and to the commands it runs* immediately
after ``requeue``, so block SIGTERM before (children inherit that); SIGKILL follows KillWait (30 s) later. The
shell of the batch script must not die of it either, because then Slurm kills all the rest within
milliseconds: ``exec`` the controller, or ``trap '' TERM``. And ``scontrol requeue`` revives a job that was
cancelled, so it is sent only to a job that is seen running.

:func:`~slurm_robust.slurm.requeue_plan.decide` is pure and uses only the job as it is, so every
part may be repeated, by the same process or another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmCommandError
from slurm_robust.slurm.need import segment_of
from slurm_robust.slurm.records import SlurmJob
from slurm_robust.slurm.requeue_plan import (
    Do,
    RequeueCommand,
    RequeueEnd,
    RequeueMemory,
    RequeueRequest,
    StageOutcome,
    Until,
    Wait,
    after,
    decide,
    newly_drained,
    wanted_of,
)
from slurm_robust.util.hostlist import fold

__all__ = [
    "Clock",
    "RequeueCommand",
    "RequeueOutcome",
    "RequeueRequest",
    "StageOutcome",
    "Until",
    "carry_out",
]


class Clock(Protocol):
    """Time for deadlines. ``sleep`` may return early."""

    def monotonic(self) -> float:
        """Return the seconds that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class RequeueOutcome(Record):
    """How it ended."""

    ok: bool
    """It got to the point that was asked for."""

    detail: str
    """Why not, or how."""

    job: SlurmJob | None = None
    final: bool = True
    """Slurm has said so; else it gave no answer in time, and the same may be asked again."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        time.sleep(seconds)


_POLL_S, _WATCH_POLL_S = 0.25, 0.5
# Between two questions about all nodes, of a job that has not started yet.
_NODES_EVERY_S = 2.0


def carry_out(
    client: SlurmClient,
    order: RequeueRequest,
    *,
    unavailable: bool = False,
    timeout_s: float,
    clock: Clock | None = None,
    report: Callable[[StageOutcome], None] = lambda outcome: None,
) -> RequeueOutcome:
    """Do what ``order`` says; ``report`` gets every order to Slurm, the outcome says how it ended.

    ``unavailable``: it is known that Slurm takes no change of the job before the run has ended
    (:class:`~slurm_robust.slurm.errors.UpdateUnavailable`). Until ``EXCLUDED`` it does what a dying batch
    script can do; a process that survives carries out the same order until ``STARTED`` or ``RUNNING``, and
    may begin before that one. A job that Slurm holds because a prolog failed
    (``launch_failed_requeued_held``) is released without the nodes which that drained; a hold of the owner
    or an administrator is left alone. Never raises for what Slurm answers. ``timeout_s`` bounds the whole.
    """
    clock, memory = clock or SystemClock(), RequeueMemory(unavailable=unavailable)
    poll_s = _POLL_S if order.may_requeue else _WATCH_POLL_S
    looked = -_NODES_EVERY_S  # when the nodes were last asked for
    deadline = clock.monotonic() + timeout_s
    drained = _drained(client) if order.until is Until.RUNNING else frozenset()
    last = "no answer from Slurm"
    # When which run was first seen pending; a start that failed in the prolog is a run, too.
    pending: tuple[int, float] | None = None
    while clock.monotonic() < deadline:
        try:
            job = client.job(order.job_id)
        except JobNotFound as error:
            return RequeueOutcome(ok=False, detail=error.what)
        except SlurmCommandError as error:
            last = error.what
            clock.sleep(poll_s)
            continue
        now = clock.monotonic()
        if not job.is_pending:
            pending = None
        elif pending is None or pending[0] != job.restart_count:
            pending = (job.restart_count, now)
        memory = msgspec.structs.replace(memory, pending_for_s=now - pending[1] if pending else 0.0)
        memory = _learn(client, order, job, memory, drained)
        if now - looked >= _NODES_EVERY_S and _wants_nodes(order, job, memory):
            looked = now
            memory = _look(client, order, job, memory)
        step = decide(order, job, memory)
        if isinstance(step, RequeueEnd):
            return RequeueOutcome(ok=step.ok, detail=step.why, job=job)
        if isinstance(step, Wait):
            last = step.why
            if job.is_pending and memory.started:
                memory = msgspec.structs.replace(memory, waits=memory.waits + 1)
            clock.sleep(poll_s)
            continue
        error_met = _carry_out(client, order, step)
        done = step.size.describe() if step.size is not None else fold(step.nodes)
        detail = done if error_met is None else str(error_met)
        report(StageOutcome(stage=step.stage, ok=error_met is None, detail=detail))
        memory = after(memory, step, error_met)
        if error_met is not None:
            last = error_met.what
        if error_met is not None or step.stage is RequeueCommand.START:
            clock.sleep(poll_s)
    return RequeueOutcome(ok=False, detail=f"not done within {timeout_s:g} s: {last}", final=False)


def _learn(
    client: SlurmClient,
    order: RequeueRequest,
    job: SlurmJob,
    memory: RequeueMemory,
    drained: frozenset[str] | None,
) -> RequeueMemory:
    """Find the node, if Slurm holds the job, whose prolog failed; without an answer, no node."""
    if order.until is not Until.RUNNING or not job.held_by_slurm:
        return memory
    try:
        bad = newly_drained(drained, client.nodes())
    except SlurmCommandError:
        return memory
    return msgspec.structs.replace(memory, extra_exclude=bad)


def _wants_nodes(order: RequeueRequest, job: SlurmJob, memory: RequeueMemory) -> bool:
    """Return whether the job's request depends on the nodes, and may have to be made now."""
    if not (order.exclude or order.need or order.holders or memory.extra_exclude):
        return False
    if memory.wanted is None:
        return not job.is_finished
    return job.is_pending and (not memory.started or memory.waits >= memory.nudge_at)


def _look(client: SlurmClient, order: RequeueRequest, job: SlurmJob, memory: RequeueMemory) -> RequeueMemory:
    """Return what to ask for by the nodes as they are; without an answer, as before."""
    try:
        topology = client.topology() if segment_of(job, order.need) else ()
        wanted = wanted_of(order, memory.extra_exclude, job, client.nodes(), topology)
    except SlurmCommandError:
        return memory
    return msgspec.structs.replace(memory, wanted=wanted)


def _drained(client: SlurmClient) -> frozenset[str] | None:
    """Return the drained nodes; None without an answer: then no later drain is known to be new."""
    try:
        return frozenset(node.name for node in client.nodes() if node.is_drained)
    except SlurmCommandError:
        return None


def _carry_out(client: SlurmClient, order: RequeueRequest, action: Do) -> SlurmCommandError | None:
    try:
        if action.stage is RequeueCommand.REQUEUE:
            client.requeue(order.job_id)
        elif action.stage is RequeueCommand.EXCLUDE:
            client.set_excluded_nodes(order.job_id, action.nodes)
        elif action.size is not None:
            client.set_size(order.job_id, action.size)
        elif action.stage in (RequeueCommand.UNPIN, RequeueCommand.PIN):
            client.set_required_nodes(order.job_id, action.nodes)
        elif action.stage is RequeueCommand.RELEASE:
            client.release(order.job_id)
        else:
            client.start_now(order.job_id)
    except SlurmCommandError as error:
        return error
    return None
