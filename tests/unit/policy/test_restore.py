"""What is restored: the newest sealed step in reach, each part from the nearest copy, nothing else ever."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.model.copies import SHARED, CheckpointId, Copy, RestoreSource, Tier
from slurm_robust.model.errors import UNUSABLE_COPY
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import Fault, NodeExit, Symptom
from slurm_robust.model.layout import Placement
from slurm_robust.model.state import JobState
from slurm_robust.model.world import Attempt
from slurm_robust.policy import decide
from slurm_robust.policy.restore import (
    Holding,
    against,
    choose,
    chosen,
    failed_to_restore,
    format_source,
    retained,
    seal,
    spoils,
    until,
)
from tests.builders.rules import rules
from tests.builders.state import changed, job_state
from tests.there import there

TWO = Placement(slots=("n1", "n2"), nproc_per_node=1)
S = CheckpointId(step=5, generation=1)
STORED = {S: Tier.STORAGE}


def copy(rank: int, step: int = 5, tier: Tier = Tier.MEMORY, generation: int = 1) -> Copy:
    return Copy(rank=rank, generation=generation, step=step, tier=tier)


def held(**nodes: list[Copy]) -> list[Holding]:
    return [
        Holding(node=node, copies=tuple(copies), address=f"10.0.0.{node[1:]}", port=5000)
        for node, copies in nodes.items()
    ]


def far(rank: int, tier: Tier, node: str) -> RestoreSource:
    return RestoreSource(rank=rank, tier=tier, address=f"10.0.0.{node[1:]}", port=5000)


def near(rank: int, tier: Tier) -> RestoreSource:
    return RestoreSource(rank=rank, tier=tier)


def test_the_local_disk_comes_after_all_memory() -> None:
    disk = copy(1, tier=Tier.LOCAL)
    plan = there(choose({1: 5}, held(n1=[copy(0), copy(1, tier=Tier.PEER)], n2=[disk]), {}, TWO))
    assert plan.sources["n2"] == (far(1, Tier.PEER, "n1"),)
    plan = there(choose({1: 5}, held(n1=[copy(0), disk], n2=[disk]), {}, TWO))
    assert plan.sources["n2"] == (near(1, Tier.LOCAL),)
    plan = there(choose({1: 5}, held(n1=[copy(0), disk], n2=[]), {}, TWO))
    assert plan.sources["n2"] == (far(1, Tier.LOCAL, "n1"),)
    assert plan.tiers == {"memory": 1, "local": 1}


def test_storage_is_taken_whole() -> None:
    plan = there(choose({1: 5}, held(n1=[copy(0)], n2=[]), STORED, TWO))
    assert plan.sources == {"n1": (near(0, Tier.STORAGE),), "n2": (near(1, Tier.STORAGE),)}
    assert plan.tiers == {"storage": 2}
    assert choose({1: 5}, held(n1=[copy(0)], n2=[]), {}, TWO) is None


def test_a_node_that_serves_nothing_is_no_source_for_others() -> None:
    silent = Holding(node="n1", copies=(copy(0), copy(1, tier=Tier.PEER)))
    assert choose({1: 5}, [silent], {}, TWO) is None


def test_the_shared_part_comes_from_any_node_and_not_always_the_same() -> None:
    slots = ("n1", "n2", "n3", "n4")
    reach = held(n1=[copy(0), copy(SHARED), copy(2, tier=Tier.PEER)], n2=[copy(1), copy(SHARED)])
    reach += held(n5=[copy(3, tier=Tier.PEER)])
    plan = there(choose({1: 5}, reach, {}, Placement(slots=slots, nproc_per_node=1)))
    assert plan.sources["n1"] == (near(0, Tier.MEMORY), near(SHARED, Tier.MEMORY))
    shared = [s.address for n in ("n3", "n4") for s in plan.sources[n] if s.rank == SHARED]
    assert sorted(shared) == ["10.0.0.1", "10.0.0.2"]
    assert plan.tiers == {"memory": 2, "peer": 2}


def test_a_shared_part_that_was_ever_reported_is_needed() -> None:
    reach = held(n1=[copy(0)], n2=[copy(1)])
    assert choose({1: 5}, reach, {}, TWO) is not None
    assert choose({1: 5}, reach, {}, TWO, shared=(1,)) is None
    assert seal(1, reach, (), 2, shared=True) == -1
    assert seal(1, reach, (), 2, shared=False) == 5


def test_what_was_never_sealed_does_not_exist() -> None:
    reach = held(n1=[copy(0), copy(0, step=6)], n2=[copy(1), copy(1, step=6)])
    stored = (CheckpointId(step=9, generation=1), CheckpointId(step=7, generation=2))
    plan = there(choose({1: 5}, reach, dict.fromkeys(stored, Tier.STORAGE), TWO))
    assert plan.ref == S


def test_a_banned_one_is_passed_over() -> None:
    reach = held(n1=[copy(0), copy(0, step=4)], n2=[copy(1), copy(1, step=4)])
    plan = there(choose({1: 5}, reach, {}, TWO, banned=[S]))
    assert plan.ref.step == 4
    assert choose({1: 5}, reach, {}, TWO, banned=[S, CheckpointId(step=4, generation=1)]) is None


def reachable(
    ref: CheckpointId,
    reach: list[Holding],
    storage: set[CheckpointId],
    placement: Placement,
    shared: set[int],
) -> bool:
    """By definition, without any index: every rank of every node finds its part, or storage has it all."""
    there = [(h, c) for h in reach for c in h.copies if (c.step, c.generation) == (ref.step, ref.generation)]
    parts = set(range(placement.world_size))
    needs_shared = ref.generation in shared or any(c.rank == SHARED for _, c in there)

    def finds(node: str, rank: int) -> bool:
        return any(c.rank == rank and (h.node == node or h.port) for h, c in there)

    return ref in storage or all(
        finds(node, rank)
        for node in placement.slots
        for rank in (
            *(r for r in placement.ranks_of(node) if r in parts),
            *((SHARED,) if needs_shared else ()),
        )
    )


NEAREST = {("memory", True): 0, ("memory", False): 1, ("local", True): 2, ("local", False): 3}


def check(
    sealed: Mapping[int, int],
    reach: list[Holding],
    storage: set[CheckpointId],
    placement: Placement,
    shared: set[int],
    banned: set[CheckpointId],
) -> None:
    plan = choose(
        sealed, reach, dict.fromkeys(storage, Tier.STORAGE), placement, shared=shared, banned=banned
    )
    possible = {CheckpointId(step=c.step, generation=c.generation) for h in reach for c in h.copies} | storage
    good = {
        ref
        for ref in possible - banned
        if ref.step <= sealed.get(ref.generation, -1) and reachable(ref, reach, storage, placement, shared)
    }
    if not good:
        assert plan is None
        return
    assert plan is not None
    assert plan.ref == max(good)
    assert sum(plan.tiers.values()) == placement.world_size
    nodes = {h.address: h for h in reach}
    for node, sources in plan.sources.items():
        if "storage" in plan.tiers:
            assert {(s.rank, s.tier) for s in sources} == {
                (rank, Tier.STORAGE) for rank in placement.ranks_of(node)
            }
            continue
        assert {s.rank for s in sources} - {SHARED} == set(placement.ranks_of(node))
        for source in sources:
            here = next((h for h in reach if h.node == node), None)
            holder = there(nodes[source.address] if source.address else here)
            wanted = (source.rank, plan.ref.generation, plan.ref.step, source.tier)
            assert wanted in [(c.rank, c.generation, c.step, c.tier) for c in holder.copies]
            distances = [
                NEAREST["local" if c.tier is Tier.LOCAL else "memory", h.node == node]
                for h in reach
                for c in h.copies
                if (c.rank, c.generation, c.step) == wanted[:3] and (h.node == node or h.port)
            ]
            mine = NEAREST["local" if source.tier is Tier.LOCAL else "memory", not source.address]
            assert mine == min(distances)


def test_the_choice_of_copies_is_right_in_all_small_cases() -> None:
    """Two ranks, two steps, every set of up to four copies on two nodes, with storage having 0, 1 or 2."""
    kinds = [
        (node, copy(rank, step=step, tier=tier))
        for node, rank, step, tier in product(
            ("n1", "n2"), (0, 1), (4, 5), (Tier.MEMORY, Tier.PEER, Tier.LOCAL)
        )
    ]
    one, two = CheckpointId(step=4, generation=1), CheckpointId(step=5, generation=1)
    for count in range(4):
        for picked in combinations(kinds, count):
            reach = held(**{n: [c for node, c in picked if node == n] for n in ("n1", "n2")})
            for storage in (set(), {one}, {one, two}):
                check({1: 5}, reach, storage, TWO, set(), set())


copies = st.builds(
    Copy,
    rank=st.integers(-1, 3),
    generation=st.integers(1, 3),
    step=st.integers(0, 3),
    tier=st.sampled_from([Tier.MEMORY, Tier.PEER, Tier.LOCAL]),
)
refs = st.builds(CheckpointId, step=st.integers(0, 3), generation=st.integers(1, 3))


@settings(max_examples=150)
@given(
    nodes=st.lists(st.lists(copies, max_size=12), min_size=3, max_size=3),
    whole=st.lists(refs, max_size=3),
    ports=st.lists(st.sampled_from([0, 5000]), min_size=3, max_size=3),
    storage=st.sets(refs, max_size=3),
    sealed=st.dictionaries(st.integers(1, 3), st.integers(0, 3)),
    shared=st.sets(st.integers(1, 3), max_size=1),
    banned=st.sets(refs, max_size=2),
)
def test_the_choice_of_copies_is_right_in_any_case(
    nodes: list[list[Copy]],
    whole: list[CheckpointId],
    ports: list[int],
    storage: set[CheckpointId],
    sealed: dict[int, int],
    shared: set[int],
    banned: set[CheckpointId],
) -> None:
    for ref in whole:  # otherwise a case with all four parts in reach would be rare
        for rank in range(4):
            nodes[rank % 3].append(
                Copy(rank=rank, generation=ref.generation, step=ref.step, tier=Tier.MEMORY)
            )
    reach = [
        Holding(node=f"n{i}", copies=tuple(c), address=f"10.0.0.{i}", port=p)
        for i, (c, p) in enumerate(zip(nodes, ports, strict=True), 1)
    ]
    check(sealed, reach, storage, Placement(slots=("n1", "n2"), nproc_per_node=2), shared, banned)


@given(nodes=st.lists(st.lists(copies, max_size=12), max_size=3), storage=st.sets(refs, max_size=3))
def test_a_seal_is_the_newest_step_with_all_parts(
    nodes: list[list[Copy]], storage: set[CheckpointId]
) -> None:
    reach = [Holding(node=f"n{i}", copies=tuple(c)) for i, c in enumerate(nodes)]
    step = seal(2, reach, storage, 2, shared=False)
    ranks = {
        s: {c.rank for h in reach for c in h.copies if (c.generation, c.step) == (2, s)} for s in range(4)
    }
    whole = [s for s in range(4) if ranks[s] >= {0, 1} or CheckpointId(step=s, generation=2) in storage]
    assert step == max(whole, default=-1)


def test_retained_checkpoints_are_only_what_could_be_restored() -> None:
    stored = [CheckpointId(step=s, generation=g) for s, g in ((9, 1), (5, 1), (7, 2), (4, 1), (8, 3))]
    assert retained({1: 5, 2: 7}, stored, 2) == [
        CheckpointId(step=7, generation=2),
        CheckpointId(step=5, generation=1),
    ]


CORRUPT = WorkerError(type="slurm_robust.checkpoint.errors.CorruptPart", message="x")


@pytest.mark.parametrize(
    ("exit", "is_one"),
    [
        (WorkerExit(rank=1, code=UNUSABLE_COPY, error=CORRUPT), True),
        (WorkerExit(rank=1, code=UNUSABLE_COPY), False),  # a script's own number
        (WorkerExit(rank=1, code=1, error=CORRUPT), False),
        (WorkerExit(rank=0, signal=9), False),
    ],
)
def test_only_an_unusable_copy_is_a_failure_to_restore(exit: WorkerExit, is_one: bool) -> None:
    assert failed_to_restore(exit) == is_one
    assert not (is_one and is_spoilt(ended(exit)))


RESTORED = CheckpointId(step=10, generation=1)
AGAIN = job_state(
    slots=("n1", "n2"), generation=2, best_step=10, steps_here=-1, reports=True, restored=RESTORED
)
PLACE = WorkerError(type="ValueError", message="x", file="train.py", line=3)
NO_PLACE = WorkerError(type="ValueError", message="x")
SEGFAULT = WorkerExit(rank=1, signal=11)


def ended(exit: WorkerExit, **changes: object) -> Fault:
    """A generation that ended so when every rank had restored."""
    root = NodeExit(node="n2", exit=exit)
    fault = Fault(
        symptom=Symptom.WORKER_EXIT,
        root=root,
        exits=(root,),
        alive=("n1", "n2"),
        restore=RESTORED,
        all_restored=True,
    )
    return structs.replace(fault, **changes)


def is_spoilt(fault: Fault, state: JobState = AGAIN, times: int = 2) -> bool:
    """What holds the ``times``-th time that training ends so."""
    for _ in range(times):
        verdict = decide(state, fault, 1.0, rules()).verdict
        if verdict is None:
            return False
        found = spoils(fault, verdict, state)
        attempt = Attempt(signature=verdict.signature, t=1.0, step=state.world.best_step)
        state = changed(state, attempts=(*state.world.attempts, attempt))
    return found


@pytest.mark.parametrize(
    "exit", [SEGFAULT, WorkerExit(rank=1, code=3), WorkerExit(rank=1, code=1, error=NO_PLACE)]
)
def test_what_ends_twice_after_all_have_restored_speaks_against_the_state(exit: WorkerExit) -> None:
    assert is_spoilt(ended(exit))
    assert not is_spoilt(ended(exit), times=1)
    assert not is_spoilt(ended(exit, all_restored=False))
    assert not is_spoilt(ended(exit, lost=("n2",), alive=("n1",)))
    assert not is_spoilt(ended(exit), changed(AGAIN, steps_here=11))


@pytest.mark.parametrize(
    "exit",
    [
        WorkerExit(rank=1, code=1, error=PLACE),  # the code's
        WorkerExit(rank=1, signal=9),  # somebody's
        WorkerExit(rank=1, signal=15),
        WorkerExit(rank=1, signal=10),
        WorkerExit(rank=1, signal=9, oom="the kernel killed it for want of memory"),
        WorkerExit(rank=1, code=1, taken="port 4000 was taken"),
        WorkerExit(rank=1, signal=11, taken="port 4000 was taken"),
    ],
)
def test_what_is_the_codes_or_comes_from_outside_does_not_speak_against_the_state(exit: WorkerExit) -> None:
    assert not is_spoilt(ended(exit))


def test_an_end_that_no_rank_explains_does_not_speak_against_the_state() -> None:
    assert not is_spoilt(ended(SEGFAULT, root=None, exits=()))


def test_the_fault_of_a_named_node_does_not_speak_against_the_state() -> None:
    assert not is_spoilt(ended(SEGFAULT, named={"n2": "XID 79"}))


def test_numbers_that_are_bad_from_the_first_step_on_speak_against_the_state() -> None:
    assert against(AGAIN, [], good_step=-1)
    assert not against(AGAIN, [SEGFAULT], good_step=None)
    assert not against(AGAIN, [], good_step=12)


def test_the_source_of_a_restore_as_text() -> None:
    assert format_source(1234, {"peer": 2, "memory": 14}) == "step 1234 from memory (14 parts), peer (2)"
    assert format_source(7, {"peer": 1}) == "step 7 from peer (1 part)"
    assert format_source(3, {"storage": 4}) == "step 3 from storage (4 parts)"


def test_nothing_after_the_newest_step_that_may_count_is_sealed() -> None:
    reach = held(n1=[copy(0), copy(0, step=6)], n2=[copy(1), copy(1, step=6)])
    stored = [CheckpointId(step=7, generation=1)]
    assert [seal(1, reach, stored, 2, shared=False, newest=n) for n in (None, 7, 6, 5, 4, -1)] == [
        7, 7, 6, 5, -1, -1
    ]  # fmt: skip


def test_a_person_means_the_newest_checkpoint_up_to_a_step() -> None:
    refs = [CheckpointId(step=step, generation=1) for step in (10, 20, 30)]
    assert chosen(refs, 29) == CheckpointId(step=20, generation=1)
    assert chosen(refs, 9) is None


def test_what_counts_until_a_step_is_no_later_one() -> None:
    assert until({1: 10, 2: 30}, 20) == {1: 10, 2: 20}
