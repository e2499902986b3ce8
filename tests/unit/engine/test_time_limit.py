"""Runs that end at the time limit: the job is requeued as long as that gets training further."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.engine.transitions import ToGathering, ToRequeueing
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from tests.unit.engine.fake_job import Job

WARNING = "the end of this run is near (USR1)"


def next_run(before: Job, run: int, ran_s: float = 55.0, limit_s: float = 60.0, **fields: object) -> Job:
    """Slurm has started the job again, with a time limit of ``limit_s`` seconds, ``ran_s`` seconds ago."""
    nodes = ("n1", "n2", "n3")
    taken = ev.AllocationTaken(
        t=before.wall, restart_count=run, nodes=nodes, slots=nodes[:2], spares=nodes[2:], time_limit_s=limit_s
    )
    later = Job(history=(*before.journal, taken), first=ToGathering(start=True), **fields)  # type: ignore[arg-type]
    later.wall = before.wall + ran_s
    return later


def warn(job: Job) -> None:
    """Slurm's signal before the time limit comes, and the run ends."""
    job.act(job.core.on_end_approaching(WARNING, job.now()))
    job.until(lambda: bool(job.requeued) or job.code is not None, limit=300)


def test_runs_without_a_step_are_not_requeued_for_ever() -> None:
    job = Job()
    for run in (1, 2):
        warn(job)
        assert job.requeued == [()]
        job = next_run(job, run)
    warn(job)
    job.until(lambda: job.code is not None)
    assert (job.code, job.requeued) == (ExitCode.DO_NOT_REQUEUE, [])
    assert job.core.state.ended is not None
    reason = job.core.state.ended.reason
    assert reason.startswith("3 runs in a row ended at the time limit (or a preemption) without a new step: ")
    assert "the time limit of 1 minute is too short for the start and the first new step; fix: " in reason


@pytest.mark.parametrize("reported", [True, False])
def test_a_new_step_begins_the_count_anew(reported: bool) -> None:
    job = Job(reported=reported)
    for run in range(1, 8):
        # As far as anybody knows, a script that does not report its steps gets further with each of them.
        if run % 3 == 0:
            job.train_to(run if reported else 0)
        warn(job)
        assert job.requeued == [()]
        job = next_run(job, run, reported=reported)


def test_steps_that_are_only_repeated_count_for_nothing() -> None:
    job = Job()
    job.train_to(9)
    for run in (1, 2, 3):
        warn(job)
        assert job.requeued == [()]
        job = next_run(job, run)
        job.train_to(5)
    warn(job)
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.DO_NOT_REQUEUE


def test_a_controller_that_goes_on_asking_does_not_count_as_a_run() -> None:
    job = Job()
    job.slurm_says = ()
    warn(job)
    assert job.core.state.runs_without_progress == 1
    requeueing = job.core.state.requeueing
    assert requeueing is not None
    again = ToRequeueing(exclude=(), reason=requeueing.reason, failure=False)
    assert Job(history=tuple(job.journal), first=again).core.state.runs_without_progress == 1


def test_a_checkpoint_is_announced_only_while_something_trains() -> None:
    job = Job()
    warn(job)
    assert f"{WARNING}: nothing trains now, so no checkpoint is taken" in job.said
    job = Job()
    job.train_to(4)
    job.act(job.core.on_end_approaching(WARNING, job.now()))
    assert f"{WARNING}: taking a checkpoint first" in job.said


def test_a_run_that_is_preempted_early_says_nothing_of_its_time_limit() -> None:
    job = Job()
    for run in range(1, 8):
        warn(job)
        assert job.requeued == [()]
        job = next_run(job, run, ran_s=600.0, limit_s=7200.0)


def test_a_warning_long_before_a_short_time_limit_is_one_of_that_limit() -> None:
    job = Job()
    for run in (1, 2):
        warn(job)
        assert job.requeued == [()]
        job = next_run(job, run, ran_s=20.0)
    warn(job)
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.DO_NOT_REQUEUE


def test_before_the_first_step_no_checkpoint_is_waited_for() -> None:
    job = Job()
    for node in job.core.world.slots:  # its script reports steps, and has made none
        job.change(
            node, progress=tuple(structs.replace(p, reported=True) for p in job.heartbeats[node].progress)
        )
    since = job.mono
    warn(job)
    assert job.mono - since < 5, "Slurm ends the run soon, and takes no requeue then"
