"""What rank 0 was seen to import is in the journal, and all agents are told of it, standbys first."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from slurm_robust.config.job import JobConfig, StandbyConfig
from slurm_robust.engine.units.learning import AT_ONCE, MAX_LEARNED, RESEND_S
from slurm_robust.model import events as ev
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Load
from tests.unit.engine.stories import sent, trained

CONFIG = JobConfig(standby=StandbyConfig(rehearse=False, test_s=0))


def job(nodes: int = 2, **more: Any) -> Sim:
    """A job that trains; by its first step, rank 0 has imported numpy."""
    return trained(nodes, 1, to=3, **{"config": CONFIG} | more)


def load_orders(sim: Sim) -> list[tuple[str, int]]:
    """All orders to load: to which node, and the number of what."""
    return [(node, message.number) for node, message in sent(sim, Load)]


def loads(sim: Sim) -> list[tuple[str, int]]:
    """The same without repetitions."""
    return list(dict.fromkeys(load_orders(sim)))


def learn(sim: Sim, node: str, *modules: str) -> None:
    """The agent of a node tells what rank 0 has imported."""
    agent = sim.nodes[node].agent
    assert agent is not None
    agent.learn(*modules)
    sim.run(0.5)


def loading_takes(sim: Sim, seconds: float) -> None:
    sim.env.pace = structs.replace(sim.env.pace, zygote_s=(seconds, seconds))


def test_imports_that_are_learned_are_written_down_once_and_told_to_all_when_training_has_settled() -> None:
    sim = job()
    learn(sim, "n1", "yaml", "transformers")
    learn(sim, "n1", "transformers", "yaml")
    first, second = sim.events(ev.ModulesLearned)
    assert (first.number, first.modules, first.node) == (1, ("numpy",), "n1")
    assert (second.number, second.modules) == (2, ("numpy", "yaml", "transformers"))
    assert loads(sim) == []
    sim.run(SETTLED_S)
    assert loads(sim) == [("n3", 2), ("n1", 2), ("n2", 2)]
    (order,) = {message for _, message in sent(sim, Load)}
    assert order.modules == ("numpy", "yaml", "transformers")


def test_a_new_import_is_learned_under_another_number() -> None:
    sim = job()
    sim.run(SETTLED_S + 10.0)
    assert loads(sim) == [("n3", 1), ("n1", 1), ("n2", 1)]
    learn(sim, "n1", "wds")
    assert sim.state.learned is not None
    assert sim.state.learned.modules == ("numpy", "wds")
    assert loads(sim)[3:] == [("n3", 2), ("n1", 2), ("n2", 2)]


def test_the_order_to_load_is_repeated_until_the_agent_says_that_it_is_over() -> None:
    sim = job()
    loading_takes(sim, 4 * RESEND_S)
    sim.run_until(lambda: bool(loads(sim)), SETTLED_S)
    sim.run(4 * RESEND_S + 1.0)
    before = load_orders(sim)
    assert 4 <= before.count(("n2", 1)) <= 5
    sim.run(4 * RESEND_S)
    assert load_orders(sim) == before


def test_not_all_nodes_of_a_large_job_import_together() -> None:
    sim = job(AT_ONCE + 4)
    loading_takes(sim, 10.0)
    sim.run_until(lambda: bool(loads(sim)), SETTLED_S)
    sim.run(8.0)
    assert len(loads(sim)) == AT_ONCE
    assert loads(sim)[0] == (f"n{AT_ONCE + 5}", 1), "the standby"
    sim.run(4.0)
    assert len(loads(sim)) == AT_ONCE + 5


def test_hostile_and_endless_news_of_imports_are_bounded() -> None:
    sim = job()
    learn(sim, "n1", "os; import evil", "../x", "\x1b[31m")
    learn(sim, "n3", "yaml")
    assert len(sim.events(ev.ModulesLearned)) == 1, "no worker is on n3, and the others are no names"
    for number in range(2 * MAX_LEARNED):
        learn(sim, "n1", f"m{number}")
    assert len(sim.events(ev.ModulesLearned)) == MAX_LEARNED


def test_the_next_controller_and_the_next_run_know_imports_from_the_journal() -> None:
    sim = job()
    sim.controller_dies()
    sim.run(5.0)
    assert (sim.state.epoch, loads(sim)) == (2, [])
    sim.run(SETTLED_S)
    assert loads(sim) == [("n3", 1), ("n1", 1), ("n2", 1)]
    for node in ("n3", "n2"):
        sim.node_dies(node)
        sim.run(20.0)
    sim.run_until(lambda: sim.runs == 2 and sim.stage == "Running" and sim.step >= 0, 300.0)
    before = len(load_orders(sim))
    sim.run(SETTLED_S + 5.0)
    assert load_orders(sim)[before:] == [("n1", 1), ("n4", 1)]
    assert len(sim.events(ev.ModulesLearned)) == 1


def test_no_import_is_learned_if_that_is_switched_off() -> None:
    sim = job(config=JobConfig(standby=StandbyConfig(learn=False)))
    learn(sim, "n1", "yaml")
    sim.run(SETTLED_S + 2.0)
    assert (sim.events(ev.ModulesLearned), loads(sim)) == ([], [])
