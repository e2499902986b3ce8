"""Jobs on racks whose GPUs reach each other over NVLink (18 trays of 4 GPUs): what is lost, and who comes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random

import pytest
from msgspec import structs

from slurm_robust.config.job import CompanionConfig, JobConfig
from slurm_robust.model import events as ev
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim
from slurm_robust.trainings.slurmview import waits_for
from tests.unit.engine.stories import PACE, gets_on, next_controller, reserve, trained

SHARED_SPARES = JobConfig(companions=CompanionConfig(reservation="spares", wait_s=20.0))


def racked(
    *racks: tuple[int, int],
    config: JobConfig | None = None,
    others: Sequence[int] = (),
    segment: int = 0,
    pace: SimulatedPace = PACE,
    seed: int = 1,
) -> Sim:
    """A job that trains on racks of so many nodes with slots and standbys: n1, n2, … rack by rack.

    ``others``: the racks of nodes that are free.
    """
    names = (f"n{number}" for number in count(1))
    nodes = [[next(names) for _ in range(slots + spares)] for slots, spares in racks]
    for rack in others:
        nodes.extend([] for _ in range(rack + 1 - len(nodes)))
        nodes[rack].append(next(names))
    slots, spares = map(sum, zip(*racks, strict=True))
    sim = Sim(
        slots,
        spares,
        ranks_per_node=4,
        seed=seed,
        steps=400,
        pace=pace,
        config=config,
        others=len(others),
        racks=nodes,
        segment=segment,
    )
    sim.run_until(lambda: sim.step >= 3, within_s=300.0)
    return sim


def cliques(sim: Sim) -> list[str]:
    """The racks of the nodes in slots."""
    return [sim.nodes[node].block for node in sim.state.world.slots]


def test_the_journal_knows_what_each_agent_tells_of_its_node() -> None:
    sim = racked((3, 1))
    seen = sim.events(ev.FabricSeen)
    assert {event.node for event in seen} == {"n1", "n2", "n3", "n4"}
    assert len(seen) == 4, "once for each node"
    assert (seen[0].clique, seen[0].block, seen[0].imex) == ("rack1/1", "rack1", "READY")
    next_controller(sim)
    assert len(sim.events(ev.FabricSeen)) == 4, "the next controller has read them"


def test_each_rack_of_slurms_has_its_standbys_from_the_start() -> None:
    sim = racked((4, 1), (4, 1))
    assert sim.state.world.slots == ("n1", "n2", "n3", "n4", "n6", "n7", "n8", "n9")
    assert sim.state.spares == ("n5", "n10")


def test_one_rack_loses_a_tray_and_another_one() -> None:
    sim = racked((16, 2))
    for generation, (lost, spare) in enumerate((("n3", "n17"), ("n9", "n18")), 2):
        sim.node_dies(lost)
        gets_on(sim, generation)
        assert spare in sim.state.world.slots


def test_the_spare_of_the_rack_that_lost_a_tray_is_taken() -> None:
    sim = racked((16, 1), (16, 1))
    for generation, (lost, spare) in enumerate((("n20", "n34"), ("n2", "n17")), 2):
        sim.node_dies(lost)
        gets_on(sim, generation)
        assert spare in sim.state.world.slots
    assert cliques(sim) == ["rack1"] * 16 + ["rack2"] * 16


@pytest.mark.slow
def test_a_rack_without_spares_moves_to_the_rack_that_stands_by() -> None:
    sim = racked((16, 0), (16, 1), (0, 16))
    before = sim.state.world.slots
    sim.node_dies("n5")
    gets_on(sim, 2)
    assert cliques(sim) == ["rack3"] * 16 + ["rack2"] * 16
    assert set(sim.state.spares) == {"n33", *before[:16]} - {"n5"}, "the 15 that are well stand by"
    assert any("take the slots of n[1-16] as a whole" in line for line in sim.said)
    sim.node_dies("n32")
    gets_on(sim, 3)
    assert cliques(sim) == ["rack3"] * 16 + ["rack2"] * 16


@pytest.mark.slow
def test_a_whole_rack_is_lost_and_another_one_takes_its_place() -> None:
    sim = racked((16, 2), (16, 2), (0, 16))
    for number in range(19, 37):
        sim.node_dies(f"n{number}")
    gets_on(sim, 2)
    assert cliques(sim) == ["rack1"] * 16 + ["rack3"] * 16
    assert set(sim.state.spares) >= {"n17", "n18"}, "the spares of the other rack are left to it"


def test_the_rack_with_the_controller_is_lost() -> None:
    sim = racked((4, 0), (4, 0), (4, 0), (0, 4), segment=4)
    for number in range(1, 5):
        sim.node_dies(f"n{number}")
    sim.run_until(lambda: cliques(sim) == ["rack4"] * 4 + ["rack2"] * 4 + ["rack3"] * 4, 300.0)
    step = sim.state.world.best_step
    sim.run_until(lambda: sim.step >= step + 5, within_s=120.0)


def test_agents_of_an_older_release_tell_nothing_and_spares_come_as_before() -> None:
    sim = trained(2, 2)
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n3")
    assert sim.events(ev.FabricSeen) == []


def test_of_the_shared_spares_that_of_the_rack_that_lost_a_tray_is_lent() -> None:
    sim = racked((4, 0), (4, 0), config=SHARED_SPARES, others=(2, 1, 0))
    reserve(sim, "n9", "n10", "n11")
    sim.node_dies("n6")
    gets_on(sim, 2)
    assert "n10" in sim.state.world.slots
    assert cliques(sim) == ["rack1"] * 4 + ["rack2"] * 4


def test_a_job_is_requeued_rather_than_given_a_tray_of_another_rack() -> None:
    sim = racked((4, 0), (4, 0), config=SHARED_SPARES, others=(2, 2))
    reserve(sim, "n9")
    sim.node_dies("n6")
    sim.run_until(lambda: sim.runs == 2, within_s=900.0)
    assert sim.events(ev.CompanionStarted) == []
    (requeued,) = sim.events(ev.RequeueStarted)
    assert "no node is free" in requeued.reason


def test_a_requeued_job_keeps_its_segments() -> None:
    """Rack 1 has no room for a segment any more, so the next run has racks 2 and 3; n9 is free, and alone."""
    sim = racked((4, 0), (4, 0), others=(3, 2, 2, 2, 2), segment=4)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.runs == 2 and sim.step >= 5, within_s=900.0)
    assert cliques(sim) == ["rack3"] * 4 + ["rack2"] * 4
    assert sim.slurm.job(sim.job_id).segment == 4


def test_a_job_whose_segments_have_no_room_waits_and_hangs_nowhere() -> None:
    knows_at_once = structs.replace(PACE, slurm_gives_up_s=3.0)
    sim = racked((4, 0), (4, 0), others=(2, 2, 2), segment=4, pace=knows_at_once)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.waits_for_nodes, within_s=900.0)
    sim.run(600.0)
    assert (sim.runs, sim.waits_for_nodes) == (1, True)
    view = waits_for(sim.slurm, sim.slurm.job(sim.job_id), sim.state)
    assert view is not None
    assert view.why.startswith("only 1 of its 2 segments of 4 nodes (--segment=4) fit on the nodes that are")
    sim.node_returns("n2")
    sim.slurm.set_excluded_nodes(sim.job_id, ())
    sim.run_until(lambda: sim.runs == 2 and sim.step >= 5, within_s=900.0)
    assert cliques(sim) == ["rack1"] * 4 + ["rack2"] * 4


def test_a_drained_tray_is_not_left_for_one_of_another_rack() -> None:
    sim = racked((4, 0), (4, 1))
    sim.slurm.drain(["n2", "n7"], "bad fan")
    sim.run_until(lambda: set(sim.state.drained) == {"n2", "n7"}, within_s=200.0)
    sim.kill_rank(1)
    gets_on(sim, 2)
    assert "n2" in sim.state.world.slots, "it works, and NVLink to the rest of its rack does, too"
    assert "n7" not in sim.state.world.slots


def crosses(sim: Sim) -> list[str]:
    """Lent nodes in slots whose rack had no other node of the job."""
    return [
        lent.node
        for lent in sim.events(ev.CompanionStarted)
        if all(
            sim.nodes[node].block != sim.nodes[lent.node].block
            for taken in sim.events(ev.AllocationTaken)
            for node in taken.nodes
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_racks_lose_the_job_ends_well_or_waits_for_nodes(seed: int) -> None:
    chance = Random(seed)
    racks = [(3, chance.randrange(2)) for _ in range(chance.randint(2, 3))]
    standing_by = chance.choice((0, 1, 3))
    is_whole = standing_by % 3 == 0 and not any(spares for _, spares in racks)
    sim = racked(
        *racks,
        (0, standing_by),
        others=(0, 1, len(racks), len(racks)),
        config=chance.choice((None, SHARED_SPARES)),
        segment=3 if is_whole else 0,
        seed=seed,
    )
    held = sim.state.held
    free = [name for name in sim.nodes if name not in held]
    reserve(sim, free[0], free[-1])
    at = sim.now
    for _ in range(4):
        at += chance.uniform(1.0, 120.0)
        lost = chance.choice(held)
        if chance.random() < 0.3:  # the whole rack, which comes back
            block = sim.nodes[lost].block
            for name in (node.name for node in sim.nodes.values() if node.block == block):
                sim.at(at, partial(sim.node_dies, name))
                sim.at(at + 400.0, partial(sim.node_returns, name))
        else:
            sim.at(at, partial(sim.node_dies, lost))
    sim.run_until(
        lambda: sim.code is not None or (sim.now > at + 900.0 and sim.waits_for_nodes), within_s=6000.0
    )
    assert sim.code in (0, None), sim.describe()
    assert crosses(sim) == []
