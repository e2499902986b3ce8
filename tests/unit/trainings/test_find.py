"""From what a person types to the job's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.find import NoSuchJob, NotBegun, find
from tests.builders.events import run_started
from tests.users import as_another_user


def started(folder: Path, array_task: str = "") -> Path:
    folder.mkdir(parents=True)
    event = run_started(array_task=array_task)
    (folder / "journal.jsonl").write_bytes(ev.encode_event(event) + b"\n")
    return folder


def test_a_job_by_its_id_its_name_its_folder_and_its_root(root: Path) -> None:
    slurm = FakeSlurm()
    job, named = started(root / "7"), started(root / "8.night")
    assert find("7", None, slurm).path == job
    assert find("8", None, slurm).path == named
    assert find("srobust-jobs/7", None, slurm).path == Path("srobust-jobs/7")
    assert find("7", str(root), slurm).path == job


def test_a_task_of_an_array_is_found_by_what_its_run_wrote_down(root: Path) -> None:
    slurm = FakeSlurm()
    started(root / "38", "38_2")
    first, again = started(root / "39", "38_1"), started(root / "40.night", "38_3")
    (root / "41").mkdir()
    (root / "notes.txt").touch()
    assert find("38_1", None, slurm).path == first
    assert find("38_3", None, slurm).path == again
    with pytest.raises(NoSuchJob, match=r"no journal of job 38_4 in .*/srobust-jobs"):
        find("38_4", None, slurm)


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("38+1", "component of heterogeneous job 38, in which srobust does not run", "hetjob"),
        ("38_[1-4]", "several tasks of array 38", "38_1"),
        ("38.0", "a step of job 38", "give the job: 38"),
        ("38_1.batch", "a step of job 38_1", "give the job: 38_1"),
    ],
)
def test_other_ids_that_slurm_shows_are_recognised(name: str, text: str, fix: str, root: Path) -> None:
    with pytest.raises(NoSuchJob, match=text) as error:
        find(name, None, FakeSlurm())
    assert fix in error.value.fix


def test_a_folder_without_a_journal_is_named_for_what_it_lacks(root: Path) -> None:
    folder = root / "7"
    with pytest.raises(NoSuchJob, match=f"there is no folder {folder}"):
        find(str(folder), None, FakeSlurm())
    folder.mkdir(parents=True)
    with pytest.raises(NoSuchJob, match=f"{folder} has no journal.jsonl"):
        find(str(folder), None, FakeSlurm())
    (folder / "journal.jsonl").touch()
    with pytest.raises(NoSuchJob, match=f"{folder}/journal.jsonl is empty"):
        find(str(folder), None, FakeSlurm())


def test_a_closed_folder_is_reported_as_closed(root: Path) -> None:
    started(root / "7")
    (root / "7").chmod(0)
    try:
        with as_another_user(), pytest.raises(NoSuchJob, match="may not be read by uid"):
            find(str(root / "7"), None, FakeSlurm())
    finally:
        (root / "7").chmod(0o700)


def test_a_folder_below_a_closed_home_is_reported_as_closed(root: Path) -> None:
    home = root.parent / "home"
    started(home / "srobust-jobs" / "1")
    slurm = FakeSlurm()
    assert slurm.submit(SubmitRequest(command=("train.sh",), work_dir=str(home))) == 1
    home.chmod(0)
    try:
        with as_another_user(), pytest.raises(NoSuchJob, match="may not be read by uid") as error:
            find("1", None, slurm)
    finally:
        home.chmod(0o700)
    assert f"{home}/srobust-jobs/1 " in str(error.value)
    assert "owner and root can" in error.value.fix


def test_only_a_job_that_is_not_here_is_asked_for_in_slurm(root: Path) -> None:
    slurm = FakeSlurm()
    slurm.cluster.unreachable = True
    assert find("7", str(started(root / "7").parent), slurm).path == root / "7"
    with pytest.raises(NotBegun, match="and Slurm does not answer") as error:
        find("8", None, slurm)
    assert error.value.may_begin


@pytest.mark.parametrize("name", ["4711", "38_1"])
def test_where_slurm_cannot_be_asked_that_is_said_with_its_fix(root: Path, name: str) -> None:
    slurm = CliSlurmClient(5.0, environ={"PATH": "/nowhere"})
    said = rf"no journal of job {name} in .*, and Slurm gives no answer \(cannot start \w+; PATH is /nowhere;"
    with pytest.raises(NoSuchJob, match=said) as error:
        find(name, None, slurm)
    assert error.value.fix.startswith("go to a node that has Slurm's commands (a login node), or put ")
    assert "; or give --job-dir as 'srobust run' had it" in error.value.fix


def test_a_job_without_a_journal_is_reported_with_its_state_in_slurm(root: Path) -> None:
    slurm = FakeSlurm()
    where = {"work_dir": str(root.parent), "output": "/home/alice/train-%j.log"}
    waiting = slurm.submit(SubmitRequest(command=("train.sh",), hold=True, **where))
    with pytest.raises(NotBegun, match=rf"job {waiting} is pending \(JobHeldUser\): it has not") as error:
        find(str(waiting), None, slurm)
    assert error.value.may_begin
    assert f"scontrol release {waiting}" in error.value.fix
    job = slurm.submit(SubmitRequest(command=("train.sh",), **where))
    with pytest.raises(NotBegun, match=f"job {job} is RUNNING, but srobust has not begun") as error:
        find(str(job), None, slurm)
    assert error.value.may_begin
    assert "its log says" not in str(error.value)
    log = root.parent / "train.log"
    log.write_text("module load cuda\nsrobust: 2026-11-30T09:59:06 training mlp was last held by job 4\n")
    slurm.cluster.put(slurm.job(job), stdout=str(log))
    with pytest.raises(NotBegun, match=r"its log says: training mlp was last held by job 4$"):
        find(str(job), None, slurm)
    slurm.cluster.put(slurm.job(job), stdout=f"/home/alice/train-{job}.log")
    slurm.cluster.finish(job, "FAILED")
    ended = rf"job {job} has ended \(FAILED 0:0\), and .+; see its log /home/alice/train-{job}\.log"
    with pytest.raises(NotBegun, match=ended) as error:
        find(str(job), None, slurm)
    assert not error.value.may_begin


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ExitCode.OTHER_CONTROLLER, "by its exit code 'srobust run' refused to begin: OTHER_CONTROLLER"),
        (ExitCode.REQUEUED, "it ended before srobust began"),
        (80, "it ended before srobust began"),
        (1, "it ended before srobust began"),
    ],
)
def test_the_exit_code_of_a_job_without_a_journal_says_if_srobust_run_refused(
    root: Path, code: int, why: str
) -> None:
    slurm = FakeSlurm()
    job = slurm.submit(SubmitRequest(command=("train.sh",)))
    slurm.cluster.finish(job, "FAILED", code)
    with pytest.raises(NotBegun, match=rf"job {job} has ended \(FAILED {int(code)}:0\), .+: {why}"):
        find(str(job), None, slurm)


def test_what_slurmctld_forgot_slurmdbd_still_knows(root: Path) -> None:
    slurm = FakeSlurm()
    job = slurm.submit(SubmitRequest(command=("train.sh",)))
    slurm.job(job)
    slurm.cluster.finish(job, "CANCELLED")
    del slurm.cluster.jobs[job]
    with pytest.raises(NotBegun, match=rf"job {job} has ended \(CANCELLED 0:0\)"):
        find(str(job), None, slurm)
