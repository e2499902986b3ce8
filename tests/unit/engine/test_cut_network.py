"""A network that is cut convicts no node, and afterwards all is as before."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Evict, Symptom
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import blames_no_node, evicted, gets_on, gives_up, opened, requeues, trained

NO_TAKEOVER = JobConfig(timings=Timings(takeover_s=0.0))
FOUR = ("n1", "n2", "n3", "n4")


def cut(*nodes: str, seconds: float, spares: int = 0, config: JobConfig = NO_TAKEOVER) -> Sim:
    """A job of four nodes, some of which, with their collectives, have been cut off for so long."""
    sim = trained(4, spares, config=config)
    sim.partition(*nodes, fabric=True)
    sim.run(seconds)
    return sim


def heal(sim: Sim, *nodes: str) -> None:
    """The nodes come back one after the other."""
    for node in nodes:
        sim.heal(node)
        sim.run(1.5)


@pytest.mark.parametrize("seconds", [15.0, 120.0])
@pytest.mark.parametrize(
    ("nodes", "spares"),
    [(("n1",), 0), (("n1",), 1), (("n2", "n3", "n4"), 0), (("n3", "n4"), 0), (("n2", "n3"), 0)],
    ids=["slurmctld too", "slurmctld too, with standby", "all others", "half", "other half"],
)
def test_after_a_cut_training_goes_on_as_before(nodes: tuple[str, ...], spares: int, seconds: float) -> None:
    sim = cut(*nodes, seconds=seconds, spares=spares)
    assert sim.stage == "Unreachable"
    heal(sim, *nodes)
    gets_on(sim, 1)
    assert (blames_no_node(sim), sim.state.world.slots) == (True, FOUR)


def test_the_other_one_of_two_nodes_is_lost_if_slurmctld_answers() -> None:
    sim = trained(2)
    sim.node_dies("n2")
    sim.run_until(lambda: bool(requeues(sim)), within_s=20.0)
    assert evicted(sim) == {"n2"}


def test_the_other_one_of_two_nodes_is_waited_for_while_slurmctld_does_not_answer() -> None:
    sim = trained(2)
    sim.slurm_is_silent()
    sim.partition("n2", fabric=True)
    sim.run(100.0)
    assert (sim.stage, evicted(sim)) == ("Unreachable", set())
    sim.slurm_is_silent(False)
    sim.run_until(lambda: bool(requeues(sim)), within_s=20.0)
    assert requeues(sim) == [("n2",)]


def test_standbys_take_the_slots_of_nodes_that_are_cut_off_together() -> None:
    sim = cut("n3", "n4", seconds=12.0, spares=2)
    gets_on(sim, 2)
    assert (sim.state.world.slots, set(sim.state.spares)) == (("n1", "n2", "n5", "n6"), {"n3", "n4"})
    heal(sim, "n3", "n4")
    sim.run(20.0)
    assert evicted(sim) == set()
    sim.node_dies("n6")
    gets_on(sim, 3)
    assert sim.state.world.slots in {("n1", "n2", "n5", "n3"), ("n1", "n2", "n5", "n4")}


@pytest.mark.parametrize("later_s", [0.5, 1.0])
def test_a_standby_that_falls_silent_a_moment_later_is_silent_too(later_s: float) -> None:
    sim = trained(2, 1, config=JobConfig(timings=Timings(takeover_s=0.0, verdict_s=0.0)))
    sim.slurm_is_silent()
    sim.partition("n2", fabric=True)
    sim.run(later_s)
    sim.partition("n2", "n3", fabric=True)
    sim.run(60.0)
    assert (sim.stage, requeues(sim)) == ("Unreachable", [])
    heal(sim, "n2", "n3")
    gets_on(sim, 1)


def test_nodes_that_stay_away_are_gone_on_without_and_blamed_for_nothing() -> None:
    sim = cut("n3", "n4", seconds=285.0)
    assert sim.stage == "Unreachable"
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    assert (requeues(sim), evicted(sim)) == ([()], set())
    (verdict,) = [decided.verdict for decided in sim.events(ev.Decided) if decided.verdict is not None]
    assert verdict.blame is Blame.NOBODY


def test_nodes_that_slurm_has_given_up_are_not_waited_for() -> None:
    sim = trained(4)
    sim.partition("n3", "n4", fabric=True)
    gives_up(sim, "n3", "n4")
    sim.run_until(lambda: bool(requeues(sim)), within_s=20.0)
    assert (requeues(sim), evicted(sim)) == ([()], set())


def test_a_node_that_does_not_come_back_with_the_others_is_lost() -> None:
    sim = cut("n2", "n3", "n4", "n5", seconds=30.0, spares=1)
    heal(sim, "n2", "n3", "n5")
    assert evicted(sim) == set(), "it may be late"
    gets_on(sim, 2)
    assert evicted(sim) == {"n4"}


@pytest.mark.parametrize("after_s", [2.0, 8.0], ids=["before the silence counts", "after"])
def test_workers_that_end_by_the_cut_are_restarted_in_place_when_it_is_over(after_s: float) -> None:
    sim = trained(4, config=NO_TAKEOVER)
    sim.slurm_is_silent()
    sim.partition("n2", "n3", "n4", fabric=True)
    sim.run(after_s)
    sim.exit_rank(0)
    sim.run(60.0)
    assert (sim.stage, evicted(sim)) == ("Unreachable", set())
    heal(sim, "n2", "n3", "n4")
    gets_on(sim, 2)
    assert (evicted(sim), requeues(sim), sim.state.world.slots) == (set(), [], FOUR)


def test_observe_mode_would_evict_no_node_for_a_cut_network() -> None:
    sim = cut("n2", "n3", "n4", seconds=60.0, config=structs.replace(NO_TAKEOVER, mode="observe"))
    (decided,) = sim.events(ev.Decided)
    assert not decided.carried_out
    assert not [action for action in decided.actions if isinstance(action, Evict)]
    heal(sim, "n2", "n3", "n4")
    sim.run(20.0)
    assert sim.stage == "Running"


def test_an_order_to_leave_ends_the_waiting() -> None:
    sim = cut("n2", "n3", "n4", seconds=20.0)
    sim.order_to_end()
    assert sim.run_to_end(within_s=60.0) == 130


def test_a_training_that_does_not_go_on_after_the_network_does_hangs() -> None:
    sim = cut("n2", "n3", "n4", seconds=45.0)
    sim.hang_rank(1)
    heal(sim, "n2", "n3", "n4")
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=200.0)
    assert Symptom.HANG in opened(sim) + [event.symptom for event in sim.events(ev.SymptomAdded)]
    assert evicted(sim) <= {"n2"}


def test_a_standby_whose_agent_has_ended_is_no_sign_of_a_cut_network() -> None:
    sim = trained(2, 1)
    sim.agent_dies("n3")
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert (evicted(sim), requeues(sim), sim.state.world.slots) == ({"n2"}, [], ("n1", "n3"))


@pytest.mark.parametrize("nodes", [("n3", "n4"), ("n2", "n3", "n4")], ids=["half", "all others"])
def test_nodes_that_are_cut_off_while_they_are_launched_are_launched_again(nodes: tuple[str, ...]) -> None:
    """The order is lost on its way, and only a launch repeats it."""
    sim = trained(4, config=NO_TAKEOVER)
    sim.kill_rank(1)
    sim.run_until(lambda: sim.stage == "Launching", within_s=60.0)
    sim.partition(*nodes, fabric=True)
    sim.run(30.0)
    assert sim.stage == "Unreachable"
    heal(sim, *nodes)
    gets_on(sim, 3)
    assert (blames_no_node(sim), sim.state.world.slots) == (True, FOUR)
