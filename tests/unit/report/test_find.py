"""From what a person types to the job's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.report.find import NoSuchJob, find
from slurm_robust.testing.fake_slurm import FakeSlurm


def started(folder: Path, array_task: str = "") -> Path:
    folder.mkdir(parents=True)
    event = ev.RunStarted(
        t=1.0,
        run_id="r",
        job_id=1,
        kind="script",
        command=("train.py",),
        cwd="/",
        slots=1,
        spares=0,
        nproc_per_node=1,
        version="0",
        array_task=array_task,
    )
    (folder / "journal.jsonl").write_bytes(ev.encode_event(event) + b"\n")
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "srobust-jobs"


def test_a_job_by_its_id_its_name_its_folder_and_its_root(root: Path) -> None:
    slurm = FakeSlurm()
    job, named = started(root / "7"), started(root / "8.night")
    assert find("7", None, slurm)[0].path == job
    assert find("8", None, slurm)[0].path == named
    assert find("srobust-jobs/7", None, slurm)[0].path == Path("srobust-jobs/7")
    assert find("7", str(root), slurm)[0].path == job


def test_a_task_of_an_array_is_found_by_what_its_run_wrote_down(root: Path) -> None:
    slurm = FakeSlurm()
    started(root / "38", "38_2")
    first, again = started(root / "39", "38_1"), started(root / "40.night", "38_3")
    (root / "41").mkdir()
    (root / "notes.txt").touch()
    assert find("38_1", None, slurm)[0].path == first
    assert find("38_3", None, slurm)[0].path == again
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
def test_other_ids_that_slurm_shows_are_told_apart(name: str, text: str, fix: str, root: Path) -> None:
    with pytest.raises(NoSuchJob, match=text) as error:
        find(name, None, FakeSlurm())
    assert fix in error.value.fix
