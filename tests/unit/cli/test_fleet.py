"""The commands about all jobs of a site, on an index that is there."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.admin import node_table
from slurm_robust.admin.spare_plan import PlannedNodes, SpareRequirements, measure_index, plan_for
from slurm_robust.analysis.lemons import Failure, Work, score
from slurm_robust.cli.main import main
from slurm_robust.controller.conclusion import comment
from slurm_robust.fleet.accept import NodePlace
from slurm_robust.fleet.index import FleetIndex
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.jobsummary import NodeWork
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.unit.fleet.samples import HOUR, NODES, entry, incident

NOW = time.time()
OURS = "srobust: ETTR 97.1 %"
HOSTILE = "\x1b[31m[bold]=1+1\nsrobust: error"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = str(tmp_path / "fleet.sqlite")
    monkeypatch.setenv("SROBUST_FLEET_INDEX", file)
    recent = NOW - 2 * 86400
    jobs = [
        entry(
            number, submitted=int(recent), started=recent, ended=recent + 12 * HOUR,
            work=(NodeWork(nodes=NODES, start=recent, end=recent + 12 * HOUR),),
            incidents=(
                incident(t=recent + HOUR),
                incident(2, t=recent + 2 * HOUR, detail=HOSTILE, cause="code", nodes=()),
            ),
        )
        for number in range(1, 31)
    ]  # fmt: skip
    with FleetIndex(file, create=True) as index:
        index.add(jobs, {name: NodePlace(type="8xh200", rack="r1") for name in NODES})
    return file


def test_srobust_fleet_shows_totals_jobs_and_nodes(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet"]) == 0
    shown = capsys.readouterr().out
    for text in ("91.7%", "8xh200", "r1", "n2", "code", "job of", "512 nodes"):
        assert text in shown
    assert main(["fleet", "--json", "--since", "90d"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["totals"]["jobs"], found["worst"][0]["node"]) == (30, "n2")


def test_incidents_of_all_jobs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--all", "--limit", "4"]) == 0
    shown = capsys.readouterr().out
    assert "4 incidents" in shown
    assert "\x1b" not in shown
    assert (
        main(["incidents", "--all", "--node", "n[2-3]", "--cause", "node", "--user", "alice", "--json"]) == 0
    )
    assert len(json.loads(capsys.readouterr().out)) == 30
    assert main(["incidents", "--all", "--since", "1h"]) == 0
    assert "no incident" in capsys.readouterr().out
    assert main(["incidents", "--all", "--csv", "--cause", "code", "--limit", "2"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["cause"] for row in rows] == ["code", "code"]
    assert not rows[0]["detail"].startswith("=")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["incidents"], "a job, or --all"),
        (["incidents", "7", "--all"], "a job, or --all"),
        (["incidents", "--all", "--json", "--csv"], "exclude each other"),
        (["incidents", "--all", "--since", "yesterday"], "neither a span"),
        (["fleet", "--since", "1y"], "neither a span"),
        (["fleet", "--index", "mysql://u:secret@h/d"], "neither an absolute path nor a URL"),
        (["admin", "fleet", "forget", "--days", "0"], "not a number from 1"),
    ],
)
def test_srobust_fleet_refuses_wrong_usage(
    url: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert text in told
    assert "secret" not in told


@pytest.mark.parametrize("words", [["fleet"], ["incidents", "--all"], ["admin", "fleet", "collect"]])
def test_without_an_index_the_fix_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.NO_INPUT
    assert "fleet.index" in capsys.readouterr().err


def test_a_spool_that_is_empty_and_an_index_that_grows_old(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FleetIndex(url) as index:
        index.add([entry(99), entry(98)])  # of 2024
    assert main(["admin", "fleet", "forget", "--days", "60"]) == 0
    assert "removed 2 jobs that ended before the four weeks" in capsys.readouterr().out
    assert main(["admin", "fleet", "collect", "--spool", str(tmp_path / "none")]) == ExitCode.NO_INPUT
    assert "fleet.collect" in capsys.readouterr().err


# -- with a Slurm in memory ----------------------------------------------------------------------------------


def test_nodes_by_slurm_and_by_the_index(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(nodes=["n1", "n2", "n3", "spare9"])
    slurm = FakeSlurm(cluster, user="root", operator=True)
    slurm.drain(["n2"], "srobust: gpu3 XID 79")
    assert node_table.main((), url=url, days=28, json=True, slurm=slurm) == 0
    found = {row["node"]: row for row in json.loads(capsys.readouterr().out)["nodes"]}
    assert found["n2"]["failures"] == 30
    assert "DRAIN" in found["n2"]["state"]
    assert found["n2"]["reason"] == "srobust: gpu3 XID 79"
    assert found["n4"]["state"] == "?"
    assert found["spare9"]["hours"] == 0
    assert node_table.main(("n2", "n3"), url=url, days=28, json=False, slurm=slurm) == 0
    assert "2 nodes in 28 days" in capsys.readouterr().out


def test_the_rate_for_spares_is_that_of_the_index(url: str) -> None:
    slurm = FakeSlurm(FakeCluster(nodes=list(NODES)), user="root")
    fleet = PlannedNodes(name="nodes", count=4, nodes=frozenset(NODES))
    made = plan_for(slurm, fleet, SpareRequirements(index=url), NOW)
    assert made.rate.source == "measured"
    assert made.rate.per_day == pytest.approx(30 / (30 * 4 * 0.5))
    others = plan_for(
        slurm, structs.replace(fleet, nodes=frozenset({"n9"})), SpareRequirements(index=url), NOW
    )
    assert (others.rate.source, "fleet index" in others.rate.why) == ("public", True)


def test_the_days_of_the_index_tell_bursts(url: str) -> None:
    seen = measure_index(url, None, 28, NOW)
    assert (sum(seen.per_day), len(seen.per_day)) == (30, 2), "all on the first day of work, none yesterday"
    assert measure_index(url, frozenset({"n3"}), 28, NOW).per_day == (0, 0)
    assert measure_index(url, frozenset({"n9"}), 28, NOW).per_day == ()


def test_what_only_users_say_makes_no_lemon() -> None:
    """However many there are; one thing that the system itself saw makes one of them."""
    work = [Work(nodes=(f"n{number}",), start=0.0, end=1e6) for number in range(50)]
    said = [
        Failure(t=float(user), nodes=("n7",), kind="blamed", in_job=False, is_hearsay=True)
        for user in range(9)
    ]
    (first, *_) = score(work, said, 0.0, 1e6)
    assert (first.node, first.is_lemon, first.p < 0.01) == ("n7", False, True)
    seen = Failure(t=5.0, nodes=("n7",), kind="drained by srobust", in_job=False)
    (first, *_) = score(work, [*said, seen], 0.0, 1e6)
    assert (first.node, first.is_lemon) == ("n7", True)


@pytest.mark.parametrize(
    ("before", "after"), [("", OURS), ("srobust: ETTR 3.0 %", OURS), ("grant 4711", "grant 4711")]
)
def test_the_comment_of_a_job_is_nobody_elses(before: str, after: str) -> None:
    slurm = FakeSlurm(FakeCluster(nodes=["n1"]))
    job_id = slurm.submit(SubmitRequest(command=("x",), nodes=1, comment=before))
    comment(slurm, job_id, OURS)
    assert slurm.job(job_id).comment == after
    comment(slurm, 99, "no such job: nothing happens")


def test_the_trainings_of_the_site(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    recent = NOW - 86400
    with FleetIndex(url, create=True) as index:
        index.add([entry(90, training="gpt-7b", submitted=int(recent), started=recent, ended=recent + HOUR)])
    assert main(["fleet"]) == 0
    assert "gpt-7b" in capsys.readouterr().out
    assert main(["fleet", "--training", "gpt-7b", "--since", "5200w"]) == 0
    shown = capsys.readouterr().out
    assert "jobs of gpt-7b of alice" in shown
    assert "\n90 " in shown
    assert main(["fleet", "--training", "gpt-7b", "--since", "5200w", "--json"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"][0]] == [90]
    assert main(["fleet", "--training", "none"]) == 0
    assert "no job in the fleet index is of a training none" in capsys.readouterr().out
    assert main(["incidents", "--all", "--training", "gpt-7b", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["job_id"], row["training"]) for row in rows} == {(90, "gpt-7b")}
    assert main(["incidents", "7", "--training", "gpt-7b"]) == ExitCode.USAGE
    assert "--training is for the incidents of all jobs" in capsys.readouterr().err
