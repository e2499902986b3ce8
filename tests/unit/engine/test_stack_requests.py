"""Stacks that a person asks for while the training runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.diagnostics.live import LiveStacks, NotLive, take
from slurm_robust.engine import questions as qs
from slurm_robust.testing.sim.environment import never
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.training import waiting
from slurm_robust.wire.messages import ShowStacks, StacksShown, StacksTaken, TakeStacks
from tests.unit.engine.stories import (
    all_wait,
    controller_of,
    evicted,
    gets_on,
    mute,
    notes,
    opened,
    sent,
    trained,
)


def job(nodes: int = 4, mode: Literal["act", "observe"] = "act") -> Sim:
    """A training that has done a few steps."""
    return trained(nodes, config=JobConfig(mode=mode, detect=DetectConfig(stacks_s=3.0)))


def ask(sim: Sim, wish: ShowStacks | None = None) -> StacksShown:
    return controller_of(sim).show_stacks(wish or ShowStacks())


def take_stacks(sim: Sim, pause: Callable[[], None] | None = None) -> LiveStacks:
    """What ``srobust stacks`` does, without the sockets."""
    return take(lambda wish: ask(sim, wish), lambda *_: None, pause or (lambda: sim.run(0.25)))


def sample_orders(sim: Sim) -> list[TakeStacks]:
    return [message for _, message in sent(sim, TakeStacks)]


def rounds(sim: Sim) -> list[int]:
    """The numbers of the sample rounds, in their order."""
    return list(dict.fromkeys(order.number for order in sample_orders(sim)))


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_stacks_of_all_ranks_are_shown_and_training_is_let_be(mode: Literal["act", "observe"]) -> None:
    sim = job(mode=mode)
    taken = take_stacks(sim)
    assert [stack.rank for stack in taken.stacks] == [0, 1, 2, 3]
    assert (taken.generation, taken.nodes, taken.silent) == (1, ("n1", "n2", "n3", "n4"), ())
    noted = [text for text in notes(sim) if "stacks" in text]
    assert noted == ["stacks of generation 1 were requested by hand"]
    gets_on(sim, 1)
    assert opened(sim) == []


def test_stacks_of_a_large_job_are_shown_in_pieces() -> None:
    sim = job(20)
    sizes: list[int] = []
    taken = take(lambda wish: ask(sim, wish), lambda n, _: sizes.append(n), lambda: sim.run(1.0))
    assert sizes == [0, 8, 16, 20]
    assert [stack.rank for stack in taken.stacks] == list(range(20))


def test_a_node_that_does_not_answer_is_named_after_its_time() -> None:
    sim = job()
    mute(sim, "n3")
    begun = sim.now
    taken = take_stacks(sim)
    assert taken.silent == ("n3",)
    assert taken.limit_s <= sim.now - begun < taken.limit_s + 1.0
    assert len(sample_orders(sim)) > 4, "it was asked again"
    assert (len(rounds(sim)), sim.stage) == (1, "Running")


def test_two_persons_together_see_the_same_sample_round() -> None:
    sim = job()
    mute(sim, "n3")
    first, second = ask(sim), ask(sim)
    assert first.number == second.number
    assert rounds(sim) == [first.number]


def test_a_script_that_asks_for_stacks_again_and_again_does_not_keep_nodes_busy() -> None:
    sim = job()
    for _ in range(3):
        assert take_stacks(sim).stacks
    assert len(rounds(sim)) == 1
    sim.run(3.0)
    take_stacks(sim)
    assert len(rounds(sim)) == 2


def test_stacks_that_are_not_fetched_are_forgotten() -> None:
    sim = job()
    shown = ask(sim)
    sim.run(2.0)
    assert len(controller_of(sim).core.stacks.all()) == 4
    sim.run(78.0)
    assert controller_of(sim).core.stacks.all() == ()
    assert ask(sim, ShowStacks(number=shown.number)).number > shown.number


def test_stacks_for_an_earlier_controller_are_not_taken_for_those_of_this_one() -> None:
    sim = job()
    mute(sim)
    shown, core = ask(sim), controller_of(sim).core
    for number, taken in ((1, 0), (shown.number, 1)):
        answer = StacksTaken(node="n1", number=number, generation=1, stacks=(waiting(0, "n1"),))
        core.on_agent_answer(answer, controller_of(sim).now())
        assert len(core.stacks.all()) == taken


def test_no_stacks_are_shown_between_two_generations() -> None:
    sim = job()
    sim.answer(qs.TestNodes, never)
    all_wait(sim)
    sim.run_until(lambda: sim.stage == "Testing", 60.0)
    with pytest.raises(NotLive, match="no generation of workers runs now"):
        take_stacks(sim)


def test_a_sample_round_ends_with_its_generation() -> None:
    sim = job()
    mute(sim, "n3")

    def fail() -> None:
        others_answered = len(controller_of(sim).core.stacks.all()) == 3
        if sim.state.world.generation == 1 and others_answered and 1 in sim.ranks:
            sim.kill_rank(1)
        sim.run(0.25)

    taken = take_stacks(sim, fail)
    assert (taken.generation, taken.silent) == (1, ("n3",))
    gets_on(sim, 2)
    mute(sim, "n3", is_mute=False)
    assert take_stacks(sim).generation == 2


def test_a_hang_is_placed_by_the_sample_round_that_is_under_way() -> None:
    """Another order would wait at the agents behind the first, and their nodes would count as silent."""
    before, sim = job(), job()
    begun = before.now
    for each in (before, sim):
        each.hang_rank(2)
    before.run_until(lambda: before.stage == "Localising", 60.0)
    mute(sim, "n4")
    sim.run(before.now - begun - 2.0)
    by_hand = ask(sim)
    sim.run_until(lambda: sim.stage == "Localising", 5.0)
    assert rounds(sim) == [by_hand.number]
    mute(sim, "n4", is_mute=False)
    sim.run_until(lambda: bool(evicted(sim)), 30.0)
    assert evicted(sim) == {"n3"}


def test_a_person_takes_no_sample_round_away_from_the_policy() -> None:
    sim = job()
    stacks, now = controller_of(sim).core.stacks, controller_of(sim).now
    stacks.ask(now())
    sim.run(3.0)  # all have answered, and no policy has looked yet
    (number,) = rounds(sim)
    assert ask(sim).number == number
    assert stacks.taken(now()) is not None
    sim.run(3.0)
    assert ask(sim).number != number
