"""What a job asks Slurm for when it is requeued."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from slurm_robust.slurm.need import Need, Places, Size, affordable, places, size_of
from slurm_robust.slurm.records import SlurmJob, SlurmNode
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
