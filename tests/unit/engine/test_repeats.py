"""What repeats the same steps is no progress: deterministic faults end after three attempts, on paper."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerError
from tests.unit.engine.fake_job import Job

LIMIT_S = 600.0
STEPS_S = [0.05, 0.3, 1.0, 10.0]


def train(job: Job, steps: range, step_s: float) -> None:
    for step in steps:
        job.train_to(step)
        job.pass_time(step_s, tick=min(step_s, 1.0))


def fail_until_the_end(job: Job, fail: object, steps: int, step_s: float) -> int:
    """Each generation makes ``steps`` steps in all, then fails; the number of generations."""
    assert callable(fail)
    while job.code is None:
        generation = job.core.world.generation
        job.until(lambda: job.stage == "Running", LIMIT_S)
        first = job.core.world.restored_step + 1 if job.reported else 0
        train(job, range(first, steps), step_s)
        fail(job)
        job.until(lambda g=generation: job.code is not None or job.core.world.generation > g, LIMIT_S)  # type: ignore[misc]
        assert generation < 20, job.said
    return job.core.world.generation


def raise_value_error(job: Job) -> None:
    error = WorkerError(type="ValueError", message="no", file="train.py", line=7, traceback="")
    job.kill_rank(1, signal=None, code=1, error=error)


def segfault(job: Job) -> None:
    job.kill_rank(1, signal=11)


def bring_nan(job: Job) -> None:
    """Rank 1's loss is NaN at the next step; the record is read only some steps later."""
    node = job.core.world.placement.node_of(1)
    (before,) = job.heartbeats[node].progress
    bad, late = before.step + 1, 3
    for name in job.core.world.slots:
        progress = tuple(
            structs.replace(
                p,
                step=before.step + late,
                reported=True,
                loss=math.nan if p.rank == 1 else 1.0,
                bad_step=bad if p.rank == 1 else -1,
            )
            for p in job.heartbeats[name].progress
        )
        job.change(name, progress=progress)
    job.pass_time(1.0)


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize(("fail", "most"), [(raise_value_error, 2), (segfault, 3)])
def test_the_same_failure_after_the_same_steps_ends_the_job(
    fail: object, most: int, reported: bool, step_s: float
) -> None:
    job = Job(reported=reported, memory=reported)
    assert fail_until_the_end(job, fail, 130, step_s) == most
    assert job.code == 93
    assert not job.events(ev.NodeEvicted)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_nan_at_the_same_step_ends_the_job(step_s: float) -> None:
    job = Job(memory=True)
    assert fail_until_the_end(job, bring_nan, 15, step_s) == 3
    assert job.code == 93
    assert job.core.world.best_step == 14
    assert {e.good_step for e in job.events(ev.GenerationEnded)} <= {14, -1}


def test_steps_that_ended_in_nan_and_were_done_again_count_as_repeated() -> None:
    job = Job()  # nothing is kept in memory, so each generation begins anew
    generations = fail_until_the_end(job, bring_nan, 15, 1.0)
    found = summary_of(job.journal, job.wall)
    assert (found.steps, found.repeated) == (15, 15 * (generations - 1))
    closed = job.events(ev.IncidentClosed)
    assert not closed, "no step was new"


def test_an_unmodified_script_that_gets_further_each_time_goes_on() -> None:
    job = Job(reported=False)
    for work in (100, 200, 300, 400, 500):
        job.until(lambda: job.stage == "Running", LIMIT_S)
        train(job, range(work), 0.1)
        generation = job.core.world.generation
        segfault(job)
        job.until(lambda g=generation: job.core.world.generation > g, LIMIT_S)  # type: ignore[misc]
    assert job.code is None


def test_one_step_more_or_less_is_where_it_was() -> None:
    """When a rank fails the others may not have told of their last step."""
    job = Job(memory=True)
    for steps in (30, 31, 30):
        job.until(lambda: job.stage == "Running", LIMIT_S)
        train(job, range(job.core.world.restored_step + 1, steps), 10.0)
        segfault(job)
        job.pass_time(60.0)
    assert job.code == 93


def test_a_step_more_each_time_is_progress() -> None:
    job = Job(memory=True)
    for steps in (30, 31, 32, 33, 34):
        job.until(lambda: job.stage == "Running", LIMIT_S)
        train(job, range(job.core.world.restored_step + 1, steps), 10.0)
        segfault(job)
        job.pass_time(60.0)
    assert job.code is None
