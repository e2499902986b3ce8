"""Whom the flight recorder names when hosts run ahead of their GPUs: rates over many made-up trainings."""

from __future__ import annotations

from collections import Counter

import pytest

from slurm_robust.analysis.stacks import localise
from slurm_robust.analysis.stacks.localise import MAX_SHARE, node_count, nodes_of
from slurm_robust.model.stacks import Localisation
from tests.unit.analysis.stacks.simulated_hang import Case, Fault, draw, stacks

MIN_RIGHT, MAX_INNOCENT = 0.97, 0.01


def judge(case: Case, found: Localisation) -> str:
    """``right``, ``innocent``, ``nobody``, or ``unknown``: nobody, where nothing could be known."""
    call = case.call(case.victim, case.stop)
    broken = set(case.members(case.victim, call)) if case.fault is Fault.NETWORK else {case.victim}
    silent = case.missing | case.mute
    if case.fault is not Fault.NETWORK:
        if found.ranks == (case.victim,):
            return "right"
        is_group = not found.exact and case.victim in found.ranks
        if is_group and (case.victim in silent or not case.is_timed):
            return "right"
    elif found.ranks and not found.exact and broken <= set(found.ranks):
        return "right"
    if found.ranks:
        return "innocent"
    return "nobody" if _can_be_known(case, broken) else "unknown"


def _can_be_known(case: Case, broken: set[int]) -> bool:
    silent = case.missing | case.mute
    if case.fault is Fault.HOST:
        return case.victim not in silent
    if case.fault is Fault.GPU:
        return case.is_timed and case.victim not in silent
    is_small = len(nodes_of(broken, case.layout)) <= MAX_SHARE * node_count(case.layout)
    return is_small and not broken & silent


@pytest.mark.slow
@pytest.mark.parametrize(("is_timed", "cases"), [(True, 150), (False, 80)])
def test_who_holds_the_others_up_is_named_and_no_innocent(is_timed: bool, cases: int) -> None:
    """Without timing a GPU that hangs is placed in its group at best, which may be too large to be blamed."""
    counts: Counter[tuple[Fault, str]] = Counter()
    for seed in range(cases):
        case = draw(seed, is_timed=is_timed)
        verdict = judge(case, localise(stacks(case), case.layout, sorted(case.missing)))
        counts[case.fault, verdict] += 1
    total = Counter(verdict for _, verdict in counts.elements())
    right = total["right"] / (total["right"] + total["nobody"] + total["innocent"])
    innocent = total["innocent"] / cases
    print(f"timing {is_timed}: right {right:.1%}, innocent {innocent:.1%}, {dict(total)}")
    for fault in Fault:
        print(f"  {fault.value}: { {verdict: n for (f, verdict), n in counts.items() if f is fault} }")
    assert right >= MIN_RIGHT
    assert innocent <= MAX_INNOCENT
