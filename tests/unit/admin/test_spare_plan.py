"""For which nodes spares are planned, and from which history."""

from __future__ import annotations

import json

import pytest

from slurm_robust.admin.history import DAY_S, History
from slurm_robust.admin.spare_plan import (
    NoNodes,
    PlannedNodes,
    SpareRequirements,
    fleet_of,
    main,
    measure_fleet,
    plan_for,
)
from slurm_robust.policy.spares import PAPER_RATE
from slurm_robust.slurm.errors import CommandFailed, InvalidNode
from slurm_robust.slurm.records import AccountingRow, NodeEvent
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders import records
from tests.there import there

NOW = 100 * DAY_S


def event(node: str, day: float, reason: str = "Not responding") -> NodeEvent:
    return NodeEvent(
        node=node, state="DOWN", reason=reason, user="root", start_time=day * DAY_S, end_time=None
    )


def run(
    *nodes: str, start: float = 90.0, end: float | None = 100.0, state: str = "COMPLETED"
) -> AccountingRow:
    return records.accounting_row(
        state=state, nodes=nodes, start_time=start * DAY_S, end_time=None if end is None else end * DAY_S
    )


def history(
    *events: NodeEvent, runs: tuple[AccountingRow, ...] = (), logged: tuple[dict[str, object], ...] = ()
) -> History:
    return History(events=events, runs=runs, logged=logged, until=NOW)


# -- the nodes --------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster([f"n{i}" for i in range(1, 6)])
    cluster.set_node("n5", partitions=("debug",))
    return cluster


@pytest.mark.parametrize(
    ("text", "count", "nodes"),
    [
        ("1024", 1024, None),
        ("", 5, {"n1", "n2", "n3", "n4", "n5"}),
        ("main", 4, {"n1", "n2", "n3", "n4"}),
        ("debug", 1, {"n5"}),
        ("n[2-3],n5", 3, {"n2", "n3", "n5"}),
        ("n1,n1", 1, {"n1"}),
    ],
)
def test_a_number_a_partition_or_a_hostlist(
    cluster: FakeCluster, text: str, count: int, nodes: set[str] | None
) -> None:
    fleet = fleet_of(FakeSlurm(cluster), text)
    assert (fleet.count, fleet.nodes) == (count, nodes)


def test_nodes_that_are_not_there_yet_do_not_count(cluster: FakeCluster) -> None:
    cluster.set_node("n4", states=frozenset({"FUTURE"}))
    assert fleet_of(FakeSlurm(cluster), "main").count == 3


def test_a_number_needs_no_slurm(cluster: FakeCluster) -> None:
    cluster.unreachable = True
    assert fleet_of(FakeSlurm(cluster), "8").count == 8


@pytest.mark.parametrize(
    ("text", "error"), [("0", NoNodes), ("n9", InvalidNode), ("n[1-2],x", InvalidNode), ("n[1-", NoNodes)]
)
def test_a_fleet_that_names_no_node_is_refused(
    cluster: FakeCluster, text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        fleet_of(FakeSlurm(cluster), text)


# -- the rate ---------------------------------------------------------------------------------------------


def test_failures_per_node_day_of_work() -> None:
    found = there(
        measure_fleet(history(event("n1", 95), event("n2", 96), runs=(run("n1", "n2", "n3"),)), None, 28)
    )
    assert (found.failures, found.node_days) == (2, 30.0)


def test_only_the_chosen_nodes_count() -> None:
    runs = (run("n1", "n2"), run("c1", "c2", "c3"))
    found = there(
        measure_fleet(history(event("n1", 95), event("c1", 96), event("c2", 97), runs=runs), {"n1", "n2"}, 28)
    )
    assert (found.failures, found.node_days) == (1, 20.0)


def test_only_the_chosen_days_count() -> None:
    runs = (run("n1", start=50.0, end=95.0), run("n1", start=95.0, end=None))
    found = there(measure_fleet(history(event("n1", 80), event("n1", 99), runs=runs), None, 10))
    assert (found.failures, found.node_days) == (1, 10.0)


def test_one_death_counts_once_and_a_persons_drain_does_not() -> None:
    """As lemons count: the job that died of its node is no second failure."""
    events = (event("n1", 95), event("n2", 96, reason="disk, alice"))
    died = run("n1", "n2", end=95.0, state="NODE_FAIL")
    found = there(measure_fleet(history(*events, runs=(died,)), None, 28))
    assert found.failures == 1


def test_nodes_that_did_nothing_tell_no_rate() -> None:
    assert measure_fleet(history(event("n1", 95)), None, 28) is None


def test_the_history_of_the_site_is_asked(cluster: FakeCluster) -> None:
    slurm = FakeSlurm(cluster)
    job = slurm.submit(SubmitRequest(command=("x",), nodes=2))
    cluster.clock.advance(10 * DAY_S)
    cluster.finish(job)
    made = plan_for(slurm, fleet_of(slurm, "main"), SpareRequirements(), cluster.clock.time())
    assert there(made.measured).node_days == pytest.approx(20, rel=1e-3)
    assert made.rate.source == "paper"


def test_without_accounting_the_paper_s_rate_is_used() -> None:
    class NoAccounting(FakeSlurm):
        def node_events(self, within_s: float) -> tuple[NodeEvent, ...]:
            raise CommandFailed("You are not running a supported accounting_storage plugin")

    made = plan_for(NoAccounting(), PlannedNodes(name="nodes", count=1024), SpareRequirements(), NOW)
    assert (made.spares, made.rate.per_day, made.rate.source) == (4, PAPER_RATE, "paper")
    assert "not running a supported accounting_storage plugin" in made.rate.why


def test_a_given_rate_asks_nobody(cluster: FakeCluster) -> None:
    cluster.unreachable = True
    wanted = SpareRequirements(rate=0.01, group=3)
    assert plan_for(FakeSlurm(cluster), PlannedNodes(name="nodes", count=128), wanted, NOW).spares == 4


# -- what is shown ----------------------------------------------------------------------------------------


def test_the_table_says_why(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("1024", SpareRequirements(rate=0.0012, group=8), json=False, slurm=FakeSlurm(cluster)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "spares 8 for 1,024 nodes" in shown
    assert "with a probability of 99 % at most 4 of 1,024 nodes fail within 1 day" in shown
    assert "a group of 8 that is evicted together needs 8" in shown
    assert "4 99.1525 % the first above 99 %" in shown


def test_few_failures_are_called_not_enough_data(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeSlurm(cluster)
    job = slurm.submit(SubmitRequest(command=("x",), nodes=4))
    cluster.clock.advance(25 * DAY_S)
    cluster.finish(job)
    cluster.node_down("n1")
    assert main("main", SpareRequirements(), json=False, slurm=slurm, clock=cluster.clock.time) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "spares not enough data (1 failure in 100 node-days); with the usual 1 to 2 %: 1 spare." in shown
    assert "95 % confidence" not in shown, "an interval of one failure helps nobody"


def test_everything_as_json(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    main("512", SpareRequirements(rate=0.0012), json=True, slurm=FakeSlurm(cluster))
    shown = json.loads(capsys.readouterr().out)
    assert (shown["spares"], shown["nodes"], shown["rate"]["source"]) == (3, 512, "given")
