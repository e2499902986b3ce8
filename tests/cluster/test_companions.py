"""On a real Slurm a job without standby goes on with a shared spare, and gives it back whatever dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slurm_robust.config.job import CompanionConfig
from slurm_robust.controller.borrower import Borrower
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.incident import Borrow, Requeue
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.requests import SubmitRequest
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

if TYPE_CHECKING:
    from slurm_robust.sandbox import Sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "srobust_spares"
TINY = "tiny.py --out OUT --steps 60 --step-s"
GPUS = ("--gpus-per-node=2", "--exclusive")


class Site:
    """Five nodes with GPUs: n4 and n5 are alice's spares."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        made = ["starttime=now", "duration=UNLIMITED", f"users={USER}", "nodes=n4,n5"]
        self.scontrol("create", "reservation", f"reservationname={NAME}", *made)

    def scontrol(self, *words: str) -> str:
        return self.sandbox.exec(["scontrol", *words], user="root", check=True).stdout

    def submit(self, settings: str = "", step_s: float = 0.2, nodes: int = 2) -> ProtectedJob:
        """A job that uses the spares, and ``settings`` of companions."""
        home = self.sandbox.home(USER)
        (home / "companions.yaml").write_text(f"companions: {{reservation: {NAME}{settings}}}\n")
        options = f"--config companions.yaml --nproc-per-node 1 {TINY} {step_s}"
        return ProtectedJob(self.sandbox, options, nodes=nodes, sbatch=GPUS)

    def hold(self, nodes: int) -> int:
        """A job of alice with ``spares`` standbys."""
        words = ["--parsable", "--output=/dev/null", "--exclusive", f"--nodes={nodes}"]
        command = ["sbatch", *words, f"--reservation={NAME}", "--wrap=sleep 300"]
        done = self.sandbox.exec(command, user=USER, check=True)
        job = int(done.stdout)
        wait_for(lambda: self.state(job) == "RUNNING", 30, "the spares are taken")
        return job

    def state(self, job: int) -> str:
        command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
        return self.sandbox.exec(command, user="root").stdout.strip()

    def companions(self) -> list[str]:
        """Companions that Slurm has, by their states."""
        found = self.sandbox.exec(["squeue", "--noheader", "--format=%j %T"], user="root").stdout
        return [line for line in found.splitlines() if line.startswith("srobust-companion-")]

    def wait_returned(self) -> None:
        wait_for(lambda: not self.companions(), 90, "all companions have ended")


@pytest.fixture
def site(sandboxes: Callable[..., Sandbox]) -> Site:
    return Site(sandboxes(nodes=5, gpus_per_node=2, slurmd_timeout_s=20, cred_expire_s=5))


@pytest.mark.releases
def test_a_companion_lends_all_of_a_node_and_ends_with_the_job(site: Site, tmp_path: Path) -> None:
    """Nothing runs here but the batch scripts and one step."""
    client = CliSlurmClient(prefix=site.sandbox.enter_command(user=USER))
    request = SubmitRequest(
        command=("sleep 600",), wrap=True, nodes=2, exclusive=True, gres="gpu:2", output="/dev/null"
    )
    job = client.submit(request)
    wait_for(lambda: client.job(job).is_running, 30, "the job runs")
    lent = Lent(client.allocation(job))
    borrower = Borrower(
        client,
        CompanionConfig(reservation=NAME),
        lent,
        job_id=job,
        run=0,
        run_id="r",
        folder=Path("/home", USER),
        user=USER,
        environ={},
    )
    found = borrower.borrow((CompanionPool(reservation=NAME),), 1, (), lambda *_: None)
    assert found.refusals == ()
    ((companion, node),) = found.nodes.items()
    assert node in ("n4", "n5")
    (step,) = lent.steps((node,), ("env",), name="agents-1", environ={"SLURM_JOB_NODELIST": "n[1-2]"})
    seen = tmp_path / "env"
    client.launch_step(step, seen)
    wait_for(lambda: f"SLURMD_NODENAME={node}" in seen.read_text(), 30, "the step on the spare")
    environ = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
    assert environ["SLURM_JOB_ID"] == str(companion)
    assert environ["SLURM_GPUS_ON_NODE"] == "2"
    assert borrower.sweep((companion,)) == ()
    client.cancel(job)
    wait_for(lambda: client.job(companion).is_finished, 60, "the companion ends by itself")


@pytest.mark.releases
def test_a_shared_spare_replaces_a_dead_node(site: Site) -> None:
    expected = undisturbed(2, f"{TINY} 0")
    job = site.submit()
    job.wait_step(5)
    dead = job.state.world.slots[1]
    site.sandbox.fault.power_cut(dead)
    (closed,) = job.wait_recovered(1)
    assert closed.recover_s is not None
    print(f"recovered in {closed.recover_s:.2f} s")
    assert job.state.restart_count == 0
    (companion, node) = next((job_id, one.node) for job_id, one in job.state.companions.items())
    assert node in ("n4", "n5")
    assert node in job.state.world.slots
    shown = site.sandbox.exec(["srobust", "status", str(job.id)], user=USER, check=True).stdout
    assert f"{node} by companion {companion}" in shown
    assert job.wait_end() == 0, job.log
    assert job.out.read_text() == expected
    assert job.events(ev.RequeueStarted) == []
    site.wait_returned()


@pytest.mark.releases
def test_full_then_denied_reservation_leads_to_the_next_fallback(site: Site) -> None:
    """The partition, where that is allowed."""
    expected = undisturbed(2, f"{TINY} 0")
    site.hold(2)
    job = site.submit(", partition: true")
    job.wait_step(5)
    (free,) = {"n1", "n2", "n3"} - set(job.state.world.slots)
    site.sandbox.fault.power_cut(job.state.world.slots[1])
    job.wait_recovered(1)
    assert job.state.lenders.keys() == {free}
    (refusal,) = job.events(ev.NotLent)
    assert refusal.reason == "0 of 2 nodes free (n[4-5]; see srobust spares status)"
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    site.wait_returned()


@pytest.mark.releases
def test_without_any_node_to_borrow_the_job_is_requeued(site: Site) -> None:
    expected = undisturbed(2, f"{TINY} 0")
    site.scontrol("delete", f"reservationname={NAME}")
    job = site.submit()
    job.wait_step(5)
    dead = job.state.world.slots[1]
    site.sandbox.fault.power_cut(dead)
    job.wait(lambda: job.state.restart_count == 1, 120, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    actions = [action for decided in job.events(ev.Decided) for action in decided.actions]
    assert [type(a) for a in actions if isinstance(a, Borrow | Requeue)] == [Borrow, Requeue]
    (refusal,) = job.events(ev.NotLent)
    assert "reservation is invalid" in refusal.reason
    report = site.sandbox.exec(["srobust", "incident", str(job.id), "1"], user=USER, check=True).stdout
    assert f"no node from reservation {NAME}" in report


def test_a_lent_node_that_dies_is_replaced_in_its_turn(site: Site) -> None:
    expected = undisturbed(2, f"{TINY} 0")
    job = site.submit(step_s=0.3)
    job.wait_step(5)
    site.sandbox.fault.power_cut(job.state.world.slots[1])
    job.wait_recovered(1)
    (first,) = job.state.lenders
    site.sandbox.fault.power_cut(first)
    job.wait_recovered(2)
    job.wait(lambda: set(job.state.lenders) == {"n4", "n5"} - {first}, 60, "the dead node's companion ends")
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


def test_a_companion_outlives_its_controller_and_ends_with_the_job(site: Site) -> None:
    job = site.submit(step_s=0.5)
    job.wait_step(3)
    site.sandbox.fault.power_cut(job.state.world.slots[1])
    job.wait_recovered(1)
    started = job.events(ev.ControllerStarted)[-1]
    site.sandbox.exec(["kill", "-9", str(started.pid)], node=started.host, user="root", check=True)
    site.sandbox.fault.restart_slurmctld()
    job.wait(lambda: job.state.epoch == 2, 60, "second controller")
    step = job.step()
    job.wait_step(step + 5)
    assert len(site.companions()) == 1
    assert job.state.world.generation == 2
    # Nobody is left to cancel it.
    found = job.events(ev.ControllerStarted)[-1]
    site.sandbox.exec(["scancel", "--signal=KILL", "--full", str(job.id)], user=USER)
    assert found.epoch == 2
    site.wait_returned()
