"""Who is slow is flagged again and again."""

from __future__ import annotations

from slurm_robust.analysis.stacks import localise, vote
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import Localisation
from tests.unit.analysis.stacks.sample_stacks import ALL_GATHER, COMPUTE, IRECV, PAPER, world

NOBODY = Localisation(reason="all ranks do the same")


def flags(*ranks: int) -> Localisation:
    return localise(world(PAPER, dict.fromkeys(ranks, COMPUTE)), PAPER)


def test_a_rank_that_most_rounds_name_is_named_exactly() -> None:
    found = vote([flags(17), NOBODY, flags(17), flags(3), flags(17)], PAPER)
    assert (found.ranks, found.exact, found.group) == ((17,), True, "")
    assert "3 of 5" in found.reason
    assert 0 < found.confidence < flags(17).confidence


def test_a_group_that_most_rounds_flag_is_blamed() -> None:
    """The paper's rule, with other outliers in every look."""
    rounds = [
        localise(world(PAPER, {a: ALL_GATHER, b: IRECV}), PAPER) for a, b in ((24, 28), (26, 30), (24, 30))
    ]
    assert {found.group for found in rounds} == {"pp 24-31"}
    found = vote([*rounds, NOBODY, flags(3)], PAPER)
    assert (found.group, found.exact, found.ranks) == ("pp 24-31", False, tuple(range(24, 32)))


def test_several_ranks_of_one_node_are_answered_with_the_node() -> None:
    layout = ParallelLayout.fit(256, 8, {"tp": 8, "pp": 4}, "tp-pp-dp")
    rounds = [localise(world(layout, {number: COMPUTE}), layout) for number in (17, 18, 19, 17, 40)]
    found = vote(rounds, layout)
    assert (found.group, found.exact) == ("tp 16-23", False)


def test_a_large_group_is_not_blamed_for_what_chance_puts_into_it() -> None:
    assert vote([flags(24), flags(27), flags(30), flags(3), flags(9)], PAPER).ranks == ()
    assert vote([flags(24), flags(27), flags(30), flags(28), flags(25)], PAPER).group == "pp 24-31"


def test_ties_and_weak_majorities_are_no_verdict() -> None:
    for rounds in (
        [flags(17), flags(17), flags(3), flags(3), NOBODY],
        [flags(17), flags(17), NOBODY, NOBODY],
        [flags(17), flags(3)],
        [NOBODY] * 5,
    ):
        found = vote(rounds, PAPER)
        assert (found.ranks, found.confidence) == ((), 0.0)
        assert "no majority" in found.reason


def test_equally_small_groups_are_a_tie() -> None:
    layout = ParallelLayout.fit(64, 1, {"tp": 4, "pp": 4}, "tp-pp-dp")
    once, tp, pp = (Localisation(ranks=ranks, reason="slow") for ranks in ((0,), (0, 1, 2, 3), (0, 4, 8, 12)))
    found = vote([once, once, tp, pp], layout)
    assert found.ranks == ()
    assert "equally often" in found.reason


def test_without_rounds_there_is_no_verdict() -> None:
    assert vote([], PAPER).ranks == ()
