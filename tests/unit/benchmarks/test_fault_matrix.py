"""From a journal to an outcome, from outcomes to the confusion table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.fault_matrix import confusion
from benchmarks.fault_matrix.cases import CASES
from benchmarks.fault_matrix.confusion import ANOTHER, NOBODY, THE_NODE, WITH_OTHERS, marks
from benchmarks.fault_matrix.outcomes import EVICT, OBSERVE, TESTED, Expected, Outcome, ranks_in, read
from slurm_robust.model import events as ev
from slurm_robust.model.incident import (
    Action,
    Blame,
    Diagnose,
    Evict,
    FaultKind,
    Replace,
    Restart,
    Signature,
    Symptom,
    Verdict,
)
from tests.builders import incidents

HANG = Expected(symptoms=(Symptom.HANG,), actions=EVICT, node=True, detect_s=15.0)
PLANTED = Outcome(case="a hang", mode="act", rank=3, node="n2", expected=HANG, went_on=True)
DETAIL = "no step for 15 s since step 60: ranks 0-7 stand still; the limit is 15 s"
EVICTED: tuple[Action, ...] = (Evict(node="n2"), Replace(node="n2", standby="n5"), Restart())


def opened(t: float) -> ev.IncidentOpened:
    return incidents.opened(t=t, symptom=Symptom.HANG, detail=DETAIL, detect_s=15.0, best_step=60)


def decided(t: float, actions: Sequence[Action], *suspects: str, carried_out: bool = True) -> ev.Decided:
    reason = f"{DETAIL}; 7 of 8 ranks wait; rank 3 is stopped"
    signature = Signature(kind=FaultKind.RANKS)
    verdict = Verdict(rung=4, blame=Blame.NODE, signature=signature, reason=reason, suspects=suspects)
    return ev.Decided(
        t=t, incident=1, actions=tuple(actions), reason="", verdict=verdict, carried_out=carried_out
    )


def test_a_journal_says_who_was_blamed_and_when() -> None:
    journal: list[ev.AnyEvent] = [
        opened(115.0),
        decided(118.0, EVICTED, "n2"),
        ev.NodeEvicted(t=118, node="n2", reason="", incident=1),
    ]
    found = read(PLANTED, journal, at=100.5)
    assert (found.symptom, found.actions, found.blamed, found.evicted) == (
        Symptom.HANG,
        EVICT,
        ("n2",),
        ("n2",),
    )
    assert (found.detect_s, found.decide_s) == (14.5, 3.0)
    assert found.ranks == (3,)  # whom the stacks name, not who stood still
    assert found.carried_out
    good = marks(found)
    assert good.right
    assert (good.root, good.in_time) == (True, True)


def test_a_decision_to_test_is_not_the_last_one() -> None:
    journal: list[ev.AnyEvent] = [
        opened(115.0),
        decided(116.0, [Diagnose(reason="")]),
        decided(140.0, EVICTED, "n2"),
    ]
    found = read(replace(PLANTED, expected=replace(HANG, actions=TESTED)), journal, at=100.0)
    assert found.actions == TESTED
    assert found.decide_s == 25.0
    assert marks(found).right


def test_in_observe_mode_a_decision_to_test_is_all_that_there_is() -> None:
    expected = replace(HANG, actions=TESTED).in_mode(OBSERVE)
    planted = replace(PLANTED, mode=OBSERVE, expected=expected)
    found = read(planted, [opened(114), decided(115, [Diagnose(reason="")], carried_out=False)], at=100.0)
    assert marks(found).right
    assert not marks(replace(found, carried_out=True)).right
    assert HANG.in_mode(OBSERVE) == HANG


def test_nothing_is_right_where_nothing_was_to_be_done() -> None:
    planted = replace(PLANTED, expected=Expected())
    assert marks(read(planted, [], at=100.0)).right
    assert not marks(read(planted, [opened(110.0)], at=100.0)).right
    dropped = read(planted, [ev.NodeEvicted(t=1, node="n9", reason="", incident=0)], at=0.0)
    assert not marks(dropped).right


def test_an_action_that_does_not_help_is_wrong() -> None:
    found = read(PLANTED, [opened(114.0), decided(116.0, EVICTED, "n2")], at=100.0)
    assert not marks(replace(found, went_on=False)).right


def test_late_is_not_wrong() -> None:
    late = marks(read(PLANTED, [opened(120.0), decided(121.0, EVICTED, "n2")], at=100.0))
    assert late.right
    assert late.in_time is False
    assert marks(read(PLANTED, [], at=100.0)).in_time is False


@pytest.mark.parametrize(
    ("blamed", "column"), [(("n2",), THE_NODE), (("n2", "n3"), WITH_OTHERS), (("n3",), ANOTHER), ((), NOBODY)]
)
def test_an_answer_falls_into_the_column_of_whom_it_blamed(blamed: tuple[str, ...], column: str) -> None:
    found = replace(PLANTED, blamed=blamed)
    assert confusion.column(found) == column
    assert confusion.table([found, found]) == {(THE_NODE, column): 2}


def test_a_group_that_goes_with_its_node_is_counted_apart_from_innocents() -> None:
    group = replace(PLANTED, blamed=("n2", "n3", "n4"))
    wrong = replace(PLANTED, blamed=("n4",))
    needless = replace(PLANTED, expected=Expected(), blamed=("n2",))
    outcomes = [group, wrong, needless]
    assert confusion.over_evictions(outcomes) == 2
    assert confusion.innocents(outcomes) == (wrong, needless)
    assert confusion.table([needless]) == {(NOBODY, THE_NODE): 1}


def test_figures_count_only_what_has_a_limit() -> None:
    good = read(PLANTED, [opened(114.0), decided(116.0, EVICTED, "n2")], at=100.0)
    none = replace(PLANTED, expected=Expected())
    found = confusion.figures([good, none])
    assert (found.cases, found.right, found.root, found.in_time) == (2, 2, (1, 1), (1, 1))
    assert (found.detect_s, found.decide_s, found.place_s) == (14.0, 2.0, None)
    assert confusion.figures([none]).detect_s is None


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("rank 3: SIGKILL on n2", (3,)),
        ("7 of 8 ranks wait; ranks 0-2, 5 are stopped", (0, 1, 2, 5)),
        ("nobody in sight", ()),
    ],
)
def test_ranks_are_told_in_words(words: str, ranks: tuple[int, ...]) -> None:
    assert ranks_in(words) == ranks


def test_the_matrix_has_enough_cases_and_chooses_ranks_by_the_seed() -> None:
    assert len({case.name.lower() for case in CASES}) == len(CASES) >= 25
    for case in CASES:
        ranks = [case.rank(seed, 8, (0, 1)) for seed in range(50)]
        assert ranks == [case.rank(seed, 8, (0, 1)) for seed in range(50)]
        assert set(ranks) == set(range(2, 8))
        assert {case.rank(seed, 8, range(8)) for seed in range(50)} == set(range(8))
