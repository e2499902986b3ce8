"""One screen about a job: what Slurm says of it is the same by its number and by its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.report.status import status_of
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.unit.run_started import run_started


@pytest.fixture
def slurm() -> FakeSlurm:
    slurm = FakeSlurm()
    slurm.submit(SubmitRequest(command=("train.sh",)))
    return slurm


@pytest.fixture
def folder(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of job 1, below the folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    started = run_started()
    taken = ev.AllocationTaken(
        t=2.0,
        restart_count=0,
        nodes=("n1",),
        slots=("n1",),
        spares=(),
        submitted=slurm.job(1).submit_time,
    )
    path = tmp_path / "srobust-jobs" / "1"
    path.mkdir(parents=True)
    (path / "journal.jsonl").write_bytes(b"".join(ev.encode_event(e) + b"\n" for e in (started, taken)))
    return path


def said(folder: Path, slurm: FakeSlurm) -> str:
    """What is said of Slurm, which must not depend on how the job was named."""
    by_number, by_folder = status_of("1", None, slurm).slurm, status_of(str(folder), None, slurm).slurm
    assert by_number == by_folder
    return by_number


def test_a_job_that_ended_for_slurm_is_told_so_by_number_and_by_folder(
    folder: Path, slurm: FakeSlurm
) -> None:
    assert said(folder, slurm) == "RUNNING"
    slurm.cluster.finish(1, "CANCELLED")
    assert said(folder, slurm) == "CANCELLED"
    del slurm.cluster.jobs[1]
    assert said(folder, slurm) == "CANCELLED"  # slurmdbd's word
    slurm.cluster.runs.clear()
    assert said(folder, slurm) == ""


def test_no_answer_of_slurm_is_no_word_on_the_job(folder: Path, slurm: FakeSlurm) -> None:
    slurm.cluster.unreachable = True
    assert said(folder, slurm).startswith("does not answer (")


def test_a_number_that_another_job_has_by_now_tells_nothing_of_the_folder(
    folder: Path, slurm: FakeSlurm
) -> None:
    job = slurm.job(1)
    assert job.submit_time is not None
    slurm.cluster.put(job, submit_time=job.submit_time + 1000)
    assert said(folder, slurm) == ""
