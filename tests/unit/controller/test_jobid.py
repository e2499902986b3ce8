"""A job id that comes again is another job; a requeue of the same job is not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_robust.controller import preflight
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.preflight import PreflightError
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import another_job, read
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.unit.sample_events import run_started

NOW = time.time()


def history(
    *submitted: float | None, cluster: str = "a", t: float = NOW - 3600, code: int | None = 0
) -> list[ev.AnyEvent]:
    """A journal with a run for each submit time."""
    started = run_started(t=t, job_id=2, command=("x.py",), cluster=cluster)
    runs = [
        ev.AllocationTaken(t=t, restart_count=i, nodes=("n1",), slots=("n1",), spares=(), submitted=at)
        for i, at in enumerate(submitted)
    ]
    return [started, *runs, *([] if code is None else [ev.RunEnded(t=t, code=code, reason="done")])]


@pytest.mark.parametrize(
    ("before", "restart_count", "submitted", "how"),
    [
        ((100.0,), 0, 100.0, ""),  # srobust runs twice in one batch script
        ((100.0,), 1, 900.0, ""),  # requeued
        ((100.0, 500.0), 3, 900.0, ""),  # and once more, before srobust ran
        ((100.0, 500.0), 0, 900.0, "submitted at"),
        ((100.0, 500.0), 0, 100.0, ""),  # slurmctld came back with an older state
        ((100.0,), 0, 900.0, "submitted at"),
        ((100.0,), 0, None, ""),  # Slurm does not say
        ((None,), 0, 900.0, ""),  # a journal of an older version
    ],
)
def test_which_job_it_is(
    before: tuple[float | None, ...], restart_count: int, submitted: float | None, how: str
) -> None:
    found = another_job(history(*before), "a", restart_count, submitted)
    assert found.startswith(how)
    assert bool(found) is bool(how)


def test_another_cluster_is_another_job() -> None:
    assert another_job(history(100.0), "b", 0, 100.0) == "of cluster a"
    assert another_job(history(100.0, cluster=""), "b", 0, 100.0) == ""
    assert another_job([], "b", 0, 100.0) == ""


def folder(path: Path, events: list[ev.AnyEvent]) -> JobDirectory:
    directory = JobDirectory(path / "2")
    directory.path.mkdir()
    journal = Journal(directory.journal)
    for event in events:
        journal.append(event)
    journal.close()
    return directory


def test_its_folder_is_moved_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    for again in ("", "-2"):
        directory = folder(tmp_path, history(100.0))
        said = preflight.move_aside(directory, read(directory.journal), "submitted at x")
        stamp = time.strftime("%Y-%m-%dT%H:%M", time.localtime(NOW - 3600))
        moved = tmp_path / f"2.old-{stamp}{again}"
        assert str(moved) in said
        assert len(read(moved / "journal.jsonl")) == 3
        assert not directory.path.exists()


def test_a_job_of_another_cluster_that_may_still_run_is_left_alone(tmp_path: Path) -> None:
    directory = folder(tmp_path, history(100.0, t=time.time() - 20, code=None))
    with pytest.raises(PreflightError) as error:
        preflight.move_aside(directory, read(directory.journal), "of cluster a")
    assert error.value.exit_code == ExitCode.OTHER_CONTROLLER
    assert "--job-dir" in error.value.fix
    assert directory.journal.exists()


def test_the_submit_time_is_slurms() -> None:
    slurm = FakeSlurm()
    job = slurm.submit(SubmitRequest(command=("x",)))
    assert preflight.submit_time(slurm, job) == slurm.job(job).submit_time
    slurm.cluster.unreachable = True
    assert preflight.submit_time(slurm, job) is None
