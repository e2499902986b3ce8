"""Coordinates and groups of ranks: every rank in exactly one group per dimension, as Megatron-LM has it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model.layout import DoesNotDivide, ParallelLayout

sizes = st.fixed_dictionaries({name: st.sampled_from([1, 2, 3, 4]) for name in ("tp", "cp", "ep", "pp")})
orders = st.permutations(["tp", "cp", "ep", "dp", "pp"]).map("-".join)


def test_megatrons_order() -> None:
    """The example in Megatron-LM's parallel_state: 16 ranks, TP 2, PP 4."""
    layout = ParallelLayout.fit(16, 8, {"tp": 2, "cp": 1, "ep": 1, "pp": 4}, "tp-cp-ep-dp-pp")
    assert layout.groups("tp") == [(r, r + 1) for r in range(0, 16, 2)]
    assert layout.groups("pp") == [(r, r + 4, r + 8, r + 12) for r in range(4)]
    assert layout.groups("dp") == [(r + s, r + s + 2) for s in (0, 4, 8, 12) for r in (0, 1)]
    assert layout.identity() == "16x8:tp2-cp1-ep1-dp2-pp4"


@given(sizes=sizes, dp=st.integers(1, 4), order=orders)
def test_groups_are_the_ranks_that_differ_in_one_dimension(
    sizes: dict[str, int], dp: int, order: str
) -> None:
    world = dp * sizes["tp"] * sizes["cp"] * sizes["ep"] * sizes["pp"]
    layout = ParallelLayout.fit(world, 1, sizes, order)
    places = [layout.coordinates(rank) for rank in range(world)]
    assert len({tuple(p.items()) for p in places}) == world
    assert layout.world_size == world
    for name, size in layout.sizes:
        groups = layout.groups(name)
        assert sorted(r for g in groups for r in g) == list(range(world))
        for group in groups:
            assert [places[r][name] for r in group] == list(range(size))
            assert len({tuple(v for k, v in places[r].items() if k != name) for r in group}) == 1
            named = (name, group[0])
            assert all((named in layout.groups_of(r)) == (size > 1) for r in group)


@given(sizes=sizes, others=sizes, order=orders)
def test_equal_identity_means_equal_layout(sizes: dict[str, int], others: dict[str, int], order: str) -> None:
    one = ParallelLayout.fit(4**4 * 3**4, 1, sizes, order)
    other = ParallelLayout.fit(4**4 * 3**4, 1, others, order)
    assert (one.identity() == other.identity()) == (one == other)


def test_sizes_that_do_not_divide() -> None:
    with pytest.raises(DoesNotDivide, match="tp 4 = 4 does not divide the world of 6 ranks"):
        ParallelLayout.fit(6, 2, {"tp": 4, "cp": 1, "ep": 1, "pp": 1}, "tp-cp-ep-dp-pp")


@given(sizes=sizes, dp=st.integers(1, 4), order=orders, nproc=st.integers(1, 8))
def test_a_layout_can_be_read_back_from_its_identity(
    sizes: dict[str, int], dp: int, order: str, nproc: int
) -> None:
    layout = ParallelLayout.fit(dp * math.prod(sizes.values()), nproc, sizes, order)
    assert ParallelLayout.from_identity(layout.identity()) == layout


@pytest.mark.parametrize("text", ["", "16x2", "8x2:tp2-dp2", "16x2:tp2-dp8-", "16x2:tp-dp8"])
def test_a_text_that_is_not_an_identity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a layout|ranks, not"):
        ParallelLayout.from_identity(text)
