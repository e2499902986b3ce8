"""The batch host dies, or is cut off, and a controller on another node goes on, on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.state import TAKEOVER_GAP
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps"


@pytest.fixture(scope="module")
def reference() -> str:
    """Hash of the weights after 60 steps of two ranks without a fault."""
    return undisturbed(2, f"{TINY} 60 --step-s 0")


def taken_over(job: ProtectedJob) -> ev.ControllerStarted:
    """The controller that took over, when it is there."""
    job.wait(lambda: [e for e in job.events(ev.ControllerStarted) if e.taken_from], 60, "takeover")
    return next(e for e in job.events(ev.ControllerStarted) if e.taken_from)


def test_the_batch_host_loses_its_power_and_training_goes_on_without_a_requeue(
    sandbox: Sandbox, reference: str
) -> None:
    job = ProtectedJob(sandbox, f"--spares 1 {TINY} 60 --step-s 0.3", nodes=3)
    job.wait_step(5)
    host = job.state.own_node
    begun = time.time()
    sandbox.fault.power_cut(host)
    second = taken_over(job)
    assert (second.taken_from, second.epoch) == (host, 2)
    (recovered,) = job.wait_recovered(1)
    print(f"takeover after {second.t - begun:.1f} s, new step after {recovered.t - begun:.1f} s")
    assert recovered.t - begun < 45
    assert job.state.restart_count == 0
    assert host not in job.state.world.slots
    (other,) = {*job.state.world.slots} - {job.state.own_node}
    sandbox.exec(["pkill", "-9", "-f", "slurm_robust.agent --job-dir"], node=other, user="root", check=True)
    job.wait_recovered(2)
    assert (set(job.state.evicted), other in job.state.world.slots) == ({host}, True)
    sandbox.fault.restart_slurmctld()
    job.wait_step(job.step() + 10)
    job.hurry()
    job.wait(lambda: job.state.ended is not None, 120, "end of the run")
    assert job.out.read_text() == reference
    assert job.events(ev.RequeueStarted) == []
    # Slurm learns the exit code by a next run that ends at once.
    job.wait(lambda: job.slurm_state() in ("COMPLETED", ""), 180, "end of the job")
    assert job.exit_code() == "0:0"
    assert "takeover: the controller on" in job.log
    assert job.log.count("controller 1 of job") == 1
    assert "is requeued, to end immediately with exit code 0" in job.log
    assert "this run is over" in job.log
    # No srun is left that would have reported the killed agent.
    assert f"the agent on {other} ended (no process listens at its port any more" in job.log
    assert [e.generation for e in job.events(ev.GenerationLaunched)] == [
        1,
        1 + TAKEOVER_GAP,
        2 + TAKEOVER_GAP,
    ]


@pytest.mark.soak
def test_an_agent_is_killed_and_then_the_batch_host_dies(sandbox: Sandbox, reference: str) -> None:
    """The next controller has never heard that agent, whose node lives and has the copies."""
    job = ProtectedJob(sandbox, f"--spares 2 {TINY} 60 --step-s 0.3", nodes=4)
    job.wait_step(5)
    host, slots = job.state.own_node, job.state.world.slots
    other = next(node for node in slots if node != host)
    sandbox.exec(["pkill", "-9", "-f", "slurm_robust.agent --job-dir"], node=other, user="root", check=True)
    sandbox.fault.power_cut(host)
    taken_over(job)
    job.wait(lambda: len(job.events(ev.GenerationLaunched)) > 1, 60, "the next generation")
    launched = job.events(ev.GenerationLaunched)[-1]
    assert launched.restore is not None, job.log
    assert launched.restore.step >= 4
    assert (set(job.state.evicted), other in job.state.world.slots) == ({host}, True)
    job.hurry()
    job.wait(lambda: job.state.ended is not None, 120, "end of the run")
    assert job.out.read_text() == reference


def test_a_cut_network_of_the_batch_host_heals_and_one_controller_is_left(
    sandboxes: Callable[..., Sandbox], reference: str
) -> None:
    patient = sandboxes(nodes=4, slurmd_timeout_s=300)
    job = ProtectedJob(patient, f"--spares 1 {TINY} 60 --step-s 0.3", nodes=3)
    job.wait_step(5)
    host = job.state.own_node
    patient.fault.cut_network(host)
    until = time.monotonic() + 40
    second = taken_over(job)
    wait_for(lambda: time.monotonic() >= until, 45, "the cut")
    patient.fault.heal_network(host)
    job.wait_recovered(1)
    job.wait(lambda: "waits for the end of the job" in job.log, 60, "the old controller ends")
    assert job.wait_end(180) == 0
    assert job.wait_left() == "0:0"
    assert job.out.read_text() == reference
    assert job.events(ev.RequeueStarted) == []
    assert job.state.restart_count == 0
    assert second.taken_from == host
    assert job.state.epoch == 2
    assert "has taken over; this one ends" in job.log
    assert "waits for the end of the job" in job.log
    assert "is requeued" not in job.log


def test_a_job_that_loses_its_old_batch_script_is_requeued(
    sandboxes: Callable[..., Sandbox], reference: str
) -> None:
    """As when Slurm has given the host up in the moment in which it is back: slurmd kills the script."""
    patient = sandboxes(nodes=4, slurmd_timeout_s=300)
    job = ProtectedJob(patient, f"--spares 1 {TINY} 60 --step-s 1", nodes=3)
    job.wait_step(5)
    host = job.state.own_node
    patient.fault.cut_network(host)
    assert taken_over(job).taken_from == host
    patient.fault.heal_network(host)
    job.wait(lambda: "waits for the end of the job" in job.log, 60, "old supervisor")
    patient.exec(["scancel", "--batch", "--signal=KILL", str(job.id)], user=USER)

    def is_over() -> bool:
        ended = job.state.ended  # read once: the next run may begin meanwhile
        return ended is not None and ended.final

    job.hurry()
    job.wait(is_over, 240, "end of the run")
    assert f"its batch script on {host} was killed" in job.log
    assert job.out.read_text() == reference
    job.wait(lambda: job.slurm_state() in ("COMPLETED", ""), 60, "end of the job")
    assert (job.exit_code(), job.state.restart_count) == ("0:0", 1)


@pytest.mark.soak
def test_a_host_that_took_over_may_die_too(sandboxes: Callable[..., Sandbox], reference: str) -> None:
    sandbox = sandboxes(nodes=6, slurmd_timeout_s=20)
    job = ProtectedJob(sandbox, f"--spares 2 {TINY} 60 --step-s 0.3", nodes=4)
    for incident in (1, 2):
        job.wait_step(5 * incident)
        host = job.state.own_node
        sandbox.fault.power_cut(host)
        job.wait_recovered(incident)
        assert job.state.own_node != host
        assert host not in job.state.world.slots
    job.hurry()
    job.wait(lambda: job.state.ended is not None, 180, "end of the run")
    assert job.out.read_text() == reference
    assert job.state.restart_count == 0
    job.wait(lambda: job.slurm_state() in ("COMPLETED", ""), 240, "end of the job")
    assert job.exit_code() == "0:0"


@pytest.mark.soak
def test_a_batch_host_that_reboots_at_once_is_slurms(sandbox: Sandbox, reference: str) -> None:
    """Slurm misses the batch script when the host registers, and requeues the job itself."""
    job = ProtectedJob(sandbox, f"--spares 1 {TINY} 60 --step-s 0.3", nodes=3)
    job.wait_step(5)
    host = job.state.own_node
    sandbox.fault.power_cut(host)
    sandbox.fault.boot(host)
    assert job.wait_end(300) == 0
    assert job.out.read_text() == reference
    assert job.wait_left() == "0:0"
