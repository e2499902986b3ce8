"""Stacks that a person asks for while the training runs: on paper, with scripted agents."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.diagnostics.live import LiveStacks, NotLive, take
from slurm_robust.model import events as ev
from slurm_robust.testing.sim.training import doing, waiting
from slurm_robust.wire.messages import ShowStacks, StacksShown, StacksTaken, TakeStacks
from tests.unit.engine.fake_job import Job

NODES = tuple(f"n{number}" for number in range(1, 21))


def job(mode: str = "act", nodes: tuple[str, ...] = NODES[:4]) -> Job:
    """A training that has done a few steps."""
    made = Job(nodes, (), JobConfig(mode=mode, detect=DetectConfig(stacks_s=3.0)))  # type: ignore[arg-type]
    made.ages = True
    for step in range(40):
        made.train_to(step)
        made.pass_time(1.0, tick=0.25)
    return made


def ask(job: Job, wish: ShowStacks) -> StacksShown:
    shown, effects = job.core.on_stacks_request(wish, job.now())
    job.act(effects)
    return shown


def take_stacks(job: Job) -> LiveStacks:
    """What ``srobust stacks`` does, without the sockets."""
    return take(lambda wish: ask(job, wish), lambda *_: None, lambda: job.pass_time(0.25, tick=0.25))


def orders(job: Job) -> list[TakeStacks]:
    return [message for _, message in job.sent if isinstance(message, TakeStacks)]


def rounds(job: Job) -> list[int]:
    """The numbers of the sample rounds, in their order."""
    return list(dict.fromkeys(order.number for order in orders(job)))


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_all_ranks_are_shown_and_the_training_is_let_be(mode: str) -> None:
    running = job(mode)
    taken = take_stacks(running)
    assert [stack.rank for stack in taken.stacks] == [0, 1, 2, 3]
    assert (taken.generation, taken.nodes, taken.silent) == (1, NODES[:4], ())
    assert (running.stage, running.core.world.generation) == ("Running", 1)
    assert not running.events(ev.IncidentOpened)
    assert [e.text for e in running.events(ev.Noted)] == ["stacks of generation 1 were requested by hand"]


def test_a_large_job_is_shown_in_pieces() -> None:
    running = job(nodes=NODES)
    sizes: list[int] = []
    taken = take(
        lambda wish: ask(running, wish), lambda n, _: sizes.append(n), lambda: running.pass_time(0.25)
    )
    assert sizes == [0, 8, 16, 20]
    assert [stack.rank for stack in taken.stacks] == list(range(20))


def test_a_node_that_does_not_answer_is_named_after_its_time() -> None:
    running = job()
    running.mute.add("n3")
    begun = running.mono
    taken = take_stacks(running)
    assert taken.silent == ("n3",)
    assert taken.limit_s <= running.mono - begun < taken.limit_s + 1.0
    assert len(orders(running)) > 4  # it was asked again
    assert len(rounds(running)) == 1
    assert running.stage == "Running"


def test_two_persons_at_once_see_the_same_sample_round() -> None:
    running = job()
    running.mute.add("n3")
    first, second = ask(running, ShowStacks()), ask(running, ShowStacks())
    assert first.number == second.number
    assert rounds(running) == [first.number]


def test_a_script_does_not_keep_the_nodes_at_it() -> None:
    running = job()
    for _ in range(3):
        assert take_stacks(running).stacks
    assert len(rounds(running)) == 1
    running.pass_time(3.0)
    take_stacks(running)
    assert len(rounds(running)) == 2


def test_stacks_that_nobody_fetches_are_forgotten() -> None:
    running = job()
    running.ages = False
    shown = ask(running, ShowStacks())
    running.pass_time(80.0)
    assert running.core.stacks.all() == ()
    assert ask(running, ShowStacks(number=shown.number)).number == shown.number + 1


def test_stacks_that_an_earlier_controller_was_to_get_are_not_those_of_this_one() -> None:
    running = job()
    running.mute.update(NODES[:4])
    shown = ask(running, ShowStacks())
    for number, taken in ((1, 0), (shown.number, 1)):
        answer = StacksTaken(node="n1", number=number, generation=1, stacks=(waiting(0, "n1"),))
        running.core.on_agent_answer(answer, running.now())
        assert len(running.core.stacks.all()) == taken


def test_between_two_generations_there_is_nothing_to_see() -> None:
    hung = job()  # all ranks wait for each other, so the nodes are tested
    hung.diagnosis = None
    hung.until(lambda: hung.stage == "Testing", 60)
    with pytest.raises(NotLive, match="no generation of workers runs now"):
        take_stacks(hung)


def test_a_sample_round_ends_with_its_generation() -> None:
    failing = job()
    failing.mute.add("n3")

    def fail() -> None:
        if failing.core.world.generation == 1:
            failing.kill_rank(1)
        failing.pass_time(0.25)

    taken = take(lambda wish: ask(failing, wish), lambda *_: None, fail)
    assert (taken.generation, taken.silent) == (1, ("n3",))
    assert failing.core.world.generation == 2
    failing.mute.clear()
    assert take_stacks(failing).generation == 2


def test_a_hang_is_placed_by_the_sample_round_that_is_under_way() -> None:
    """Another order would wait at the agents behind the first, and their nodes would count as silent."""
    before = job()
    begun = before.mono
    before.until(lambda: before.stage == "Localising", 60)
    hung = job()
    hung.stacks[2] = doing(2, "n3", "forward@model.py", state="T")
    hung.mute.add("n4")
    hung.pass_time(before.mono - begun - 2.0)
    by_hand = ask(hung, ShowStacks())
    hung.until(lambda: hung.stage == "Localising", 5)
    assert rounds(hung) == [by_hand.number]
    hung.mute.clear()
    hung.until(lambda: hung.core.world.generation == 2 or hung.code is not None, 30)
    assert {event.node for event in hung.events(ev.NodeEvicted)} == {"n3"}


def test_a_person_takes_no_sample_round_away_from_the_policy() -> None:
    running = job()
    running.core.stacks.ask(running.now())
    running.act(running.core.on_tick(running.now()))
    (number,) = rounds(running)
    running.mono += 3.0  # all have answered, and nobody has looked yet
    assert ask(running, ShowStacks()).number == number
    assert running.core.stacks.taken(running.now()) is not None
    running.mono += 3.0
    assert ask(running, ShowStacks()).number != number
