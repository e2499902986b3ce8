"""Workers that are slow to die are waited for while they get further, and are no node's fault."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.config.job import JobConfig, SlurmConfig
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import Blame
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import evicted, gets_on, requeues, seconds_until, trained

NODES = ("n1", "n2", "n3", "n4")
PEER_GONE = WorkerError(
    type="RuntimeError", message="Read error: Connection reset by peer", file="train.py", line=157
)


def crashed(dying: dict[str, float] | None = None, unkillable: tuple[int, ...] = (), **more: Any) -> Sim:
    """Rank 0 has just ended by a signal.

    ``dying``: how many seconds the workers of a node take to end; ``unkillable``: ranks that survive SIGKILL.
    """
    sim = trained(4, 1, **more)
    for node, seconds in (dying or {}).items():
        sim.nodes[node].dying_s = seconds
    for rank in unkillable:
        sim.hang_rank(rank, unkillable=True)
    sim.kill_rank(0)
    return sim


def seconds_to_relaunch(sim: Sim, limit: float) -> float:
    return seconds_until(sim, lambda: sim.state.world.generation == 2, within_s=limit)


@pytest.mark.parametrize(
    "dying", [("n3",), ("n2", "n3", "n4"), NODES], ids=["one node", "three of four", "all"]
)
@pytest.mark.parametrize("seconds", [13.0, 31.0, 100.0])
def test_workers_that_give_memory_back_are_waited_for(dying: tuple[str, ...], seconds: float) -> None:
    sim = crashed(dict.fromkeys(dying, seconds), ranks_per_node=2)
    assert seconds <= seconds_to_relaunch(sim, limit=seconds + 10.0)
    gets_on(sim, 2)
    assert (evicted(sim), requeues(sim), sim.state.world.slots) == (set(), [], NODES)
    assert any("still there: waiting up to 180 s" in text for text in sim.said) is (seconds > 15.0)


@pytest.mark.parametrize("is_late", [True, False], ids=["from before the order", "by the order"])
def test_an_exit_from_before_the_order_to_stop_counts_though_it_is_heard_after_it(is_late: bool) -> None:
    sim = trained(4, 1)
    sim.agent_stalls("n2")
    if is_late:
        sim.kill_rank(1)
    sim.run(1.0)
    sim.exit_rank(0, error=PEER_GONE)
    sim.run_until(lambda: sim.stage == "Stopping", within_s=2.0)
    sim.run(1.0)
    if not is_late:
        sim.kill_rank(1)
    sim.agent_stalls("n2", stalls=False)
    seconds_to_relaunch(sim, limit=10.0)
    (ended,) = sim.events(ev.GenerationEnded)
    verdict = sim.events(ev.Decided)[-1].verdict
    assert verdict is not None
    assert (ended.root, verdict.blame) == (1 if is_late else 0, Blame.NOBODY)


def test_workers_that_die_fast_are_not_waited_for() -> None:
    sim = crashed()
    assert seconds_to_relaunch(sim, limit=5.0) < 2.5
    assert not any("still there" in text for text in sim.said)


def test_a_node_whose_killed_workers_stand_still_is_replaced() -> None:
    sim = crashed(unkillable=(2,))
    assert 30.0 < seconds_to_relaunch(sim, limit=60.0) < 45.0
    assert sim.state.world.slots == ("n1", "n2", "n5", "n4")
    assert evicted(sim) == {"n3"}


def test_a_node_whose_killed_workers_get_further_without_end_is_replaced_at_the_bound() -> None:
    sim = crashed({"n3": 1e9})
    assert 180.0 < seconds_to_relaunch(sim, limit=300.0) < 195.0
    assert evicted(sim) == {"n3"}


def test_a_node_whose_killed_workers_end_while_others_are_waited_for_is_not_evicted() -> None:
    sim = crashed({"n2": 60.0}, unkillable=(2,))
    sim.run(45.0)
    assert sim.stage == "Stopping"
    sim.kill_rank(2)
    gets_on(sim, 2)
    assert evicted(sim) == set()


@pytest.mark.parametrize("requeue", [True, False])
def test_workers_of_several_nodes_that_never_end_convict_no_node(requeue: bool) -> None:
    sim = crashed(unkillable=(1, 2), config=JobConfig(slurm=SlurmConfig(requeue=requeue)))
    sim.run(300.0)
    assert evicted(sim) == set()
    assert all(event.code != 93 for event in sim.events(ev.RunEnded))
    first = sim.events(ev.Decided)[0]
    assert first.verdict is not None
    assert first.verdict.blame is Blame.NOBODY
    assert "killed workers remain on n2, n3" in first.reason
    if requeue:
        assert requeues(sim) == [()], "other nodes may do, and Slurm sees to what is left"


def test_an_order_to_end_waits_no_longer_for_workers_than_slurm_does() -> None:
    sim = crashed({"n3": 100.0})
    sim.run(3.0)
    sim.cancel()
    took_s = seconds_until(sim, lambda: bool(sim.events(ev.RunEnded)), within_s=60.0)
    assert took_s < 28.0, "KillWait is 30 s by default"
    assert evicted(sim) == set()


def test_a_launch_that_waits_for_gpus_says_so() -> None:
    sim = crashed()
    sim.nodes["n3"].holds_gpus = True
    sim.run_until(lambda: "generation 2: waiting for the GPUs of n3 to be free" in sim.said, within_s=20.0)
    assert sim.stage == "Launching"
    sim.nodes["n3"].holds_gpus = False
    gets_on(sim, 2)
