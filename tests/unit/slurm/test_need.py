"""What a job asks Slurm for when it is requeued."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from slurm_robust.slurm.need import (
    Need,
    Places,
    Segments,
    Size,
    affordable,
    lack_of_segments,
    places,
    segment_of,
    size_of,
)
from slurm_robust.slurm.records import SlurmJob, SlurmNode, Switch
from tests.builders import records

NEED = Need(least=4, most=5)


def job(**fields: object) -> SlurmJob:
    known: dict[str, object] = {"partition": "main,debug", "num_nodes": 5, "num_tasks": 5}
    return records.job(states=frozenset({"PENDING"}), **{**known, **fields})


def node(name: str, state: str = "IDLE", partition: str = "main") -> SlurmNode:
    return records.node(*state.split("+"), name=name, partitions=(partition,))


def cluster(count: int, **states: str) -> list[SlurmNode]:
    """Idle nodes n1, n2, …, but those in ``states``."""
    return [node(f"n{i}", states.get(f"n{i}", "IDLE")) for i in range(1, count + 1)]


DEAD = "IDLE+NOT_RESPONDING"


@pytest.mark.parametrize(
    ("exclude", "nodes", "kept"),
    [
        # Enough are left.
        (["n1", "n2"], cluster(6), ["n1", "n2"]),
        # The weakest come first, and are given up first.
        (["n1", "n2", "n3"], cluster(6), ["n2", "n3"]),
        # A dead node is no place to start on: the living suspect is used again, in any order.
        (["n2", "n5"], cluster(6, n2=DEAD), ["n2", "n5"]),
        (["n5", "n2"], cluster(6, n2=DEAD), ["n5", "n2"]),
        (["n2", "n5"], cluster(5, n2=DEAD), ["n2"]),
        (["n5", "n2"], cluster(5, n2=DEAD), ["n2"]),
        (["n5", "n2"], cluster(5, n2="DOWN"), ["n2"]),
        (["n5", "n2"], cluster(5, n2="IDLE+DRAIN"), ["n2"]),
        # Nothing but two power cuts.
        (["n2", "n3"], cluster(6, n2=DEAD, n3=DEAD), ["n2", "n3"]),
        # slurmctld has just been restarted: it has heard of few nodes, or of none.
        (["n1", "n2"], cluster(6, **{f"n{i}": DEAD for i in range(1, 7)}), ["n1", "n2"]),
        (["n1", "n2"], cluster(6, **{f"n{i}": DEAD for i in range(3, 7)}), ["n1", "n2"]),
        (["n1", "n2"], cluster(5, **{f"n{i}": DEAD for i in range(1, 6)}), ["n2"]),
        # There are too few whatever is given up; a name that is gone costs nothing.
        (["n1", "n2", "n9"], cluster(3), ["n9"]),
    ],
)
def test_the_weakest_exclusion_is_given_up_first(
    exclude: Sequence[str], nodes: list[SlurmNode], kept: list[str]
) -> None:
    assert affordable(exclude, nodes, job(), NEED.least) == tuple(kept)


def test_what_the_owner_excludes_and_other_partitions_do_not_count() -> None:
    nodes = [*cluster(5), node("n6", partition="other"), node("n7", partition="debug")]
    assert affordable(["n1", "n2"], nodes, job(), 4) == ("n1", "n2")
    assert affordable(["n1", "n2"], nodes, job(excluded_nodes=("n7",)), 4) == ("n2",)
    assert affordable(["n1", "n2"], nodes, job(excluded_nodes=("n1", "n2")), 4) == ("n1", "n2")
    assert affordable(["n1", "n2"], nodes, job(partition="main"), 4) == ("n2",)


def test_where_each_node_belongs() -> None:
    nodes = [
        *cluster(9, n2=DEAD, n3="DOWN", n4="IDLE+DRAIN", n5="ALLOCATED", n6="IDLE+RESERVED", n7="MIXED"),
        node("x1", partition="other"),
    ]
    found = places(job(excluded_nodes=("n2", "n7", "n9")), nodes, own=("n5", "n2"))
    assert found == Places(
        free=("n1", "n5", "n8"),
        busy=("n6",),
        dead=("n2", "n3"),
        drained=("n4",),
        left_out=("n7", "n9"),
        left_out_free=("n9",),
    )
    assert "n6" in places(job(reservation="night"), nodes).free


@pytest.mark.parametrize(
    ("submitted", "available", "tasks", "cpus"),
    [
        # Nothing but --nodes: as many tasks as nodes at most, and fewer nodes are enough.
        ({}, 4, 5, 5),
        # After a shrink Slurm shows the tasks that were left.
        ({"num_tasks": 3, "restart_count": 1}, 4, 5, 5),
        # Several tasks for each node: those of the slots, which still lets Slurm give more nodes.
        ({"num_tasks": 10, "tasks_per_node": 2}, 5, 8, 8),
        ({"num_tasks": 10, "tasks_per_node": 2, "cpus_per_task": 8}, 4, 8, 64),
        ({"num_tasks": 40, "cpus_per_task": 16}, 4, 32, 512),
        ({"num_tasks": 32, "cpus_per_task": 16, "restart_count": 2}, 4, 32, 512),
        # One task for each node, which needs all of it: as many as there are nodes now.
        ({"num_tasks": 5, "tasks_per_node": 1}, 4, 4, 4),
        ({"num_tasks": 5, "tasks_per_node": 1}, 5, 5, 5),
        ({"num_tasks": 5, "tasks_per_node": 1}, 9, 5, 5),
        ({"num_tasks": 5, "tasks_per_node": 1}, 2, 4, 4),
        ({"num_tasks": 5, "cpus_per_task": 16}, 4, 4, 64),
    ],
)
def test_nodes_tasks_and_cpus_agree(submitted: dict[str, int], available: int, tasks: int, cpus: int) -> None:
    size = size_of(NEED, job(**submitted), available)
    assert size == Size(least=4, most=5, tasks=tasks, cpus=cpus)
    again = msgspec.structs.replace(job(**submitted), num_tasks=tasks, restart_count=3)
    assert size_of(NEED, again, available) == size, "asked for again, it is the same"


def test_a_size_is_said_to_slurm_and_to_people() -> None:
    size = Size(least=4, most=5, tasks=5, cpus=5)
    assert size.arguments() == ("NumNodes=4-5", "NumTasks=5", "NumCPUs=5")
    assert size.describe() == "4-5 nodes"
    assert msgspec.structs.replace(size, least=5).describe() == "5 nodes"


def block(name: str, *numbers: int, level: int = 0) -> Switch:
    return Switch(name=name, level=level, nodes=tuple(f"n{i}" for i in numbers), is_block=True)


RACKS = (block("a", 1, 2, 3), block("b", 4, 5, 6), block("c", 7, 8, 9))


def kept(exclude: Sequence[str], least: int = 4, size: int = 2, **states: str) -> tuple[tuple[str, ...], str]:
    """What stays excluded of nine nodes in three racks, and what is said of segments without room."""
    need, asked = Need(least=least, most=9), job(segment=size)
    segments = Segments.of(asked, need, RACKS)
    nodes = cluster(9, **states)
    left = affordable(exclude, nodes, asked, least, segments)
    return left, lack_of_segments(left, nodes, asked, least, segments)


def test_an_exclusion_is_given_up_if_it_leaves_no_room_for_a_segment() -> None:
    assert kept(["n1", "n4"], n7="DOWN") == (("n1", "n4"), ""), "two segments fit in a and b"
    assert kept(["n1", "n2"], least=6) == (("n2",), ""), "n1 is the weakest, and one is enough"
    assert kept(["n1", "n4", "n5"], least=6) == (("n1", "n5"), ""), "n1 would help no segment"
    assert kept(["n1", "n4"], least=3, size=3, n7="DOWN") == (("n4",), "")


def test_segments_that_do_not_fit_whatever_is_used_give_up_no_exclusion() -> None:
    lack = "2 of its 3 segments of 2 nodes (--segment=2) fit"
    assert kept(["n1"], least=6, n7="DOWN", n8="IDLE+DRAIN") == (("n1",), lack)


def test_segments_larger_than_a_rack_are_placed_in_the_blocks_above() -> None:
    above = (block("ab", *range(1, 7), level=1), block("abc", *range(1, 10), level=1))
    need = Need(least=4, most=5)
    segments = Segments.of(job(segment=4), need, (*RACKS, *above))
    assert segments is not None
    assert segments.room({f"n{i}" for i in range(1, 10)}) == 4
    assert Segments.of(job(segment=4), need, RACKS) is None, "Slurm shows no block that has room for one"
    assert Segments.of(job(segment=4), need, ()) is None, "no topology/block"


def test_slurm_ignores_segments_larger_than_the_job() -> None:
    assert segment_of(job(segment=5), NEED) == 0
    assert segment_of(job(segment=4), NEED) == 4
    assert segment_of(job(), Need(least=4, most=5, segment=2)) == 2, "Slurm before 25.05 does not show it"
    assert segment_of(job(segment=3), None) == 3


@pytest.mark.parametrize(
    ("need", "segment", "available", "nodes"),
    [
        ((64, 72), 8, 72, 72),  # with its spares
        ((64, 72), 8, 71, 64),
        ((64, 72), 4, 70, 68),
        ((62, 72), 16, 80, 64),  # 62 would be no whole segments
        ((62, 72), 18, 54, 72),  # it waits for nodes, however many there are
        ((62, 63), 16, 63, 63),  # as submitted; Slurm may refuse it
    ],
)
def test_a_job_in_segments_asks_for_as_many_as_have_room(
    need: tuple[int, int], segment: int, available: int, nodes: int
) -> None:
    """Slurm gives a job in segments the least nodes, and starts it on whole segments only."""
    least, most = need
    submitted = job(segment=segment, num_tasks=4 * most, cpus_per_task=2)
    asked = size_of(Need(least=least, most=most), submitted, available)
    assert (asked.least, asked.most, asked.tasks, asked.cpus) == (nodes, nodes, 4 * nodes, 8 * nodes)
    again = msgspec.structs.replace(submitted, num_tasks=asked.tasks, restart_count=1)
    assert size_of(Need(least=least, most=most), again, available) == asked
