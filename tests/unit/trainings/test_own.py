"""The job that is meant where none is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings import own
from slurm_robust.trainings.find import NoSuchJob, find
from slurm_robust.trainings.folders import BegunJob, listed
from slurm_robust.trainings.own import OwnJobs, looked, meant, own_jobs
from tests.builders.events import run_started
from tests.unit.trainings.test_find import started


def folder(job: int, changed: float = 0.0) -> BegunJob:
    return BegunJob(path=Path(f"/j/{job}"), changed=changed, owner=0)


FIVE, SIX, SEVEN = folder(5), folder(6), folder(7)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (OwnJobs(here=(), running=()), None),
        (OwnJobs(here=(FIVE,), running=()), ("5", "your only job here")),
        (OwnJobs(here=(SIX, FIVE), running=()), ("6", "the newest of 2 jobs here")),
        (OwnJobs(here=(SIX, FIVE), running=(FIVE,)), ("5", "your only job that has not ended")),
        (OwnJobs(here=(SIX,), running=(FIVE,)), ("5", "your only job that has not ended, in /j")),
        (
            OwnJobs(here=(FIVE, SEVEN, SIX), running=(SEVEN, SIX)),
            ("7", "the newest of your 2 jobs that have not ended"),
        ),
        (OwnJobs(here=(SIX, FIVE), running=(SIX,), inside="5"), ("5", "in which this command runs")),
    ],
)
def test_the_only_or_newest_running_job_is_meant(jobs: OwnJobs, expected: tuple[str, str] | None) -> None:
    assert meant(jobs) == expected


def submitted(slurm: FakeSlurm, root: Path) -> int:
    """A job that Slurm has, with a folder."""
    job_id = slurm.submit(SubmitRequest(command=("a.sh",), nodes=1, work_dir=str(root.parent)))
    started(root / str(job_id))
    return job_id


def test_a_job_that_runs_goes_before_one_that_wrote_last(root: Path) -> None:
    slurm = FakeSlurm()
    started(root / "900")
    running = submitted(slurm, root)
    os.utime(root / str(running) / "journal.jsonl", (1, 1))
    (root / "training-gpt").mkdir()
    found = own_jobs(None, {}, slurm)
    assert [job.name for job in found.here] == ["900", str(running)]
    assert [job.job_id for job in found.running] == [running]


def test_inside_a_job_of_ours_it_is_meant_and_inside_another_one_not(root: Path) -> None:
    started(root / "7")
    started(root / "8")
    assert own_jobs(None, {"SLURM_JOB_ID": "7"}, FakeSlurm()).inside == "7"
    assert own_jobs(None, {"SLURM_JOB_ID": "9"}, FakeSlurm()).inside == ""


def test_away_from_the_folder_slurm_tells_where_the_jobs_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    job_id = submitted(slurm, root)
    elsewhere = tmp_path / "home"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = own_jobs(None, {}, slurm)
    assert [job.path for job in found.running] == [root / str(job_id)]
    assert own_jobs(str(elsewhere), {}, slurm).here == ()


def test_a_job_that_runs_elsewhere_goes_before_those_that_have_ended_here(
    root: Path,
    tmp_path: Path,
    slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_id = submitted(slurm, root)
    home = tmp_path / "home"
    started(home / "srobust-jobs" / "900")
    monkeypatch.chdir(home)
    assert meant(own_jobs(None, {}, slurm)) == (str(job_id), f"your only job that has not ended, in {root}")
    assert main(["status", "--all", "--json"]) == ExitCode.SUCCESS
    shown = capsys.readouterr()
    assert [job["job"] for job in json.loads(shown.out)] == [str(job_id), "900"]
    assert f"jobs that have ended were looked for only in {home}/srobust-jobs\n" in shown.err
    assert own_jobs(str(home / "srobust-jobs"), {}, slurm).running == ()


def test_where_slurm_is_silent_it_is_said_where_jobs_were_looked_for(root: Path) -> None:
    started(root / "900")
    found = own_jobs(None, {}, FakeSlurm(reaches=lambda: False))
    assert looked(found, None) == f"Slurm does not answer: all jobs were looked for only in {root}"


def test_a_job_that_there_is_not_is_answered_with_those_that_there_are(root: Path) -> None:
    for age, job in enumerate((1, 5, 6)):
        os.utime(started(root / str(job)) / "journal.jsonl", (age, age))
    with pytest.raises(NoSuchJob, match=r"no journal of job 99 in .*, and Slurm does not know it") as error:
        find("99", None, FakeSlurm())
    assert error.value.fix.startswith("your jobs here: 6, 5, 1; or give --job-dir")


def test_a_long_list_of_jobs_is_cut() -> None:
    assert listed([folder(job) for job in range(30, 0, -1)]) == "30, 29, 28, 27, 26, 25, 24, 23 and 22 older"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    made = FakeSlurm()
    monkeypatch.setattr(own, "make_slurm", lambda: made)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return made


@pytest.mark.parametrize("command", ["releases", "incidents", "trace --json", "checkpoint ls", "logs"])
def test_a_command_says_which_job_it_takes(
    command: str, root: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    started(root / "7")
    main(command.split())
    assert capsys.readouterr().err.startswith("srobust: job 7, your only job here\n")


@pytest.mark.parametrize("command", ["drill", "update", "rollback", "checkpoint rm", "checkpoint prune"])
def test_a_command_that_changes_something_takes_no_job_by_itself(
    command: str, root: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    started(root / "7")
    assert main(command.split()) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.startswith("srobust: error: ")
    assert "job" in said.lower()


def test_without_any_job_one_is_asked_for(
    root: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["releases"]) == ExitCode.USAGE
    assert f"no job is named, and there is no folder {root}" in capsys.readouterr().err
    root.mkdir()
    assert main(["incidents"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"no job is named, and none of yours is in {root}\n  fix: name a job, or --all" in said


def test_several_running_jobs_are_listed_the_newest_first(
    root: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = submitted(slurm, root), submitted(slurm, root)
    with (root / str(two) / "journal.jsonl").open("ab") as file:
        launched = ev.GenerationLaunched(t=1.0, generation=1, slots=("n1",), master="a:1")
        file.write(ev.encode_event(launched) + b"\n")
    started(root / "900")
    assert main(["status"]) == ExitCode.SUCCESS
    shown = capsys.readouterr().out.splitlines()
    rows = [line.split()[:2] for line in shown if line.strip()[:1].isdecimal()]
    assert rows == [[str(two), "starting"], [str(one), "starting"]]
    assert main(["status", "--all", "--json"]) == ExitCode.SUCCESS
    assert capsys.readouterr().out.count('"job":') == 3


def test_one_job_in_one_line(root: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "7").mkdir(parents=True)
    events = [
        run_started(t=1.0, training="gpt"),
        ev.GenerationLaunched(t=2.0, generation=1, slots=("n1",), master="a:1"),
        ev.FirstStep(t=3.0, generation=1, step=1, reported=True),
        ev.ProgressMade(t=5.0, generation=1, step=40, reported=True, loss=2.5),
        ev.RunEnded(t=9.0, code=0, final=True, reason=""),
    ]
    (root / "7" / "journal.jsonl").write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))
    assert main(["status", "--short"]) == ExitCode.SUCCESS
    shown = capsys.readouterr()
    assert shown.out.startswith("7 gpt: finished, step 40, loss 2.5, ETTR ")
    assert shown.out.count("\n") == 1
