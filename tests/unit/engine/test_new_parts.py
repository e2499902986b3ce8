"""Parts that are lost with their nodes are made anew where the owner wants that."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Save
from tests.unit.engine import stories
from tests.unit.engine.stories import PACE, begins, gives_up, notes, orders, requeues, restored

RESEED = JobConfig(checkpoint=CheckpointConfig(if_parts_are_missing="reseed"))
NEWEST = CheckpointId(step=10, generation=1)


def trained(spares: int = 0, **more: Any) -> Sim:
    """Three nodes whose peers have step 10, with step 5 on storage; n1 has also a copy of rank 2's part, and
    n3 one of rank 1's.
    """
    sim = stories.trained(3, spares, **{"config": RESEED, "shared": True, "others": 3} | more)
    sim.storage.write(CheckpointId(step=5, generation=1), ranks=range(3), world_size=3)
    sim.run(sim.env.pace.copy_s[1] + 0.1)
    assert sim.step == NEWEST.step
    return sim


def loses(sim: Sim, *nodes: str) -> Sim:
    for node in nodes:
        sim.node_dies(node)
    return sim


def goes_on(sim: Sim, generation: int = 2) -> tuple[int, dict[str, int]]:
    """From which step, and from where."""
    sim.run_until(lambda: sim.state.world.generation == generation, within_s=400.0)
    return restored(sim)


def anew(sim: Sim) -> list[str]:
    return [text for text in sim.said if "with new random generators" in text]


def test_new_parts_go_to_storage_before_a_requeue_and_the_next_run_goes_on_from_there() -> None:
    sim = loses(trained(), "n2", "n3")
    sim.run_until(lambda: bool(requeues(sim)), within_s=400.0)
    (order,) = orders(sim, Save).values()
    assert (order.checkpoint, sorted(order.ranks), order.anew) == (NEWEST, [0, 1, 2], {1: 0})
    (line,) = anew(sim)
    assert line.startswith("rank 1 goes on from step 10 with new random generators, since its part is lost")
    assert line in notes(sim)
    assert (sim.state.world.sealed, sim.state.world.unsealed) == ({1: 10}, ())
    assert goes_on(sim) == (10, {"storage": 3})
    assert sim.runs == 2


def test_new_parts_go_to_storage_before_a_restart_on_standbys() -> None:
    sim = loses(trained(2), "n2", "n3")
    assert goes_on(sim) == (10, {"storage": 3})
    assert (len(anew(sim)), requeues(sim)) == (1, [])
    sim.run_until(lambda: sim.step >= 11, within_s=60.0)
    sim.kill_rank(1)
    assert goes_on(sim, 3)[0] == 11
    assert len(anew(sim)) == 1


def test_new_parts_are_not_written_again_if_a_listing_of_storage_is_behind() -> None:
    """Caches of NFS show a folder late."""
    sim = trained(2)
    sim.storage.shows = False
    loses(sim, "n2", "n3")
    assert goes_on(sim) == (10, {"storage": 3})
    assert len(anew(sim)) == len(sim.events(ev.StorageWritten)) == 1


def test_missing_parts_restore_an_older_step_by_default_and_the_log_names_the_setting() -> None:
    sim = loses(trained(2, config=JobConfig()), "n2", "n3")
    assert goes_on(sim) == (5, {"storage": 3})
    assert not anew(sim)
    (line,) = {text for text in sim.said if "is not whole" in text and "without them" in text}
    assert line.endswith(
        "goes on from step 5 from storage (checkpoint.if_parts_are_missing: reseed may take step 10)"
    )


def test_a_sharded_model_is_never_made_anew() -> None:
    sim = loses(trained(2, shared=False), "n2", "n3")
    assert goes_on(sim)[0] == 5
    assert not any("generators" in text for text in sim.said)


@pytest.mark.parametrize("spares", [2, 0])
def test_parts_that_held_more_than_generators_leave_the_older_step(spares: int) -> None:
    """The storage writer says so, since only there the parts are read."""
    sim = trained(spares)
    sim.nodes["n1"].refuses = "rank 0's part holds more than random generators"
    loses(sim, "n2", "n3")
    if spares:
        assert goes_on(sim) == (5, {"storage": 3})
        assert any("step-00000010 could not be put on storage: n1: " in text for text in sim.said)
    else:
        sim.run_until(lambda: bool(requeues(sim)), within_s=400.0)
        assert sim.state.world.sealed == {1: 5}
        assert any("gen-0001/step-00000010 was only in memory: storage has step 5" in t for t in sim.said)
    assert not anew(sim)


@pytest.mark.parametrize(("step_s", "made"), [(2.0, 0), (65.0, 1)], ids=["short steps", "long steps"])
def test_what_memory_has_whole_is_restored_bit_by_bit_unless_it_is_long_ago(step_s: float, made: int) -> None:
    """n2's newest part has not reached its peer yet."""
    rarely = structs.replace(RESEED.checkpoint, every_s=1e6)
    pace, config = structs.replace(PACE, step_s=step_s), structs.replace(RESEED, checkpoint=rarely)
    sim = Sim(3, 1, seed=1, steps=400, pace=pace, config=config, shared=True, leap_s=100 * step_s)
    sim.run_until(lambda: sim.step >= 200, within_s=300 * step_s)
    leapt = sim.step
    sim.run_until(lambda: sim.step == leapt + 1, within_s=2 * step_s)
    loses(sim, "n2")
    assert goes_on(sim)[0] == leapt + made
    assert len(anew(sim)) == made


@pytest.mark.parametrize(
    ("lost", "empty", "step", "made"),
    [(("n3",), (), 10, 0), (("n2", "n3"), (), 10, 1), (("n3",), ("n2",), 5, 0)],
    ids=["two come back", "one comes back", "one has lost what it held"],
)
def test_what_nodes_hold_decides_after_a_requeue_that_no_controller_prepared(
    lost: tuple[str, ...], empty: tuple[str, ...], step: int, made: int
) -> None:
    """A node that is there, but has nothing, may never have had snapshots: its rank's part is not made up."""
    sim = trained()
    sim.run_dies()
    gives_up(sim, *lost)
    for node in empty:
        sim.nodes[node].forget_copies()
    begins(sim, 2)
    assert not set(lost) & set(sim.state.world.slots)
    assert (sim.runs, restored(sim)[0], len(anew(sim))) == (2, step, made)


def test_the_shared_part_alone_is_not_enough_for_new_parts() -> None:
    sim = trained(2)
    for step in range(11):
        sim.nodes["n1"].lose(0, step)
    loses(sim, "n2", "n3")
    assert goes_on(sim)[0] == 5
