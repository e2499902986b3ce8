"""Groups in whole nodes, against a search over all ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.analysis.stacks.localise import covering, node_count, nodes_of
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.util.text import fold_ranks
from tests.unit.analysis.stacks.sample_stacks import PAPER
from tests.unit.analysis.stacks.test_properties import layouts


@pytest.mark.parametrize(
    ("ranks", "text"), [((), ""), ((3,), "3"), ((1, 0, 2), "0-2"), ((5, 0, 1, 9), "0-1,5,9"), ((4, 4), "4")]
)
def test_ranks_are_folded(ranks: tuple[int, ...], text: str) -> None:
    assert fold_ranks(ranks) == text


def test_a_group_inside_a_node_is_preferred_to_one_of_several_nodes() -> None:
    names = [group.name for group in covering({24, 25}, PAPER, 8)]
    assert names[:2] == ["tp 24-25", "node 24-25"]
    assert covering({24, 26}, PAPER, 8)[0].name == "pp 24-31"


def test_a_part_of_a_node_is_answered_with_the_node() -> None:
    layout = ParallelLayout.fit(32, 8, {"tp": 2, "pp": 2}, "tp-pp-dp")
    assert [group.name for group in covering({8, 9}, layout, 1)] == ["node 8-15"]


def test_a_group_that_crosses_nodes_is_rounded_up_to_them() -> None:
    layout = ParallelLayout.fit(32, 8, {"tp": 2, "pp": 2}, "tp-dp-pp")
    found = covering({1, 17}, layout, 2)
    assert [(g.name, g.size) for g in found] == [("pp 0-7,16-23", 2), ("tp-pp 0-7,16-23", 4)]


def by_search(ranks: set[int], layout: ParallelLayout) -> list[frozenset[int]]:
    """Nodes of every combination of dimensions and every rank, in which ``ranks`` lie."""
    names = [name for name, size in layout.sizes if size > 1]
    found = []
    places = {rank: layout.coordinates(rank) for rank in range(layout.world_size)}
    wanted = nodes_of(ranks, layout)
    for count in range(1, len(names)):
        for free in itertools.combinations(names, count):
            fixed = [name for name, _ in layout.sizes if name not in free]
            for start in range(layout.world_size):
                same = {r for r, p in places.items() if all(p[n] == places[start][n] for n in fixed)}
                if len(nodes_of(same, layout)) > 1 and wanted <= nodes_of(same, layout):
                    found.append(nodes_of(same, layout))
    return found


@settings(max_examples=40, deadline=None)
@given(st.data(), layouts(most=48))
def test_the_smallest_group_is_found(data: st.DataObject, layout: ParallelLayout) -> None:
    ranks = data.draw(st.sets(st.integers(0, layout.world_size - 1), min_size=1, max_size=4))
    expected = [len(nodes) for nodes in by_search(ranks, layout)]
    if len(nodes_of(ranks, layout)) == 1:
        expected.append(1)
    found = covering(ranks, layout, node_count(layout))
    assert [g.nodes for g in found[:1]] == sorted(expected)[:1]
    for group in found:
        assert group.ranks >= ranks
        assert len(nodes_of(group.ranks, layout)) == group.nodes
