"""A job that gives up leaves on storage what only memory held."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig, Timings
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.journal import fold
from slurm_robust.policy.checkpoints import LAST_STORE_S
from tests.builders.events import run_started
from tests.unit.engine.fake_job import Job

REFUSED = SlurmAnswer(said=RequeueStatus.REFUSED, detail="Requested operation is presently disabled")
BUG = WorkerError(type="ValueError", message="boom", file="train.py", line=12)


def train(job: Job, steps: range) -> Job:
    for step in steps:
        job.train_to(step)
    return job


def fail_for_good(job: Job) -> None:
    for _ in range(2):
        job.kill_rank(1, signal=None, code=1, error=BUG)
        job.until(lambda: job.stage == "Running" or job.code is not None or job.stage == "Saving")


def test_each_node_writes_the_parts_that_it_has() -> None:
    job = train(Job(memory=True), range(5))
    fail_for_good(job)
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert {node: order.ranks for node, order in job.saves.items()} == {"n1": (0,), "n2": (1,)}
    # An error of the code says nothing of the step from which training failed.
    (written,) = job.events(ev.StorageWritten)
    assert (written.generation, written.step) == (1, 4)
    assert any("gen-0001/step-00000004 was only in memory" in text for text in job.said)


@pytest.mark.parametrize("network", ["", "10.9.0"])
def test_the_parts_of_a_dead_node_are_written_by_its_peer(network: str) -> None:
    """``network``: a network of their own that copies take."""
    job = Job(memory=True, spares=())
    for number, node in enumerate(job.heartbeats if network else ()):
        job.change(node, data_address=f"{network}.{number}")
    train(job, range(5))
    job.slurm_says = (REFUSED,)
    job.power_cut("n2")
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert {node: order.ranks for node, order in job.saves.items()} == {"n1": (0, 1)}
    (written,) = job.events(ev.StorageWritten)
    assert written.step == 4


def test_a_node_that_cannot_write_does_not_hold_up_the_end() -> None:
    job = train(Job(memory=True, config=JobConfig(timings=Timings(checkpoint_s=15))), range(5))
    job.writes = False
    fail_for_good(job)
    assert job.stage == "Saving"
    begun = job.mono
    job.until(lambda: job.code is not None)
    assert 15 <= job.mono - begun < 30
    assert job.events(ev.StorageWritten) == []
    lost = "storage has no step; steps 0 to 4 are lost: n[1-2] did not write it to storage after"
    assert any(lost in e.text for e in job.events(ev.Noted))


def test_what_is_on_storage_is_not_written_again() -> None:
    job = Job(config=JobConfig(checkpoint=CheckpointConfig(memory=False)))
    job.train_to(3)
    fail_for_good(job)
    job.until(lambda: job.code is not None)
    assert job.saves == {}


def lose_a_node(job: Job) -> Job:
    train(job, range(5))
    job.writes = False
    job.power_cut("n2")
    job.until(lambda: job.stage == "Saving")
    return job


def test_a_controller_ordered_to_end_meanwhile_asks_for_no_requeue() -> None:
    job = lose_a_node(Job(memory=True, spares=()))
    job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
    job.until(lambda: job.code is not None)
    assert (job.code, job.requeued, job.kept) == (ExitCode.TERMINATED, [], {"n1": True})


def test_without_the_node_that_has_to_write_nothing_is_waited_for() -> None:
    job = lose_a_node(Job(memory=True, spares=()))
    begun = job.mono
    job.power_cut("n1")
    job.until(lambda: bool(job.requeued))
    assert job.mono - begun < 10
    lost = "are lost unless the next run gets the same nodes: n1 did not write it"
    assert any(lost in text for text in job.said)
    (asked,) = job.events(ev.RequeueStarted)
    assert asked.holders == (), "a dead node has nothing any more"


def test_near_the_end_of_time_storage_is_waited_for_a_while_only() -> None:
    job = train(Job(memory=True, reported=False), range(5))
    job.writes = False
    job.act(job.core.on_end_approaching("USR1", job.now()))
    job.until(lambda: job.stage == "Saving")
    begun = job.mono
    job.until(lambda: bool(job.requeued))
    assert LAST_STORE_S <= job.mono - begun < LAST_STORE_S + 5
    (asked,) = job.events(ev.RequeueStarted)
    assert asked.holders == ("n1", "n2"), "they alone have step 4, so the next run is to get them"
    assert job.core.state.asked_by_name == asked.holders


def test_nodes_that_the_owner_asks_for_by_name_stay_asked_for() -> None:
    """They are neither added by a requeue nor, when their time is over, taken away by it or by the next."""
    taken = ev.AllocationTaken(
        t=0.0, restart_count=0, nodes=("n1", "n2"), slots=("n1", "n2"), spares=(), required=("n2",)
    )
    begun = [run_started(t=0.0), ev.ControllerStarted(t=0.0, epoch=1, host="n1", pid=1, port=1)]
    job = Job(memory=True, reported=False, spares=(), history=(*begun, taken))
    train(job, range(5))
    job.writes = False
    job.act(job.core.on_end_approaching("USR1", job.now()))
    job.until(lambda: bool(job.requeued))
    (asked,) = job.events(ev.RequeueStarted)
    assert asked.holders == ("n1", "n2")
    assert [(order.holders, order.pins) for order in job.begun_requeues] == [(("n1",), ("n1",))]
    for required in (("n1", "n2"), None):
        state = fold([*job.journal, structs.replace(taken, restart_count=1, required=required)])
        assert (state.owners_nodes, state.asked_by_name) == (("n2",), ("n1",))


def test_what_a_refused_requeue_has_written_is_not_written_again() -> None:
    job = train(Job(memory=True, spares=()), range(5))
    job.slurm_says = (REFUSED,)
    job.power_cut("n2")
    job.until(lambda: job.code is not None)
    assert len(job.events(ev.StorageWritten)) == 1


def test_agents_are_ordered_to_end_without_their_copies_before_slurm_ends_them() -> None:
    job = train(Job(memory=True, spares=()), range(5))
    job.slurm_says = ()
    job.power_cut("n2")
    job.until(lambda: bool(job.requeued))
    assert job.kept == {"n1": False}
