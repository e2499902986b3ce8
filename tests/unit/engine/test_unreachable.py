"""What is cut off is replaced from a reservation or waited for, and what only it has is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from slurm_robust.agent.launcher import Gone
from slurm_robust.config.job import CompanionConfig, JobConfig, Timings
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim
from slurm_robust.util.text import clock
from slurm_robust.wire.messages import Save
from tests.unit.engine.stories import (
    PACE,
    borrowed,
    evicted,
    gets_on,
    gives_up,
    notes,
    orders,
    requeues,
    reserve,
    restored,
    trained,
    writes,
)

FOUR = ("n1", "n2", "n3", "n4")
NO_TAKEOVER = Timings(takeover_s=0.0, verdict_s=0.0)  # nor is a node known to be dead before it is silent
PLAIN = JobConfig(timings=NO_TAKEOVER)
WITH_RESERVATION = JobConfig(timings=NO_TAKEOVER, companions=CompanionConfig(reservation="spares"))


def cut(sim: Sim, *nodes: str, seconds: float) -> None:
    sim.partition(*nodes, fabric=True)
    sim.run(seconds)


def heal(sim: Sim, *nodes: str) -> None:
    """The nodes come back one after the other."""
    for node in nodes:
        sim.heal(node)
        sim.run(1.5)


def reserving(nodes: int, spares: int = 0, *reserved: str) -> Sim:
    """A job that may borrow these nodes from a reservation."""
    sim = trained(nodes, spares, others=3, config=WITH_RESERVATION)
    reserve(sim, *reserved)
    return sim


@pytest.mark.parametrize(("spares", "lent"), [(1, ("n6",)), (0, ("n5", "n6"))])
def test_standbys_that_are_missing_come_from_the_reservation(spares: int, lent: tuple[str, ...]) -> None:
    sim = reserving(4, spares, *lent)
    cut(sim, "n3", "n4", seconds=15.0)
    gets_on(sim, 2)
    (order,) = borrowed(sim)
    assert (order.missing, order.some, set(order.exclude)) == (len(lent), False, {"n3", "n4"})
    assert sim.state.world.slots == ("n1", "n2", "n5", "n6")
    assert (evicted(sim), requeues(sim)) == (set(), [])


def test_nodes_out_of_reach_are_waited_for_if_the_reservation_has_too_few() -> None:
    sim = reserving(4, 1)
    cut(sim, "n3", "n4", seconds=60.0)
    assert len(borrowed(sim)) == 1
    heal(sim, "n3", "n4")
    gets_on(sim, 1)
    assert sim.state.world.slots == FOUR


@pytest.mark.parametrize("is_late", [False, True])
def test_what_was_borrowed_is_given_back_when_the_nodes_are_heard_again(is_late: bool) -> None:
    sim = reserving(4, 0, "n5", "n6")
    cut(sim, "n3", "n4", seconds=1.0)
    if is_late:
        sim.run_until(lambda: bool(borrowed(sim)), within_s=20.0)
    else:
        sim.run_until(lambda: len(sim.state.companions) == 2, within_s=20.0)
    assert sim.stage == "Unreachable"
    sim.heal()
    gets_on(sim, 1)
    assert (sim.state.world.slots, sim.state.companions, sim.state.spares) == (FOUR, {}, ())
    companions = [job for number, job in sim.cluster.jobs.items() if number != sim.job_id]
    assert [job.is_finished for job in companions] == [True, True]


@pytest.mark.parametrize("heals", [True, False])
def test_nodes_that_alone_have_the_newest_copies_are_waited_for_as_long_as_the_loss_is_worth(
    heals: bool,
) -> None:
    """Ten steps of two seconds each, of which no other node has copies of all ranks."""
    sim = trained(4, 3, config=PLAIN)
    begun = sim.now
    cut(sim, "n2", "n3", "n4", seconds=12.0)
    assert sim.stage == "Unreachable"
    assert any("only n[2-4] have the newest copies: waiting for 2" in text for text in sim.said)
    if heals:
        heal(sim, "n2", "n3", "n4")
        gets_on(sim, 1)
        assert sim.state.world.slots == FOUR
        return
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    assert 24.0 < sim.now - begun < 36.0
    assert sim.state.world.slots == ("n1", "n5", "n6", "n7")


def test_an_incident_that_passes_by_itself_does_not_end_before_it_began() -> None:
    """Training went on behind the cut, and what it did is heard of afterwards."""
    sim = trained(4, config=PLAIN)
    sim.partition("n2", "n3", "n4")
    sim.run(2.2)
    cut(sim, "n2", "n3", "n4", seconds=12.0)
    assert sim.stage == "Unreachable"
    sim.hang_rank(1)
    heal(sim, "n2", "n3", "n4")
    sim.run(2.0)
    (opened,), (closed,) = sim.events(ev.IncidentOpened), sim.events(ev.IncidentClosed)
    assert opened.best_step < closed.step == sim.training.newest
    assert closed.t >= opened.t


def test_a_node_that_falls_silent_later_is_replaced_too() -> None:
    sim = reserving(5, 0, "n6", "n7", "n8")
    cut(sim, "n3", "n4", seconds=3.0)
    cut(sim, "n5", seconds=40.0)
    assert [order.missing for order in borrowed(sim)] == [2, 1]
    assert sim.state.world.slots == ("n1", "n2", "n6", "n7", "n8")


def test_a_controller_that_hears_a_standby_is_not_cut_off() -> None:
    sim = reserving(4, 1, "n6", "n7")
    cut(sim, "n2", "n3", "n4", seconds=45.0)
    assert sim.state.world.slots == ("n1", "n5", "n6", "n7")


def test_a_controller_that_hears_no_other_node_borrows_nothing() -> None:
    sim = reserving(4, 0, "n5", "n6", "n7")
    cut(sim, "n2", "n3", "n4", seconds=60.0)
    assert (sim.stage, borrowed(sim)) == ("Unreachable", [])


def test_collectives_have_time_to_go_on_after_the_network_does() -> None:
    sim = trained(4, config=PLAIN)
    cut(sim, "n2", "n3", "n4", seconds=45.0)
    sim.network.heal()
    sim.run(60.0)
    assert (sim.stage, sim.state.world.generation) == ("Running", 1)
    sim.heal()
    sim.run(5.0)
    assert sim.state.world.incident is None
    assert sim.state.world.pace.pause_s == 0.0, "the pause was not the training's own"


# -- what only they have ----------------------------------------------------------------------------


def shared(*, spares: int = 1, stored: bool = False, pace: SimulatedPace = PACE) -> Sim:
    """Three nodes, each with what all ranks have in common, n1 also with a copy of rank 2's part of step 24.

    ``stored``: storage has step 10.
    """
    sim = trained(3, spares, to=24, others=2, shared=True, config=PLAIN, pace=pace)
    sim.run(0.8)
    if stored:
        sim.storage.write(CheckpointId(step=10, generation=1), (0, 1, 2), 3)
    return sim


def not_whole(sim: Sim, since: int = 0) -> list[str]:
    return [text for text in sim.said[since:] if "is not whole" in text]


def _seconds(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + seconds


def test_the_parts_that_only_silent_nodes_have_are_named_with_the_time_until_which_they_are_waited_for() -> (
    None
):
    sim = shared()
    cut(sim, "n2", "n3", seconds=12.0)
    assert sim.stage == "Unreachable"
    (line,) = not_whole(sim)
    until = clock(sim.clock.now - 12.0 + JobConfig().timings.unreachable_s)
    assert line.startswith("step 24 is not whole: the part of rank 1 is on n2: waiting for it until ")
    hint = " (checkpoint.if_parts_are_missing: reseed may take step 24)"
    assert line.endswith(f"else training goes on from the beginning{hint}")
    told = line.partition("until ")[2].partition(",")[0]
    assert abs(_seconds(told) - _seconds(until)) < 15


def test_missing_parts_are_named_again_before_they_are_given_away() -> None:
    sim = shared(stored=True)
    gives_up(sim, "n2", "n3")
    cut(sim, "n2", "n3", seconds=5.0)
    sim.run_until(lambda: bool(requeues(sim)), within_s=400.0)
    last = not_whole(sim)[-1]
    assert last.startswith("step 24 is not whole: the part of rank 1 is on n2, which does not answer")
    assert "without them training goes on from step 10 from storage" in last


def newer_own(sim: Sim) -> None:
    """All nodes have their own parts of step 25, which no peer has yet."""
    for rank, node in enumerate(("n1", "n2", "n3")):
        for part in (rank, SHARED):
            sim.nodes[node].keep(part, Tier.MEMORY, CheckpointId(step=25, generation=1))


def without_shared(sim: Sim) -> None:
    for step in range(20, 25):
        sim.nodes["n1"].lose(SHARED, step)


def all_but_shared(sim: Sim) -> None:
    without_shared(sim)
    sim.nodes["n1"].keep(1, Tier.PEER, CheckpointId(step=24, generation=1))


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            lambda sim: sim.nodes["n1"].lose(2, 24),
            "24 is not whole: the parts of ranks 1-2 are on n[2-3], which do",
        ),
        (lambda sim: None, "24 is not whole: the part of rank 1 is on n2, which does"),
        (newer_own, "25 is not whole: the parts of ranks 1-2 are on n[2-3], which do"),
        (without_shared, "24 is not whole: the part of rank 1 and the shared part are on n2, which does"),
        (all_but_shared, "24 is not whole: the shared part is on n[2-3], which do"),
    ],
    ids=["own", "own and a peer's", "own is newer", "not the shared one", "all but the shared one"],
)
@pytest.mark.parametrize("apart_s", [0.0, 3.0])
def test_missing_parts_are_named_whatever_the_survivor_has(
    prepare: Callable[[Sim], None], said: str, apart_s: float
) -> None:
    sim = shared(stored=True)
    prepare(sim)
    for node in sim.nodes.values():
        if node.agent is not None:
            node.agent.beat()
    sim.run(0.1)
    for node in ("n2", "n3"):
        sim.node_dies(node)
        sim.run(apart_s)
    sim.run_until(lambda: bool(requeues(sim)) or sim.state.world.generation == 2, within_s=400.0)
    (line,) = {text for text in not_whole(sim) if "without them" in text}
    assert line.startswith(f"step {said} not answer: without them training goes on from step 10 from storage")


def lost_in_turn(
    when: Callable[[Sim], bool],
    spares: int,
    *,
    prepare: Callable[[Sim], None] = lambda sim: None,
    pace: SimulatedPace = PACE,
) -> Sim:
    """n3 is lost after the newest step had been found whole without n2, and before there is a newer one."""
    sim = shared(spares=spares, stored=True, pace=pace)
    writes(sim, anything=False)
    prepare(sim)
    sim.node_dies("n2")
    sim.run_until(lambda: when(sim), within_s=100.0)
    assert sim.state.world.sealed == {1: 24}
    sim.node_dies("n3")
    return sim


def test_a_step_that_was_whole_until_another_node_was_lost_is_named_before_an_older_one_is_restored() -> None:
    sim = lost_in_turn(lambda sim: sim.state.world.generation == 2, 2)
    sim.run_until(lambda: sim.state.world.generation == 3, within_s=100.0)
    assert restored(sim)[0] == 10
    line = "step 24 is not whole: the part of rank 1 is on no node that answers: "
    line += "training goes on from step 10 from storage (3 parts)"
    (number,) = (i for i, text in enumerate(sim.said) if "is not whole" in text)
    assert sim.said[number] == line
    assert sim.said[number + 1].startswith("generation 3 resumes from step 10")
    assert line in notes(sim)


def test_a_lost_step_is_named_if_the_node_is_lost_before_the_new_generation_begins() -> None:
    def end_launcher(sim: Sim) -> None:
        """The launcher of the standby that will be needed ends; the next one takes long to start."""
        assert sim.nodes["n4"].agent is not None
        sim.nodes["n4"].agent.hear_launcher(Gone(reason="the launcher was killed"))
        sim.run(0.1)

    pace = structs.replace(PACE, zygote_s=(25.0, 25.0))
    sim = lost_in_turn(lambda sim: sim.stage == "Gathering", 2, prepare=end_launcher, pace=pace)
    sim.run_until(lambda: "n3" not in sim.state.world.slots, within_s=15.0)
    assert sim.state.world.generation == 1
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=100.0)
    (line,) = not_whole(sim)
    assert line.startswith("step 24 is not whole: the part of rank 1 is on n2: training goes on from step 10")
    assert line.endswith("(checkpoint.if_parts_are_missing: reseed may take step 24)")


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_lost_step_is_named_in_the_next_run_if_the_node_is_lost_before_it_has_written(
    is_kept: bool,
) -> None:
    sim = lost_in_turn(lambda sim: bool(orders(sim, Save)), 0)
    gives_up(sim, "n2", "n3")
    sim.run_until(lambda: sim.runs == 2, within_s=200.0)
    before = len(sim.said)
    if not is_kept:
        sim.nodes["n1"].forget_copies()
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    assert restored(sim)[0] == 10
    named = "step 24 is not whole: the part of rank 1 is on n2: training goes on from step 10"
    assert [line.startswith(named) for line in not_whole(sim, before)] == ([True] if is_kept else [])


def test_what_the_survivor_has_is_kept_for_nodes_that_come_back_with_theirs() -> None:
    sim = shared()
    cut(sim, "n2", "n3", seconds=5.0)
    sim.run_until(lambda: bool(requeues(sim)), within_s=400.0)
    assert sim.state.world.unsealed == (1,)
    sim.heal()
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=200.0)
    assert (sim.runs, restored(sim)[0]) == (2, 24)


def test_nodes_that_slurm_has_given_up_are_not_called_a_matter_of_the_network() -> None:
    sim = shared()
    gives_up(sim, "n2", "n3")
    cut(sim, "n2", "n3", seconds=5.0)
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    reason = sim.events(ev.Decided)[-1].reason
    assert reason.startswith("Slurm has given up n[2-3]: DOWN+NOT_RESPONDING")
    assert "network" not in reason
