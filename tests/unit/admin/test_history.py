"""Events of slurmdbd and of our logs as one history, and what of it counts against a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_robust.admin.history import (
    OUTAGE_S,
    History,
    HistoryEntry,
    LogUnreadable,
    failures_of,
    fault_kind,
    gather,
    joined,
    own_log,
    read_log,
    scores_table,
    timeline,
    work_of,
)
from slurm_robust.admin.history import main as history_main
from slurm_robust.analysis.lemons import Score, score
from slurm_robust.cli.main import main
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm.errors import InvalidNode
from slurm_robust.slurm.records import AccountingRow, NodeEvent
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.terminal.console import show
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders import records
from tests.users import as_another_user

REASON = "srobust: gpu3 XID 79"


def event(
    node: str = "n1", start: float = 100.0, end: float | None = None, reason: str = REASON
) -> NodeEvent:
    return NodeEvent(node=node, state="DRAIN", reason=reason, user="root", start_time=start, end_time=end)


def run(state: str, *nodes: str, start: float = 0.0, end: float | None = 50.0) -> AccountingRow:
    return records.accounting_row(state=state, nodes=nodes, start_time=start, end_time=end)


def history(
    *events: NodeEvent, runs: tuple[AccountingRow, ...] = (), logged: tuple[dict[str, object], ...] = ()
) -> History:
    return History(events=events, runs=runs, logged=logged, until=1000.0)


def test_what_slurm_cut_in_two_is_one_event() -> None:
    cut = (event(start=100, end=103), event(start=103, end=110), event("n2", start=103))
    assert joined(cut) == (event(start=100, end=110), event("n2", start=103))
    apart = (event(start=100, end=103), event(start=200))
    assert joined(apart) == apart
    other = (event(start=100, end=103), event(start=103, reason="disk, alice"))
    assert joined(other) == other


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        (REASON, True),
        ("Not responding", True),
        ("Node unexpectedly rebooted", True),
        ("Kill task failed", False),
        ("Prolog error", True),
        ("rack 7 gets new cables", False),
        ("disk, alice", False),
        ("", False),
    ],
)
def test_only_what_the_node_did_counts(reason: str, counts: bool) -> None:
    assert bool(fault_kind(event(reason=reason))) is counts


def test_a_job_that_died_with_its_node_does_not_count_against_the_others() -> None:
    lost = run("NODE_FAIL", "n1", "n2", "n3", end=150)
    found = failures_of(history(event(start=100, reason="Not responding"), runs=(lost,)))
    assert [(f.nodes, f.in_job) for f in found] == [(("n1",), False)]
    (alone,) = failures_of(history(runs=(lost,)))
    assert (alone.nodes, alone.in_job) == (("n1", "n2", "n3"), True)


def test_failures_of_programs_do_not_count() -> None:
    states = ("FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", "COMPLETED", "PREEMPTED")
    assert failures_of(history(runs=tuple(run(state, "n1") for state in states))) == []


def test_jobs_that_suspected_a_good_node_count() -> None:
    (found,) = failures_of(history(logged=({"event": "acquitted", "at": 5.0, "node": "n4"},)))
    assert (found.nodes, found.in_job) == (("n4",), False)


def acquitted(node: str, at: float, **facts: object) -> dict[str, object]:
    return {"event": "acquitted", "at": at, "node": node, **facts}


def test_what_one_user_suspects_counts_once_for_a_node() -> None:
    """The record of a suspect is a file that the user writes, one with each job."""
    logged = tuple(acquitted("n4", float(at), uid=1000, job=at) for at in range(50))
    (found,) = failures_of(history(logged=logged))
    assert (found.nodes, found.t) == (("n4",), 0.0)
    more = (*logged, acquitted("n4", 60.0, uid=1001), acquitted("n5", 61.0, uid=1000))
    assert [f.nodes for f in failures_of(history(logged=more))] == [("n4",), ("n4",), ("n5",)]
    # Events of older versions do not tell whose job it was.
    old = tuple(acquitted("n4", float(at)) for at in range(50))
    assert len(failures_of(history(logged=old))) == 1


def test_suspects_of_one_user_make_no_lemon() -> None:
    rows = tuple(run("COMPLETED", f"n{i}", end=50 * 3600.0) for i in range(200))
    logged = tuple(acquitted("n4", float(at), uid=1000) for at in range(50))
    seen = history(runs=rows, logged=logged)
    (top, *_) = score(work_of(seen), failures_of(seen), 0.0, 50 * 3600.0)
    assert (top.node, top.blame, top.is_lemon) == ("n4", 1.0, False)


def test_work_goes_on_until_now_and_needs_a_beginning() -> None:
    rows = (run("RUNNING", "n1", end=None), run("PENDING"), run("COMPLETED", "n2", start=10.0, end=20.0))
    assert [(w.nodes, w.start, w.end) for w in work_of(history(runs=rows))] == [
        (("n1",), 0.0, 1000.0),
        (("n2",), 10.0, 20.0),
    ]


def test_one_time_line_per_node() -> None:
    logged = ({"event": "acquitted", "at": 90.0, "node": "n1", "suspected": "silent"},)
    found = timeline(history(event(end=110), event("n0", reason="disk, alice"), logged=logged))
    assert list(found) == ["n0", "n1"]
    assert found["n0"] == [HistoryEntry(node="n0", at=100.0, what="DRAIN by root", text="disk, alice")]
    assert [(e.at, e.text, e.until) for e in found["n1"]] == [(90.0, "silent", None), (100.0, REASON, 110.0)]


def test_gathered_from_slurm_and_a_log_with_damage(tmp_path: Path) -> None:
    cluster = FakeCluster()
    slurm = FakeSlurm(cluster, user="root")
    job = slurm.submit(SubmitRequest(command=("x",), nodes=2))
    assert slurm.job(job).is_running
    cluster.clock.advance(3600)
    cluster.node_down("n1")
    slurm.drain(["n3"], REASON)
    now = cluster.clock.time()
    lines = [
        json.dumps({"at": now, "node": "n2", "event": "acquitted", "suspected": "x"}),
        json.dumps({"at": now - 40 * 86400, "node": "n2", "event": "acquitted"}),
        json.dumps({"at": now, "node": "n2", "event": "run"}),
        json.dumps({"at": "late", "node": "n2", "event": "drained"}),
        "[1, 2]",
        '{"at": 1',
        "\xff",
    ]
    log = tmp_path / "events.jsonl"
    log.write_bytes("\n".join(lines).encode("latin-1"))
    found = gather(slurm, [log], 28, now)
    kinds = sorted((f.nodes, f.kind) for f in failures_of(found))
    assert kinds == [
        (("n1",), "node stopped responding"),
        (("n2",), "suspected by a job"),
        (("n3",), "drained by srobust"),
    ]


def test_a_log_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LogUnreadable, match="No such file"):
        read_log(tmp_path / "nothing")


@pytest.mark.parametrize("lemons", [False, True])
def test_a_node_that_does_not_exist_is_an_error_and_not_an_empty_history(
    lemons: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "log").touch()
    slurm = FakeSlurm(FakeCluster(), user="root")

    def ask(*nodes: str) -> int:
        return history_main(
            nodes, lemons=lemons, days=28, json=False, config_file=None, logs=[tmp_path / "log"], slurm=slurm
        )

    assert ask("n1") == 0
    with pytest.raises(InvalidNode, match="nX"):
        ask("n1", "nX")
    # nothing is said of the one that there is, as if that were the answer
    assert capsys.readouterr().out.count("\n") <= 2


@pytest.mark.parametrize("words", [["nodes", "n[1-"], ["admin", "quarantine", "n[1-"]])
def test_what_names_no_nodes_is_refused_before_anything_is_asked(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ExitCode.USAGE
    assert "name nodes as Slurm does" in capsys.readouterr().err


def test_an_event_log_that_is_closed_to_the_user_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "log"
    closed.mkdir()
    log = closed / "events.jsonl"
    assert own_log(log) == []
    log.touch()
    assert own_log(log) == [log]
    closed.chmod(0)
    try:
        with as_another_user():
            assert own_log(log) == []
            assert f"{log} is closed to you" in capsys.readouterr().err
            with pytest.raises(LogUnreadable, match="Permission denied") as error:
                read_log(log)
    finally:
        closed.chmod(0o700)
    assert error.value.exit_code == ExitCode.NO_INPUT
    assert "run this as root" in error.value.fix


def test_a_node_that_reboots_before_it_is_back_has_failed_once() -> None:
    silent = event(start=100, end=400, reason="Not responding")
    rebooted = event(start=400, end=500, reason="Node unexpectedly rebooted")
    (found,) = failures_of(history(silent, rebooted))
    assert (found.t, found.kind) == (100, "node stopped responding")
    again = event(start=500 + OUTAGE_S + 1, reason="Node unexpectedly rebooted")
    other = event("n2", start=400, reason="Node unexpectedly rebooted")
    assert [f.nodes for f in failures_of(history(silent, rebooted, other, again))] == [
        ("n1",),
        ("n2",),
        ("n1",),
    ]


def test_scores_of_nodes_that_worked_minutes_show_them_and_count_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    minutes = Score(node="n1", hours=0.05, blame=2, expected=1, kinds={"node rebooted by itself": 2})
    days = Score(node="n2", hours=123.4, blame=0, expected=1)
    show(scores_table([minutes, days], days=28), lambda shown: shown, json=False)
    heads, first, second, total = capsys.readouterr().out.splitlines()
    assert heads.split() == ["node", "lemon", "p", "ratio", "least", "failed", "expected", "hours", "what"]
    assert first.endswith("0.05  node rebooted by itself 2 times")
    assert second.endswith(" 123")
    assert total == "2 nodes in 28 days, 0 fail more often than chance explains"
