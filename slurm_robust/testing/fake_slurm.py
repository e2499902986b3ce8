"""A Slurm in memory that behaves as the real one was measured to, for tests without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.slurm import commands, errors
from slurm_robust.slurm.client import StepHandle
from slurm_robust.slurm.need import Size
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.records import (
    AccountingRow,
    Allocation,
    NodeEvent,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmStep,
    SlurmVersion,
    Submission,
    Switch,
    Terms,
)
from slurm_robust.slurm.requests import ReservationRequest, StepRequest, SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster, FakeStep
from slurm_robust.util.text import one_line

_YEAR_S = 365 * 86400.0
OLDEST_START_S = 600.0
"""A reservation that should have begun longer ago is refused (MAX_RESV_DELAY of reservation.c)."""


class FakeSlurm:
    """:class:`~slurm_robust.slurm.client.SlurmClient` over a :class:`FakeCluster`.

    Held to the same contract suite as the real clients. Several may share one cluster, say one with
    ``operator=False``, which may not touch nodes and reservations. The cluster's clock is slurmctld's; that
    of this client's host is ``ahead_s`` ahead of it.
    """

    def __init__(
        self,
        cluster: FakeCluster | None = None,
        *,
        user: str = "alice",
        operator: bool = True,
        ahead_s: float = 0.0,
        reaches: Callable[[], bool] = lambda: True,
    ) -> None:
        """``reaches``: whether this client's host reaches slurmctld now."""
        self.cluster = cluster or FakeCluster()
        self.user = user
        self.operator = operator
        self.ahead_s = ahead_s
        self._reaches = reaches

    @contextmanager
    def _world(self) -> Iterator[FakeCluster]:
        if not self._reaches():
            raise errors.ControllerUnreachable("Unable to contact slurm controller (connect failure)")
        with self.cluster.lock:
            self.cluster.settle()
            yield self.cluster
            self.cluster.settle()

    @contextmanager
    def _administered(self) -> Iterator[FakeCluster]:
        with self._world() as world:
            if not self.operator:
                raise errors.PermissionDenied("Invalid user id")
            yield world

    @contextmanager
    def _accounting(self) -> Iterator[FakeCluster]:
        with self._world() as world:
            if not world.slurmdbd:
                raise errors.CommandFailed("You are not running a supported accounting_storage plugin")
            yield world

    # -- reads -------------------------------------------------------------------------------------

    def version(self) -> SlurmVersion:
        """See the protocol."""
        return SlurmVersion(major=22, minor=5, micro=8)

    def now(self) -> float:
        """See the protocol."""
        with self._world() as world:
            return float(int(world.clock.time()))

    def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
        """See the protocol."""
        with self._world() as world:
            chosen = tuple(world.nodes) if names is None else tuple(names)
            world.check_nodes(chosen)
            return tuple(world.seen(name) for name in chosen)

    def node(self, name: str) -> SlurmNode:
        """See the protocol."""
        with self._world() as world:
            world.check_nodes((name,))
            seen = world.seen(name)
        only = (
            "name",
            "states",
            "reason",
            "reason_user",
            "reason_time",
            "cpus",
            "allocated_cpus",
            "partitions",
        )
        return SlurmNode(address="", **{field: getattr(seen, field) for field in only})

    def job(self, job_id: int) -> SlurmJob:
        """See the protocol."""
        with self._world() as world:
            return world.find(job_id)

    def submission(self, job_id: int) -> Submission:
        """See the protocol."""
        with self._world() as world:
            world.find(job_id)
            request = world.requests[job_id]
            return Submission(line=" ".join(commands.sbatch(request)), script="#!/bin/sh\n")

    def jobs(self, user: str | None = None) -> tuple[SlurmJob, ...]:
        """See the protocol."""
        with self._world() as world:
            jobs = () if world.hides_jobs else world.jobs.values()
            live = (job for job in jobs if not job.is_finished)
            return tuple(job for job in live if user is None or job.user_name == user)

    def steps(self, job_id: int) -> tuple[SlurmStep, ...]:
        """See the protocol."""
        with self._world() as world:
            world.find(job_id)
            live = (s.step for s in world.launched if s.exit_code is None)
            return tuple(step for step in live if step.job_id == job_id)

    def allocation(self, job_id: int) -> Allocation:
        """See the protocol."""
        with self._world() as world:
            job = world.find(job_id)
            return Allocation.of(job, {name: node.gpus() for name, node in world.nodes.items()})

    def reservations(self) -> tuple[Reservation, ...]:
        """See the protocol."""
        with self._world() as world:
            return tuple(world.reservations.values())

    def accounting(self, job_id: int) -> tuple[AccountingRow, ...]:
        """See the protocol. Only runs that have ended are there, and no steps."""
        with self._world() as world:
            return tuple(world.runs.get(job_id, ()))

    def runs(self, within_s: float) -> tuple[AccountingRow, ...]:
        """See the protocol. Only runs that have ended are there."""
        with self._world() as world:
            since = world.clock.time() - within_s
            every = (row for rows in world.runs.values() for row in rows)
            return tuple(row for row in every if (row.end_time or 0.0) >= since)

    def node_events(self, within_s: float) -> tuple[NodeEvent, ...]:
        """See the protocol."""
        with self._world() as world:
            since = world.clock.time() - within_s
            return tuple(e for e in world.events if e.end_time is None or e.end_time >= since)

    def topology(self) -> tuple[Switch, ...]:
        """See the protocol; set ``cluster.switches``."""
        with self._world() as world:
            return world.switches

    def config(self) -> dict[str, str]:
        """See the protocol."""
        with self._world() as world:
            return {
                "AccountingStorageType": f"accounting_storage/{'slurmdbd' if world.slurmdbd else 'none'}",
                "ClusterName": "fake",
                "Epilog": "/etc/slurm/epilog.sh",
                "SlurmdPort": "6818",
                "SLURM_VERSION": str(self.version()),
                "KillWait": "30 sec",
                "SlurmdTimeout": "300 sec",
                "UnkillableStepTimeout": "60 sec",
                **world.settings,
            }

    def partitions(self) -> tuple[Terms, ...]:
        """See the protocol; set ``cluster.partitions``."""
        with self._world() as world:
            return world.partitions

    def qos(self) -> tuple[Terms, ...]:
        """See the protocol; set ``cluster.qos``."""
        with self._accounting() as world:
            return world.qos

    def accounts(self) -> dict[str, frozenset[str]]:
        """See the protocol; set ``cluster.accounts``."""
        with self._accounting() as world:
            return {account: frozenset(users) for account, users in world.accounts.items()}

    # -- writes: jobs ------------------------------------------------------------------------------

    def requeue(self, job_id: int) -> None:
        """See the protocol."""
        with self._world() as world:
            job = world.find(job_id)
            if not job.requeue:
                raise errors.RequeueDisabled("Requested operation is presently disabled")
            if job.is_running:
                world.end_run(job, "REQUEUED", hold=False)
            elif job.is_finished:
                world.revive(job)

    def forbid_requeue(self, job_id: int) -> None:
        """See the protocol."""
        with self._world() as world:
            world.put(world.unfinished(job_id), requeue=False)

    def release(self, job_id: int) -> None:
        """See the protocol."""
        with self._world() as world:
            job = world.unfinished(job_id)
            if job.reason == "JobHeldAdmin" and not self.operator:
                raise errors.PermissionDenied("Access/permission denied")
            if job.held:
                world.put(job, priority=1000, reason="None")

    def start_now(self, job_id: int) -> None:
        """See the protocol."""
        with self._world() as world:
            job = world.unfinished(job_id)
            if job.is_running:
                raise errors.JobNotPending("Job is no longer pending execution")
            world.put(job, eligible_time=world.clock.time(), reason=job.reason if job.held else "None")

    def set_excluded_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        """See the protocol."""
        with self._world() as world:
            job = world.changeable(job_id, nodes)
            world.put(job, excluded_nodes=tuple(sorted(set(nodes))))

    def set_required_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        """See the protocol."""
        with self._world() as world:
            job = world.changeable(job_id, nodes)
            world.put(job, required_nodes=tuple(sorted(set(nodes))))

    def set_size(self, job_id: int, size: Size) -> None:
        """See the protocol."""
        with self._world() as world:
            job = world.changeable(job_id, ())
            world.most_nodes[job_id] = size.most
            world.put(job, least_nodes=size.least, num_tasks=size.tasks)

    def set_comment(self, job_id: int, text: str) -> None:
        """See the protocol."""
        with self._world() as world:
            world.put(world.unfinished(job_id), comment=one_line(text, None))

    def shrink(self, job_id: int, keep: Sequence[str]) -> None:
        """See the protocol."""
        if not keep:
            raise ValueError("shrink to no node at all: use cancel")
        with self._world() as world:
            job = world.unfinished(job_id)
            world.check_nodes(keep)
            if not set(keep) <= set(job.nodes) or job.batch_host not in keep:
                raise errors.InvalidNode("Invalid node name specified: keep the batch host")
            world.resize(job, tuple(node for node in job.nodes if node in keep))

    def cancel(self, job_id: int, *, step_id: str | None = None, signal: str | None = None) -> None:
        """See the protocol. Signals are kept in ``cluster.signals``."""
        with self._world() as world:
            if signal is not None:
                world.signals.append((job_id, step_id, signal))
            elif step_id is not None:
                for step in world.launched:
                    if (step.step.job_id, step.step.step_id) == (job_id, step_id):
                        step.end(137)
            elif job_id in world.jobs and not world.jobs[job_id].is_finished:
                world.finish(job_id, "CANCELLED")

    def submit(self, request: SubmitRequest) -> int:
        """See the protocol. The command is not run: the job runs until it is ended."""
        with self._world() as world:
            if world.submit_refusal:
                raise errors.CommandFailed(world.submit_refusal)
            world.check_nodes((*request.excluded_nodes, *request.required_nodes))
            world.check_access(request.reservation, self.user)
            job_id = world.add_job(request, self.user)
            if world.lost_answers:
                world.lost_answers -= 1
                raise errors.SlurmTimeout("sbatch gave no answer within 30 s", command=("sbatch",))
            return job_id

    def run(self, request: SubmitRequest, timeout_s: float) -> CompletedCommand:
        """See the protocol. Waits by the cluster's clock; ``cluster.programs`` is what the command does."""
        clock = self.cluster.clock
        deadline = clock.time() + timeout_s
        with self._world() as world:
            job_id = world.add_job(request, self.user)
        while not self.job(job_id).is_running:
            if clock.time() >= deadline:
                self.cancel(job_id)
                raise errors.SlurmTimeout(f"srun gave no answer within {timeout_s:g} s", command=("srun",))
            clock.sleep(1.0)
        done = self.cluster.programs(request, self.job(job_id).nodes)
        with self._world() as world:
            world.finish(job_id, "FAILED" if done.exit_code else "COMPLETED", done.exit_code)
        return done

    def launch_step(self, request: StepRequest, output: Path) -> StepHandle:
        """See the protocol. Nothing runs; the handle is kept in ``cluster.launched``."""
        with self._world() as world:
            job = world.find(request.job_id)
            step = SlurmStep(
                job_id=request.job_id,
                step_id=str(sum(1 for s in world.launched if s.step.job_id == request.job_id)),
                name=request.name,
                nodes=request.nodes,
                states=frozenset({"RUNNING"}),
            )
            handle = FakeStep(2**22 + len(world.launched), step, request)
            world.launched.append(handle)
            output.touch()
            if not job.is_running or not set(request.nodes) <= set(job.nodes):
                handle.end(1)
            elif any(world.nodes[node].is_down for node in request.nodes):
                handle.end(233)
            return handle

    # -- writes: nodes and reservations ------------------------------------------------------------

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        """See the protocol."""
        if not one_line(reason):
            raise ValueError("a drain needs a reason, so that an administrator can judge it")
        with self._administered() as world:
            world.check_nodes(nodes)
            for name in nodes:
                states = world.nodes[name].states | {"DRAIN"}
                world.set_node(name, states=states, reason=one_line(reason, None))
                world.begin_event(name, "DRAIN")

    def resume(self, nodes: Sequence[str]) -> None:
        """See the protocol."""
        with self._administered() as world:
            world.check_nodes(nodes)
            for name in nodes:
                world.resumed(name)

    def create_reservation(self, request: ReservationRequest) -> None:
        """See the protocol."""
        with self._administered() as world:
            world.check_nodes(request.nodes)
            now = world.clock.time()
            start = float(int(now + self.ahead_s if request.start_time is None else request.start_time))
            if start < now - OLDEST_START_S:
                raise errors.CommandFailed("Invalid time specified")
            if not {*request.users} <= {user for users in world.accounts.values() for user in users}:
                raise errors.PermissionDenied("Invalid user id")
            # As from 23.11 on, if AccountingStorageEnforce is not set.
            if not request.users and not {*request.accounts} <= world.accounts.keys():
                raise errors.InvalidAccount("Invalid account or account/partition combination specified")
            if request.name in world.reservations:
                raise errors.ReservationExists("Duplicate reservation name")
            nodes = self._reservable(world, request)
            world.reservations[request.name] = Reservation(
                name=request.name,
                nodes=nodes,
                node_count=len(nodes),
                users=request.users,
                accounts=request.accounts,
                partition=request.partition,
                flags=frozenset((*request.flags, "SPEC_NODES") if request.nodes else request.flags),
                start_time=start,
                end_time=start + (_YEAR_S if request.duration_s is None else request.duration_s),
            )

    def _reservable(self, world: FakeCluster, request: ReservationRequest) -> tuple[str, ...]:
        free = world.free_nodes(request.partition, ignore_jobs="IGNORE_JOBS" in request.flags)
        if request.nodes:
            if "REPLACE_DOWN" in request.flags:
                raise errors.InvalidNode("Invalid node name specified")
            taken = {n for r in world.reservations.values() for n in r.nodes}
            if taken & {*request.nodes} and not {"OVERLAP", "MAINT"} & {*request.flags}:
                raise errors.NodesBusy("Requested reservation overlaps with another reservation")
            if "IGNORE_JOBS" not in request.flags and any(
                "ALLOCATED" in world.seen(name).states for name in request.nodes
            ):
                raise errors.NodesBusy("Requested nodes are busy")
            return request.nodes
        count = request.node_count or 0
        # Of a partition that is smaller, the real one gives what is free and says nothing.
        if not free or len(free) < count <= len(world.members(request.partition)):
            raise errors.NodesBusy("Requested nodes are busy")
        return tuple(free[:count])

    def delete_reservation(self, name: str) -> None:
        """See the protocol."""
        with self._administered() as world:
            if name not in world.reservations:
                raise errors.ReservationNotFound("Requested reservation is invalid")
            if any(
                job.reservation == name and job.nodes for job in world.jobs.values() if not job.is_finished
            ):
                raise errors.ReservationInUse("Requested reservation is in use")
            del world.reservations[name]
