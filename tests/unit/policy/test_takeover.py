from __future__ import annotations

import pytest

from slurm_robust.policy.takeover import (
    TURN_S,
    UNANSWERED_S,
    VOTERS,
    describe,
    is_lost,
    patience_s,
    quorum,
    voters,
)

NODES = tuple(f"n{i}" for i in range(1, 13))


def test_the_first_nodes_are_asked_and_never_the_host() -> None:
    assert voters(NODES, (), (), {"n1"}) == NODES[1 : VOTERS + 1]
    assert voters(("n2", "n1"), ("n3",), (), {"n1"}) == ("n2", "n3")
    assert voters(NODES, (), (), {"elsewhere"}) == NODES[:VOTERS]


def test_a_standby_that_does_not_answer_is_asked_last() -> None:
    assert voters(("n1", "n2"), ("n3", "n4"), ("n3",), {"n1"}) == ("n2", "n4", "n3")


@pytest.mark.parametrize(("voting", "needed"), [(0, 2), (1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_more_agree_than_can_be_on_any_other_side_of_a_cut(voting: int, needed: int) -> None:
    assert quorum(voting) == needed
    assert 2 * needed > voting


def test_a_host_whose_kernel_answers_has_time_to_bring_its_controller_back() -> None:
    assert is_lost(10.0, answers=False)
    assert not is_lost(UNANSWERED_S, answers=True)
    assert is_lost(UNANSWERED_S + 1, answers=True)
    assert is_lost(10.0, answers=True, is_down=True)


def test_each_agent_leaves_the_agents_before_it_their_time() -> None:
    agreeing = ("n2", "n4", "n5")
    assert [patience_s(node, agreeing) for node in agreeing] == [0.0, TURN_S, 2 * TURN_S]


def test_the_reason_has_the_numbers() -> None:
    text = describe("n1", 11.6, answers=False, agreeing=("n2", "n3"), slurm="")
    assert "n1 has not answered for 12 s, nor does its kernel answer any probe, as n[2-3] found" in text
    late = describe("n1", 200.0, answers=True, agreeing=("n2",), slurm="n1 is DOWN")
    assert "though its kernel answers" in late
    assert "Slurm says: n1 is DOWN" in late
