"""Weights that numbers have spoiled are not restored: what counts ends where these were still finite."""

from __future__ import annotations

import math

from msgspec import structs

from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.journal import fold
from slurm_robust.model.progress import Progress
from tests.unit.engine.fake_job import Job

STORED = CheckpointId(step=10, generation=1)


def trained(to: int = 30) -> Job:
    """Two nodes that keep snapshots, with a checkpoint on storage."""
    job = Job(config=JobConfig(detect=DetectConfig(diagnose=False)), memory=True, storage=[STORED])
    run(job, range(to))
    return job


def run(job: Job, steps: range, loss: float = 1.0) -> None:
    """A step every half second, with this loss on all ranks."""
    for step in steps:
        for node, heartbeat in list(job.heartbeats.items()):
            told = tuple(structs.replace(p, loss=loss) for p in heartbeat.progress)
            job.heartbeats[node] = structs.replace(heartbeat, progress=told)
        job.train_to(step)
        job.pass_time(0.5, tick=0.25)


def spoiled(job: Job, node: str, since: int) -> tuple[Progress, ...]:
    """What ``node`` tells of step 31 when it has had no number for a loss since this step."""
    progress = job.heartbeats[node].progress
    return tuple(structs.replace(p, step=31, loss=math.nan, bad_step=since) for p in progress)


def spoil(job: Job, step: int) -> None:
    """This step and the next have no number for a loss, as far as training gets."""
    generation = job.core.world.generation
    for at in (step, step + 1):
        if job.core.world.generation == generation and job.stage == "Running":
            run(job, range(at, at + 1), math.nan)
    job.until(lambda: job.core.world.generation > generation or job.code is not None)


def restored(job: Job) -> int:
    return int(job.events(ev.GenerationLaunched)[-1].restore_step)


def test_training_goes_on_from_the_newest_step_with_finite_numbers() -> None:
    job = trained()
    spoil(job, 30)
    (ended,) = job.events(ev.GenerationEnded)
    assert ended.good_step == 29
    assert ended.sealed_step == restored(job) == 29


def test_the_rank_that_is_heard_last_may_have_been_spoiled_first() -> None:
    job = trained()
    job.snapshot(30)
    job.slow["n2"] = 2.0  # its last heartbeats come while its workers die
    job.change("n1", progress=spoiled(job, "n1", 31))
    job.until(lambda: job.stage == "Stopping")
    job.change("n2", progress=spoiled(job, "n2", 30))
    job.until(lambda: job.core.world.generation > 1)
    (ended,) = job.events(ev.GenerationEnded)
    assert ended.good_step == 29
    assert ended.sealed_step == restored(job) == 29
    assert ended.reason == "loss is nan at step 30 on rank 1 first; on the others from step 31 on"
    assert job.events(ev.Decided)[0].reason.startswith(ended.reason)


def test_other_troubles_leave_the_newest_step() -> None:
    job = trained()
    job.kill_rank(1)
    assert job.events(ev.GenerationEnded)[0].good_step is None
    assert restored(job) == 29


def test_weights_that_were_spoiled_before_the_loss_showed_it_are_left_for_older_ones() -> None:
    job = trained()
    spoil(job, 30)
    spoil(job, 30)
    assert [event.checkpoint for event in job.events(ev.CheckpointBanned)] == [
        CheckpointId(generation=1, step=29)
    ]
    assert restored(job) < 29
    assert job.events(ev.GenerationEnded)[-1].sealed_step == -1


def test_numbers_that_come_again_without_progress_end_the_job() -> None:
    job = trained()
    for _ in range(6):
        if job.code is None:
            spoil(job, 30)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert job.core.world.best_step < 30


def test_checkpoints_that_storage_lists_later_count_up_to_there_too() -> None:
    job = trained()
    job.hears_storage = False
    job.storage |= {CheckpointId(step=20, generation=1), CheckpointId(step=31, generation=1)}
    for node in list(job.heartbeats):
        job.change(node, copies=())
    job.memory = False
    run(job, range(30, 31), math.nan)
    job.until(lambda: bool(job.events(ev.GenerationEnded)))
    assert fold(job.journal).world.good_steps == {1: 29}
    job.pass_time(60.0)
    job.tell_storage()
    assert restored(job) == 20
