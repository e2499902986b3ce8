"""For which nodes spares are planned, and from which history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.admin.history import DAY_S, History
from slurm_robust.admin.spare_plan import (
    NoNodes,
    PlannedNodes,
    SpareRequirements,
    TraceTooShort,
    fleet_of,
    main,
    measure_fleet,
    plan_for,
)
from slurm_robust.policy.spares import ENOUGH, PUBLIC_RATE, SparePlan
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
    seen = measure_fleet(history(event("n1", 95), event("n2", 96), runs=(run("n1", "n2", "n3"),)), None, 28)
    found = there(seen.measured)
    assert (found.failures, found.node_days) == (2, 30.0)


def test_only_the_chosen_nodes_count() -> None:
    runs = (run("n1", "n2"), run("c1", "c2", "c3"))
    events = (event("n1", 95), event("c1", 96), event("c2", 97))
    found = there(measure_fleet(history(*events, runs=runs), {"n1", "n2"}, 28).measured)
    assert (found.failures, found.node_days) == (1, 20.0)


def test_only_the_chosen_days_count() -> None:
    runs = (run("n1", start=50.0, end=95.0), run("n1", start=95.0, end=None))
    found = there(measure_fleet(history(event("n1", 80), event("n1", 99), runs=runs), None, 10).measured)
    assert (found.failures, found.node_days) == (1, 10.0)


def test_one_death_counts_once_and_a_persons_drain_does_not() -> None:
    """As lemons count: the job that died of its node is no second failure."""
    events = (event("n1", 95), event("n2", 96, reason="disk, alice"))
    died = run("n1", "n2", end=95.0, state="NODE_FAIL")
    found = there(measure_fleet(history(*events, runs=(died,)), None, 28).measured)
    assert found.failures == 1


def test_nodes_that_did_nothing_tell_no_rate() -> None:
    assert measure_fleet(history(event("n1", 95)), None, 28).measured is None


def test_failures_are_counted_by_day_from_the_first_work_on() -> None:
    events = (event("n1", 90.2), event("n2", 90.4), event("n1", 99.5), event("n1", 70))
    seen = measure_fleet(history(*events, runs=(run("n1", "n2"),)), None, 28)
    assert seen.per_day == (1, *[0] * 8, 2), "the last day comes first"


def test_bursts_that_a_site_had_are_planned_for(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    class WithBursts(FakeSlurm):
        def node_events(self, within_s: float) -> tuple[NodeEvent, ...]:
            days = (80.0, 90.0)
            return tuple(
                event(f"n{i}", day + i / 24, reason=f"srobust: gpu{i} XID 79")
                for day in days
                for i in range(1, 9)
            )

        def runs(self, within_s: float) -> tuple[AccountingRow, ...]:
            return (run(*(f"n{i}" for i in range(1, 101)), start=72.0),)

    made = plan_for(WithBursts(cluster), PlannedNodes(name="nodes", count=100), SpareRequirements(), NOW)
    assert (made.rate.source, made.dispersion.source) == ("measured", "measured")
    assert (made.at_once, made.independent, made.public) == (10, 3, None)
    assert main("100", SpareRequirements(), json=False, slurm=WithBursts(cluster), clock=lambda: NOW) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "10 at a time with bursts as measured, 16 failures in 28 days, 3 if failures were" in shown


def test_the_history_of_the_site_is_asked(cluster: FakeCluster) -> None:
    slurm = FakeSlurm(cluster)
    job = slurm.submit(SubmitRequest(command=("x",), nodes=2))
    cluster.clock.advance(10 * DAY_S)
    cluster.finish(job)
    made = plan_for(slurm, fleet_of(slurm, "main"), SpareRequirements(), cluster.clock.time())
    assert there(made.measured).node_days == pytest.approx(20, rel=1e-3)
    assert made.rate.source == "public"


def test_without_accounting_the_rate_of_a_public_trace_is_used() -> None:
    class NoAccounting(FakeSlurm):
        def node_events(self, within_s: float) -> tuple[NodeEvent, ...]:
            raise CommandFailed("You are not running a supported accounting_storage plugin")

    made = plan_for(NoAccounting(), PlannedNodes(name="nodes", count=1024), SpareRequirements(), NOW)
    assert (made.spares, made.rate.per_day, made.rate.source) == (10, PUBLIC_RATE, "public")
    assert "not running a supported accounting_storage plugin" in made.rate.why


def test_a_given_rate_asks_nobody(cluster: FakeCluster) -> None:
    cluster.unreachable = True
    wanted = SpareRequirements(rate=0.01, group=3)
    assert plan_for(FakeSlurm(cluster), PlannedNodes(name="nodes", count=128), wanted, NOW).spares == 4


# -- a trace ----------------------------------------------------------------------------------------------


def planned(count: int, cluster: FakeCluster, **wanted: object) -> SparePlan:
    cluster.unreachable = True  # nobody is asked
    given = structs.replace(SpareRequirements(trace="infinitehbd"), **wanted)
    return plan_for(FakeSlurm(cluster), PlannedNodes(name="nodes", count=count), given, NOW)


def test_a_trace_gives_rate_bursts_and_times_to_replace(cluster: FakeCluster) -> None:
    made = planned(400, cluster)
    assert (made.rate.source, made.dispersion.source) == ("trace", "trace")
    assert (made.rate.per_day, made.replenish_days) == (
        pytest.approx(0.00417, abs=5e-6),
        pytest.approx(5.55, abs=0.01),
    )
    seen = there(made.observed)
    assert (made.at_once, made.independent, seen.at_once, seen.most) == (33, 17, 31, 35)


def test_with_a_time_to_replace_the_trace_gives_rate_and_bursts(cluster: FakeCluster) -> None:
    made = planned(400, cluster, replenish="1 day")
    assert (made.at_once, made.independent, there(made.observed).at_once) == (11, 5, 12)


@pytest.mark.parametrize(
    ("replenish", "count", "with_bursts", "independent"),
    [
        ("1 day", 10, 17, 10),
        ("24 h", 10, 17, 10),
        ("6 h", 4, 9, 4),
        ("0.7 days median, 6.5 days mean", 41, 43, 41),
    ],
)
def test_the_longer_a_replacement_takes_the_more_nodes_are_out(
    cluster: FakeCluster, replenish: str, count: int, with_bursts: int, independent: int
) -> None:
    alone = planned(1024, cluster, trace="", rate=0.0042, replenish=replenish)
    together = planned(1024, cluster, trace="", rate=0.0042, replenish=replenish, dispersion=3.4)
    assert (alone.at_once, together.at_once, together.independent) == (count, with_bursts, independent)


def test_times_to_replace_that_vary_replay_the_trace(cluster: FakeCluster) -> None:
    as_it_was = planned(400, cluster)
    like_it = planned(400, cluster, replenish="0.85 days median, 5.55 days mean")
    assert like_it.replenish_days == pytest.approx(as_it_was.replenish_days, abs=0.01)
    assert like_it.independent < like_it.at_once < as_it_was.at_once, "nodes of a burst were out alike long"


def test_what_is_given_goes_before_the_trace(cluster: FakeCluster) -> None:
    made = planned(1024, cluster, rate=0.0012, replenish="1 day", dispersion=1.0)
    assert (made.spares, made.rate.source, made.dispersion.source) == (4, "given", "given")


def test_a_small_fleet_needs_fewer_spares_than_the_trace_and_a_large_one_more(cluster: FakeCluster) -> None:
    spares = [planned(count, cluster).spares for count in (1, 16, 100, 400, 1600)]
    assert spares == sorted(set(spares))
    assert spares[0] == 1


def test_what_a_trace_leaves_open_is_told(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "outages.csv"
    path.write_text("node,start_days,end_days\n" + "".join(f"n{i},{i},{i + 2}\n" for i in range(30)))
    assert main("64", SpareRequirements(trace=str(path)), json=False, slurm=FakeSlurm(cluster)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the trace does not say its number of nodes: 30 that had an outage are counted" in shown
    assert "time to replace 2 days on average" in shown
    wanted = SpareRequirements(trace=str(path), trace_nodes=300)
    assert main("64", wanted, json=True, slurm=FakeSlurm(cluster)) == 0
    assert json.loads(capsys.readouterr().out)["observed"]["nodes"] == 300


def test_a_trace_with_few_outages_or_days_is_no_base_for_a_plan(cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "outages.csv"
    for lines, why in (
        (["# until: 90", *(f"n{i},{i},{i + 1}" for i in range(ENOUGH - 1))], "9 outages in 90 days"),
        (["# until: 13", *(f"n{i},1,2" for i in range(40))], "40 outages in 12 days"),
    ):
        path.write_text("node,start_days,end_days\n" + "\n".join(lines))
        with pytest.raises(TraceTooShort, match=why):
            planned(64, cluster, trace=str(path))


def test_outages_that_do_not_come_together_are_called_independent(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "outages.csv"
    path.write_text("node,start_days,end_days\n" + "".join(f"n{i},{i},{i + 0.9}\n" for i in range(30)))
    wanted = SpareRequirements(trace=str(path), trace_nodes=64)
    assert main("64", wanted, json=False, slurm=FakeSlurm(cluster)) == 0
    assert "independent failures, as in the trace of 64 nodes" in " ".join(capsys.readouterr().out.split())


def test_the_page_shows_what_the_command_says_of_the_public_trace(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "fleet.md").read_text()
    example = page.partition("--nodes 400 --trace infinitehbd\n")[2].partition("\n```")[0]
    assert main("400", SpareRequirements(trace="infinitehbd"), json=False, slurm=FakeSlurm(cluster)) == 0
    assert " ".join(example.split()) in " ".join(capsys.readouterr().out.split())


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


def test_the_table_says_what_bursts_need(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    slurm = FakeSlurm(cluster)
    assert main("1024", SpareRequirements(rate=0.0012), json=False, slurm=slurm) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "independent failures are assumed, which is optimistic; with bursts as in a public trace: 8" in shown
    )
    wanted = SpareRequirements(trace="infinitehbd", replenish="1 day")
    assert main("400", wanted, json=False, slurm=slurm) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "11 at a time with bursts as in the trace of 400 nodes, 5 if failures were independent" in shown
    assert "99 % of the time at most 12 of its 400 nodes are out; most: 21" in shown


def test_everything_as_json(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    main("512", SpareRequirements(rate=0.0012), json=True, slurm=FakeSlurm(cluster))
    shown = json.loads(capsys.readouterr().out)
    assert (shown["spares"], shown["nodes"], shown["rate"]["source"]) == (3, 512, "given")
