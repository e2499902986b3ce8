"""Observe mode: what would have been done is said, once it can be known, and nothing is touched."""

from __future__ import annotations

from slurm_robust.config.job import JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import Evict
from slurm_robust.wire.messages import Stop
from tests.unit.engine.fake_job import Job
from tests.unit.engine.test_detection import alert

PEER_LOST = WorkerError(type="RuntimeError", message="Connection reset by peer")


def observed() -> Job:
    job = Job(config=JobConfig(mode="observe"))
    job.train_to(3)
    return job


def decided(job: Job) -> ev.Decided:
    (found,) = job.events(ev.Decided)
    assert isinstance(found, ev.Decided)
    assert not found.carried_out
    assert not any(isinstance(m, Stop) for _, m in job.sent)
    return found


def evicted(found: ev.Decided) -> list[str]:
    return [action.node for action in found.actions if isinstance(action, Evict)]


def test_the_decision_is_printed_and_the_job_ends_with_the_code_of_the_first_exit() -> None:
    job = observed()
    job.kill_rank(1)
    job.kill_rank(0, signal=None, code=1, error=PEER_LOST)
    assert evicted(decided(job)) == []
    job.pass_time(20)
    assert job.code == 128 + 9
    assert job.said[-1] == (
        "end, exit code 137: observe mode, nothing was done about it: rank 1: SIGKILL on n2"
    )
    assert job.core.world.generation == 1


def test_a_rank_that_lost_its_peer_is_not_judged_before_the_peers_node() -> None:
    job = observed()
    job.power_cut("n2")
    job.kill_rank(0, signal=None, code=1, error=PEER_LOST)
    assert job.events(ev.Decided) == []
    job.until(lambda: bool(job.events(ev.Decided)), 8)
    assert evicted(decided(job)) == ["n2"]


def test_workers_that_do_not_end_are_not_waited_for_for_ever() -> None:
    job = observed()
    job.kill_rank(1)
    job.until(lambda: bool(job.events(ev.Decided)), 8)
    assert evicted(decided(job)) == []
    assert job.code is None


def test_a_spare_that_its_inspection_names_is_left_alone() -> None:
    job = observed()
    job.change("n3", alerts=(alert(),))
    for step in range(4, 8):
        job.train_to(step)
        job.pass_time(2)
    assert (job.core.state.evicted, job.given_back, job.kept) == ({}, [], {})
    assert job.core.state.spares == ("n3",)
