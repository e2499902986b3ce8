"""Workers that are slow to die are waited for while they get further, and are nobody's fault."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import JobConfig, SlurmConfig
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.exits import WorkerError
from slurm_robust.wire.messages import Phase
from tests.unit.engine.fake_job import Job

NODES = ("n1", "n2", "n3", "n4")


def crashed(
    slow: dict[str, float] | None = None,
    stubborn: tuple[str, ...] = (),
    freeing: frozenset[str] | set[str] = frozenset(),
    **more: object,
) -> Job:
    """Rank 0 has just ended by a signal; ``slow`` nodes need so many seconds to end their workers."""
    job = Job(NODES, ("n5",), memory=True, **more)  # type: ignore[arg-type]
    job.train_to(5)
    job.pass_time(2)
    job.slow, job.stubborn, job.freeing = dict(slow or {}), set(stubborn), set(freeing)
    job.kill_rank(0)
    return job


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


@pytest.mark.parametrize("slow", [("n3",), ("n2", "n3", "n4")], ids=["one node", "three of four"])
@pytest.mark.parametrize("seconds", [13.0, 31.0, 100.0])
def test_workers_that_give_memory_back_are_waited_for(slow: tuple[str, ...], seconds: float) -> None:
    job = crashed(dict.fromkeys(slow, seconds))
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", limit=seconds + 10)
    assert (evicted(job), job.requeued, job.core.world.slots) == (set(), [], NODES)
    assert any("still there: waiting up to 180 s" in text for text in job.said) is (seconds > 15.0)


def test_all_nodes_slow_to_die_end_no_job() -> None:
    job = crashed()
    for node in NODES:
        job.slow[node] = 40.0
        job.change(node, phase=Phase.RUNNING)
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", limit=60)
    assert (job.code, evicted(job)) == (None, set())


PEER_GONE = WorkerError(
    type="RuntimeError", message="Read error: Connection reset by peer", file="train.py", line=157
)


@pytest.mark.parametrize("is_late", [True, False], ids=["from before the order", "by the order"])
def test_an_exit_from_before_the_order_to_stop_counts_though_it_is_heard_after_it(is_late: bool) -> None:
    job = Job(NODES, ("n5",), memory=True)
    job.train_to(5)
    job.pass_time(2)
    job.slow = dict.fromkeys(NODES, 1.0)
    job.kill_rank(0, signal=None, code=1, error=PEER_GONE, age_s=12.0)
    assert job.stage == "Stopping"
    job.kill_rank(1, age_s=13.0 if is_late else 0.0)
    job.until(lambda: job.core.world.generation == 2, limit=10)
    (ended,) = job.events(ev.GenerationEnded)
    verdict = job.events(ev.Decided)[-1].verdict
    assert verdict is not None
    assert (ended.root, verdict.blame) == (1 if is_late else 0, inc.Blame.NOBODY)


def test_nobody_waits_for_workers_that_die_fast() -> None:
    job = crashed()
    job.pass_time(1.0)
    assert (job.stage, job.core.world.generation) == ("Running", 2)
    assert not any("still there" in text for text in job.said)


def test_one_node_at_whose_workers_nothing_moves_is_replaced() -> None:
    job = crashed(stubborn=("n3",))
    began = job.mono
    job.until(lambda: job.core.world.generation == 2)
    assert 30 < job.mono - began < 40
    assert job.core.world.slots == ("n1", "n2", "n5", "n4")
    assert evicted(job) == {"n3"}


def test_one_node_whose_workers_move_without_end_is_replaced_at_the_bound() -> None:
    job = crashed({"n3": 1e9})
    began = job.mono
    job.until(lambda: job.core.world.generation == 2, limit=300)
    assert 180 < job.mono - began < 195
    assert evicted(job) == {"n3"}


def test_a_node_that_stood_still_and_ends_while_others_are_waited_for_is_well() -> None:
    job = crashed({"n2": 60.0}, stubborn=("n3",))
    job.pass_time(45)
    assert job.stage == "Stopping"
    job.stubborn.clear()
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", limit=30)
    assert evicted(job) == set()


@pytest.mark.parametrize("requeue", [True, False])
def test_workers_of_several_nodes_that_never_end_convict_nobody(requeue: bool) -> None:
    job = crashed(stubborn=("n2", "n3"), config=JobConfig(slurm=SlurmConfig(requeue=requeue)))
    job.pass_time(600)
    assert evicted(job) == set()
    assert all(event.code != 93 for event in job.events(ev.RunEnded))
    first = job.events(ev.Decided)[0]
    assert first.verdict is not None
    assert first.verdict.blame is inc.Blame.NOBODY
    assert "killed workers remain on n2, n3" in first.reason
    if requeue:
        assert job.requeued == [()], "others nodes may do, and Slurm sees to what is left"


def test_an_order_to_leave_waits_no_longer_than_slurm_does() -> None:
    job = crashed({"n3": 100.0})
    job.pass_time(3)
    began = job.mono
    job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
    job.until(lambda: job.code is not None, limit=30)
    assert job.mono - began < 25, "KillWait is 30 s by default"
    assert evicted(job) == set()


def test_a_launch_that_waits_for_gpus_says_so() -> None:
    job = crashed(freeing={"n3"})
    job.until(lambda: "generation 2: waiting for the GPUs of n3 to be free" in job.said, limit=10)
    assert job.stage == "Launching"
    job.change("n3", phase=Phase.RUNNING)
    assert job.stage == "Running"
