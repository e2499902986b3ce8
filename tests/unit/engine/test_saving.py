"""A job that gives up leaves on storage what only memory held."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.journal import fold
from slurm_robust.policy.checkpoints import LAST_STORE_S
from slurm_robust.testing.sim.environment import never
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Save, Shutdown
from tests.unit.engine.stories import (
    PACE,
    begins,
    notes,
    orders,
    questions,
    requeues,
    seconds_until,
    trained,
    writes,
)

BUG = WorkerError(type="ValueError", message="boom", file="train.py", line=12)


def fails_for_good(sim: Sim) -> None:
    """The same error of the script comes twice."""
    sim.exit_rank(1, error=BUG)
    begins(sim, 2)
    sim.exit_rank(1, error=BUG)


def loses_a_node(nodes: int = 2, *, idle: tuple[str, ...] = (), **more: Any) -> Sim:
    """A job without standbys that has just lost n2; what ``idle`` nodes write never gets onto storage."""
    sim = trained(nodes, **more)
    sim.run(1.0)  # until the peers have step 10
    if idle:
        writes(sim, *idle, anything=False)
    sim.node_dies("n2")
    return sim


def ranks_saved(sim: Sim) -> dict[str, tuple[int, ...]]:
    return {node: order.ranks for node, order in orders(sim, Save).items()}


def written(sim: Sim) -> list[tuple[int, int]]:
    return [(event.generation, event.step) for event in sim.events(ev.StorageWritten)]


def test_each_node_writes_the_parts_that_it_has() -> None:
    sim = trained(2)
    fails_for_good(sim)
    assert sim.run_to_end(within_s=120.0) == ExitCode.DO_NOT_REQUEUE
    assert ranks_saved(sim) == {"n1": (0,), "n2": (1,)}
    # An error of the code says nothing of the step from which training failed.
    assert written(sim) == [(1, 10)]
    assert CheckpointId(generation=1, step=10) in sim.storage.complete()
    assert any("gen-0001/step-00000010 was only in memory" in text for text in sim.said)


@pytest.mark.parametrize("network", ["", "10.9.0"], ids=["one network", "a network for copies"])
def test_the_parts_of_a_dead_node_are_written_by_its_peer_once(network: str) -> None:
    sim = Sim(2, seed=1, steps=400, pace=PACE)
    for number, node in enumerate(sim.nodes.values()):
        node.data_address = f"{network}.{number}" if network else ""
    sim.run_until(lambda: sim.step >= 10, within_s=120.0)
    sim.run(1.0)
    sim.refuses_requeue = True
    sim.node_dies("n2")
    assert sim.run_to_end(within_s=120.0) == ExitCode.DO_NOT_REQUEUE
    assert ranks_saved(sim) == {"n1": (0, 1)}
    assert written(sim) == [(1, 10)]


def test_a_node_that_cannot_write_does_not_hold_up_the_end() -> None:
    sim = trained(2, config=JobConfig(timings=Timings(checkpoint_s=15)))
    writes(sim, anything=False)
    fails_for_good(sim)
    sim.run_until(lambda: sim.stage == "Saving", within_s=60.0)
    assert 15 <= seconds_until(sim, lambda: sim.code is not None) < 30
    assert written(sim) == []
    lost = "storage has no step; steps 0 to 10 are lost: n[1-2] did not write it to storage after"
    assert any(lost in text for text in notes(sim))


def test_what_is_on_storage_is_not_written_again() -> None:
    pace = structs.replace(PACE, write_s=(0.1, 0.2))
    sim = Sim(2, seed=1, pace=pace, config=JobConfig(checkpoint=CheckpointConfig(every_s=15)))
    sim.run_until(lambda: bool(written(sim)), within_s=60.0)
    assert written(sim) == [(1, sim.step)]
    fails_for_good(sim)
    assert sim.run_to_end(within_s=120.0) == ExitCode.DO_NOT_REQUEUE
    assert (orders(sim, Save), len(written(sim))) == ({}, 1)


def test_a_controller_that_is_ordered_to_end_while_it_saves_asks_for_no_requeue() -> None:
    sim = loses_a_node(idle=("n1",))
    sim.run_until(lambda: sim.stage == "Saving", within_s=60.0)
    sim.term()
    assert sim.run_to_end(within_s=120.0) == ExitCode.TERMINATED
    assert requeues(sim) == []
    assert orders(sim, Shutdown)["n1"].keep_copies
    assert sim.nodes["n1"].copies


def test_a_node_that_dies_before_it_has_saved_its_parts_is_not_waited_for() -> None:
    sim = loses_a_node(3, idle=("n3",))
    sim.run_until(lambda: "n3" in ranks_saved(sim), within_s=60.0)
    sim.node_dies("n3")
    assert seconds_until(sim, lambda: bool(requeues(sim))) < 10
    lost = "are lost unless the next run gets the same nodes: n3 did not write it"
    assert any(lost in text for text in sim.said)
    (asked,) = sim.events(ev.RequeueStarted)
    assert asked.holders == (), "a dead node has nothing any more"


def near_its_end(**more: Any) -> Sim:
    """A job on two nodes that cannot write is warned of its end, and saves."""
    sim = trained(2, **more)
    writes(sim, anything=False)
    sim.warn()
    sim.run_until(lambda: sim.stage == "Saving", within_s=120.0)
    return sim


def test_storage_is_waited_for_only_briefly_near_the_end_of_a_run() -> None:
    sim = near_its_end()
    assert LAST_STORE_S <= seconds_until(sim, lambda: bool(requeues(sim))) < LAST_STORE_S + 5
    (asked,) = sim.events(ev.RequeueStarted)
    assert asked.holders == ("n1", "n2"), "they alone have the newest step, so the next run is to get them"
    assert sim.state.asked_by_name == asked.holders


def test_nodes_that_the_owner_asks_for_by_name_stay_asked_for() -> None:
    """They are neither added by a requeue nor, when their time is over, taken away by it or by the next."""
    sim = near_its_end(required=("n2",))
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    (asked,) = sim.events(ev.RequeueStarted)
    assert asked.holders == ("n1", "n2")
    (order,) = questions(sim, qs.BeginRequeue)
    assert (order.holders, order.pins) == (("n1",), ("n1",))
    (taken,) = sim.events(ev.AllocationTaken)
    for required in (("n1", "n2"), None):
        state = fold([*sim.journal, structs.replace(taken, restart_count=1, required=required)])
        assert (state.owners_nodes, state.asked_by_name) == (("n2",), ("n1",))


def test_agents_are_ordered_to_end_without_their_copies_before_slurm_ends_them() -> None:
    sim = loses_a_node(replies={qs.BeginRequeue: never})
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    assert sim.nodes["n1"].copies
    sim.run(10.0)
    assert not orders(sim, Shutdown)["n1"].keep_copies
    assert not sim.nodes["n1"].copies
