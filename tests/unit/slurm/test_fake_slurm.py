"""The fake keeps the contract; what only a fake can show is below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.slurm import errors
from slurm_robust.slurm.requests import StepRequest, SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.contracts.history import HistoryContract
from tests.contracts.slurm import SlurmContract


class FakeWorld:
    def __init__(self, scratch: Path) -> None:
        cluster = FakeCluster()
        self.client = FakeSlurm(cluster, operator=False)
        self.operator = FakeSlurm(cluster, user="root")
        self.user = "alice"
        self.has_accounting = True
        self.scratch = scratch
        self.clock = cluster.clock

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(1000):
            if condition():
                return
            self.clock.advance(0.5)
        raise AssertionError(f"not in time: {what}")


class TestFakeSlurm(SlurmContract, HistoryContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> FakeWorld:
        return FakeWorld(tmp_path)


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


def started(slurm: FakeSlurm, nodes: int = 2, **fields: object) -> int:
    job_id = slurm.submit(SubmitRequest(command=("train.sh",), nodes=nodes, **fields))
    assert slurm.job(job_id).is_running
    return job_id


def test_start_now_is_lost_while_the_job_is_completing(slurm: FakeSlurm) -> None:
    job_id = started(slurm)
    slurm.requeue(job_id)
    slurm.start_now(job_id)
    slurm.cluster.clock.advance(60)
    assert slurm.job(job_id).reason == "BeginTime"
    slurm.cluster.clock.advance(62)
    assert slurm.job(job_id).is_running


def test_started_again_too_soon_a_job_is_lost(slurm: FakeSlurm) -> None:
    job_id = started(slurm)
    slurm.requeue(job_id)
    slurm.cluster.clock.advance(1.5)
    assert slurm.job(job_id).is_pending
    slurm.start_now(job_id)
    assert slurm.job(job_id).states == {"FAILED"}


def test_a_lost_node_requeues_the_job(slurm: FakeSlurm) -> None:
    job_id = started(slurm)
    slurm.cluster.node_down("n2")
    slurm.cluster.clock.advance(125)
    job = slurm.job(job_id)
    assert (job.nodes, job.restart_count) == (("n1", "n3"), 1)
    assert slurm.accounting(job_id)[0].state == "NODE_FAIL"


def test_with_no_kill_the_job_goes_on_without_the_lost_node(slurm: FakeSlurm) -> None:
    job_id = started(slurm, options=("--no-kill",))
    slurm.cluster.node_down("n2")
    assert slurm.job(job_id).nodes == ("n1",)
    assert slurm.nodes(["n2"])[0].is_down


def test_a_failed_prolog_drains_the_node_and_holds_the_job(slurm: FakeSlurm) -> None:
    slurm.cluster.failing_prologs.add("n1")
    job_id = slurm.submit(SubmitRequest(command=("train.sh",), nodes=2))
    assert slurm.job(job_id).held_by_slurm
    assert slurm.nodes(["n1"])[0].is_drained


def test_a_step_with_a_dead_node_fails(slurm: FakeSlurm, tmp_path: Path) -> None:
    job_id = started(slurm, options=("--no-kill",))
    request = StepRequest(job_id=job_id, nodes=("n1", "n2"), command=("agent",))
    slurm.cluster.node_down("n2")
    handle = slurm.launch_step(request, tmp_path / "log")
    assert handle.poll() == 1


def test_an_unreachable_controller(slurm: FakeSlurm) -> None:
    slurm.cluster.unreachable = True
    with pytest.raises(errors.ControllerUnreachable):
        slurm.jobs()


def test_reserved_nodes_are_for_jobs_of_the_reservation(slurm: FakeSlurm) -> None:
    from slurm_robust.slurm.requests import ReservationRequest

    slurm.create_reservation(ReservationRequest(name="spare", node_count=2, users=("alice",)))
    outside = slurm.submit(SubmitRequest(command=("x",), nodes=3))
    inside = slurm.submit(SubmitRequest(command=("x",), nodes=2, reservation="spare"))
    assert slurm.job(outside).is_pending
    assert slurm.job(inside).nodes == ("n1", "n2")
