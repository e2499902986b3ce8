"""The contract of SlurmClient as tests: the fake, the command line and pyslurm must all pass it.

Derive a class from :class:`SlurmContract` in a pytest module and give it a fixture ``world``::

    class TestFakeSlurm(SlurmContract):
        @pytest.fixture
        def world(self, tmp_path): return FakeWorld(tmp_path)

Every test leaves the cluster as it found it, so a real one can be shared by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import structs

from slurm_robust.slurm import errors
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.need import Need, Size
from slurm_robust.slurm.records import AccountingRow, SlurmJob
from slurm_robust.slurm.requests import ReservationRequest, StepRequest, SubmitRequest, whole_node_steps
from slurm_robust.slurm.requeue import (
    Clock,
    RequeueCommand,
    RequeueRequest,
    StageOutcome,
    Until,
    carry_out,
)
from tests.requeues import requeue_without, watch_until_running

NO_SUCH_JOB = 66_000_000


class World(Protocol):
    """A cluster of at least four idle nodes with GPUs, and two clients of it.

    ``client`` acts for an ordinary user named ``user``, ``operator`` may administer nodes.
    """

    client: SlurmClient
    operator: SlurmClient
    user: str
    scratch: Path
    clock: Clock
    has_accounting: bool

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return when ``condition`` holds; fail with ``what`` after a while."""
        ...


@contextmanager
def job_of(world: World, nodes: int = 2, **fields: object) -> Iterator[int]:
    """A job that sleeps, cancelled and gone at the end."""
    request = SubmitRequest(
        command=("sleep 300",),
        wrap=True,
        nodes=nodes,
        name="contract",
        output="/dev/null",
        exclusive=True,
        **fields,  # type: ignore[arg-type]  # checked by the record
    )
    job_id = world.client.submit(request)
    try:
        yield job_id
    finally:
        world.client.cancel(job_id)
        world.wait(lambda: gone(world, job_id), f"job {job_id} has gone")


@contextmanager
def running_job(world: World, nodes: int = 2, **fields: object) -> Iterator[SlurmJob]:
    """The same, once it runs."""
    with job_of(world, nodes, **fields) as job_id:
        try:
            world.wait(lambda: world.client.job(job_id).is_running, f"job {job_id} runs")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{world.client.job(job_id)}\n{world.client.nodes()}") from None
        yield world.client.job(job_id)


def is_running(client: SlurmClient, job_id: int) -> bool:
    """Whether the job runs."""
    return client.job(job_id).is_running


def gone(world: World, job_id: int) -> bool:
    """Whether the job has ended and its nodes are free."""
    job = world.client.job(job_id)
    return job.is_finished and not job.is_completing


@contextmanager
def refused(kind: type[Exception]) -> Iterator[None]:
    """The block must raise ``kind``."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


class SlurmContract:
    """The tests. Each docstring is the promise."""

    def test_says_what_it_is(self, world: World) -> None:
        """Version, configuration and topology are readable."""
        assert world.client.version().major >= 22
        config = world.client.config()
        assert config["ClusterName"]
        assert "sec" in config["KillWait"]
        assert all(switch.name for switch in world.client.topology())
        assert [terms.name for terms in world.client.partitions() if terms.is_default]
        assert [terms.grace_s for terms in world.client.qos() if terms.name == "normal"] == [0]
        assert world.user in world.client.accounts()["users"]

    def test_nodes_in_the_order_asked(self, world: World) -> None:
        """Named nodes come in the order of the names; all have their resources."""
        names = [node.name for node in world.client.nodes()]
        assert len(names) >= 4
        last, first = world.client.nodes([names[-1], names[0]])
        assert (last.name, first.name) == (names[-1], names[0])
        assert first.cpus > 0
        assert first.gpus() > 0
        assert first.partitions
        assert first.usable
        assert not first.is_down
        assert not first.is_drained
        assert world.client.nodes([]) == ()

    def test_one_node_says_of_itself_what_the_table_says(self, world: World) -> None:
        """The cheap question has the same states and the same reason, with its user and time."""
        name = world.client.nodes()[-1].name
        assert world.client.node(name).reason == ""
        world.operator.drain([name], "contract: a=b |c [x]")
        cheap, full = world.client.node(name), world.client.nodes([name])[0]
        assert (cheap.name, cheap.states, cheap.reason) == (name, full.states, "contract: a=b |c [x]")
        assert (cheap.reason_user, cheap.reason_time) == (full.reason_user, full.reason_time)
        assert (cheap.cpus, cheap.allocated_cpus) == (full.cpus, full.allocated_cpus)
        assert set(cheap.partitions) == set(full.partitions)
        world.operator.resume([name])
        world.wait(lambda: world.client.node(name).usable, "the node is usable again")

    def test_unknown_node(self, world: World) -> None:
        """Unknown nodes are InvalidNode, in reads and writes."""
        with refused(errors.InvalidNode):
            world.client.nodes(["nosuchnode"])
        with refused(errors.InvalidNode):
            world.client.node("nosuchnode")
        with refused(errors.InvalidNode):
            world.operator.drain(["nosuchnode"], "contract")

    def test_unknown_job(self, world: World) -> None:
        """Unknown jobs are JobNotFound, and cancelling one is harmless."""
        client = world.client
        for call in (
            lambda: client.job(NO_SUCH_JOB),
            lambda: client.steps(NO_SUCH_JOB),
            lambda: client.allocation(NO_SUCH_JOB),
            lambda: client.requeue(NO_SUCH_JOB),
            lambda: client.forbid_requeue(NO_SUCH_JOB),
            lambda: client.release(NO_SUCH_JOB),
            lambda: client.start_now(NO_SUCH_JOB),
            lambda: client.set_excluded_nodes(NO_SUCH_JOB, []),
            lambda: client.set_required_nodes(NO_SUCH_JOB, []),
            lambda: client.set_size(NO_SUCH_JOB, Size(least=1, most=1, tasks=1, cpus=1)),
        ):
            with refused(errors.JobNotFound):
                call()
        client.cancel(NO_SUCH_JOB)

    def test_accounting(self, world: World) -> None:
        """Unknown jobs have no rows; a run that ended has one, with its nodes."""
        if not world.has_accounting:
            return
        assert world.client.accounting(NO_SUCH_JOB) == ()
        with running_job(world, 1) as job:
            world.client.cancel(job.job_id)
            world.wait(lambda: gone(world, job.job_id), "the job has gone")
            world.wait(lambda: bool(self._ended_runs(world, job.job_id)), "slurmdbd has the end of the run")
            (row,) = self._ended_runs(world, job.job_id)
            assert (row.run, row.nodes) == (0, job.nodes)
            assert row.submit_time == job.submit_time
            # slurmdbd has no eligible time of a job that was cancelled soon after its start.
            assert row.eligible_time is None or row.eligible_time >= row.submit_time

    def _ended_runs(self, world: World, job_id: int) -> list[AccountingRow]:
        rows = world.client.accounting(job_id)
        return [row for row in rows if not row.step and row.state == "CANCELLED"]

    def test_running_job(self, world: World) -> None:
        """A running job says who, where and how long; its allocation agrees."""
        with running_job(world, 2, time_limit_s=600.0, comment="a b=c") as job:
            assert job.name == "contract"
            assert job.user_name == world.user
            assert len(job.nodes) == job.num_nodes == 2
            assert job.batch_host == job.nodes[0]
            assert job.time_limit_s == 600.0
            assert job.comment == "a b=c"
            assert job.restart_count == 0
            assert job.requeue
            assert not job.held
            assert job.start_time is not None
            held = world.client.allocation(job.job_id)
            assert held.nodes == job.nodes
            assert job.job_id in [j.job_id for j in world.client.jobs(world.user)]
            assert "ALLOCATED" in world.client.nodes(job.nodes[:1])[0].states

    def test_gpus_of_an_allocation(self, world: World) -> None:
        """GPUs are known per node."""
        gpus = world.client.nodes()[0].gpus()
        with running_job(world, 2, gres=f"gpu:{gpus}") as job:
            held = world.client.allocation(job.job_id)
            if held.gpus_per_node:
                assert set(held.gpus_per_node) == set(job.nodes)
                assert set(held.gpus_per_node.values()) == {gpus}

    def test_how_a_job_was_submitted(self, world: World) -> None:
        """The batch script at once; the command line where there is accounting, after a while."""
        with running_job(world, 1, options=("--no-kill",)) as job:
            assert world.client.submission(job.job_id).script.startswith("#!")
            if world.has_accounting:
                world.wait(
                    lambda: "--no-kill" in world.client.submission(job.job_id).line.split(),
                    "slurmdbd has the command line",
                )
        with refused(errors.JobNotFound):
            world.client.submission(999_999)

    def test_running_jobs_keep_their_nodes(self, world: World) -> None:
        """Excluded and required nodes cannot be changed while the job runs, and nothing happens to it."""
        with running_job(world, 2) as job:
            with refused(errors.JobNotPending):
                world.client.set_excluded_nodes(job.job_id, job.nodes[:1])
            with refused(errors.JobNotPending):
                world.client.set_required_nodes(job.job_id, job.nodes[:1])
            with refused(errors.JobNotPending):
                world.client.start_now(job.job_id)
            world.client.release(job.job_id)
            assert world.client.job(job.job_id).nodes == job.nodes

    def test_held_job(self, world: World) -> None:
        """A held job can be changed, and starts where it may once released."""
        names = [node.name for node in world.client.nodes()]
        with job_of(world, 1, hold=True) as job_id:
            client = world.client
            job = client.job(job_id)
            assert job.held
            assert job.is_pending
            assert not job.held_by_slurm
            client.set_excluded_nodes(job_id, [names[2], names[0]])
            assert set(client.job(job_id).excluded_nodes) == {names[0], names[2]}
            with refused(errors.InvalidNode):
                client.set_excluded_nodes(job_id, ["nosuchnode"])
            client.set_excluded_nodes(job_id, [])
            assert client.job(job_id).excluded_nodes == ()
            client.set_required_nodes(job_id, names[:1])
            assert client.job(job_id).required_nodes == (names[0],)
            client.set_required_nodes(job_id, [])
            assert client.job(job_id).required_nodes == ()
            client.set_excluded_nodes(job_id, names[:1])
            client.release(job_id)
            world.wait(lambda: client.job(job_id).is_running, "the released job runs")
            assert len(client.job(job_id).nodes) == 1
            assert names[0] not in client.job(job_id).nodes

    def test_the_size_of_a_pending_job(self, world: World) -> None:
        """It gets as many nodes as are free, from the fewest to the most that it asks for."""
        names = [node.name for node in world.client.nodes()]
        for least, most, left_out, expected in ((1, 2, 0, 2), (1, 3, len(names) - 1, 1), (2, 2, 0, 2)):
            with job_of(world, len(names), hold=True) as job_id:
                client = world.client
                client.set_size(job_id, Size(least=least, most=most, tasks=most, cpus=most))
                assert client.job(job_id).least_nodes in (0, least), "0: this client does not say"
                client.set_excluded_nodes(job_id, names[:left_out])
                client.release(job_id)
                world.wait(partial(is_running, client, job_id), "the released job runs")
                assert len(client.job(job_id).nodes) == expected
                with refused(errors.JobNotPending):
                    client.set_size(job_id, Size(least=1, most=1, tasks=1, cpus=1))
                assert len(client.job(job_id).nodes) == expected

    def test_a_shrunk_job_asks_for_what_it_needs(self, world: World) -> None:
        """The requeue of a job that gave a node back, where one node less than before is to be had."""
        names = [node.name for node in world.client.nodes()]
        with running_job(world, 3, excluded_nodes=names[3:]) as job:
            client = world.client
            client.shrink(job.job_id, job.nodes[:2])
            order = RequeueRequest(
                job_id=job.job_id, ending_run=0, exclude=job.nodes[2:], need=Need(least=2, most=3)
            )
            seen: list[StageOutcome] = []
            done = carry_out(client, order, clock=world.clock, timeout_s=90, report=seen.append)
            assert done.ok, done.detail
            assert RequeueCommand.SIZE in [outcome.stage for outcome in seen if outcome.ok]
            back = client.job(job.job_id)
            assert (set(back.nodes), back.num_nodes) == (set(job.nodes[:2]), 2)
            assert set(back.excluded_nodes) == {*names[3:], job.nodes[2]}

    def test_nodes_that_are_asked_for_by_name(self, world: World) -> None:
        """Idle nodes that alone have something are got by name; the next requeue drops the names."""
        names = [node.name for node in world.client.nodes()]
        with running_job(world, 2, excluded_nodes=names[-2:]) as job:
            client, wanted = world.client, tuple(names[-2:])
            first = RequeueRequest(job_id=job.job_id, ending_run=0, exclude=wanted, until=Until.EXCLUDED)
            assert carry_out(client, first, clock=world.clock, timeout_s=30).ok
            world.wait(lambda: client.job(job.job_id).is_pending, "the job is pending")
            client.set_excluded_nodes(job.job_id, [])
            by_name = RequeueRequest(job_id=job.job_id, ending_run=0, holders=wanted)
            seen: list[StageOutcome] = []
            done = carry_out(client, by_name, clock=world.clock, timeout_s=90, report=seen.append)
            assert done.ok, done.detail
            again = client.job(job.job_id)
            got = set(again.nodes), set(again.required_nodes)
            assert got == (set(wanted), set(wanted)), (seen, client.nodes(wanted))
            later = RequeueRequest(job_id=job.job_id, ending_run=1, pins=wanted)
            assert carry_out(client, later, clock=world.clock, timeout_s=90).ok
            assert client.job(job.job_id).required_nodes == ()

    def test_requeue(self, world: World) -> None:
        """A requeued job is pending with one restart more, and starts soon when told to."""
        with running_job(world, 2) as job:
            client = world.client
            client.requeue(job.job_id)
            world.wait(lambda: client.job(job.job_id).is_pending, "the job is pending")
            client.requeue(job.job_id)
            again = client.job(job.job_id)
            assert again.restart_count == 1
            assert again.nodes == ()
            assert client.allocation(job.job_id).nodes == ()
            back = watch_until_running(client, job.job_id, clock=world.clock, timeout_s=60)
            assert back.ok, back.detail
            assert client.job(job.job_id).restart_count == 1

    def test_requeue_forbidden(self, world: World) -> None:
        """A job submitted with --no-requeue says so."""
        with running_job(world, 1, requeue=False) as job, refused(errors.RequeueDisabled):
            world.client.requeue(job.job_id)

    def test_requeue_taken_away(self, world: World) -> None:
        """A running job can be made one that is not requeued any more."""
        with running_job(world, 1) as job:
            world.client.forbid_requeue(job.job_id)
            assert not world.client.job(job.job_id).requeue
            with refused(errors.RequeueDisabled):
                world.client.requeue(job.job_id)

    def test_the_comment_of_a_job(self, world: World) -> None:
        """It is one line, replaces the one before it, and a job without one has an empty one."""
        with running_job(world, 1) as job:
            client = world.client
            for text in ("srobust: ETTR 97.1 %, 2 incidents", "a\nb = c", ""):
                client.set_comment(job.job_id, text)
                assert client.job(job.job_id).comment == text.replace("\n", " ")
        with refused(errors.JobNotFound):
            world.client.set_comment(NO_SUCH_JOB, "x")

    def test_cancel(self, world: World) -> None:
        """Cancelling ends a job, twice is harmless, and then nothing can be done with it."""
        with running_job(world, 1) as job:
            client = world.client
            client.cancel(job.job_id)
            world.wait(lambda: gone(world, job.job_id), "the job has gone")
            client.cancel(job.job_id)
            assert "CANCELLED" in client.job(job.job_id).states
            assert job.job_id not in [j.job_id for j in client.jobs()]
            for call in (client.release, client.start_now):
                with refused(errors.JobFinished):
                    call(job.job_id)
            with refused(errors.JobFinished):
                client.set_excluded_nodes(job.job_id, [])

    def test_drain_and_resume(self, world: World) -> None:
        """A drain has its reason and user; after a resume the node is usable soon."""
        name = world.client.nodes()[-1].name
        world.operator.drain([name], "contract: a=b [x]")
        node = world.client.nodes([name])[0]
        assert node.is_drained
        assert not node.usable
        assert node.reason == "contract: a=b [x]"
        assert node.reason_user
        assert node.reason_time is not None
        world.operator.resume([name])
        world.wait(lambda: world.client.nodes([name])[0].usable, "the node is usable again")

    def test_users_do_not_administer(self, world: World) -> None:
        """Drain, resume and reservations are refused to ordinary users."""
        name = world.client.nodes()[-1].name
        with refused(errors.PermissionDenied):
            world.client.drain([name], "contract")
        with refused(errors.PermissionDenied):
            world.client.create_reservation(
                ReservationRequest(name="contract", nodes=(name,), users=("root",))
            )

    def test_reservation(self, world: World) -> None:
        """Created, deleted; a name is given once, and unknown ones are ReservationNotFound."""
        names = [node.name for node in world.client.nodes()]
        flags = ("IGNORE_JOBS",)
        request = ReservationRequest(name="contract", nodes=(names[-1],), users=(world.user,), flags=flags)
        world.operator.create_reservation(request)
        try:
            made = {r.name: r for r in world.client.reservations()}["contract"]
            assert made.nodes == (names[-1],)
            assert made.users == (world.user,)
            assert "IGNORE_JOBS" in made.flags
            again = ReservationRequest(name="contract", nodes=(names[0],), users=("root",), flags=flags)
            with refused(errors.ReservationExists):
                world.operator.create_reservation(again)
        finally:
            world.operator.delete_reservation("contract")
        with refused(errors.ReservationNotFound):
            world.operator.delete_reservation("contract")

    def test_reservation_of_a_number_of_nodes(self, world: World) -> None:
        """Slurm chooses nodes of the partition, and others for those that are drained or down."""
        partition = world.client.nodes()[0].partitions[0]
        request = ReservationRequest(
            name="contract", node_count=2, users=(world.user,), partition=partition, flags=("REPLACE_DOWN",)
        )

        def nodes() -> tuple[str, ...]:
            return {r.name: r for r in world.client.reservations()}["contract"].nodes

        world.operator.create_reservation(request)
        try:
            made = {r.name: r for r in world.client.reservations()}["contract"]
            assert (made.node_count, len(made.nodes), made.partition) == (2, 2, partition)
            # The JSON of releases before 25.11 does not tell REPLACE_DOWN.
            assert "SPEC_NODES" not in made.flags
            bad, good = made.nodes
            world.operator.drain([bad], "contract")
            try:
                world.wait(lambda: bad not in nodes(), f"{bad} is replaced")
                assert good in nodes()
                assert len(nodes()) == 2
            finally:
                world.operator.resume([bad])
                world.wait(lambda: world.client.nodes([bad])[0].usable, f"{bad} is usable again")
        finally:
            world.operator.delete_reservation("contract")

    def test_a_reservation_is_for_its_users(self, world: World) -> None:
        """Others are refused when they submit; who is refused runs nowhere."""
        name = world.client.nodes()[-1].name
        request = SubmitRequest(command=("true",), wrap=True, nodes=1, reservation="contract")
        with refused(errors.ReservationNotFound):
            world.client.submit(request)
        world.operator.create_reservation(
            ReservationRequest(name="contract", nodes=(name,), users=("root",), flags=("IGNORE_JOBS",))
        )
        try:
            with refused(errors.PermissionDenied):
                world.client.submit(request)
        finally:
            world.operator.delete_reservation("contract")

    def test_a_reservation_in_use(self, world: World) -> None:
        """A job of it runs on its nodes; until it has ended, the reservation cannot be deleted."""
        name = world.client.nodes()[-1].name
        world.operator.create_reservation(
            ReservationRequest(name="contract", nodes=(name,), users=(world.user,), flags=("IGNORE_JOBS",))
        )
        try:
            with running_job(world, 1, reservation="contract") as job:
                assert job.nodes == (name,)
                assert job.reservation == "contract"
                with refused(errors.ReservationInUse):
                    world.operator.delete_reservation("contract")
        finally:
            world.operator.delete_reservation("contract")

    def test_reservations_that_slurm_refuses(self, world: World) -> None:
        """Each for what is wrong: partition, account, user, nodes that others have."""
        names = tuple(node.name for node in world.client.nodes())
        good = ReservationRequest(
            name="contract",
            node_count=1,
            users=(world.user,),
            partition=world.client.nodes()[0].partitions[0],
        )
        with refused(errors.InvalidPartition):
            world.operator.create_reservation(structs.replace(good, partition="no-such-partition"))
        with refused(errors.PermissionDenied):
            world.operator.create_reservation(structs.replace(good, users=("no-such-user",)))
        if world.has_accounting:
            # Beside users it depends on the release.
            for_nobody = structs.replace(good, users=(), accounts=("no-such-account",))
            with refused(errors.InvalidAccount):
                world.operator.create_reservation(for_nobody)
        world.operator.create_reservation(structs.replace(good, node_count=None, nodes=names))
        try:
            for other in (good, structs.replace(good, node_count=None, nodes=names[:1])):
                with refused(errors.NodesBusy):
                    world.operator.create_reservation(structs.replace(other, name="contract2"))
        finally:
            world.operator.delete_reservation("contract")

    def test_reservation_by_slurms_clock(self, world: World) -> None:
        """slurmctld tells its time in whole seconds; a reservation begins and ends by it, not long ago."""
        name = world.client.nodes()[-1].name
        now = world.client.now()
        assert now == int(now)
        request = ReservationRequest(
            name="contract",
            nodes=(name,),
            users=("root",),
            duration_s=60,
            start_time=now,
            flags=("IGNORE_JOBS",),
        )
        world.operator.create_reservation(request)
        try:
            made = {r.name: r for r in world.operator.reservations()}["contract"]
            assert (made.start_time, made.end_time) == (now, now + 60)
            assert now <= world.client.now() < now + 60
        finally:
            world.operator.delete_reservation("contract")
        with refused(errors.CommandFailed):
            world.operator.create_reservation(structs.replace(request, start_time=now - 700))

    def test_step(self, world: World) -> None:
        """One task per node, listed while it runs; srun ends when killed, tasks when cancelled."""
        with running_job(world, 2) as job:
            held = world.client.allocation(job.job_id)
            (request,) = whole_node_steps(held, held.nodes, ("sleep", "300"))
            handle = world.client.launch_step(request, world.scratch / "step.log")
            assert handle.pid > 0
            world.wait(lambda: self._agents(world, job.job_id) == 1, "the step is listed")
            mine = [s for s in world.client.steps(job.job_id) if s.name == "agents"]
            assert set(mine[0].nodes) == set(job.nodes)
            assert handle.poll() is None
            handle.kill()
            world.wait(lambda: handle.poll() is not None, "srun has ended")
            handle.kill()
            # From 24.11 on the tasks outlive their srun.
            for step in world.client.steps(job.job_id):
                if step.name == "agents":
                    world.client.cancel(job.job_id, step_id=step.step_id)
            world.wait(lambda: self._agents(world, job.job_id) == 0, "the step has gone")

    def test_cancel_step(self, world: World) -> None:
        """A step is cancelled by its id, the job goes on."""
        with running_job(world, 1) as job:
            request = StepRequest(job_id=job.job_id, nodes=job.nodes, command=("sleep", "300"))
            handle = world.client.launch_step(request, world.scratch / "step.log")
            world.wait(lambda: self._agents(world, job.job_id) == 1, "the step is listed")
            (step,) = [s for s in world.client.steps(job.job_id) if s.name == "agents"]
            world.client.cancel(job.job_id, step_id=step.step_id)
            world.wait(lambda: handle.poll() is not None, "srun has ended")
            assert handle.poll() != 0
            world.client.cancel(job.job_id, step_id=step.step_id)
            assert world.client.job(job.job_id).is_running

    def _agents(self, world: World, job_id: int) -> int:
        return len([s for s in world.client.steps(job_id) if s.name == "agents"])

    def test_shrink(self, world: World) -> None:
        """A running job gives nodes back, but never its batch host."""
        with running_job(world, 3) as job:
            with refused(errors.InvalidNode):
                world.client.shrink(job.job_id, job.nodes[1:])
            keep = (job.nodes[0], job.nodes[2])
            world.client.shrink(job.job_id, keep)
            assert world.client.job(job.job_id).nodes == keep
            assert world.client.allocation(job.job_id).nodes == keep

    def test_requeue_without_a_node(self, world: World) -> None:
        """The whole way: out, without a node, and running again elsewhere."""
        with running_job(world, 1) as job:
            bad = job.nodes[0]
            seen: list[StageOutcome] = []
            first = requeue_without(world.client, job.job_id, [bad], clock=world.clock, report=seen.append)
            assert first.ok, first.detail
            assert [s.stage for s in seen if s.ok] == [RequeueCommand.REQUEUE, RequeueCommand.EXCLUDE]
            rest = watch_until_running(
                world.client, job.job_id, exclude=[bad], clock=world.clock, timeout_s=60
            )
            assert rest.ok, rest.detail
            assert rest.job is not None
            assert bad not in rest.job.nodes
            assert rest.job.restart_count == 1
            again = requeue_without(world.client, job.job_id, [bad], until=Until.RUNNING, clock=world.clock)
            assert again.ok
            assert again.job is not None
            assert again.job.restart_count == 1
