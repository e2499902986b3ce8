"""What a pending job waits for, and the command that starts it now."""

from __future__ import annotations

import msgspec
import pytest

from slurm_robust.slurm.need import Need
from slurm_robust.slurm.records import SlurmJob, SlurmNode, Switch
from slurm_robust.trainings.waiting import PendingJob, waiting
from tests.builders import records

NEED = Need(least=4, most=5)
UPDATE = "scontrol update JobId=7 "
DEAD = "IDLE+NOT_RESPONDING"


def pending(reason: str = "Resources", **fields: object) -> SlurmJob:
    known: dict[str, object] = {
        "partition": "main",
        "least_nodes": 5,
        "num_nodes": 3,
        "num_tasks": 5,
        "priority": 1000,
        "restart_count": 1,
        "submit_time": 1000.0,
    }
    states = frozenset({"PENDING"})
    return records.job(states=states, reason=reason, **{**known, **fields})


def cluster(**states: str) -> tuple[SlurmNode, ...]:
    """Six nodes, idle but those in ``states``."""
    return tuple(
        records.node(*states.get(name, "IDLE").split("+"), name=name)
        for name in (f"n{i}" for i in range(1, 7))
    )


def found(
    job: SlurmJob, need: Need | None = NEED, weakest: tuple[str, ...] = (), **states: str
) -> PendingJob:
    waits = waiting(job, cluster(**states), need, weakest)
    assert waits is not None
    return waits


def test_a_job_that_waits_for_a_spare_beside_enough_nodes() -> None:
    job = pending("ReqNodeNotAvail,_UnavailableNodes:n2", excluded_nodes=("n5",))
    waits = found(job, n2=DEAD)
    assert (
        waits.describe(1480.0)
        == "for 8 min for 4 to 5 nodes: 4 nodes free (n[1,3-4,6]), n2 dead, n5 left out"
    )
    assert waits.command == UPDATE + "NumNodes=4-5 NumTasks=5 NumCPUs=5"
    assert waits.advice == f"to start it now (asks for 4-5 nodes): {waits.command}"
    assert (waits.least, waits.most, waits.since) == (4, 5, 1000.0)


def test_nothing_but_two_power_cuts() -> None:
    job = pending("Nodes_required_for_job_are_DOWN,_DRAINED", excluded_nodes=("n2", "n3"))
    assert found(job, n2=DEAD, n3="DOWN").command == UPDATE + "NumNodes=4-5 NumTasks=5 NumCPUs=5"


@pytest.mark.parametrize(("weakest", "left"), [((), "n5"), (("n1", "n5"), "n5"), (("n5", "n1"), "n1")])
def test_the_exclusions_are_too_many(weakest: tuple[str, ...], left: str) -> None:
    """Also those of its owner alone: a command that helps, which drops no more than it must."""
    job = pending("BadConstraints", priority=0, least_nodes=4, excluded_nodes=("n1", "n5"))
    waits = found(job, weakest=weakest, n2="DOWN")
    assert waits.command == UPDATE + f"ExcNodeList={left}"
    assert "a release does not help" in waits.advice
    both = found(job, n2=DEAD, n3=DEAD)
    assert both.command == UPDATE + "ExcNodeList="
    assert "uses n[1,5] again" in both.advice


def test_both_at_once_and_a_begin_time_that_would_have_to_pass() -> None:
    job = pending("BeginTime", excluded_nodes=("n1", "n5"))
    assert found(job, n2="DOWN").command == (
        UPDATE + "ExcNodeList=n5 NumNodes=4-5 NumTasks=5 NumCPUs=5 StartTime=now"
    )
    ready = pending("BeginTime", least_nodes=4)
    assert found(ready).command == UPDATE + "StartTime=now"


def test_nodes_that_it_asks_for_by_name() -> None:
    job = pending("ReqNodeNotAvail", least_nodes=4, required_nodes=("n2",))
    assert found(job, n2=DEAD).command == UPDATE + "ReqNodeList="


def test_too_few_nodes_have_no_command() -> None:
    waits = found(pending(), n1=DEAD, n2="DOWN", n3="IDLE+DRAIN", n4="ALLOCATED")
    assert waits.command == ""
    assert (
        waits.describe(1005.0)
        == "for 5.0 s for 4 to 5 nodes: 2 nodes free (n[5-6]), n[1-2] dead, n3 drained, n4 busy"
    )
    assert waits.advice.startswith("it lacks 2 nodes until other jobs end or an administrator brings n[1-3]")
    none = found(pending(), **{f"n{i}": "DOWN" for i in range(1, 7)})
    assert none.describe(1000.0) == "for 0.0 s for 4 to 5 nodes: 0 nodes free, n[1-6] dead"


def test_nodes_on_which_no_job_runs_any_more_need_nobody() -> None:
    soon = {
        "n2": "IDLE+COMPLETING",
        "n3": "IDLE+COMPLETING+PLANNED",
        "n4": "IDLE+PLANNED",
        "n5": "IDLE+PLANNED",
    }
    waits = found(pending(), n1=DEAD, **soon)
    assert waits.advice == (
        "wait: no job runs on n[2-5]; Slurm still ends the jobs before there, or plans the next"
    )
    few = found(pending(), n1=DEAD, n2="ALLOCATED", n3="ALLOCATED", n4="ALLOCATED", n5="IDLE+COMPLETING")
    assert few.advice.startswith("it lacks 3 nodes until other jobs end")


@pytest.mark.parametrize("spaces", [" ", "_"])
def test_a_maintenance_that_begins_before_the_time_limit_is_over(spaces: str) -> None:
    """Nodes that are down have nothing to do with it."""
    waits = found(pending(f"ReqNodeNotAvail,{spaces}Reserved{spaces}for{spaces}maintenance"), n2=DEAD)
    assert waits.command == ""
    assert waits.describe(1480.0) == "for 8 min for 4 to 5 nodes"
    assert waits.why.startswith("a reservation for maintenance begins before its time limit is over")
    assert "scontrol update JobId=7 TimeLimit=MINUTES" in waits.advice


def test_what_has_nothing_to_do_with_nodes() -> None:
    waits = found(pending("Dependency"))
    assert (waits.command, waits.describe(1010.0)) == ("", "for 10 s for 4 to 5 nodes")
    assert waits.advice == "another job has to end first: scontrol show job 7 | grep Dependency"
    assert found(pending("DependencyNeverSatisfied")).advice.endswith("so it never starts: scancel 7")
    assert "QOS" in found(pending("QOSMaxJobsPerUserLimit")).advice
    assert found(pending("SomethingNew")).advice == ""
    held = found(pending("JobHeldUser", priority=0))
    assert held.advice == "held (JobHeldUser): scontrol release 7"
    assert found(pending("Priority", least_nodes=4)).advice == "Slurm starts other jobs first"
    assert waiting(pending(), (), NEED) is not None, "Slurm did not show its nodes"
    running = msgspec.structs.replace(pending(), states=frozenset({"RUNNING"}))
    assert waiting(running, cluster(), NEED) is None


def test_a_job_without_a_journal_needs_what_it_asks_for() -> None:
    first = pending(restart_count=0, num_nodes=5, excluded_nodes=("n1", "n5"))
    waits = found(first, need=None)
    assert (waits.least, waits.most) == (5, 5)
    assert waits.command == UPDATE + "ExcNodeList=n5"


RACKS = tuple(
    Switch(name=name, level=0, nodes=nodes, is_block=True)
    for name, nodes in {"a": ("n1", "n2", "n3"), "b": ("n4", "n5", "n6")}.items()
)


def in_segments(excluded: tuple[str, ...], weakest: tuple[str, ...] = (), **states: str) -> PendingJob:
    job = pending(segment=2, least_nodes=4, excluded_nodes=excluded)
    waits = waiting(job, cluster(**states), NEED, weakest, RACKS)
    assert waits is not None
    return waits


def test_a_node_is_used_again_that_gives_a_segment_room() -> None:
    waits = in_segments(("n1", "n2", "n4"), ("n4", "n2", "n1"))
    assert waits.command == UPDATE + "ExcNodeList=n[1,4]", "n4 is weaker, and helps no segment"
    assert "uses n2 again" in waits.advice


def test_segments_without_room_are_named() -> None:
    waits = in_segments(("n1",), n2="DOWN", n3="ALLOCATED")
    assert (waits.command, waits.why) == (
        "",
        "only 1 of its 2 segments of 2 nodes (--segment=2) fit on the nodes that are free until other jobs "
        "end or an administrator brings n2 back (scontrol update nodename=… state=resume)",
    )
