from __future__ import annotations

import time
from pathlib import Path

from slurm_robust.agent.progress import StepWatch
from slurm_robust.agent.rankenv import record_path
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.worker.step_record import StepRecord


def test_first_steps_and_the_requested_checkpoint_are_news_other_steps_are_not(tmp_path: Path) -> None:
    watch = StepWatch()
    watch.create(tmp_path, 1, (4, 5))
    assert watch.expects_news
    assert not watch.has_news(time.monotonic())
    assert watch.waiting_for_steps
    assert watch.expects_news
    workers = [StepRecord.open(record_path(tmp_path, rank)) for rank in (4, 5)]
    workers[0].report(10)
    assert watch.has_news(time.monotonic())
    workers[1].report(10)
    assert watch.has_news(time.monotonic())
    assert not watch.waiting_for_steps
    workers[0].report(11)
    workers[0].set_checkpoint(11)
    assert not watch.has_news(time.monotonic())
    assert not watch.expects_news
    watch.request_checkpoint(12)
    assert watch.expects_news
    assert workers[1].requested_checkpoint == 12
    workers[1].set_checkpoint(12)
    assert watch.has_news(time.monotonic())
    assert [p.step for p in watch.read(time.monotonic())] == [11, 10]
    workers[0].set_checkpoint(12)
    assert watch.has_news(time.monotonic())
    assert not watch.expects_news
    watch.request_checkpoint(20)
    assert watch.expects_news
    for worker in workers:
        worker.close()
    watch.forget()
    assert not watch.expects_news
    assert watch.read(time.monotonic()) == ()
    assert not watch.has_news(time.monotonic())


def test_the_stride_is_told_at_once_and_when_it_changes(tmp_path: Path) -> None:
    watch = StepWatch()
    watch.create(tmp_path, 1, (4,), stride=8)
    worker = StepRecord.open(record_path(tmp_path, 4))
    assert worker.stride == 8
    assert not watch.set_stride(8, 1)
    assert watch.set_stride(16, 2)
    watch.ask_flush(32)
    assert (worker.stride, worker.local_stride, worker.flush) == (16, 2, 32)
    assert (watch.stride, watch.local_stride) == (16, 2)
    worker.close()
    watch.forget()


def test_what_snapshots_take_is_told_when_all_ranks_of_the_node_know_it(tmp_path: Path) -> None:
    watch = StepWatch()
    watch.create(tmp_path, 1, (4, 5))
    four, five = (StepRecord.open(record_path(tmp_path, rank)) for rank in (4, 5))
    four.show_snapshots(SnapshotTimes(stride=2, apart_s=0.3, whole_s=1.0, blocked_s=0.1, every=3))
    assert watch.snapshots is None
    five.show_snapshots(SnapshotTimes(stride=1, apart_s=0.1, whole_s=2.0, blocked_s=0.05))
    assert watch.snapshots is None  # at different strides, which says nothing
    five.show_snapshots(SnapshotTimes(stride=2, apart_s=0.2, whole_s=2.0, blocked_s=0.05, every=3))
    assert watch.snapshots == SnapshotTimes(stride=2, apart_s=0.2, whole_s=2.0, blocked_s=0.1, every=3)
    four.close()
    five.close()
    watch.forget()
    assert (watch.snapshots, watch.stride) == (None, 0)
