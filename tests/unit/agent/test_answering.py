"""Questions of the controller that an agent looks into beside its loop."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from slurm_robust.agent.answering import Answering
from slurm_robust.wire.messages import NodesProbed, ProbeNodes

LIMIT_S = 10.0


@pytest.fixture
def answering() -> Iterator[Answering[NodesProbed]]:
    with closing(Answering[NodesProbed]("probes")) as found:
        yield found


def question(number: int, epoch: int = 1) -> ProbeNodes:
    return ProbeNodes(epoch=epoch, number=number, places={}, for_s=1.0)


def looked(number: int) -> NodesProbed:
    return NodesProbed(node="n1", number=number, answering=(), asked=())


def finished(answering: Answering[NodesProbed]) -> list[NodesProbed]:
    assert select.select([answering.fileno()], [], [], LIMIT_S)[0]
    return answering.finished()


def refuse() -> NodesProbed:
    raise AssertionError("it is not looked into again")


def test_a_question_that_comes_again_gets_the_same_answer_and_no_second_look(
    answering: Answering[NodesProbed],
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def look() -> NodesProbed:
        begun.set()
        assert go_on.wait(LIMIT_S)
        return looked(1)

    assert answering.ask(question(1), look) is None
    assert begun.wait(LIMIT_S)
    assert answering.ask(question(1), refuse) is None, "the answer is not there yet"
    go_on.set()
    assert finished(answering) == [looked(1)]
    assert answering.ask(question(1), refuse) == looked(1)


def test_the_same_number_of_another_controller_is_another_question(answering: Answering[NodesProbed]) -> None:
    answering.ask(question(1), lambda: looked(1))
    assert finished(answering)
    assert answering.ask(question(1, epoch=2), lambda: looked(1)) is None
    assert finished(answering) == [looked(1)]


@pytest.mark.parametrize("keep", [1, 2])
def test_only_so_many_of_the_newest_questions_are_answered(keep: int) -> None:
    go_on = threading.Event()

    def look(number: int) -> Callable[[], NodesProbed]:
        def found() -> NodesProbed:
            assert go_on.wait(LIMIT_S)
            return looked(number)

        return found

    with closing(Answering[NodesProbed]("probes", keep=keep)) as answering:
        for number in (1, 2, 3):
            answering.ask(question(number), look(number))
        go_on.set()
        answers: list[NodesProbed] = []
        while len(answers) < keep:
            answers += finished(answering)
        assert [answer.number for answer in answers] == [1, 2, 3][-keep:]


def test_a_question_whose_answer_could_not_be_found_is_looked_into_again(
    answering: Answering[NodesProbed],
) -> None:
    def fail() -> NodesProbed:
        raise OSError("no buffer space")

    answering.ask(question(1), fail)
    assert finished(answering) == []
    assert answering.ask(question(1), lambda: looked(1)) is None
    assert finished(answering) == [looked(1)]


def test_a_question_that_was_dropped_keeps_no_other_waiting(answering: Answering[NodesProbed]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def look() -> NodesProbed:
        begun.set()
        assert go_on.wait(LIMIT_S)
        return looked(1)

    answering.ask(question(1), look)
    assert begun.wait(LIMIT_S)
    answering.ask(question(2), refuse)
    answering.ask(question(3), lambda: looked(3))
    go_on.set()
    answers: list[NodesProbed] = []
    while not answers:
        answers += finished(answering)
    assert answers == [looked(3)]
