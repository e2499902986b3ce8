"""More nodes die than there are standbys, at once or while these are woken: the next fallback follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "srobust_spares"
TINY = "tiny.py --out OUT --steps"


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(nodes=7, slurmd_timeout_s=20, cred_expire_s=5, accounting=False)


def submit(
    cluster: Sandbox,
    slots: int,
    spares: int = 0,
    companions: str = "",
    step_s: float = 0.3,
    steps: int = 50,
) -> ProtectedJob:
    (cluster.home(USER) / "losses.yaml").write_text(f"companions: {{{companions}}}\n")
    options = f"--config losses.yaml --nproc-per-node 1 --spares {spares}"
    return ProtectedJob(cluster, f"{options} {TINY} {steps} --step-s {step_s}", nodes=slots + spares)


def report(job: ProtectedJob) -> str:
    """On the first incident."""
    command = ["srobust", "incident", str(job.id), "1"]
    return job.sandbox.exec(command, user=USER, timeout_s=30.0, check=True).stdout


@pytest.mark.soak
def test_two_nodes_at_once_with_one_standby_and_a_reservation_of_others(cluster: Sandbox) -> None:
    made = ["starttime=now", "duration=UNLIMITED", "users=bob", "nodes=n7", f"reservationname={NAME}"]
    cluster.exec(["scontrol", "create", "reservation", *made], user="root", check=True)
    job = submit(cluster, 3, 1, f"reservation: {NAME}")
    job.wait_step(5)
    lost = job.state.world.slots[1:]
    for node in lost:
        cluster.fault.power_cut(node)
    job.wait(lambda: job.events(ev.RequeueStarted), 120, "requeue")
    # Four nodes are left, and the job needs all of them.
    cluster.exec(["scontrol", "delete", f"reservationname={NAME}"], user="root", check=True)
    job.wait(lambda: job.state.restart_count == 1, 150, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == undisturbed(3, f"{TINY} 50 --step-s 0")
    refused = job.events(ev.NotLent)[0]
    assert "Access denied to requested reservation" in refused.reason
    assert not set(lost) & {*job.state.world.slots, *job.state.spares}
    told = report(job)
    assert "2 nodes to replace, 1 standby left" in told
    assert "Access denied to requested reservation" in told


def test_standbys_that_died_before_are_not_waited_for(cluster: Sandbox) -> None:
    job = submit(cluster, 2, 2)
    job.wait_step(5)
    slot = job.state.world.slots[1]

    def lose(standby: str) -> None:
        cluster.fault.power_cut(standby)
        job.wait(lambda: standby in job.state.aside, 30, "the standby is set aside")

    for node in job.state.spares:
        lose(node)
    cluster.fault.power_cut(slot)
    job.wait(lambda: job.events(ev.RequeueStarted), 40, "requeue")
    (opened,), (asked,) = job.events(ev.IncidentOpened), job.events(ev.RequeueStarted)
    assert asked.t - opened.t < 15, job.log
    job.wait(lambda: job.state.restart_count == 1, 150, "next run of the job")
    assert job.wait_end() == 0


@pytest.mark.soak
def test_all_standbys_die_while_they_are_woken(cluster: Sandbox) -> None:
    job = submit(cluster, 2, 2, "partition: true")
    job.wait_step(5)
    standbys, slot = job.state.spares, job.state.world.slots[1]
    cluster.fault.power_cut(slot)
    job.wait(lambda: job.state.world.slots[1] in standbys, 60, "a standby is to take the slot")
    for node in standbys:
        cluster.fault.power_cut(node)
    job.wait(lambda: job.state.world.slots[1] in job.state.lenders, 150, "a node of the partition")
    job.wait_recovered(1)
    assert job.wait_end() == 0
    assert job.out.read_text() == undisturbed(2, f"{TINY} 50 --step-s 0")
    assert job.events(ev.RequeueStarted) == []
    assert slot in job.state.evicted
    assert set(job.state.evicted) <= {slot, *standbys}, "nobody else is to blame"
    assert "from the partition" in report(job)
    left = "srobust-companion-"
    names = ["squeue", "--noheader", "--format=%j"]
    wait_for(lambda: left not in cluster.exec(names, user="root").stdout, 90, "all companions have ended")


def test_a_dead_node_that_is_back_soon_ends_no_agent_of_the_others(cluster: Sandbox) -> None:
    """Before SlurmdTimeout: Slurm misses the agents' step there, and tells their srun."""
    job = submit(cluster, 3, 1, steps=5000)
    job.wait_step(5)
    lost = job.state.world.slots[1]
    cluster.fault.power_cut(lost)
    job.wait_recovered()
    cluster.fault.boot(lost)
    seen = ["sinfo", "-h", "-n", lost, "-o", "%T"]
    job.wait(lambda: "*" not in cluster.exec(seen, check=True).stdout, 30, "Slurm hears the node again")
    job.wait_step(job.step() + 30)
    assert len(job.events(ev.IncidentOpened)) == 1, job.log
    assert len(job.events(ev.GenerationLaunched)) == 2, job.log
    cluster.exec(["scancel", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.state.ended is not None, 60, "its end")
    (written,) = job.events(ev.StorageWritten)
    assert written.step >= job.state.world.best_step - 1, job.log
