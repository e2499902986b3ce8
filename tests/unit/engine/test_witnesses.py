"""An agent's silence alone evicts no node: its node and the other ranks are asked first."""

from __future__ import annotations

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import blames_no_node, evicted, gets_on, gives_up, opened, starts, trained

DEAD_S = 5.0


def stalls(*nodes: str, ranks: tuple[int, ...] = ()) -> Sim:
    """A job of four nodes and a standby, on some of which the agents, and these ranks, stand still."""
    sim = trained(4, 1)
    sim.agent_stalls(*nodes)
    for rank in ranks:
        sim.hang_rank(rank)
    return sim


def seconds_to_eviction(sim: Sim) -> float:
    began = sim.now
    sim.run_until(lambda: bool(evicted(sim)), within_s=60.0)
    return sim.now - began


@pytest.mark.parametrize("seconds", [10.0, 28.0])
def test_an_agent_that_is_stopped_for_a_while_costs_nothing(seconds: float) -> None:
    sim = stalls("n3")
    sim.run(seconds)
    sim.agent_stalls("n3", stalls=False)
    gets_on(sim, 1)
    assert opened(sim) == []
    assert any("agent of n3 is silent, but its ranks go on" in text for text in sim.said)


def test_a_hang_of_ranks_whose_agent_is_silent_is_not_reported_before_it_is_heard() -> None:
    sim = stalls("n3", ranks=(2,))
    sim.run(28.0)
    assert (opened(sim), sim.stage) == ([], "Running")
    assert any("agent of n3 is silent, but its node answers" in text for text in sim.said)


@pytest.mark.parametrize("is_cut", [False, True], ids=["without power", "cut off"])
def test_a_node_that_does_not_answer_is_evicted_as_early_as_ever(is_cut: bool) -> None:
    sim = trained(4, 1)
    if is_cut:
        sim.partition("n3", fabric=True)
    else:
        sim.node_dies("n3")
    assert seconds_to_eviction(sim) <= DEAD_S + 1.0
    assert evicted(sim) == {"n3"}


def test_an_agent_that_stays_silent_is_lost_although_its_node_answers() -> None:
    assert 30.0 <= seconds_to_eviction(stalls("n3", ranks=(2,))) <= 32.0


def test_an_agent_that_has_ended_unreported_is_started_again_on_its_node() -> None:
    sim = trained(4, 1)
    sim.agent_dies("n3", told=False)
    gets_on(sim, 2)
    assert (evicted(sim), starts(sim)[1:], len(sim.state.world.slots)) == (set(), [("n3",)], 4)
    (found,) = sim.events(ev.IncidentOpened)
    assert (found.symptom, found.detect_s < DEAD_S) == (Symptom.AGENTS_LOST, True)
    assert "no process listens at its port any more, while its node answers" in found.detail


def test_several_nodes_that_refuse_a_connection_may_be_cut_off() -> None:
    sim = trained(4, 1)
    for node in ("n3", "n4"):
        sim.agent_dies(node, told=False)
    sim.run(DEAD_S - 1.0)
    assert (opened(sim), sim.stage) == ([], "Running")


def test_a_node_that_slurm_has_given_up_is_not_waited_for() -> None:
    sim = stalls("n3", ranks=(2,))
    gives_up(sim, "n3")
    assert seconds_to_eviction(sim) < 15.0


def test_a_stopped_agent_while_workers_are_stopped_is_waited_for() -> None:
    sim = stalls("n3")
    sim.kill_rank(0)
    sim.run(10.0)
    assert (sim.stage, evicted(sim)) == ("Stopping", set())
    sim.agent_stalls("n3", stalls=False)
    gets_on(sim, 2)
    assert evicted(sim) == set()


def test_many_stalled_agents_are_judged_together() -> None:
    sim = stalls("n2", "n3", "n4", ranks=(1, 2, 3))
    sim.run(40.0)
    assert (sim.stage, blames_no_node(sim)) == ("Unreachable", True)
