"""The contract of SlurmClient on a real Slurm: the command line, and pyslurm's helper over a stand-in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.process import run_command
from slurm_robust.slurm.pyslurm_client import PyslurmClient, PyslurmHelper
from slurm_robust.slurm.records import KNOWN_STATES, SlurmStep
from slurm_robust.slurm.requests import NODES_PER_STEP, SubmitRequest, whole_node_steps
from slurm_robust.slurm.requeue import RequeueRequest, SystemClock
from slurm_robust.slurm.watcher import watcher_job
from tests.contracts.history import HistoryContract
from tests.contracts.slurm import SlurmContract, running_job
from tests.requeues import requeue_without
from tests.slurm_language import cases
from tests.waiting import wait_for

if TYPE_CHECKING:
    from slurm_robust.sandbox import Sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STAND_INS = Path(__file__).parents[1] / "stand_ins"
# Every test leaves the cluster clean, so one is enough for all.
SETTINGS = {"nodes": 4, "gpus_per_node": 4}

# Less than the two minutes after which Slurm starts a requeued job by itself.
PATIENCE_S = 90.0


class RealWorld:
    """A sandbox: its first user is the ordinary one, root the operator."""

    has_accounting = True

    def __init__(self, sandbox: Sandbox, scratch: Path) -> None:
        self.user = sandbox.config.users[0]
        self.prefix = sandbox.enter_command(user=self.user)
        self.client = CliSlurmClient(prefix=self.prefix)
        self.operator_prefix = sandbox.enter_command(user="root")
        self.operator = CliSlurmClient(prefix=self.operator_prefix)
        self.scratch = scratch
        self.clock = SystemClock()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, PATIENCE_S, what)


def helper(prefix: tuple[str, ...]) -> PyslurmHelper:
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(STAND_INS), *sys.path]),
        "SROBUST_STAND_IN_PREFIX": json.dumps(prefix),
    }
    return PyslurmHelper(30.0, environ=environ)


class PyslurmWorld(RealWorld):
    """The same through the pyslurm client."""

    def __init__(self, sandbox: Sandbox, scratch: Path) -> None:
        super().__init__(sandbox, scratch)
        for_user = sandbox.enter_command(user=self.user)
        for_root = sandbox.enter_command(user="root")
        self.client = PyslurmClient(helper(for_user), prefix=for_user)
        self.operator = PyslurmClient(helper(for_root), prefix=for_root)

    def close(self) -> None:
        self.client.close()
        self.operator.close()


@pytest.mark.releases
class TestCommandLine(SlurmContract, HistoryContract):
    @pytest.fixture
    def world(self, sandboxes: Callable[..., Sandbox], tmp_path: Path) -> RealWorld:
        return RealWorld(sandboxes(**SETTINGS), tmp_path)


class TestPyslurm(SlurmContract):
    @pytest.fixture
    def world(self, sandboxes: Callable[..., Sandbox], tmp_path: Path) -> Iterator[PyslurmWorld]:
        world = PyslurmWorld(sandboxes(**SETTINGS), tmp_path)
        yield world
        world.close()


@pytest.fixture
def real(sandboxes: Callable[..., Sandbox], tmp_path: Path) -> RealWorld:
    return RealWorld(sandboxes(**SETTINGS), tmp_path)


@pytest.mark.releases
def test_slurm_reads_hostlists_as_the_tables_say(real: RealWorld) -> None:
    """Those that we refuse, although Slurm makes something of them, are left out."""
    version = real.client.version()
    has_suffixes = (version.major, version.minor) >= (23, 11)
    wrong: list[str] = []
    for case in cases("hostlists.tsv"):
        if "refused here" in case.remark or ("23.11" in case.remark and not has_suffixes):
            continue
        names = hostnames(real, case.given)
        # Of three brackets Slurm turns the first one faster than the second one.
        same = (
            sorted(names) == sorted(case.expected.split())
            if case.given.count("[") > 2
            else (names == case.expected.split())
        )
        if not same and not (case.expected == "ERROR" and names == []):
            wrong.append(f"{case.given!r}: {names}")
    for case in cases("folded.tsv"):
        if sorted(hostnames(real, case.expected)) != sorted(set(case.given.split())):
            wrong.append(f"{case.expected!r}: {hostnames(real, case.expected)}")
    assert not wrong


def hostnames(world: RealWorld, text: str) -> list[str]:
    """What ``scontrol`` makes of a hostlist; nothing of one that it refuses."""
    command = [*world.prefix, "scontrol", "show", "hostnames", text]
    done = run_command(command, timeout_s=30, env=os.environ)
    refused = "Invalid hostlist" in f"{done.stdout}{done.stderr}" or done.exit_code != 0
    return [] if refused else done.stdout.split()


@pytest.mark.releases
def test_a_node_that_is_to_leave_keeps_its_job(real: RealWorld) -> None:
    """``scontrol update state=fail``: in scontrol's and in sinfo's words, it is not down and takes no job."""
    with running_job(real, 1) as job:
        (name,) = job.nodes
        update = [*real.operator_prefix, "scontrol", "update", f"nodename={name}"]
        run_command([*update, "state=fail", "reason=aged"], timeout_s=30, env=os.environ)
        try:
            real.wait(lambda: real.client.node(name).is_leaving, f"{name} is to leave")
            for node in (real.client.node(name), *real.client.nodes([name])):
                assert "FAIL" in node.states
                assert node.states <= KNOWN_STATES
                assert (node.is_down, node.is_leaving, node.usable) == (False, True, False)
            assert real.client.job(job.job_id).is_running
        finally:
            run_command([*update, "state=resume"], timeout_s=30, env=os.environ)
        real.wait(lambda: real.client.node(name).usable, f"{name} is in service again")
        assert all(node.states <= KNOWN_STATES for node in real.client.nodes())


PROBE = "echo $SLURM_CPUS_ON_NODE ${CUDA_VISIBLE_DEVICES:-none}; sleep 100"


@pytest.mark.releases
@pytest.mark.parametrize(
    "options",
    [
        ("--exclusive", "--gpus-per-node=4"),
        ("--ntasks-per-node=2", "--cpus-per-task=4", "--gpus-per-task=2"),
        ("--ntasks=4", "--gres=gpu:4", "--mem=2000"),
        ("--ntasks=2", "--cpus-per-task=8", "--mem-per-cpu=100"),
    ],
    ids=" ".join,
)
def test_an_agent_s_step_holds_all_that_the_job_holds(real: RealWorld, options: tuple[str, ...]) -> None:
    """However the job was submitted."""
    request = SubmitRequest(command=("sleep 300",), wrap=True, nodes=2, output="/dev/null", options=options)
    job_id = real.client.submit(request)
    try:
        real.wait(lambda: real.client.job(job_id).is_running, "the job runs")
        held = real.client.allocation(job_id)
        cpus = {node.name: node.allocated_cpus for node in real.client.nodes(held.nodes)}
        assert sum(cpus.values()) >= 2
        said: list[str] = []
        for number, step in enumerate(whole_node_steps(held, held.nodes, ("sh", "-c", PROBE))):
            log = real.scratch / f"step{number}.log"
            real.client.launch_step(step, log)
            said += wait_for(partial(answers, log, len(step.nodes)), 60, f"the probes answer in {log}")
        expected = {
            f"{cpus[node]} {','.join(map(str, range(held.gpus_per_node[node]))) or 'none'}"
            for node in held.nodes
        }
        assert set(said) == expected
    finally:
        real.client.cancel(job_id)


def answers(log: Path, count: int) -> list[str]:
    """The probes' lines, once there are ``count`` of them."""
    lines = [line for line in log.read_text().splitlines() if not line.startswith("srun:")]
    return lines if len(lines) == count else []


def test_a_step_survives_a_node_that_dies(sandboxes: Callable[..., Sandbox], tmp_path: Path) -> None:
    """--no-kill of job and step: the others go on, the job's allocation says so."""
    box = sandboxes(**SETTINGS, slurmd_timeout_s=10)
    world = RealWorld(box, tmp_path)
    with running_job(world, 3, options=("--no-kill",)) as job:
        held = world.client.allocation(job.job_id)
        (step,) = whole_node_steps(held, held.nodes, ("sh", "-c", "echo up; sleep 300"))
        handle = world.client.launch_step(step, tmp_path / "step.log")
        # A node that dies before every task was launched would end the whole step.
        wait_for(partial(answers, tmp_path / "step.log", 3), 60, "all tasks have started")
        box.fault.power_cut(job.nodes[2])
        world.wait(lambda: world.client.nodes([job.nodes[2]])[0].is_down, "Slurm gives the node up")
        assert world.client.job(job.job_id).is_running
        assert world.client.allocation(job.job_id).nodes == job.nodes[:2]
        assert handle.poll() is None
        (on_the_rest,) = whole_node_steps(held, job.nodes[:2], step.command)
        again = world.client.launch_step(on_the_rest, tmp_path / "again.log")
        world.wait(lambda: len(agents(world, job.job_id)) == 2, "a second step starts beside the first")
        again.kill()
        handle.kill()


def test_a_dead_node_of_many_does_not_hold_up_the_end(
    sandboxes: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """In one step the others would wait 60 s for its report, which the job spends COMPLETING."""
    box = sandboxes(nodes=NODES_PER_STEP + 2, accounting=False)
    world = RealWorld(box, tmp_path)
    with running_job(world, NODES_PER_STEP + 2, options=("--no-kill",)) as job:
        held = world.client.allocation(job.job_id)
        for number, step in enumerate(whole_node_steps(held, held.nodes, ("sh", "-c", "echo up; sleep 300"))):
            log = tmp_path / f"step{number}.log"
            world.client.launch_step(step, log)
            wait_for(partial(answers, log, len(step.nodes)), 60, f"the tasks of {log} have started")
        box.fault.power_cut(job.nodes[-1])
        world.client.shrink(job.job_id, job.nodes[:-1])
        world.client.cancel(job.job_id)
        wait_for(lambda: not world.client.job(job.job_id).is_completing, 30, "the job has ended")


def agents(world: RealWorld, job_id: int) -> list[SlurmStep]:
    return [step for step in world.client.steps(job_id) if step.name == "agents"]


@pytest.mark.releases
def test_a_small_job_brings_the_other_one_back(sandboxes: Callable[..., Sandbox], tmp_path: Path) -> None:
    """The watcher that works where Slurm kills detached processes."""
    box = sandboxes(**SETTINGS)
    world = RealWorld(box, tmp_path)
    log = Path("/home") / world.user / "watch.log"
    with running_job(world, 2) as job:
        bad = job.nodes[1]
        assert requeue_without(world.client, job.job_id, [bad]).ok
        watch = world.client.submit(
            watcher_job(RequeueRequest(job_id=job.job_id, ending_run=0, exclude=(bad,)), log=log)
        )
        # Without the watcher it would take two minutes.
        world.wait(lambda: world.client.job(job.job_id).is_running, "the job runs again")
        assert bad not in world.client.job(job.job_id).nodes
        world.wait(lambda: world.client.job(watch).is_finished, "the watcher has ended")
        assert '"stage":"start now","ok":true' in (box.home(world.user) / "watch.log").read_text()
