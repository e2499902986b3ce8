"""What is done about copies while training runs: its speed, the stride, and the way to storage."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig
from slurm_robust.controller.checkpoints import Tempo
from slurm_robust.controller.effects import Now, Prune
from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from slurm_robust.wire.messages import Flush, Pace, Progress
from tests.unit.controller.fake_job import Job


def seen(*sightings: tuple[float, int, float]) -> Tempo:
    """Each: when, step, age of the step."""
    tempo = Tempo()
    for mono, step, age in sightings:
        slowest = Progress(rank=0, step=step, reported=True, age_s=age)
        tempo.see(slowest, Now(mono=mono, wall=0.0))
    return tempo


def test_unknown_before_the_second_step() -> None:
    assert seen().seconds_per_step == seen((10.0, 5, 0.0)).seconds_per_step == 0.0
    assert seen((10.0, 5, 0.0), (11.0, 5, 1.0)).fastest == 0.0


def test_the_times_of_completion_count_not_those_of_the_heartbeats() -> None:
    tempo = seen((10.0, 5, 0.9), (13.0, 7, 0.9))
    assert tempo.seconds_per_step == tempo.fastest == 1.5


def test_when_a_step_was_completed_that_no_heartbeat_reported() -> None:
    tempo = seen((10.0, 5, 0.0), (14.0, 9, 0.5))
    assert tempo.completed(9) == 13.5
    assert tempo.completed(7) == 13.5 - 2 * 3.5 / 4


def test_only_the_last_steps_count() -> None:
    slow = [(10.0 * i, i, 0.0) for i in range(20)]
    fast = [(190.0 + i, 19 + i, 0.0) for i in range(1, 9)]
    assert seen(*slow, *fast).seconds_per_step == 1.0


def test_a_slow_step_does_not_hide_how_fast_they_can_be() -> None:
    tempo = seen((0.0, 0, 0.0), (4.0, 1, 0.0), (6.0, 2, 0.0))
    assert (tempo.seconds_per_step, tempo.fastest) == (3.0, 2.0)
    assert seen((0.0, 0, 0.0), (4.0, 1, 0.0), (4.0, 2, 0.0)).fastest == 1.0


def train(job: Job, steps: int, step_s: float = 1.0) -> None:
    """Every rank does ``steps`` more steps of ``step_s`` seconds."""
    first = 1 + max(job.core.state.best_step, *(p.step for p in job.heartbeats["n1"].progress))
    for step in range(first, first + steps):
        job.pass_time(step_s)
        job.train_to(step)


def flushed(job: Job, step: int) -> None:
    for node in job.core.state.slots:
        job.change(node, flushed=step)


def lag(job: Job, seconds: float) -> None:
    job.change("n2", lag_s=seconds)


def test_the_stride_follows_the_lag_and_outlives_a_restart() -> None:
    job = Job(memory=True)
    train(job, 4)
    lag(job, 1.6)  # two steps of 1 s are not 2 * 1.6 s
    train(job, 30)
    assert job.core.state.stride == job.stride == 4
    assert [e.stride for e in job.events(ev.StrideChanged)] == [2, 4]
    job.kill_rank(1)
    assert job.orders["n1"].stride == 4
    lag(job, 0.1)
    train(job, 30)
    assert job.core.state.stride == 1
    assert fold(job.journal).stride == 1


def test_the_order_of_the_pace_is_repeated() -> None:
    job = Job(memory=True)
    train(job, 20)
    assert 8 < sum(isinstance(m, Pace) for _, m in job.sent) < 16  # two nodes, every three seconds


def test_without_memory_nothing_is_paced_or_flushed() -> None:
    job = Job(config=JobConfig(checkpoint=CheckpointConfig(memory=False, every_s=5)))
    train(job, 20)
    assert not any(isinstance(m, (Pace, Flush)) for _, m in job.sent)


def test_a_step_to_come_goes_to_storage_when_the_newest_is_old() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_s=30)))
    train(job, 28)
    assert job.flush_step == -1
    train(job, 4)
    step = job.flush_step
    assert step >= 30
    train(job, 4)
    job.pass_time(2)
    flushed(job, step)
    (written,) = job.events(ev.StorageWritten)
    assert (written.generation, written.step) == (1, step)
    assert 2 <= written.seconds <= 8
    assert job.pruned == 1
    train(job, 20)
    assert job.flush_step == step
    train(job, 15)
    assert job.flush_step > step + 25


def test_every_n_steps_one_goes_to_storage() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_steps=4)))
    for _ in range(3):
        train(job, 6, 0.3)
        step = job.flush_step
        assert (step + 1) % 4 == 0
        train(job, 8, 0.3)
        assert job.flush_step == step  # one at a time
        flushed(job, step)
    assert len({e.step for e in job.events(ev.StorageWritten)}) == 3


def test_a_multiple_that_is_far_away_can_wait() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_steps=100)))
    train(job, 50)
    assert job.flush_step == -1
    train(job, 48)
    assert job.flush_step == 99


def test_the_order_is_repeated_and_given_up_with_a_note() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_s=30)))
    train(job, 36)
    step = job.flush_step
    orders = sum(isinstance(m, Flush) for _, m in job.sent)
    train(job, 20)
    assert sum(isinstance(m, Flush) for _, m in job.sent) > orders
    job.change("n1", flushed=step)
    train(job, 50)
    assert job.events(ev.StorageWritten) == []
    (note,) = [e.text for e in job.events(ev.Noted) if "did not get onto storage" in e.text]
    assert note.endswith("in time: n2")
    train(job, 40)
    assert job.flush_step > step


def test_restarts_do_not_put_off_what_goes_to_storage() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_s=30)))
    for _ in range(4):
        train(job, 9)
        job.kill_rank(1)
    train(job, 4)
    assert job.flush_step >= 0


def test_a_new_controller_knows_how_old_the_newest_is() -> None:
    job = Job(memory=True)
    written = ev.StorageWritten(t=job.wall - 1000, generation=1, step=4, seconds=1.0)
    later = Job(memory=True, history=(*job.journal, written))
    train(later, 4)
    assert later.flush_step >= 0


def test_pruning_protects_what_is_sealed() -> None:
    pruned: list[Prune] = []

    class Watched(Job):
        def act(self, effects: list) -> None:
            pruned.extend(e for e in effects if isinstance(e, Prune))
            super().act(effects)

    job = Watched(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_steps=4)))
    train(job, 3)
    job.kill_rank(1)
    train(job, 9)
    flushed(job, job.flush_step)
    assert [p.sealed for p in pruned] == [{1: 2}]


def test_old_checkpoints_are_removed_as_new_ones_are_published_by_all_ranks() -> None:
    job = Job()
    job.train_to(3)
    job.pass_time(5)
    assert job.pruned == 0
    for checkpoint in (3, 5):
        for node in ("n1", "n2"):
            progress = tuple(structs.replace(p, checkpoint=checkpoint) for p in job.heartbeats[node].progress)
            job.change(node, progress=progress)
        job.pass_time(3)
    assert job.pruned == 2
