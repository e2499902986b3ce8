"""The plan of the storm follows from its seed; who was evicted for nothing follows from the journal."""

from __future__ import annotations

import itertools

from benchmarks.fault_storm.plan import CONVICTS, LASTS_S, Kind, plan
from benchmarks.fault_storm.verdict import GRACE_S, Planted, by_kind, innocents, unequal
from slurm_robust.controller.shrink import TAKEN_BY_SLURM
from slurm_robust.model import events as ev


def test_the_plan_is_a_function_of_the_seed() -> None:
    assert plan(1, 50) == plan(1, 50)
    assert plan(1, 50) != plan(2, 50)
    assert plan(1, 10) == plan(1, 50)[:10]


def test_a_plan_has_all_kinds_and_some_faults_midway() -> None:
    for seed in range(20):
        faults = plan(seed, 50)
        assert [fault.number for fault in faults] == list(range(1, 51))
        assert {fault.kind for fault in faults[: len(Kind)]} == {*Kind}
        midway = [fault.midway_s is not None for fault in faults]
        assert any(midway)
        assert not midway[0]
        assert not any(first and second for first, second in itertools.pairwise(midway))
        for fault in faults:
            low, high = LASTS_S.get(fault.kind, (0.0, 0.0))
            assert low <= fault.lasts_s <= high
            assert 0 <= fault.pick < 1


def fault(number: int, kind: Kind, node: str, *, t: float = 100.0, midway: bool = False) -> Planted:
    return Planted(number, kind, midway, node, node, t, mended=t + 10, new_step_s=float(number))


def evicted(node: str, t: float) -> ev.NodeEvicted:
    return ev.NodeEvicted(t=t, node=node, reason="", incident=1)


def test_an_eviction_needs_a_fault_that_may_evict() -> None:
    planted = [fault(1, Kind.POWER_CUT, "n1"), fault(2, Kind.KILL_RANK, "n2")]
    assert Kind.KILL_RANK not in CONVICTS
    guilty, late = evicted("n1", 105.0), evicted("n1", 110.0 + GRACE_S + 1)
    early, other = evicted("n1", 99.0), evicted("n2", 105.0)
    assert innocents([guilty, late, early, other], planted) == [late, early, other]


def test_slurm_may_take_the_node_of_a_dead_slurmd() -> None:
    planted = [fault(1, Kind.KILL_SLURMD, "n1"), fault(2, Kind.KILL_SLURMD, "n2")]
    taken = ev.NodeGivenBack(t=120.0, node="n1", how=TAKEN_BY_SLURM)
    given = ev.NodeGivenBack(t=120.0, node="n2", how="the epilog tests it")
    first, second = evicted("n1", 105.0), evicted("n2", 105.0)
    assert innocents([first, second, taken, given], planted) == [second]


def test_times_are_of_faults_that_came_alone() -> None:
    planted = [
        fault(1, Kind.KILL_RANK, "n1"),
        fault(2, Kind.KILL_RANK, "n1"),
        fault(3, Kind.POWER_CUT, "n2", midway=True),
        fault(4, Kind.KILL_RANK, "n1"),
    ]
    assert {kind: (s.low, s.high) for kind, s in by_kind(planted).items()} == {
        Kind.KILL_RANK.value: (1.0, 4.0)
    }


def test_a_step_with_two_hashes_or_a_wrong_one_is_unequal() -> None:
    expected = {0: {"a"}, 1: {"b"}, 2: {"c"}}
    assert unequal(expected, expected) == []
    assert unequal({0: {"a"}, 1: {"b", "x"}, 2: {"y"}, 3: {"d"}}, expected) == [1, 2, 3]
