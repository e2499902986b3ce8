"""Who is blamed, from the paper's example to worlds of two ranks."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.analysis.stacks import localise, vote
from slurm_robust.analysis.stacks.localise import covering, node_count, nodes_of
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import Absent, Frame, Localisation, ProcessKind, RankStacks
from slurm_robust.util.text import fold_ranks
from tests.unit.analysis.stacks.sample_stacks import (
    ALL_GATHER,
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    BUSY_LOADER,
    COMPUTE,
    DATA,
    IDLE_LOADER,
    IRECV,
    ISEND,
    PAPER,
    TRAIN,
    Frames,
    process,
    rank,
    world,
)
from tests.unit.analysis.stacks.test_properties import layouts

PAIR = ParallelLayout.fit(2, 1, {}, "dp")
EIGHT_NODES = ParallelLayout.fit(32, 4, {"tp": 4, "pp": 2}, "tp-pp-dp")
# Machine 15 of the paper's example, then 14, then 12 and 13: one pipeline.
PIPELINE = {30: ALL_GATHER, 31: ALL_GATHER, 28: ISEND, 29: ISEND} | dict.fromkeys(range(24, 28), IRECV)


def test_the_papers_example() -> None:
    found = localise(world(PAPER, PIPELINE), PAPER)
    assert found.outliers == found.ranks == tuple(range(24, 32))
    assert (found.group, found.exact, found.healthy) == ("pp 24-31", False, 24)
    assert "24 of 32 ranks do what most do" in found.reason


def test_the_papers_example_with_bare_names() -> None:
    """As the paper prints stacks: functions, no files."""
    bare = {number: (Frame(function=frames[0].function),) for number, frames in PIPELINE.items()}
    found = localise(world(PAPER, bare, (Frame(function="all_reduce"),)), PAPER)
    assert found.group == "pp 24-31"


def test_the_rank_for_which_a_pipeline_waits_is_named_exactly() -> None:
    found = localise(world(PAPER, PIPELINE | {31: COMPUTE}), PAPER)
    assert (found.ranks, found.exact) == ((31,), True)
    assert set(found.outliers) == set(range(24, 32))
    assert "model.py:12" in found.reason


@pytest.mark.parametrize(
    ("state", "word"),
    [("T", "stopped"), ("t", "stopped"), ("Z", "gone"), ("D", "kernel")],
    ids=["stopped", "traced", "dead", "kernel"],
)
def test_a_process_that_is_halted_is_named_by_its_state(state: str, word: str) -> None:
    """Whatever its stack says; that of a stopped one may be missing."""
    for frames in (COMPUTE, ()):
        found = localise(world(PAPER, {5: rank(5, frames, state=state)}), PAPER)
        assert (found.ranks, found.exact, found.healthy) == ((5,), True, 31)
        assert word in found.reason
        assert found.halted is (state != "D")  # storage may hold it there, which has other victims


def test_a_process_that_the_agent_does_not_find_is_gone() -> None:
    found = localise(world(PAPER, {5: rank(5, (), state="")}), PAPER)
    assert (found.ranks, found.exact) == ((5,), True)
    assert "gone" in found.reason


def test_a_moment_in_the_kernel_does_not_make_a_waiting_rank_the_culprit() -> None:
    found = localise(world(PAPER, {5: rank(5, ALL_REDUCE, state="D"), 9: COMPUTE}), PAPER)
    assert found.ranks == (9,)


def test_a_data_loader_that_differs_is_named() -> None:
    helpers = [process(IDLE_LOADER, ProcessKind.LOADER), process(BUSY_LOADER, ProcessKind.LOADER, pid=101)]
    found = localise(world(PAPER, {7: rank(7, DATA, helpers=helpers)}), PAPER)
    assert (found.ranks, found.exact) == ((7,), True)
    assert "waits for data" in found.reason
    assert "its data loader is in __getitem__ data.py:35" in found.reason


@pytest.mark.parametrize("state", ["T", "Z", "D"])
def test_a_halted_data_loader_halts_its_rank(state: str) -> None:
    loader = process((), ProcessKind.LOADER, state=state)
    found = localise(world(PAPER, {7: rank(7, DATA, helpers=[loader])}), PAPER)
    assert found.ranks == (7,)
    assert "data loader" in found.reason


def test_a_data_loader_counts_only_while_its_rank_waits_for_data() -> None:
    loader = process(BUSY_LOADER, ProcessKind.LOADER, state="D")
    found = localise(world(PAPER, {7: rank(7, ALL_REDUCE, helpers=[loader]), 9: COMPUTE}), PAPER)
    assert found.ranks == (9,)
    assert 7 not in found.outliers


@pytest.mark.parametrize("own", [COMPUTE, DATA, ()], ids=["computes", "waits for data", "silent"])
@pytest.mark.parametrize("waits", [ALL_REDUCE, BACKWARD, BARRIER], ids=["collective", "backward", "barrier"])
def test_of_two_ranks_the_one_that_does_not_wait_is_at_fault(own: Frames, waits: Frames) -> None:
    found = localise(world(PAIR, {1: own}, waits), PAIR)
    assert (found.ranks, found.exact) == ((1,), True)


def test_two_ranks_that_both_wait_say_nothing() -> None:
    found = localise(world(PAIR, {1: BARRIER}), PAIR)
    assert found.ranks == ()
    assert "2 places" in found.reason


def test_nodes_whose_agents_do_not_answer_are_named() -> None:
    stacks = [s for s in world(EIGHT_NODES, {}) if s.rank not in range(8, 12)]
    for answered, missing in ((stacks, ()), (stacks, range(8, 12)), (world(EIGHT_NODES, {}), range(8, 12))):
        found = localise(answered, EIGHT_NODES, missing)
        assert (found.ranks, found.exact, found.healthy) == ((8, 9, 10, 11), True, 28)
        assert "no stacks" in found.reason


def test_without_any_stacks_nobody_is_blamed() -> None:
    assert localise([], EIGHT_NODES).ranks == ()
    empty = [RankStacks(rank=number, node="n") for number in range(32)]
    assert "no stacks" in localise(empty, EIGHT_NODES).reason


@pytest.mark.parametrize("frames", [ALL_REDUCE, DATA, COMPUTE], ids=["peers", "data", "code"])
def test_where_all_do_the_same_the_cause_is_a_common_one(frames: Frames) -> None:
    found = localise(world(EIGHT_NODES, {}, frames), EIGHT_NODES)
    assert (found.ranks, found.outliers, found.healthy) == ((), (), 32)
    assert "all ranks do the same" in found.reason


def test_half_the_job_is_never_blamed() -> None:
    for own in (COMPUTE, DATA, IRECV):
        found = localise(world(EIGHT_NODES, dict.fromkeys(range(16), own)), EIGHT_NODES)
        assert found.ranks == ()
        assert found.reason


def test_many_stopped_ranks_have_a_common_cause() -> None:
    stopped = {number: rank(number, (), state="T") for number in range(0, 32, 4)}
    found = localise(world(EIGHT_NODES, stopped), EIGHT_NODES)
    assert found.ranks == ()
    assert "8 of 8 nodes" in found.reason


def test_waits_for_storage_on_unrelated_nodes_blame_no_node() -> None:
    layout = ParallelLayout.fit(64, 4, {"tp": 4, "pp": 4}, "tp-pp-dp")
    found = localise(world(layout, {0: DATA, 21: DATA, 42: DATA}), layout)
    assert found.ranks == ()
    assert "storage" in found.reason
    assert localise(world(layout, {0: DATA, 1: DATA}), layout).ranks == (0, 1)


def test_outliers_of_one_node_are_answered_with_the_node() -> None:
    found = localise(world(EIGHT_NODES, {9: IRECV}), EIGHT_NODES)
    assert (found.ranks, found.group, found.exact) == ((8, 9, 10, 11), "tp 8-11", False)


def test_a_rank_that_waits_for_others_that_compute_is_at_fault_only_in_a_standstill() -> None:
    """There the others wait too, unseen; in training that goes on one is ahead, or sampled later."""
    stacks = world(EIGHT_NODES, {9: ALL_REDUCE}, COMPUTE)
    assert localise(stacks, EIGHT_NODES).ranks == (8, 9, 10, 11)
    found = localise(stacks, EIGHT_NODES, moving=True)
    assert (found.ranks, found.outliers) == ((), (9,))
    assert "is not a fault" in found.reason
    late = localise(world(EIGHT_NODES, {9: COMPUTE}), EIGHT_NODES, moving=True)
    assert (late.ranks, late.exact) == ((9,), True)


def test_outliers_that_no_group_covers_are_answered_with_nobody() -> None:
    layout = ParallelLayout.fit(64, 4, {"tp": 4, "pp": 4}, "tp-pp-dp")
    found = localise(world(layout, {0: IRECV, 21: IRECV, 42: IRECV}), layout)
    assert (found.ranks, found.outliers) == ((), (0, 21, 42))
    assert "no parallel group" in found.reason


def test_where_all_are_elsewhere_nobody_stands_out() -> None:
    places = {
        number: (ALL_REDUCE[0], Frame(function="train", file="train.py", line=100 + number))
        for number in range(24)
    }
    found = localise(world(EIGHT_NODES, places), EIGHT_NODES, most_share=1.0)
    assert (found.ranks, found.healthy) == ((), 8)
    assert "only 8 of 32 ranks" in found.reason


def test_the_two_ends_of_a_send_are_blamed_alone() -> None:
    layout = ParallelLayout.fit(64, 4, {"tp": 4, "pp": 4}, "tp-pp-dp")
    found = localise(world(layout, {16: ISEND, 20: IRECV}), layout)
    assert (found.ranks, found.group, found.exact) == ((16, 20), "pair 16,20", False)
    apart = localise(world(layout, {16: ISEND, 24: IRECV}), layout)
    assert apart.group == "pp 16-31", "stages 0 and 2 do not talk to each other"


def test_what_a_whole_stage_does_belongs_to_the_stage() -> None:
    """First stages load data or embed; only what differs from the other pipelines is a sign."""
    layout = ParallelLayout.fit(64, 4, {"tp": 4, "pp": 4}, "tp-pp-dp")
    first_stages = {r: IRECV for r in range(64) if layout.coordinates(r)["pp"] == 0}
    assert localise(world(layout, first_stages), layout).outliers == ()
    found = localise(world(layout, first_stages | {37: ISEND}), layout)
    assert (found.outliers, found.ranks) == ((37,), (36, 37, 38, 39))


def test_ranks_that_wait_unseen_are_healthy_when_they_are_most() -> None:
    """Without native frames a wait in ``loss.item()`` is a line of the script like any other."""
    hidden = (Frame(function="train", file="/home/alice/train.py", line=95), *TRAIN[1:])
    found = localise(world(EIGHT_NODES, {9: ALL_REDUCE}, hidden), EIGHT_NODES)
    assert (found.outliers, found.exact) == ((9,), False)


def test_the_share_is_a_parameter() -> None:
    layout = ParallelLayout.fit(16, 2, {"tp": 2, "pp": 4}, "tp-pp-dp")
    outliers = dict(
        zip(range(8, 16), (IRECV, IRECV, IRECV, IRECV, ISEND, ISEND, BARRIER, BARRIER), strict=True)
    )
    assert localise(world(layout, outliers), layout).ranks == ()
    assert localise(world(layout, outliers), layout, most_share=0.5).group == "pp 8-15"


def test_ranks_outside_the_world_are_no_part_of_it() -> None:
    stacks = [*world(PAPER, PIPELINE), rank(99, COMPUTE)]
    assert localise(stacks, PAPER).group == "pp 24-31"


def test_a_verdict_can_be_written_down() -> None:
    found = localise(world(PAPER, PIPELINE), PAPER)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


CUDA_WAIT = (
    Frame(function="cuStreamSynchronize", file="/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"),
    Frame(function="cudaStreamSynchronize", file="/opt/venv/lib/libcudart.so.12"),
)
CPU_WORK = (Frame(function="at::native::mm", file="/opt/venv/lib/libtorch_cpu.so"),)


def with_libraries(number: int, inner: Frames) -> RankStacks:
    """As py-spy shows a rank with ``--native``, which is done for the few in question."""
    return structs.replace(rank(number, (*inner, *COMPUTE)), native=True)


@pytest.mark.parametrize("moving", [False, True])
def test_who_waits_for_its_gpu_inside_a_call_in_c_does_not_compute(moving: bool) -> None:
    for inner, named in ((CPU_WORK, (9,)), (CUDA_WAIT, ())):
        given = world(EIGHT_NODES, {9: with_libraries(9, inner)})
        assert localise(given, EIGHT_NODES, moving=moving).ranks == named


def test_native_calls_of_one_rank_make_it_no_outlier() -> None:
    """All wait in the same line, of which only its calls in libraries are known."""
    given = world(EIGHT_NODES, {9: with_libraries(9, CUDA_WAIT)}, COMPUTE)
    found = localise(given, EIGHT_NODES)
    assert (found.ranks, found.outliers) == ((), ())


def test_whom_neither_its_agent_nor_nccl_hears_is_named() -> None:
    missed = (Absent(rank=9, size=32), Absent(rank=1, size=4, dead=True), Absent(rank=20, size=32, dead=True))
    told = structs.replace(rank(0, ALL_REDUCE), absent=missed)
    given = [stack for stack in world(EIGHT_NODES, {0: told}, ALL_REDUCE) if stack.rank not in (8, 9, 10, 11)]
    found = localise(given, EIGHT_NODES, missing=range(8, 12))
    assert (found.ranks, found.exact, found.halted) == ((9,), True, False)
    assert found.reason.startswith("NCCL RAS misses them; rank 9: shows no stacks")


def test_whom_only_nccl_misses_is_not_named_for_that() -> None:
    told = structs.replace(rank(0, ALL_REDUCE), absent=(Absent(rank=9, size=32, dead=True),))
    assert localise(world(EIGHT_NODES, {0: told}, ALL_REDUCE), EIGHT_NODES).ranks == ()


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


# -- Who is slow is flagged again and again --------------------------------------------------------

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
