"""What must hold in every layout, whatever the ranks do."""

from __future__ import annotations

import itertools
import math

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from slurm_robust.analysis.stacks import MAX_SHARE, localise, vote
from slurm_robust.analysis.stacks.localise import node_count, nodes_of
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import RankStacks
from tests.unit.analysis.stacks.sample_stacks import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    COMPUTE,
    DATA,
    IRECV,
    ISEND,
    PAPER,
    Frames,
    rank,
    world,
)

ORDERS = ["-".join(order) for order in itertools.permutations(("tp", "cp", "pp", "dp"))]
WAITS: tuple[Frames, ...] = (ALL_GATHER, BARRIER, IRECV, ISEND)
ANYTHING: tuple[Frames, ...] = (*WAITS, ALL_REDUCE, COMPUTE, DATA, ())


@st.composite
def layouts(draw: st.DrawFn, most: int = 128) -> ParallelLayout:
    """Layouts of all orders; whole nodes of 1, 2, 4 or 8 ranks."""
    sizes = {name: draw(st.sampled_from((1, 2, 4))) for name in ("tp", "cp", "pp")}
    total = math.prod(sizes.values()) * draw(st.sampled_from((1, 2, 3, 4, 8)))
    assume(2 <= total <= most)
    per_node = draw(st.sampled_from([n for n in (1, 2, 4, 8) if total % n == 0]))
    return ParallelLayout.fit(total, per_node, sizes, draw(st.sampled_from(ORDERS)))


@st.composite
def anything(draw: st.DrawFn) -> tuple[ParallelLayout, list[RankStacks]]:
    layout = draw(layouts(most=32))
    some = st.tuples(st.sampled_from(ANYTHING), st.sampled_from("SSSSRDTZ"))
    ranks = st.integers(0, layout.world_size - 1)
    special = draw(st.dictionaries(ranks, some, max_size=8))
    made = {number: rank(number, frames, state=state) for number, (frames, state) in special.items()}
    return layout, world(layout, made, draw(st.sampled_from(ANYTHING)))


@settings(max_examples=45, deadline=None)
@given(st.data(), layouts())
def test_outliers_planted_in_one_group_are_covered(data: st.DataObject, layout: ParallelLayout) -> None:
    """Up to the share that may be blamed at all, and but for whole stages, whose code may differ."""
    groups = [g for name, size in layout.sizes if size > 1 for g in layout.groups(name)]
    group = data.draw(st.sampled_from(groups))
    planted = data.draw(st.sets(st.sampled_from(group), min_size=1))
    assume(len(nodes_of(group, layout)) <= MAX_SHARE * node_count(layout))
    sizes = dict(layout.sizes)
    stage = layout.world_size // sizes["pp"]
    assume(len(planted) < 0.75 * stage)
    doing = {number: data.draw(st.sampled_from(WAITS)) for number in sorted(planted)}
    found = localise(world(layout, doing), layout)
    assert set(found.outliers) == planted
    assert set(found.ranks) >= planted
    assert nodes_of(found.ranks, layout) <= nodes_of(group, layout), "no more than the group's nodes"


@settings(max_examples=40, deadline=None)
@given(st.data(), layouts())
def test_a_rank_that_does_not_wait_is_always_named_alone(data: st.DataObject, layout: ParallelLayout) -> None:
    number = data.draw(st.integers(0, layout.world_size - 1))
    found = localise(world(layout, {number: data.draw(st.sampled_from((COMPUTE, DATA, ())))}), layout)
    assert (found.ranks, found.exact) == ((number,), True)


@settings(max_examples=45, deadline=None)
@given(anything(), st.sampled_from((0.05, MAX_SHARE, 0.4)))
def test_never_more_than_the_share_is_blamed(
    case: tuple[ParallelLayout, list[RankStacks]], share: float
) -> None:
    layout, stacks = case
    found = localise(stacks, layout, most_share=share)
    nodes, total = len(nodes_of(found.ranks, layout)), node_count(layout)
    if found.exact:
        assert nodes <= max(1, share * total) or 2 * nodes < total
    else:
        assert nodes <= share * total
    assert found.reason
    assert set(found.ranks) <= set(range(layout.world_size))
    if found.exact:
        assert set(found.ranks) <= set(found.outliers)


@settings(max_examples=40, deadline=None)
@given(anything(), st.randoms())
def test_the_order_of_the_answers_changes_nothing(
    case: tuple[ParallelLayout, list[RankStacks]], random: object
) -> None:
    layout, stacks = case
    shuffled = list(stacks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert localise(shuffled, layout) == localise(stacks, layout)


@settings(max_examples=30, deadline=None)
@given(anything())
def test_five_equal_rounds_vote_for_what_each_saw(case: tuple[ParallelLayout, list[RankStacks]]) -> None:
    layout, stacks = case
    found = localise(stacks, layout)
    voted = vote([found] * 5, layout)
    assert (voted.ranks, voted.exact) == (found.ranks, found.exact)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sets(st.integers(0, 31), max_size=2), min_size=1, max_size=7))
@example([{0}, {31}, {0}, {31}])
def test_a_vote_needs_a_majority(flagged: list[set[int]]) -> None:
    rounds = [localise(world(PAPER, dict.fromkeys(ranks, COMPUTE)), PAPER) for ranks in flagged]
    voted = vote(rounds, PAPER)
    inside = [found for found in rounds if found.ranks and set(found.ranks) <= set(voted.ranks)]
    assert not voted.ranks or 2 * len(inside) > len(rounds)
    assert len(nodes_of(voted.ranks, PAPER)) <= MAX_SHARE * node_count(PAPER)
