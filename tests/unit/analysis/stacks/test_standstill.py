"""Whom the flight recorder names when hosts run ahead of their GPUs: rates over many made-up trainings."""

from __future__ import annotations

import os
from collections import Counter
from enum import Enum

import pytest
from msgspec import structs

from slurm_robust.analysis.stacks import localise
from slurm_robust.analysis.stacks.localise import MAX_SHARE, covering, node_count
from slurm_robust.model.stacks import Frame, Localisation
from tests.unit.analysis.stacks.sample_stacks import TORCH, rank
from tests.unit.analysis.stacks.simulated_hang import Backend, Case, Fault, draw, stacks

MIN_RIGHT, MAX_INNOCENT = 0.97, 0.001
CASES = int(os.environ.get("SROBUST_STANDSTILLS", "200"))
"""Made-up trainings of each backend."""


class Judgement(Enum):
    """What a finding is worth."""

    RIGHT = "the rank, or a group with it"
    NOBODY = "nobody"
    BESIDE = "a group without it"
    NEIGHBOUR = "a group without it and without anybody silent, where it is silent"
    INNOCENT = "exactly an innocent rank"


def judge(case: Case, found: Localisation) -> Judgement:
    broken, silent, ranks = at_fault(case), case.missing | case.mute, set(found.ranks)
    if found.exact and (case.fault is Fault.NETWORK or ranks != broken):
        return Judgement.INNOCENT
    if not ranks:
        return Judgement.NOBODY
    if ranks >= broken or (found.silent and ranks & broken & silent):
        return Judgement.RIGHT
    return Judgement.NEIGHBOUR if broken & silent and not ranks & silent else Judgement.BESIDE


def at_fault(case: Case) -> set[int]:
    if case.fault is Fault.NETWORK:
        return set(min(case.instances(case.victim, case.stop).items())[1])
    return {case.victim}


def can_be_known(case: Case) -> bool:
    """Return whether those at fault are heard, and somebody who waits for them, and are few enough."""
    broken, silent = at_fault(case), case.missing | case.mute
    if broken & silent:
        return False
    # With nccl2, who waits in a kernel of sends and receives has nothing open, as the one it waits for.
    is_unseen = case.is_batched or any(silent.intersection(case.groups["pp"][r]) for r in broken)
    if case.backend is Backend.HOOKED and dict(case.layout.sizes)["pp"] > 1 and is_unseen:
        return False
    is_small = bool(covering(broken, case.layout, MAX_SHARE * node_count(case.layout)))
    if case.fault is Fault.NETWORK:
        return is_small and not _has_several_peers(case)
    if case.fault is Fault.GPU and case.backend is not Backend.TIMED:
        return False
    heard = (r for r in range(case.layout.world_size) if r not in silent and r != case.victim)
    return (is_small or case.backend is not Backend.HOOKED) and any(_waits_for(case, r) for r in heard)


def _has_several_peers(case: Case) -> bool:
    """Return whether a send or receive that does not end is seen only with those to the next neighbour."""
    call = case.call(case.victim, case.stop)
    is_one = call.what != "batch" and case.backend is not Backend.HOOKED
    return bool(call.peers) and not is_one and dict(case.layout.sizes)["pp"] > 2


def _waits_for(case: Case, r: int) -> bool:
    """Return whether this rank is in an operation of a group that its GPU waits in for the victim."""
    machine = case.standstill
    return any(
        case.victim in members and instance not in machine.done
        for instances in machine.started[r].values()
        for instance, members in instances.items()
    )


def rates(backend: Backend, cases: int, most: int) -> None:
    counts: Counter[tuple[Fault, bool, Judgement]] = Counter()
    for seed in range(cases):
        case = draw(seed, most, backend=backend)
        found = localise(stacks(case), case.layout, sorted(case.missing))
        assert not (found.silent and found.exact)
        by_recorder = found.reason.startswith("flight recorder")
        nothing = case.missing | case.mute if by_recorder else case.missing  # others show what they call
        if found.ranks and nothing.issuperset(found.ranks):
            assert found.silent, "who is named for silence alone is marked, so that it convicts nobody"
        counts[case.fault, can_be_known(case), judge(case, found)] += 1
    total = Counter(judgement for *_, judgement in counts.elements())
    known = [judgement for _, is_known, judgement in counts.elements() if is_known]
    right, innocent = known.count(Judgement.RIGHT) / len(known), total[Judgement.INNOCENT] / cases
    print(f"\n{backend.value}: {cases} cases, an innocent exactly {innocent:.2%},")
    print(f"right {right:.1%} of {len(known)} that can be known")
    for fault in Fault:
        print(f"  {fault.value}")
        for told, of in (("can be known", True), ("cannot", False)):
            print(f"    {told}: { {j.name: n for (f, k, j), n in counts.items() if f is fault and k is of} }")
    assert right >= MIN_RIGHT
    assert innocent <= MAX_INNOCENT
    assert total[Judgement.NEIGHBOUR] == 0


@pytest.mark.parametrize("backend", Backend)
def test_who_holds_the_others_up_is_named_in_small_worlds(backend: Backend) -> None:
    rates(backend, 25, 64)


def test_the_calls_in_libraries_show_exactly_who_has_nothing_open_and_is_at_work() -> None:
    """As the second sample of a hang has them for the few in question."""
    gemm, asked = Frame(function="at::native::mm", file=f"{TORCH}/lib/libtorch_cuda.so"), 0
    for seed in range(150):
        case = draw(seed, 64, backend=Backend.HOOKED)
        if case.fault is not Fault.HOST or not can_be_known(case):
            continue
        taken = {stack.rank: stack for stack in stacks(case)}
        at_work = rank(case.victim, (gemm, *case.places[case.victim]), state="R")
        taken[case.victim] = structs.replace(at_work, idle=taken[case.victim].idle, native=True)
        found = localise(list(taken.values()), case.layout, sorted(case.missing))
        assert (found.ranks, found.exact) == ((case.victim,), True), (seed, found)
        asked += 1
    assert asked >= 15


@pytest.mark.slow
@pytest.mark.parametrize("backend", Backend)
def test_who_holds_the_others_up_is_named_and_no_innocent(backend: Backend) -> None:
    """Without timing a GPU that hangs is placed in its group at best, which may be too large to be blamed."""
    rates(backend, CASES, 1024)
