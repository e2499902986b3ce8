"""What earlier jobs of the user left in memory goes; what may still be wanted stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.agent.copies.leftovers import ASKING_PER_S, job_is_over, remove_leftovers, spread_s
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.slurm.companion import OF_JOB
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm

GONE = 4711


def folder(base: Path, job: int, uid: int | None = None) -> Path:
    path = base / f"srobust-{os.getuid() if uid is None else uid}-{job}-abc-copies"
    path.mkdir()
    (path / "own-00000.0").touch()
    return path


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def submit(cluster: FakeCluster) -> int:
    return FakeSlurm(cluster).submit(SubmitRequest(command=("train.sh",)))


def sweep(cluster: FakeCluster, own: Path, *also: Path) -> list[str]:
    notes = Notes()
    thread = remove_leftovers((own, *also), notes, lambda: FakeSlurm(cluster))
    if thread is not None:
        thread.join(60)
    return notes.take()


def test_copies_of_ended_and_unknown_jobs_go(cluster: FakeCluster, tmp_path: Path) -> None:
    ended, alive, mine = (submit(cluster) for _ in range(3))
    cluster.finish(ended)
    gone = [folder(tmp_path, ended), folder(tmp_path, GONE)]
    kept = [folder(tmp_path, alive), folder(tmp_path, mine), folder(tmp_path, GONE, uid=os.getuid() + 1)]
    notes = sweep(cluster, kept[1])
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)
    assert len(notes) == 2
    assert f"removed {gone[1].name} that job {GONE} had left in {tmp_path}" in notes


def test_what_a_killed_agent_left_and_copies_on_the_disk_go_too(cluster: FakeCluster, tmp_path: Path) -> None:
    job = submit(cluster)
    memory, disk = tmp_path / "shm", tmp_path / "disk"
    for base in (memory, disk):
        base.mkdir()
    gone = [memory / f"srobust-{os.getuid()}-{GONE}-abc-x1y2", disk / f"srobust-{os.getuid()}-{GONE}-abc"]
    mine = [memory / f"srobust-{os.getuid()}-{job}-abc-x1y2", disk / f"srobust-{os.getuid()}-{job}-abc"]
    other = disk / "srobust-notes"
    for path in (*gone, *mine, other):
        path.mkdir()
    sweep(cluster, folder(memory, job), mine[1])
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in (*mine, other))


def test_without_an_answer_nothing_goes(cluster: FakeCluster, tmp_path: Path) -> None:
    left = folder(tmp_path, GONE)
    cluster.unreachable = True
    assert sweep(cluster, folder(tmp_path, 1)) == []
    assert left.exists()


def environ(job: int, restarts: int = 0) -> dict[str, str]:
    return {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "n1", "SLURM_RESTART_COUNT": str(restarts)}


def test_a_job_that_is_requeued_is_not_over(cluster: FakeCluster) -> None:
    job = submit(cluster)
    client = FakeSlurm(cluster)
    assert not job_is_over(environ(job), lambda: client)  # it runs
    client.requeue(job)
    assert client.job(job).is_completing
    assert not job_is_over(environ(job), lambda: client)
    assert job_is_over(environ(GONE), lambda: client)
    cluster.unreachable = True
    assert not job_is_over(environ(GONE), lambda: client)
    assert not job_is_over({}, lambda: client)  # started by hand


def test_a_job_that_was_cancelled_is_over(cluster: FakeCluster) -> None:
    job = submit(cluster)
    client = FakeSlurm(cluster)
    client.cancel(job)
    assert job_is_over(environ(job), lambda: client)


def test_a_companion_is_over_whatever_run_of_the_other_job_it_served(cluster: FakeCluster) -> None:
    companion = submit(cluster)
    client = FakeSlurm(cluster)
    there = {**environ(companion, restarts=3), OF_JOB: "4711"}
    assert not job_is_over(there, lambda: client)
    client.cancel(companion)
    assert job_is_over(there, lambda: client)


def test_slurm_is_not_asked_without_need(cluster: FakeCluster, tmp_path: Path) -> None:
    assert remove_leftovers((folder(tmp_path, 1),), Notes(), lambda: FakeSlurm(cluster)) is None


def test_nodes_of_a_large_job_do_not_all_ask_in_the_same_second() -> None:
    many = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0001-5000]"}
    assert spread_s(many, 1.0, questions=20) == 20 * 5000 / ASKING_PER_S
    assert spread_s(many, 0.0, questions=20) == 0.0
    assert spread_s({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}, 1.0) < 0.01
    assert spread_s({}, 1.0) == 0.0
