"""Jobs on racks whose GPUs reach each other over NVLink (18 trays of 4 GPUs): what is lost, and who comes."""

from __future__ import annotations

from slurm_robust.config.job import CompanionConfig, JobConfig
from slurm_robust.model import events as ev
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import PACE, gets_on, reserve

SHARED_SPARES = JobConfig(companions=CompanionConfig(reservation="spares", wait_s=20.0))


def racked(*racks: tuple[int, int], config: JobConfig | None = None, others: int = 0) -> Sim:
    """A job that trains on racks of so many nodes with slots and standbys; nodes are numbered rack by rack,
    slots first.
    """
    slots, spares = sum(used for used, _ in racks), sum(more for _, more in racks)
    sim = Sim(slots, spares, ranks_per_node=4, seed=1, steps=400, pace=PACE, config=config, others=others)
    used, left = iter(range(1, slots + 1)), iter(range(slots + 1, slots + spares + 1))
    for number, (here, standing_by) in enumerate(racks):
        for at in (*(next(used) for _ in range(here)), *(next(left) for _ in range(standing_by))):
            node = sim.nodes[f"n{at}"]
            node.clique, node.block, node.imex = f"rack{number}/1", f"rack{number}", "READY"
    sim.run_until(lambda: sim.step >= 3, within_s=300.0)
    return sim


def cliques(sim: Sim) -> list[str]:
    return [sim.nodes[node].clique for node in sim.state.world.slots]


def test_the_journal_knows_what_each_agent_tells_of_its_node() -> None:
    sim = racked((3, 1))
    seen = sim.events(ev.FabricSeen)
    assert {event.node for event in seen} == {"n1", "n2", "n3", "n4"}
    assert len(seen) == 4, "once for each node"
    assert (seen[0].clique, seen[0].block, seen[0].imex) == ("rack0/1", "rack0", "READY")
    sim.controller_dies()
    sim.run(20.0)
    assert sim.stage == "Running"
    assert len(sim.events(ev.FabricSeen)) == 4, "the next controller has read them"


def test_one_rack_loses_a_tray_and_another_one() -> None:
    sim = racked((16, 2))
    for generation, (lost, spare) in enumerate((("n3", "n17"), ("n9", "n18")), 2):
        sim.node_dies(lost)
        gets_on(sim, generation)
        assert spare in sim.state.world.slots
    assert set(cliques(sim)) == {"rack0/1"}


def test_the_spare_of_the_rack_that_lost_a_tray_is_taken() -> None:
    sim = racked((16, 1), (16, 1))
    for generation, (lost, spare) in enumerate((("n20", "n34"), ("n2", "n33")), 2):
        sim.node_dies(lost)
        gets_on(sim, generation)
        assert spare in sim.state.world.slots
    assert [cliques(sim).count(f"rack{number}/1") for number in range(2)] == [16, 16]


def test_a_rack_without_spares_moves_to_the_rack_that_stands_by() -> None:
    sim = racked((16, 0), (16, 1), (0, 16))
    before = sim.state.world.slots
    sim.node_dies("n5")
    gets_on(sim, 2)
    assert cliques(sim) == ["rack2/1"] * 16 + ["rack1/1"] * 16
    assert set(sim.state.spares) == {"n33", *before[:16]} - {"n5"}, "the 15 that are well stand by"
    assert any("take the slots of n[1-16] as a whole" in line for line in sim.said)
    sim.node_dies("n32")
    gets_on(sim, 3)
    assert cliques(sim) == ["rack2/1"] * 16 + ["rack1/1"] * 16
    assert "n32" not in sim.state.world.slots


def test_a_whole_rack_is_lost_and_another_one_takes_its_place() -> None:
    sim = racked((16, 2), (16, 2), (0, 16))
    for number in (*range(17, 33), 35, 36):
        sim.node_dies(f"n{number}")
    gets_on(sim, 2)
    assert cliques(sim) == ["rack0/1"] * 16 + ["rack2/1"] * 16
    assert set(sim.state.spares) >= {"n33", "n34"}


def test_the_rack_with_the_controller_is_lost() -> None:
    sim = racked((4, 1), (4, 1), (4, 0), (0, 4))
    for number in (1, 2, 3, 4, 13):
        sim.node_dies(f"n{number}")
    sim.run_until(lambda: cliques(sim) == ["rack3/1"] * 4 + ["rack1/1"] * 4 + ["rack2/1"] * 4, 300.0)
    step = sim.state.world.best_step
    sim.run_until(lambda: sim.step >= step + 5, within_s=120.0)


def test_agents_of_an_older_release_tell_nothing_and_spares_come_as_before() -> None:
    sim = Sim(2, 2, seed=1, steps=400, pace=PACE)
    sim.run_until(lambda: sim.step >= 3, within_s=300.0)
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n3")
    assert sim.events(ev.FabricSeen) == []


def test_of_the_shared_spares_that_of_the_rack_that_lost_a_tray_is_lent() -> None:
    sim = racked((4, 0), (4, 0), config=SHARED_SPARES, others=3)
    for node, number in (("n9", 2), ("n10", 1), ("n11", 0)):
        sim.nodes[node].clique, sim.nodes[node].block = f"rack{number}/1", f"rack{number}"
    reserve(sim, "n9", "n10", "n11")
    sim.node_dies("n6")
    gets_on(sim, 2)
    assert "n10" in sim.state.world.slots
    assert cliques(sim) == ["rack0/1"] * 4 + ["rack1/1"] * 4


def test_a_job_is_requeued_rather_than_given_a_tray_of_another_rack() -> None:
    sim = racked((4, 0), (4, 0), config=SHARED_SPARES, others=2)
    for node in ("n9", "n10"):
        sim.nodes[node].clique, sim.nodes[node].block = "rack2/1", "rack2"
    reserve(sim, "n9")
    sim.node_dies("n6")
    sim.run_until(lambda: sim.runs == 2, within_s=900.0)
    assert sim.events(ev.CompanionStarted) == []
    (requeued,) = sim.events(ev.RequeueStarted)
    assert "no node is free" in requeued.reason
