"""An evicted node is given back while the job runs on, once nothing that only it holds is needed."""

from __future__ import annotations

from typing import Any

from slurm_robust.config.job import JobConfig, SlurmConfig
from slurm_robust.engine import questions as qs
from slurm_robust.engine.context import RECONNECT_S
from slurm_robust.engine.units.giveback import LONGEST_PAUSE_S, PAUSE_S
from slurm_robust.model import events as ev
from slurm_robust.testing.sim.environment import SimulatedPace, always
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import BAD_GPU
from slurm_robust.wire.messages import Shutdown
from tests.unit.engine.stories import evicted, gets_on, notes, orders, questions, seconds_until, trained

NOT_NOW = "the DB index is being set"


def evicts(**more: Any) -> Sim:
    """The inspection of n2 has named it while it answers; the standby has taken its slot."""
    sim = trained(2, 1, **more)
    sim.alert("n2", BAD_GPU)
    sim.run_until(lambda: sim.state.world.generation == 2 and sim.stage == "Running", within_s=90.0)
    assert evicted(sim) == {"n2"}
    return sim


def answers(sim: Sim, said: qs.RequeueStatus) -> None:
    """Slurm says this of each node that is given back."""
    sim.answer(qs.GiveBack, always(qs.SlurmAnswer(said=said, detail=NOT_NOW)))


def given_back(sim: Sim) -> list[str]:
    return [asked.node for asked in questions(sim, qs.GiveBack)]


def test_the_agent_of_a_node_given_back_ends_first_and_takes_its_copies_along() -> None:
    sim = evicts()
    gets_on(sim, 2)
    assert given_back(sim) == ["n2"]
    assert {node: order.keep_copies for node, order in orders(sim, Shutdown).items()} == {"n2": False}
    assert [event.node for event in sim.events(ev.NodeGivenBack)] == ["n2"]
    assert "n2" in sim.state.evicted, "it stays excluded from a requeue"
    assert sim.state.held == ("n1", "n3")
    assert sim.slurm.job(sim.job_id).nodes == ("n1", "n3")


def test_a_node_is_not_given_back_before_training_gets_on() -> None:
    sim = evicts()
    sim.hang_rank(0)
    sim.run(10.0)
    assert (sim.stage, given_back(sim)) == ("Running", [])


def test_a_node_is_not_given_back_before_a_checkpoint_of_the_others_has_replaced_its_copies() -> None:
    sim = evicts()
    assert sim.nodes["n2"].copies
    sim.takes_snapshots = False
    gets_on(sim, 2)
    assert (given_back(sim), orders(sim, Shutdown)) == ([], {})
    sim.takes_snapshots = True
    gets_on(sim, 2)
    assert given_back(sim) == ["n2"]


def test_slurm_that_cannot_take_a_node_back_yet_is_asked_ever_more_rarely() -> None:
    sim = evicts(pace=SimulatedPace(step_s=5.0, turn_s=1.0))
    answers(sim, qs.RequeueStatus.NOTHING)
    sim.run_until(lambda: bool(given_back(sim)), within_s=60.0)
    sim.run(60.0)
    few = len(given_back(sim))
    assert 2 <= few <= 1 + 60 / PAUSE_S
    sim.run(300.0)
    assert len(given_back(sim)) - few <= 3
    assert sim.events(ev.NodeGivenBack) == []
    assert (sim.state.held, set(sim.state.evicted)) == (("n1", "n2", "n3"), {"n2"})
    answers(sim, qs.RequeueStatus.DONE)
    sim.run_until(lambda: bool(sim.events(ev.NodeGivenBack)), within_s=LONGEST_PAUSE_S)


def test_a_final_refusal_to_take_a_node_back_is_told_once() -> None:
    sim = evicts()
    answers(sim, qs.RequeueStatus.REFUSED)
    gets_on(sim, 2)
    sim.run(200.0)
    assert given_back(sim) == ["n2"]
    assert sim.events(ev.NodeGivenBack) == []
    assert len([text for text in notes(sim) if "not given back" in text]) == 1


def test_the_next_controller_goes_on_giving_a_node_back() -> None:
    sim = evicts()
    answers(sim, qs.RequeueStatus.NOTHING)
    sim.run_until(lambda: bool(given_back(sim)), within_s=60.0)
    sim.controller_dies()
    sim.answer(qs.GiveBack, None)
    sim.run_until(lambda: bool(sim.events(ev.NodeGivenBack)), within_s=60.0)
    assert (sim.state.epoch, sim.state.held) == (2, ("n1", "n3"))


def test_a_site_or_a_user_may_keep_evicted_nodes() -> None:
    sim = evicts(config=JobConfig(slurm=SlurmConfig(give_back=False)))
    gets_on(sim, 2)
    assert (given_back(sim), orders(sim, Shutdown)) == ([], {})


def test_a_new_controller_gives_no_node_back_before_agents_can_say_what_they_hold() -> None:
    sim = evicts()
    sim.partition("n2")
    sim.controller_dies()
    sim.run_until(lambda: sim.state.epoch == 2, within_s=30.0)
    assert seconds_until(sim, lambda: bool(given_back(sim)), within_s=200.0) > RECONNECT_S
