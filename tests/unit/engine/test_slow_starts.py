"""Nodes that come one after the other, as they do where all read from one storage, are not late."""

from __future__ import annotations

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.testing.sim.environment import SimulatedPace, always
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import evicted, opened, starts

PACE = SimulatedPace(step_s=20.0, turn_s=0.9, rest_s=0.9)
CONFIG = JobConfig(timings=Timings(verdict_s=0.0))
MANY = 8
EACH_S = 50.0
NEVER_S = 1e6


def begun(nodes: int, spares: int = 0, *, imports_s: dict[str, float] | None = None) -> Sim:
    """A job in its first second; nodes import for so long."""
    sim = Sim(nodes, spares, seed=1, pace=PACE, steps=400, config=CONFIG)
    for node, seconds in (imports_s or {}).items():
        sim.nodes[node].zygote_s = (seconds, seconds)
    return sim


def test_agents_that_join_one_by_one_over_minutes_are_waited_for() -> None:
    sim = Sim(MANY, pace=PACE, config=CONFIG, replies={qs.StartAgents: always({})})
    for number, node in enumerate(sim.nodes.values()):
        sim.at(200.0 + number * EACH_S, node.start_agent)
    sim.run(200.0 + MANY * EACH_S)
    assert (sim.stage, evicted(sim), opened(sim)) == ("Running", set(), [])
    assert len(starts(sim)) == 1, "none was started twice"


def test_nodes_that_import_torch_one_by_one_over_minutes_are_waited_for() -> None:
    imports_s = {f"n{number + 1}": 500.0 + number * EACH_S for number in range(MANY)}
    sim = begun(MANY, imports_s=imports_s)
    sim.run(500.0 + MANY * EACH_S)
    assert (sim.stage, evicted(sim), opened(sim)) == ("Running", set(), [])
    assert any("of 8 nodes have imported torch; importing: n[" in text for text in sim.said)


def test_one_node_that_never_imports_is_late_when_the_others_have() -> None:
    sim = begun(3, 1, imports_s={"n2": NEVER_S})
    sim.run_until(lambda: sim.stage == "Running", within_s=300.0)
    assert (evicted(sim), sim.state.world.slots) == ({"n2"}, ("n1", "n4", "n3"))
    assert 180 <= sim.now < 195


def test_one_agent_that_never_comes_is_late_when_the_others_have() -> None:
    sim = begun(3)
    sim.no_agent["n2"] = ""
    sim.run_until(lambda: len(starts(sim)) > 1, within_s=100.0)
    assert starts(sim)[1] == ("n2",)
    assert 60 <= sim.now < 65


def test_a_job_of_which_no_node_gets_ready_ends_after_a_stated_time() -> None:
    sim = begun(2, imports_s={"n1": NEVER_S, "n2": NEVER_S})
    sim.run(890.0)
    assert sim.code is None
    assert sim.run_to_end(within_s=60.0) != 0
    assert evicted(sim) == set()


def test_workers_that_start_one_by_one_are_waited_for() -> None:
    """The GPUs of their nodes get free one after the other; an agent waits a minute for that."""
    timings = Timings(verdict_s=0.0, launch_s=20.0)
    sim = Sim(6, seed=1, pace=PACE, config=JobConfig(timings=timings))
    sim.run_until(lambda: sim.step >= 1, within_s=120.0)
    for number, node in enumerate(sim.nodes.values()):
        node.holds_gpus = True
        sim.at(sim.now + (number + 1) * 9.0, lambda node=node: setattr(node, "holds_gpus", False))
    sim.kill_rank(0)
    sim.run(50.0)
    assert (sim.stage, sim.state.world.generation) == ("Launching", 2)
    sim.run(10.0)
    assert (sim.stage, sim.state.world.generation, evicted(sim)) == ("Running", 2, set())
