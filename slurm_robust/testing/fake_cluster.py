"""The cluster behind :class:`~slurm_robust.testing.fake_slurm.FakeSlurm`: its state, its time, its faults."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from slurm_robust.slurm import errors
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.records import (
    OF_RESERVATION,
    AccountingRow,
    Gres,
    NodeEvent,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmStep,
    Switch,
    Terms,
)
from slurm_robust.slurm.requests import StepRequest, SubmitRequest
from slurm_robust.testing.clock import FakeClock
from slurm_robust.util.text import one_line

# After a requeue slurmctld sets the begin time to cred_expire (120 s) + 1 s ahead.
BEGIN_DELAY_S = 121.0
# A node that was just resumed is IDLE+NOT_RESPONDING for so long.
RESUME_SILENT_S = 1.0
# Started again so soon after its last run, a job is ended as FAILED ("Job credential revoked").
REVOKED_S = 1.0


# What a job that a test waits for prints, given the nodes that it got.
Program: TypeAlias = Callable[[SubmitRequest, tuple[str, ...]], CompletedCommand]


def silent(request: SubmitRequest, _: tuple[str, ...]) -> CompletedCommand:
    """Succeed without output, as a program."""
    return CompletedCommand(command=request.command, exit_code=0, stdout="", stderr="")


class FakeStep:
    """The ``srun`` of a step; it runs until it is killed, ended or cancelled."""

    def __init__(self, pid: int, step: SlurmStep, request: StepRequest) -> None:
        self._pid = pid
        self.step = step
        self.request = request
        self.exit_code: int | None = None

    @property
    def pid(self) -> int:
        """A number that is no process of this machine."""
        return self._pid

    def poll(self) -> int | None:
        """See StepHandle."""
        return self.exit_code

    def kill(self) -> None:
        """See StepHandle."""
        self.end(-9)

    def end(self, exit_code: int) -> None:
        """End the step, which ends by itself."""
        if self.exit_code is None:
            self.exit_code = exit_code


class FakeCluster:
    """Nodes and jobs in memory. Time is that of ``clock``; call :meth:`settle` to let what is due happen.

    A requeued job is COMPLETING for ``completing_s`` (its batch script lives on), then PENDING with a
    begin time 121 s ahead, or none if it is expedited. All members may be used from several threads under
    :attr:`lock`.
    """

    def __init__(
        self,
        nodes: Iterable[str] = ("n1", "n2", "n3", "n4"),
        *,
        clock: FakeClock | None = None,
        gpus: int = 8,
        cpus: int = 16,
        completing_s: float = 1.0,
    ) -> None:
        self.clock = clock or FakeClock()
        self.completing_s = completing_s
        self.lost_answers = 0  # a fault: Slurm takes this many jobs, but sbatch gets no answer
        self.hides_jobs = False  # a fault: squeue shows no job yet
        self.unreachable = False  # a fault: slurmctld does not answer
        self.failing_prologs: set[str] = set()  # a fault: nodes whose prolog fails
        self.slurmdbd = True  # else nothing of a resized job can be changed before its run has ended
        self.submit_refusal = ""  # a fault: what sbatch says instead of a job id
        self.launched: list[FakeStep] = []
        self.signals: list[tuple[int, str | None, str]] = []
        self.programs: Program = silent
        self.switches: tuple[Switch, ...] = ()
        self.partitions: tuple[Terms, ...] = (Terms(name="main", is_default=True),)
        self.qos: tuple[Terms, ...] = (Terms(name="normal"),)
        self.settings: dict[str, str] = {}  # of slurm.conf, beside the usual ones
        self.lock = threading.RLock()
        self.nodes = {
            name: SlurmNode(
                name=name,
                address=name,
                states=frozenset({"IDLE"}),
                cpus=cpus,
                gres=(Gres(name="gpu", type="h200", count=gpus),) if gpus else (),
                partitions=("main",),
            )
            for name in nodes
        }
        self.jobs: dict[int, SlurmJob] = {}
        self.most_nodes: dict[int, int] = {}
        self.requests: dict[int, SubmitRequest] = {}
        self.runs: dict[int, list[AccountingRow]] = {}
        self.events: list[NodeEvent] = []
        self.reservations: dict[str, Reservation] = {}
        self.accounts: dict[str, set[str]] = {"root": {"root"}, "users": {"alice", "bob"}}
        self._completing_until: dict[int, float] = {}
        self._silent_until: dict[str, float] = {}
        self._resized: set[int] = set()  # jobs whose run was resized
        self._pending_since: dict[int, float] = {}
        self._ids = itertools.count(1)

    # -- faults ------------------------------------------------------------------------------------

    def node_down(self, name: str, reason: str = "Not responding") -> None:
        """Give the node up, as Slurm does: jobs on it are requeued, or go on without it (``--no-kill``)."""
        with self.lock:
            self.settle()
            self.set_node(name, states=frozenset({"DOWN", "NOT_RESPONDING"}), reason=reason)
            self.begin_event(name, "DOWN")
            for job in [j for j in self.jobs.values() if j.is_running and name in j.nodes]:
                if "--no-kill" in self.requests[job.job_id].options:
                    self.resize(job, tuple(n for n in job.nodes if n != name))
                else:
                    self.end_run(job, "NODE_FAIL", hold=False)

    def finish(self, job_id: int, state: str = "COMPLETED", exit_code: int = 0) -> None:
        """End the batch script of a job, which ends by itself (or the job is cancelled).

        An expedited job whose batch script fails is requeued and held.
        """
        with self.lock:
            job = self.find(job_id)
            if state == "FAILED" and job.expedited and job.requeue:
                self.end_run(job, state, hold=True)
                return
            self._record_run(job, state, exit_code)
            self._completing_until.pop(job_id, None)
            self._end_steps(job_id)
            self.put(job, states=frozenset({state}), end_time=self.clock.time(), reason="None")

    # -- lookups ----------------------------------------------------------------------------------

    def find(self, job_id: int) -> SlurmJob:
        """Raises JobNotFound."""
        if job_id not in self.jobs:
            raise errors.JobNotFound("Invalid job id specified")
        return self.jobs[job_id]

    def unfinished(self, job_id: int) -> SlurmJob:
        """Raises JobNotFound, JobFinished."""
        job = self.find(job_id)
        if job.is_finished:
            raise errors.JobFinished("Job has already finished")
        return job

    def changeable(self, job_id: int, nodes: Sequence[str]) -> SlurmJob:
        """Return a job that is pending or completing before its next run; raises for unknown ``nodes``."""
        job = self.unfinished(job_id)
        if job.is_running:
            raise errors.JobNotPending("Job is no longer pending execution")
        self.check_nodes(nodes)
        if job_id in self._resized and not self.slurmdbd:
            raise errors.UpdateUnavailable("Job update not available right now, the DB index is being set")
        return job

    def check_nodes(self, names: Iterable[str]) -> None:
        """Raises InvalidNode for the first that is unknown."""
        for name in names:
            if name not in self.nodes:
                raise errors.InvalidNode(f"Node {name} not found")

    def seen(self, name: str) -> SlurmNode:
        """Return the node with its state derived from the jobs on it."""
        node = self.nodes[name]
        states = set(node.states)
        busy = any(name in job.nodes for job in self.jobs.values() if job.is_running or job.is_completing)
        if busy and "IDLE" in states:
            states = (states - {"IDLE"}) | {"ALLOCATED"}
        if self._silent_until.get(name, 0.0) > self.clock.time():
            states.add("NOT_RESPONDING")
        reservations = [r for r in self.reservations.values() if name in r.nodes]
        if reservations:
            states.add("RESERVED")
        if any("MAINT" in r.flags for r in reservations) and "DRAIN" not in states:
            states.add("MAINTENANCE")
        return node if states == node.states else msgspec.structs.replace(node, states=frozenset(states))

    def members(self, partition: str) -> list[str]:
        """Return the nodes of the partition, or all. Raises InvalidPartition."""
        found = [n.name for n in self.nodes.values() if not partition or partition in n.partitions]
        if not found:
            raise errors.InvalidPartition("Invalid partition name specified")
        return found

    def free_nodes(self, partition: str, *, ignore_jobs: bool = False) -> list[str]:
        """Return the nodes that a reservation can get: in no other one, and (unless ``ignore_jobs``) idle.

        Raises InvalidPartition.
        """
        taken = {n for r in self.reservations.values() for n in r.nodes}
        seen = [self.seen(name) for name in self.members(partition) if name not in taken]
        return [node.name for node in seen if node.usable and (ignore_jobs or "IDLE" in node.states)]

    def check_access(self, reservation: str, user: str) -> None:
        """Raises ReservationNotFound, PermissionDenied."""
        if not reservation:
            return
        if reservation not in self.reservations:
            raise errors.ReservationNotFound("Requested reservation is invalid")
        made = self.reservations[reservation]
        members = {name for account in made.accounts for name in self.accounts.get(account, ())}
        if (made.users and user not in made.users) or (made.accounts and user not in members):
            raise errors.PermissionDenied("Access denied to requested reservation")

    # -- changing ------------------------------------------------------------------------------------

    def put(self, job: SlurmJob, **changes: object) -> SlurmJob:
        """Replace fields of a job."""
        new = msgspec.structs.replace(job, **changes)
        self.jobs[job.job_id] = new
        return new

    def set_node(self, name: str, **changes: object) -> None:
        """Replace fields of a node."""
        self.check_nodes((name,))
        changes = {"reason_time": self.clock.time(), "reason_user": "root", **changes}
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], **changes)

    def resumed(self, name: str) -> None:
        """Return the state after a resume."""
        self.set_node(name, states=frozenset({"IDLE"}), reason="")
        self.end_event(name)
        self._silent_until[name] = self.clock.time() + RESUME_SILENT_S

    def begin_event(self, name: str, state: str) -> None:
        """Begin the record in slurmdbd: a node cannot be used any more."""
        self.end_event(name)
        node = self.nodes[name]
        begun = NodeEvent(
            node=name, state=state, reason=node.reason, user=node.reason_user, start_time=self.clock.time()
        )
        self.events.append(begun)

    def end_event(self, name: str) -> None:
        """End the record in slurmdbd: the node can be used again."""
        for i, event in enumerate(self.events):
            if event.node == name and event.end_time is None:
                self.events[i] = msgspec.structs.replace(event, end_time=self.clock.time())

    def add_job(self, request: SubmitRequest, user: str) -> int:
        """Add a pending job, and return its id."""
        job_id = next(self._ids)
        now = self.clock.time()
        self.requests[job_id] = request
        self.runs[job_id] = []
        self.most_nodes[job_id] = request.nodes or 1
        self.jobs[job_id] = SlurmJob(
            job_id=job_id,
            name=request.name or "sbatch",
            user_name=user,
            states=frozenset({"PENDING"}),
            reason="JobHeldUser" if request.hold else "None",
            partition=request.partition or "main",
            num_nodes=request.nodes or 1,
            least_nodes=request.nodes or 1,
            num_tasks=request.nodes or 1,
            excluded_nodes=tuple(sorted(set(request.excluded_nodes))),
            required_nodes=tuple(sorted(set(request.required_nodes))),
            priority=0 if request.hold else 1000,
            requeue=request.requeue,
            segment=next((int(o[10:]) for o in request.options if o.startswith("--segment=")), 0),
            expedited="--requeue=expedite" in request.options,
            submit_time=now,
            eligible_time=now,
            time_limit_s=request.time_limit_s,
            reservation=request.reservation,
            comment=one_line(request.comment, None),
            work_dir=request.work_dir,
            stdout=request.output,
        )
        return job_id

    def end_run(self, job: SlurmJob, state: str, *, hold: bool) -> None:
        """End the run, which another one follows: COMPLETING now, PENDING later."""
        self._record_run(job, state)
        self._end_steps(job.job_id)
        self._completing_until[job.job_id] = self.clock.time() + self.completing_s
        self.put(
            job,
            states=frozenset({"PENDING", "COMPLETING"}),
            restart_count=job.restart_count + 1,
            priority=0 if hold else job.priority,
            reason="job_requeued_in_held_state" if hold else job.reason,
            end_time=self.clock.time(),
        )

    def revive(self, job: SlurmJob) -> None:
        """Requeue an ended job, which Slurm allows."""
        again = self.put(job, restart_count=job.restart_count + 1, priority=1000)
        self._pend(again, "BeginTime")

    def resize(self, job: SlurmJob, nodes: tuple[str, ...]) -> None:
        """Let the job go on with fewer nodes."""
        self._record_run(job, "RESIZING")
        self.put(job, nodes=nodes, num_nodes=len(nodes))
        self._resized.add(job.job_id)

    # -- time ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let whatever is due by the clock happen. Raises ControllerUnreachable when it is switched off."""
        if self.unreachable:
            raise errors.ControllerUnreachable("Unable to contact slurm controller (connect failure)")
        now = self.clock.time()
        for name in [n for n, r in self.reservations.items() if (r.end_time or now) <= now]:
            del self.reservations[name]
        self._replace_down()
        for job_id, until in list(self._completing_until.items()):
            if now >= until:
                del self._completing_until[job_id]
                self._resized.discard(job_id)
                job = self.jobs[job_id]
                # The real slurmctld writes the begin time here, over any StartTime=now before.
                self._pend(job, job.reason if job.held else "BeginTime", at=until)
        for job in list(self.jobs.values()):
            if job.is_pending and not job.held and (job.eligible_time or 0.0) <= now:
                self._try_start(job)

    def _replace_down(self) -> None:
        """Replace down and drained nodes of reservations that Slurm has chosen, once others are free."""
        for name, reservation in self.reservations.items():
            if reservation.flags & {"SPEC_NODES", "MAINT", "STATIC_ALLOC"}:
                continue
            good = [n for n in reservation.nodes if self.seen(n).usable_despite(OF_RESERVATION)]
            missing = len(reservation.nodes) - len(good)
            ignore_jobs = "IGNORE_JOBS" in reservation.flags
            found = self.free_nodes(reservation.partition, ignore_jobs=ignore_jobs)[:missing]
            bad = [n for n in reservation.nodes if n not in good][len(found) :]
            nodes = tuple(n for n in self.nodes if n in {*good, *found, *bad})
            self.reservations[name] = msgspec.structs.replace(reservation, nodes=nodes)

    def _pend(self, job: SlurmJob, reason: str, at: float | None = None) -> None:
        since = self.clock.time() if at is None else at
        self._pending_since[job.job_id] = since
        begin = since + (0.0 if job.expedited else BEGIN_DELAY_S)
        self.put(
            job,
            states=frozenset({"PENDING"}),
            reason=reason,
            nodes=(),
            batch_host="",
            submit_time=self.clock.time(),
            eligible_time=begin,
            start_time=begin,
            end_time=None,
        )

    def _try_start(self, job: SlurmJob) -> None:
        nodes = self._choose(job)
        if nodes is None:
            self.put(job, reason="Resources")
            return
        bad = [name for name in nodes if name in self.failing_prologs]
        if bad:
            for name in bad:
                self.set_node(name, states=frozenset({"IDLE", "DRAIN"}), reason="Prolog error")
                self.begin_event(name, "DRAIN")
            again = self.put(job, restart_count=job.restart_count + 1, priority=0)
            self._pend(again, "launch_failed_requeued_held")
            return
        now = self.clock.time()
        if not job.expedited and now - self._pending_since.get(job.job_id, 0.0) < REVOKED_S:
            self.put(job, states=frozenset({"FAILED"}), reason="NonZeroExitCode", end_time=now)
            return
        limit = job.time_limit_s
        self.put(
            job,
            states=frozenset({"RUNNING"}),
            reason="None",
            nodes=nodes,
            num_nodes=len(nodes),
            batch_host=nodes[0],
            start_time=now,
            end_time=None if limit is None else now + limit,
        )

    def _choose(self, job: SlurmJob) -> tuple[str, ...] | None:
        taken = {n for j in self.jobs.values() if j.is_running or j.is_completing for n in j.nodes}
        reserved = {n for r in self.reservations.values() if r.name != job.reservation for n in r.nodes}
        if job.reservation:
            members = self.reservations[job.reservation].nodes if job.reservation in self.reservations else ()
            reserved |= set(self.nodes) - set(members)
        free = [
            name
            for name in self.nodes
            if name not in taken | reserved | set(job.excluded_nodes)
            and self.seen(name).usable_despite(OF_RESERVATION)
        ]
        if not set(job.required_nodes) <= set(free):
            return None
        most = self.most_nodes[job.job_id]
        if 0 < job.segment <= job.least_nodes and any(switch.is_block for switch in self.switches):
            free = self._in_segments(job, free, most)
        wanted = [*job.required_nodes, *(n for n in free if n not in job.required_nodes)][:most]
        return tuple(n for n in self.nodes if n in wanted) if len(wanted) >= job.least_nodes else None

    def _in_segments(self, job: SlurmJob, free: list[str], most: int) -> list[str]:
        """Return the nodes of whole segments, each in one block; none if they do not fit, as topology/block
        does.
        """
        segments, rest = divmod(job.least_nodes, job.segment)
        chosen: list[str] = []
        for block in (one for one in self.switches if one.is_block and not one.level):
            left = [name for name in block.nodes if name in free]
            while len(left) >= job.segment and segments and not rest:
                size = min(len(left), most // (job.least_nodes // job.segment))
                chosen, left, segments = chosen + left[:size], left[size:], segments - 1
        return [] if segments or rest else chosen

    def _record_run(self, job: SlurmJob, state: str, exit_code: int = 0) -> None:
        if not job.nodes:
            return
        self.runs[job.job_id].append(
            AccountingRow(
                job_id=job.job_id,
                step="",
                run=job.restart_count,
                state=state,
                exit_code=exit_code,
                signal=0,
                nodes=job.nodes,
                submit_time=job.submit_time,
                eligible_time=job.eligible_time,
                start_time=job.start_time,
                end_time=self.clock.time(),
            )
        )

    def _end_steps(self, job_id: int) -> None:
        for step in self.launched:
            if step.step.job_id == job_id:
                step.end(143)
