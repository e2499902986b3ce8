"""What the flight recorder names: who is behind, who called something else, who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.analysis.stacks import localise
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import Collective, Frame, Localisation, RankStacks
from tests.unit.analysis.stacks.sample_stacks import (
    ALL_REDUCE,
    COMPUTE,
    DATA,
    IRECV,
    PAPER,
    TORCH,
    Frames,
    rank,
)
from tests.unit.analysis.stacks.test_properties import layouts

FOUR = ParallelLayout.fit(4, 1, {}, "dp")
WORLD = tuple(range(4))


def record(
    sequence: int,
    *,
    group: str = "0",
    operation: str = "nccl:all_reduce",
    state: str = "started",
    ranks: tuple[int, ...] = WORLD,
    enqueued: int = -1,
) -> Collective:
    return Collective(
        group=group, sequence=sequence, operation=operation, state=state, ranks=ranks, enqueued=enqueued
    )


def stacks(*collectives: tuple[Collective, ...], frames: Frames = ALL_REDUCE) -> list[RankStacks]:
    return [rank(number, frames, collectives=records) for number, records in enumerate(collectives)]


def test_a_rank_that_skipped_a_collective_is_named_though_all_wait() -> None:
    ahead, behind = (record(10),), (record(9, state="completed"),)
    found = localise(stacks(ahead, ahead, behind, ahead), FOUR)
    assert (found.ranks, found.exact) == ((2,), True)
    assert "did not come to nccl:all_reduce 10" in found.reason


def test_a_rank_that_calls_something_else_is_named() -> None:
    usual, other = (record(10),), (record(10, operation="nccl:broadcast"),)
    found = localise(stacks(usual, usual, usual, other), FOUR)
    assert (found.ranks, found.exact) == ((3,), True)
    assert "another operation" in found.reason


def test_two_against_two_are_not_a_majority() -> None:
    usual, other = (record(10),), (record(10, operation="nccl:broadcast"),)
    found = localise(stacks(usual, usual, other, other), FOUR)
    assert found.ranks == ()
    assert "another operation" not in found.reason


def test_who_is_behind_because_it_waits_is_not_at_fault() -> None:
    """Ranks 0 and 1 wait for 2 in the world; 2 waits for 3 in the group of both."""
    world, pair = record(10), {"group": "tp1", "ranks": (2, 3)}
    found = localise(
        stacks(
            (world,),
            (world,),
            (record(9, state="completed"), record(50, **pair)),  # type: ignore[arg-type]
            (record(9, state="completed"), record(49, state="completed", **pair)),  # type: ignore[arg-type]
        ),
        FOUR,
    )
    assert (found.ranks, found.exact) == ((3,), True)


def test_an_operation_that_all_have_begun_is_its_groups_fault() -> None:
    ranks = tuple(range(24, 32))
    everyone = tuple(range(32))
    given = []
    for number in range(32):
        inside = number in ranks
        last = record(9, state="completed", ranks=everyone) if inside else record(10, ranks=everyone)
        own = (record(7, group="pp3", ranks=ranks),) if inside else ()
        given.append(rank(number, ALL_REDUCE, collectives=(last, *own)))
    found = localise(given, PAPER)
    assert (found.group, found.exact) == ("pp 24-31", False)
    assert "have all begun nccl:all_reduce 7 of group pp3 and none ends it" in found.reason


def test_a_whole_world_in_one_operation_names_nobody() -> None:
    assert localise(stacks(*[(record(10),)] * 4), FOUR).ranks == ()


def test_ranks_that_wait_for_each_other_in_a_circle_name_nobody() -> None:
    first, second = {"group": "a", "ranks": (0, 1)}, {"group": "b", "ranks": (0, 1)}
    one = (record(5, **first), record(3, state="completed", **second))  # type: ignore[arg-type]
    other = (record(4, state="completed", **first), record(4, **second))  # type: ignore[arg-type]
    assert localise(stacks(one, other, (), ()), FOUR).ranks == ()


def test_operations_that_ended_hold_nobody_up() -> None:
    """A broadcast ends on its root before the others have come."""
    done, before = (record(10, state="completed"),), (record(9, state="completed"),)
    assert localise(stacks(done, before, before, before), FOUR).ranks == ()


def test_the_end_of_a_chain_of_receives_is_named() -> None:
    def receives(own: int) -> tuple[Collective, ...]:
        return (record(own, operation=f"nccl:recv {own}<-{own - 1}"),)

    idle = (record(2, operation="nccl:recv 0<-1", state="completed"),)
    found = localise(stacks(idle, receives(1), receives(2), receives(3)), FOUR)
    assert (found.ranks, found.exact) == ((0,), True)


def test_who_waits_for_an_unknown_peer_is_not_at_fault() -> None:
    """Batches of sends and receives are recorded as one operation without peers."""
    ahead, behind = record(10), record(9, state="completed")
    batch = record(40, group="pp:p2p", operation="nccl:coalesced")
    found = localise(stacks((ahead,), (ahead,), (behind, batch), (behind,)), FOUR)
    assert (found.ranks, found.exact) == ((3,), True)


def test_two_ends_of_one_send_that_does_not_end_are_both_named() -> None:
    layout = ParallelLayout.fit(64, 1, {"pp": 4}, "pp-dp")
    send = record(8, operation="nccl:send 0->1", ranks=(4, 5, 6, 7), group="pp1")
    receive = record(9, operation="nccl:recv 1<-0", ranks=(4, 5, 6, 7), group="pp1")
    given = [rank(n, ALL_REDUCE, collectives={4: (send,), 5: (receive,)}.get(n, ())) for n in range(64)]
    found = localise(given, layout)
    assert (found.exact, found.group) == (False, "pp 4-7")
    assert "ranks 4-5" in found.reason


def test_who_computes_is_not_excused_by_a_collective_in_flight() -> None:
    """While training goes on, a collective in flight says nothing of what the host does."""
    waits, own = record(10, group="dp", ranks=(1, 2)), record(3, group="tp", ranks=(0, 1))
    given = [
        rank(0, ALL_REDUCE, collectives=(own,)),
        rank(1, COMPUTE, collectives=(waits, record(2, group="tp", ranks=(0, 1), state="completed"))),
        rank(2, ALL_REDUCE, collectives=(record(10, group="dp", ranks=(1, 2)),)),
        rank(3, ALL_REDUCE),
    ]
    found = localise(given, FOUR, moving=True)
    assert found.ranks == (1,)
    assert "flight recorder: rank 1 did not come to nccl:all_reduce 3 of group tp" in found.reason
    # In a standstill an operation that all have begun would end, whatever their hosts do.
    assert localise(given, FOUR).ranks == ()


NODES_OF_8 = ParallelLayout.fit(128, 8, {}, "dp")
EVERYONE = tuple(range(128))


def ran_ahead(
    newest: list[int], *, culprit: int, started: bool = False, enqueued: bool = False
) -> Localisation:
    """128 ranks in operation 100, which ``culprit`` has not enqueued, or its GPU has not come to."""
    given = []
    for number, last in enumerate(newest):
        is_culprit = number == culprit
        if is_culprit and not enqueued:
            own = record(99, state="completed", ranks=EVERYONE)
        else:
            state = "started" if started and not is_culprit else "scheduled"
            own = record(100, state=state, ranks=EVERYONE, enqueued=last)
        given.append(rank(number, COMPUTE, collectives=(own,)))
    return localise(given, NODES_OF_8)


AHEAD = {
    "not at all": [100] * 128,
    "all alike": [112] * 128,
    "by chance": [100 + number * 7 % 4 for number in range(128)],
    "far": [100 + number * 77 % 1000 for number in range(128)],
    "one node less than the others": [102 if number // 8 == 7 else 103 for number in range(128)],
}


@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
@pytest.mark.parametrize("started", [True, False], ids=["timing", "no timing"])
def test_who_has_not_enqueued_is_named_however_far_the_others_ran_ahead(
    ahead: list[int], started: bool
) -> None:
    found = ran_ahead(ahead, culprit=45, started=started)
    assert (found.ranks, found.exact) == ((45,), True)
    assert "rank 45 did not come to nccl:all_reduce 100" in found.reason


@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
def test_the_rank_whose_gpu_has_not_come_is_named_though_all_hosts_have_enqueued(ahead: list[int]) -> None:
    found = ran_ahead(ahead, culprit=45, started=True, enqueued=True)
    assert (found.ranks, found.exact) == ((45,), True)
    assert ran_ahead(ahead, culprit=45, enqueued=True).ranks == ()


def test_a_group_that_hangs_is_named_and_not_those_that_wait_for_its_ranks() -> None:
    """Ranks 2 and 3 hang in an operation of their own; of the world's next one they have enqueued all."""
    own = {"group": "tp1", "ranks": (2, 3)}
    layout = ParallelLayout.fit(16, 2, {"tp": 2}, "tp-dp")
    world = tuple(range(16))
    given = []
    for number in world:
        ahead = record(10, state="scheduled" if number in (2, 3) else "started", ranks=world, enqueued=40)
        tp = (record(7, enqueued=90, **own),) if number in (2, 3) else ()  # type: ignore[arg-type]
        given.append(rank(number, COMPUTE, collectives=(*tp, ahead)))
    found = localise(given, layout)
    assert (found.ranks, found.exact) == ((2, 3), False)
    assert "have all begun nccl:all_reduce 7 of group tp1" in found.reason


@pytest.mark.parametrize(("frames", "exact"), [(IRECV, False), (COMPUTE, True)])
def test_nodes_that_wait_for_each_other_in_what_the_recorder_does_not_show_are_a_group(
    frames: Frames, exact: bool
) -> None:
    """gloo's sends and receives, say. Of two nodes that both compute, each holds the others up by itself."""
    layout, world = ParallelLayout.fit(8, 1, {"pp": 2}, "dp-pp"), tuple(range(8))
    given = [
        rank(
            number,
            frames,
            collectives=(record(9, operation="gloo:all_reduce", state="completed", ranks=world),),
        )
        if number in (1, 5)
        else rank(number, ALL_REDUCE, collectives=(record(10, operation="gloo:all_reduce", ranks=world),))
        for number in world
    ]
    found = localise(given, layout)
    assert (found.ranks, found.exact, found.group) == ((1, 5), exact, "" if exact else "pp 1,5")
    assert "did not come to gloo:all_reduce 10" in found.reason


def test_if_most_recorders_are_silent_silence_names_nobody() -> None:
    receives = record(3, operation="nccl:recv 0<-1")
    assert localise(stacks((receives,), (), (), ()), FOUR).ranks == ()


def test_ranks_without_a_recorder_are_named_by_what_they_visibly_do_only() -> None:
    """Where all others wait for their GPUs, ``loss.item()`` looks as if it computed."""
    waits = (record(10),)
    given = [rank(number, ALL_REDUCE, collectives=waits) for number in range(3)]
    assert localise([*given, rank(3, COMPUTE)], FOUR).ranks == ()
    assert localise(given, FOUR, missing=(3,)).ranks == ()
    assert localise([*given, rank(3, DATA)], FOUR).ranks == (3,)


def test_before_its_first_operation_a_rank_has_no_record_and_is_named() -> None:
    given = [rank(number, ALL_REDUCE, collectives=(record(1, enqueued=9),)) for number in range(3)]
    assert localise([*given, rank(3, COMPUTE)], FOUR).ranks == (3,)


EIGHT = ParallelLayout.fit(8, 1, {}, "dp")
GEMM = (Frame(function="at::native::mm", file=f"{TORCH}/lib/libtorch_cpu.so"), *COMPUTE)
SPINS = (Frame(function="cuStreamSynchronize", file="/usr/lib/libcuda.so.1"), *COMPUTE)


def with_idle(number: int, *idle: str, frames: Frames = COMPUTE, **fields: Any) -> RankStacks:
    """A rank whose recorder shows that it is in these groups, and nothing that is open."""
    return structs.replace(rank(number, frames, state="R"), idle=idle, **fields)


def waits_for_3(*, active: bool, last: RankStacks, moving: bool = False) -> Localisation:
    """All but rank 3 wait; ``active``: in a backend whose recorder shows what is open only."""
    library = "nccl2" if active else "nccl"
    everyone = tuple(range(8))
    waits = record(10, operation=f"{library}:all_reduce", state="scheduled", ranks=everyone)
    others = [rank(number, COMPUTE, collectives=(waits,)) for number in everyone if number != 3]
    return localise([*others, last], EIGHT, moving=moving)


def test_who_answers_and_has_nothing_open_is_awaited_but_may_be_through() -> None:
    found = waits_for_3(active=True, last=with_idle(3, "nccl2:0"))
    assert (found.ranks, found.exact, found.silent) == ((3,), False, False)
    assert "rank 3 did not come to nccl2:all_reduce 10 of group 0 or have ended it" in found.reason


@pytest.mark.parametrize(
    ("frames", "state", "exact"),
    [(GEMM, "R", True), (GEMM, "S", False), (SPINS, "R", False), (COMPUTE, "R", False)],
)
def test_it_is_exactly_that_rank_if_its_calls_in_libraries_show_it_at_work(
    frames: Frames, state: str, exact: bool
) -> None:
    last = structs.replace(rank(3, frames, state=state), idle=("nccl2:0",), native=True)
    found = waits_for_3(active=True, last=last)
    assert (found.ranks, found.exact) == ((3,), exact)


def test_who_visibly_waits_for_data_and_has_nothing_open_is_named_exactly() -> None:
    found = waits_for_3(active=True, last=with_idle(3, "nccl2:0", frames=DATA))
    assert (found.ranks, found.exact) == ((3,), True)


def test_a_recorder_that_shows_what_has_ended_shows_who_has_not_come() -> None:
    done = record(9, state="completed", ranks=tuple(range(8)))
    assert waits_for_3(active=False, last=rank(3, COMPUTE, collectives=(done,))).exact
    # Of another group, in which this rank has ended something: of this one it has never been in any.
    other = record(4, group="tp1", state="completed", ranks=(2, 3))
    found = waits_for_3(active=False, last=with_idle(3, "nccl:0", collectives=(other,)))
    assert (found.ranks, found.exact) == ((3,), True)


def test_a_group_of_a_cpu_and_a_gpu_backend_is_counted_in_each() -> None:
    """That gloo's recorder answers says nothing of a rank of which NCCL's does not."""
    cpu = record(700, operation="gloo:barrier", state="completed", ranks=tuple(range(8)))
    found = waits_for_3(active=False, last=rank(3, COMPUTE, collectives=(cpu,)))
    assert (found.ranks, found.exact) == ((), False)
    assert not waits_for_3(active=True, last=with_idle(3, "gloo:0")).exact


def test_that_the_recorder_of_one_library_shows_what_has_started_says_nothing_of_another_ones() -> None:
    """nccl-lazy never shows it: rank 0 waits there, for rank 1."""
    waits, done = (record(10),), record(9, state="completed")
    lazy = record(4, group="pp:p2p", operation="nccl-lazy:recv 0<-1", state="scheduled")
    found = localise(stacks((done, lazy), (done,), waits, waits), FOUR)
    assert (found.ranks, found.exact) == ((1,), True)


PIPELINE = ParallelLayout.fit(8, 2, {"pp": 8}, "pp")


def pipeline(*, batched: bool, silent: bool = False) -> Localisation:
    """Eight stages that only send and receive; stage 2 has ended all that it enqueued, or is not heard."""
    ranks, given = tuple(range(8)), []
    for number in ranks:
        if number == 2:
            given.append(rank(2, COMPUTE) if silent else with_idle(2, "nccl:9:pp"))
            continue
        peers = tuple(peer for peer in (number - 1, number + 1) if 0 <= peer < 8)
        to = number + 1 if number < 2 else number - 1
        operation = "nccl:coalesced" if batched else f"nccl:recv {number}<-{to}"
        open_ = structs.replace(
            record(5, group="9:pp:p2p", operation=operation, ranks=ranks), peers=peers if batched else ()
        )
        given.append(rank(number, COMPUTE, collectives=(open_,)))
    return localise(given, PIPELINE)


@pytest.mark.parametrize("batched", [False, True])
def test_a_pipeline_without_any_collective_names_the_stage_that_is_awaited(batched: bool) -> None:
    found = pipeline(batched=batched)
    assert (found.group, found.exact, found.silent) == ("node 2-3", False, False)
    assert "rank 2 did not come to a send or receive" in found.reason


@pytest.mark.parametrize("batched", [False, True])
def test_a_stage_that_is_not_heard_is_named_as_silent_and_none_of_its_neighbours(batched: bool) -> None:
    found = pipeline(batched=batched, silent=True)
    assert (found.group, found.exact, found.silent) == ("node 2-3", False, True)
    assert "others wait to send to or receive from rank 2, of which no recorder answers" in found.reason


def test_who_has_nothing_open_may_wait_for_a_silent_stage_of_its_pipeline() -> None:
    """nccl2 shows several sends and receives in one kernel as ended while they wait."""
    layout, world = ParallelLayout.fit(16, 2, {"pp": 2}, "dp-pp"), tuple(range(16))
    waits = record(10, operation="nccl2:all_reduce", state="scheduled", ranks=world)
    given = [rank(n, COMPUTE, collectives=(waits,)) for n in world]
    given[3] = with_idle(3, "nccl2:0", "nccl2:9:pp")
    assert localise(given, layout).group == "node 2-3"
    given[11] = rank(11, COMPUTE)
    found = localise(given, layout)
    assert (found.ranks, found.outliers) == ((), (3,))
    assert "they may wait for a rank of their pipeline that is silent" in found.reason


SHARDS = ParallelLayout.fit(64, 8, {}, "dp")


def shards() -> list[RankStacks]:
    """Four shard groups of two nodes: one operation of the first does not end, and all others wait for it."""
    found = []
    for number in range(64):
        shard, place = divmod(number, 16)
        state, behind = ("started", "scheduled") if shard == 0 else ("completed", "started")
        own = record(91, group=f"s{shard}", ranks=tuple(range(shard * 16, shard * 16 + 16)), state=state)
        ahead = record(46, group=f"r{place}", ranks=tuple(range(place, 64, 16)), state=behind)
        found.append(rank(number, COMPUTE, collectives=(own, ahead)))
    return found


def hybrid_shards(
    silent: Collection[int], *, gone: Collection[int] = (), moving: bool = False
) -> Localisation:
    """The same, where some recorders, or agents, do not answer."""
    given = [rank(s.rank, COMPUTE) if s.rank in silent else s for s in shards() if s.rank not in gone]
    return localise(given, SHARDS, tuple(gone), moving=moving)


@pytest.mark.parametrize("silent", [(11,), tuple(range(8, 16)), tuple(range(9, 16))])
def test_for_a_silent_recorder_none_of_its_neighbours_is_named(silent: tuple[int, ...]) -> None:
    found = hybrid_shards(silent)
    assert (found.group, found.exact, found.silent) == ("node 8-15", False, True)
    assert "no recorder answers" in found.reason


def test_a_node_of_which_nothing_is_heard_is_a_silent_witness_too() -> None:
    found = hybrid_shards((), gone=range(8, 16))
    assert (found.group, found.exact, found.silent) == ("node 8-15", False, True)


def test_with_all_recorders_heard_it_is_the_groups_communication() -> None:
    found = hybrid_shards(())
    assert (found.exact, found.silent) == (False, False)
    assert "ranks 0-15 have all begun nccl:all_reduce 91 of group s0 and none ends it" in found.reason


def test_what_all_of_a_group_have_begun_goes_before_the_silence_in_another() -> None:
    """Ranks 16 to 31 stand in their own operation, too, and all of them are heard."""
    own = record(5, group="ep", ranks=tuple(range(16, 32)))
    given = [
        structs.replace(stack, collectives=(own, structs.replace(stack.collectives[1], state="scheduled")))
        if 16 <= stack.rank < 32
        else structs.replace(stack, collectives=() if stack.rank == 11 else stack.collectives)
        for stack in shards()
    ]
    found = localise(given, SHARDS)
    assert "ranks 16-31 have all begun nccl:all_reduce 5 of group ep and none ends it" in found.reason
    assert not found.silent


def test_both_ends_of_a_send_go_before_the_silence_of_another_stage() -> None:
    ranks = tuple(range(8))
    waits = {1: "recv 1<-0", 2: "send 2->3", 3: "recv 3<-2", 4: "recv 4<-3", 5: "recv 5<-4", 7: "recv 7<-6"}
    given = [
        rank(n, COMPUTE, collectives=(record(5, group="pp:p2p", operation=f"nccl:{waits[n]}", ranks=ranks),))
        if n in waits
        else rank(n, COMPUTE)
        for n in ranks
    ]
    assert "ranks 2-3 have begun to send to and receive from each other" in localise(given, PIPELINE).reason
    # Two that only send to each other may have other partners in the same kernel.
    both_send = {**waits, 3: "send 3->2"}
    given = [
        structs.replace(
            s,
            collectives=tuple(
                structs.replace(c, operation=f"nccl:{both_send[s.rank]}") for c in s.collectives
            ),
        )
        for s in given
    ]
    found = localise(given, PIPELINE)
    assert "others wait to send to or receive from ranks 0,6, of which no recorder answers" in found.reason


def test_silence_and_nothing_open_say_nothing_of_who_is_slow() -> None:
    assert hybrid_shards((11,), moving=True).ranks == ()
    assert waits_for_3(active=True, last=with_idle(3, "nccl2:0"), moving=True).ranks == ()
    assert waits_for_3(active=True, last=with_idle(3, "nccl2:0")).ranks == (3,)


def test_an_odd_operation_is_odd_only_if_most_of_the_whole_group_are_known_to_call_another() -> None:
    usual, other = (
        record(10, ranks=tuple(range(8))),
        record(10, operation="nccl:broadcast", ranks=tuple(range(8))),
    )
    heard = [rank(n, COMPUTE, collectives=(other if n == 0 else usual,)) for n in range(8)]
    assert (localise(heard, EIGHT).ranks, localise(heard, EIGHT).exact) == ((0,), True)
    assert not localise([*heard[:4], *(rank(n, COMPUTE) for n in range(4, 8))], EIGHT).exact


def standstill(layout: ParallelLayout, program: list[str], victim: int, stop: int) -> list[RankStacks]:
    """Every rank calls the collectives of ``program``, each in its group of that dimension ("": the world).

    The victim ends before number ``stop``; the others go on until nobody can.
    """
    world = tuple(range(layout.world_size))
    groups = {"": dict.fromkeys(world, world)} | {
        name: {r: group for group in layout.groups(name) for r in group} for name, _ in layout.sizes
    }
    at = dict.fromkeys(world, 0)

    def called(number: int) -> bool:
        return at[number] < len(program) and not (number == victim and at[number] == stop)

    moved = True
    while moved:
        moved = False
        for r in world:
            if called(r):
                group = groups[program[at[r]]][r]
                if all(at[other] > at[r] or (at[other] == at[r] and called(other)) for other in group):
                    moved, at[r] = True, at[r] + 1
    return [rank(r, ALL_REDUCE, collectives=_records(program, at[r], called(r), groups, r)) for r in world]


def _records(
    program: list[str], done: int, called: bool, groups: dict[str, dict[int, tuple[int, ...]]], own: int
) -> list[Collective]:
    counts: Counter[str] = Counter(program[: done + called])
    return [
        record(
            count,
            group=f"{name}{groups[name][own][0]}",
            state="started" if called and program[done] == name else "completed",
            ranks=groups[name][own],
        )
        for name, count in counts.items()
    ]


@settings(max_examples=60, deadline=None)
@given(st.data(), layouts(most=32))
def test_at_a_standstill_the_rank_that_stopped_is_named(data: st.DataObject, layout: ParallelLayout) -> None:
    """Whatever the program and the layout, and though all stacks look alike."""
    program = data.draw(st.lists(st.sampled_from(("tp", "cp", "pp", "dp", "")), max_size=8))
    victim = data.draw(st.integers(0, layout.world_size - 1))
    stop = data.draw(st.integers(0, len(program)))
    # The first and the last step of all: a rank without any record is one of which nothing is known.
    found = localise(standstill(layout, ["", *program, ""], victim, stop + 1), layout)
    assert (found.ranks, found.exact) == ((victim,), True)
