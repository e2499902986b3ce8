"""The replay's algebra: a planted fault is always found, alone where m <= n; and when nobody is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.analysis.replay import (
    CannotReplay,
    Grid,
    GroupRun,
    GroupSeen,
    ReplayPhase,
    ReplayVerdict,
    conclude,
    fit,
    groups,
    intersect,
    is_settled,
    judge,
    nodes_of,
)
from slurm_robust.model.findings import Outcome
from slurm_robust.model.layout import ParallelLayout

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
H, V = ReplayPhase.HORIZONTAL, ReplayPhase.VERTICAL


def layout(nproc: int, *, tp: int = 1, pp: int = 1, dp: int = 1) -> ParallelLayout:
    return ParallelLayout(nproc_per_node=nproc, sizes=(("tp", tp), ("dp", dp), ("pp", pp)))


def replay(
    grid: Grid, nodes: Sequence[str], run: Callable[[ReplayPhase, tuple[str, ...]], GroupRun]
) -> ReplayVerdict:
    """Both phases, each group doing what ``run`` says."""

    def phase(which: ReplayPhase) -> tuple[GroupSeen, ...]:
        return judge([run(which, nodes_of(grid, part, nodes)) for part in groups(which, grid)])

    horizontal = phase(H)
    return conclude(grid, nodes, horizontal, () if is_settled(horizontal) else phase(V))


def sound(nodes: tuple[str, ...], bits: str = "right") -> GroupRun:
    return GroupRun(nodes=nodes, steps=("same", bits), kind=f"{len(nodes)} nodes")


def corrupting(*bad: str) -> Callable[[ReplayPhase, tuple[str, ...]], GroupRun]:
    return lambda phase, nodes: sound(nodes, "wrong" if set(bad) & set(nodes) else "right")


def crashing(*bad: str) -> Callable[[ReplayPhase, tuple[str, ...]], GroupRun]:
    def run(phase: ReplayPhase, nodes: tuple[str, ...]) -> GroupRun:
        hit = set(bad) & set(nodes)
        return GroupRun(nodes=nodes, trouble=f"{hit} crashed") if hit else sound(nodes)

    return run


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(count))


# -- the grid -----------------------------------------------------------------------------------------------


def test_the_example_of_the_paper() -> None:
    grid = Grid(units=24, m=4, k=1)
    assert groups(H, grid)[3] == (12, 13, 14, 15)
    assert groups(V, grid)[1] == (1, 7, 13, 19)
    found = intersect(
        grid, [FAIL if a == 3 else PASS for a in range(6)], [FAIL if b == 1 else PASS for b in range(6)]
    )
    assert (found.units, found.a, found.b, found.is_ambiguous) == ((13,), (3,), (1,), False)


@pytest.mark.parametrize(
    ("nodes", "world", "expected"),
    [
        (1200, layout(8, tp=8, pp=8, dp=150), (16, 75, 2, 1)),
        (2048, layout(8, tp=8, pp=16, dp=128), (32, 64, 2, 1)),
        (256, layout(8, tp=8, pp=8, dp=32), (16, 16, 2, 1)),
        (600, layout(8, tp=4, pp=8, dp=150), (8, 75, 2, 1)),  # two TP groups in a node: m = k * PP / 2
        (48, layout(8, tp=16, pp=2, dp=12), (4, 6, 2, 2)),  # two nodes hold one TP group
        (14, layout(1, pp=2, dp=7), (2, 7, 1, 1)),  # DP is prime: k >= 2 would have two suspects
        (34, layout(1, pp=2, dp=17), (4, 8, 2, 1)),  # and here it leaves a shorter group
        (8, layout(1, dp=8), (2, 4, 2, 1)),
        (64, layout(8, dp=512), (8, 8, 64, 1)),
        (64, layout(8, tp=8, dp=64), (8, 8, 8, 1)),
        (4, layout(1, dp=4), (1, 4, 1, 1)),  # two groups of two would only say that one is wrong
        (9, layout(1, pp=2, dp=4), (2, 4, 1, 1)),  # one node more than the training has: it is replayed too
    ],
)
def test_sizes_of_groups(nodes: int, world: ParallelLayout, expected: tuple[int, int, int, int]) -> None:
    grid = fit(nodes, world)
    assert (grid.m, grid.n, grid.k, grid.unit_nodes) == expected


def test_one_replica_cannot_be_compared() -> None:
    with pytest.raises(CannotReplay, match="7 nodes make fewer than two groups of 4"):
        fit(7, layout(2, tp=2, pp=4, dp=2))


@given(units=st.integers(2, 200), m=st.integers(1, 40))
def test_every_unit_is_in_one_group_of_each_phase(units: int, m: int) -> None:
    grid = Grid(units=units, m=min(m, units))
    for phase in ReplayPhase:
        parts = groups(phase, grid)
        assert sorted(x for part in parts for x in part) == list(range(units))
        assert [len(part) for part in parts] == [grid.m] * grid.n + ([grid.rest] if grid.rest else [])


@given(units=st.integers(2, 200), m=st.integers(1, 14))
def test_crossing_groups_share_one_unit_at_most_where_m_fits_into_n(units: int, m: int) -> None:
    grid = Grid(units=units, m=min(m, units))
    most = max(len(set(a) & set(b)) for a in groups(H, grid) for b in groups(V, grid))
    assert most <= 1 or not grid.is_unique


# -- a planted fault ----------------------------------------------------------------------------------------

WORLDS = st.builds(
    layout,
    st.sampled_from((1, 2, 4, 8)),
    tp=st.sampled_from((1, 2, 4, 8, 16)),
    pp=st.integers(1, 6),
    dp=st.integers(1, 24),
)


@given(count=st.integers(3, 64), data=st.data())
def test_a_corruption_is_found_exactly_in_any_number_of_nodes(count: int, data: st.DataObject) -> None:
    nodes, bad = names(count), f"n{data.draw(st.integers(0, count - 1))}"
    verdict = replay(fit(count, layout(1, dp=count)), nodes, corrupting(bad))
    assert verdict.suspects == (bad,)
    assert not verdict.is_ambiguous


@given(count=st.integers(2, 64), data=st.data())
def test_a_crash_is_found_exactly_in_any_number_of_nodes(count: int, data: st.DataObject) -> None:
    nodes, bad = names(count), f"n{data.draw(st.integers(0, count - 1))}"
    verdict = replay(fit(count, layout(1, dp=count)), nodes, crashing(bad))
    assert verdict.suspects == (bad,)
    assert not verdict.is_ambiguous


@given(count=st.integers(2, 64), world=WORLDS, data=st.data())
def test_a_fault_is_found_in_any_layout(count: int, world: ParallelLayout, data: st.DataObject) -> None:
    try:
        grid = fit(count, world)
    except CannotReplay:
        return
    covered = grid.units * grid.unit_nodes
    nodes, bad = names(count), f"n{data.draw(st.integers(0, covered - 1))}"
    for fault in (crashing(bad), corrupting(bad)):
        verdict = replay(grid, nodes, fault)
        if grid.n >= 3 or fault(H, (bad,)).trouble:
            assert bad in verdict.suspects
            if grid.is_unique:
                assert len(verdict.suspects) == grid.unit_nodes
        else:
            assert verdict.suspects == ()  # two groups that differ: either may be right
            assert "no verdict" in verdict.reason or "no majority" in verdict.reason


@given(count=st.integers(2, 64), world=WORLDS)
def test_nobody_is_named_without_a_fault(count: int, world: ParallelLayout) -> None:
    try:
        grid = fit(count, world)
    except CannotReplay:
        return
    verdict = replay(grid, names(count), corrupting())
    assert (verdict.suspects, verdict.a, verdict.b) == ((), (), ())


@given(side=st.integers(5, 9), data=st.data())
def test_of_several_faults_none_is_missed_without_a_rest(side: int, data: st.DataObject) -> None:
    nodes = names(side * side)
    # Of 5 groups and more, two faulty ones leave a majority.
    bad = data.draw(st.sets(st.sampled_from(nodes), min_size=2, max_size=2))
    verdict = replay(Grid(units=side * side, m=side), nodes, crashing(*bad))
    assert bad <= set(verdict.suspects)
    assert len(verdict.suspects) <= 4
    assert verdict.is_ambiguous


def test_only_cells_that_hold_a_unit_count() -> None:
    grid = Grid(units=8, m=2)  # 2 x 4: of 16 cells 8 are empty
    found = intersect(grid, [FAIL, FAIL, PASS, PASS], [FAIL, PASS, PASS, FAIL])
    assert found.units == (0, 3)  # row 0 is {0, 1}, row 1 {2, 3}, columns {0, 4} and {3, 7}
    assert intersect(grid, [FAIL, PASS, PASS, PASS], [PASS, PASS, FAIL, PASS]).units == ()


# -- the oracle ---------------------------------------------------------------------------------------------


def outcomes(*runs: GroupRun) -> list[Outcome]:
    return [seen.outcome for seen in judge(runs)]


def test_groups_of_different_kinds_are_not_compared() -> None:
    h100 = [GroupRun(nodes=(f"h{i}",), steps=("x",), kind="H100") for i in range(2)]
    l20 = [GroupRun(nodes=(f"l{i}",), steps=("y",), kind="L20") for i in range(2)]
    assert outcomes(*h100, *l20) == [PASS] * 4


def test_a_tie_has_no_verdict() -> None:
    runs = [GroupRun(nodes=(n,), steps=(bits,)) for n, bits in zip("abcd", "xxyy", strict=True)]
    assert outcomes(*runs) == [UNKNOWN] * 4
    assert outcomes(*runs[:3]) == [PASS, PASS, FAIL]


def test_the_step_of_the_difference_is_told() -> None:
    runs = [GroupRun(nodes=(n,), steps=("p", "q", bits)) for n, bits in zip("abc", "xxy", strict=True)]
    short = GroupRun(nodes=("d",), steps=("p", "q"))
    seen = judge([*runs, runs[0], short])
    assert seen[2].text == "other bits than the majority from step 2 on"
    assert seen[4].text == "2 steps where the majority made 3"


def test_where_most_groups_fail_the_script_is_to_blame() -> None:
    nan = [GroupRun(nodes=(n,), trouble="NaN at step 3") for n in "abc"]
    assert outcomes(*nan, GroupRun(nodes=("d",), steps=("x",))) == [UNKNOWN] * 4
    verdict = conclude(Grid(units=3, m=1), "abc", judge(nan))
    assert verdict.suspects == ()
    assert verdict.reason == "no verdict: in 3 of 3 groups: NaN at step 3; this speaks against no node"


def test_a_group_that_did_not_run_counts_for_nothing() -> None:
    idle = GroupRun(nodes=("c",), left_out="too few nodes")
    runs = [GroupRun(nodes=("a",), trouble="crash"), GroupRun(nodes=("b",), steps=("x",)), idle]
    assert outcomes(*runs) == [FAIL, UNKNOWN, UNKNOWN]


# -- the verdict --------------------------------------------------------------------------------------------


def test_a_fault_that_shows_only_once_is_told_and_nobody_named() -> None:
    def run(phase: ReplayPhase, nodes: tuple[str, ...]) -> GroupRun:
        return sound(nodes, "wrong" if phase is H and "n3" in nodes else "right")

    verdict = replay(Grid(units=8, m=2), names(8), run)
    assert (verdict.suspects, verdict.a, verdict.b) == ((), (1,), ())
    assert verdict.reason.startswith(
        "no node is common to the faulty groups of both phases: horizontal group 1"
    )
    assert "n[2-3]" in verdict.reason


def test_the_verdict_says_why() -> None:
    verdict = replay(Grid(units=8, m=2), names(8), corrupting("n5"))
    assert verdict.reason == (
        "n5: common to horizontal group 2 (n[4-5]: other bits than the majority from step 1 on) "
        "and vertical group 1 (n[1,5]: other bits than the majority from step 1 on)"
    )
    diagnosis = verdict.diagnosis()
    assert diagnosis.suspects == ("n5",)
    failed = [(r.test, r.node, r.peers) for r in diagnosis.results if r.outcome is FAIL]
    assert failed == [
        ("replay, horizontal", "n4", ("n5",)),
        ("replay, horizontal", "n5", ("n4",)),
        ("replay, vertical", "n1", ("n5",)),
        ("replay, vertical", "n5", ("n1",)),
    ]
    assert len(diagnosis.results) == 16


def test_nothing_found_in_the_first_phase_spares_the_second() -> None:
    verdict = replay(Grid(units=8, m=2), names(8), corrupting())
    assert verdict.vertical == ()
    assert verdict.reason == "all 4 groups computed the same bits: the fault does not show in a replay"
