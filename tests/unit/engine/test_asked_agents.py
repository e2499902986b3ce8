"""Questions to agents: what becomes of answers that come, come late, come again, or never come."""

from __future__ import annotations

import pytest

from slurm_robust.engine.asked_agents import KEEP_S, AskedAgents
from slurm_robust.engine.clock import Now
from slurm_robust.wire.messages import AgentAnswer, NodesProbed, ProbeNodes, StacksTaken, TakeStacks

NUMBER = 7
LIMIT_S = 3.0
QUESTION = TakeStacks(epoch=1, number=NUMBER, generation=1, budget_s=LIMIT_S - 1.0)


def at(mono: float) -> Now:
    return Now(mono=mono, wall=mono)


@pytest.fixture
def heard() -> list[StacksTaken]:
    return []


@pytest.fixture
def asked(heard: list[StacksTaken]) -> AskedAgents[StacksTaken]:
    """Two agents were asked at time 0."""
    return AskedAgents({"n1": QUESTION, "n2": QUESTION}, 0.0, lambda answer, now: heard.append(answer))


def answer(node: str, generation: int = 1) -> StacksTaken:
    return StacksTaken(node=node, number=NUMBER, generation=generation)


def test_a_question_is_over_when_all_agents_have_answered_or_at_its_bound(
    asked: AskedAgents[StacksTaken],
) -> None:
    asked.hear(answer("n1"), at(0.5))
    assert asked.missing() == ["n2"]
    assert [asked.is_over(at(t)) for t in (0.5, LIMIT_S - 0.01, LIMIT_S)] == [False, False, True]
    asked.hear(answer("n2"), at(0.6))
    assert asked.is_over(at(0.6))


def test_agents_that_have_not_answered_are_asked_again_until_it_is_over(
    asked: AskedAgents[StacksTaken],
) -> None:
    asked.hear(answer("n1"), at(0.5))
    times = [t / 4 for t in range(1, 20) if asked.due(at(t / 4))]
    assert times == [1.0, 2.0]


def test_a_question_that_is_asked_once_is_not_asked_again() -> None:
    probe = ProbeNodes(epoch=1, number=NUMBER, places={}, for_s=9.0)
    assert AskedAgents({"n1": probe}, 0.0).due(at(5.0)) == {}


def test_a_late_answer_is_heard_until_the_question_is_forgotten(
    asked: AskedAgents[StacksTaken], heard: list[StacksTaken]
) -> None:
    asked.hear(answer("n1"), at(LIMIT_S + 1.0))
    assert heard == [answer("n1")]
    assert [asked.is_old(at(LIMIT_S + t)) for t in (KEEP_S, KEEP_S + 0.1)] == [False, True]
    asked.forget()
    asked.hear(answer("n2"), at(LIMIT_S + KEEP_S + 1.0))
    assert (heard, asked.answers, asked.nodes) == ([answer("n1")], {}, ())


@pytest.mark.parametrize(
    "other",
    [
        answer("n1", generation=2),
        answer("n3"),
        NodesProbed(node="n2", number=NUMBER, answering=(), asked=()),
    ],
    ids=["again", "of a node that was not asked", "of another kind"],
)
def test_what_answers_nothing_that_is_open_is_dropped(
    asked: AskedAgents[StacksTaken], heard: list[StacksTaken], other: AgentAnswer
) -> None:
    asked.hear(answer("n1"), at(0.5))
    asked.hear(other, at(0.6))
    assert heard == [answer("n1")]
    assert asked.missing() == ["n2"]
