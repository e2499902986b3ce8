"""What is said of snapshots' times is what training would be without them, and what they cost it."""

from __future__ import annotations

import pytest

from slurm_robust.checkpoint.timing import Timing, TimingHistory, Typical


def seen(
    *each: tuple[float, float, float], took_s: float, every: int = 1, gpu: float | None = None
) -> TimingHistory:
    """The history of snapshots: seconds until the next, waited for the last, and blocked in all.

    ``gpu``: seconds for which GPUs copied; they began half a second after the host.
    """
    history, now, step = TimingHistory(), 100.0, 0
    for apart_s, waited_s, blocked_s in each:
        timing = Timing(step, asked=now, began=now + waited_s)
        start = timing.began
        if gpu is not None:
            start = timing.started = timing.began + 0.5
            timing.copied = timing.started + gpu
        timing.whole = start + took_s
        now, step = now + apart_s, step + every
        history.see(timing, now, step, blocked_s)
    return history


def test_a_step_is_what_is_left_without_what_blocks_it() -> None:
    """Steps of 0.02 s, of which each waits until the snapshot before is whole, and for its copy."""
    typical = seen(*3 * [(0.2, 0.12, 0.18)], took_s=0.2).typical
    assert typical == pytest.approx(Typical(step_s=0.02, whole_s=0.2, blocked_s=0.06))


def test_steps_in_between_count() -> None:
    typical = seen(*2 * [(1.0, 0.0, 0.2)], took_s=0.3, every=8).typical
    assert typical == pytest.approx(Typical(step_s=0.1, whole_s=0.3, blocked_s=0.2))


def test_a_host_that_runs_ahead_of_its_gpu_does_not_block_it() -> None:
    """It waits for 0.9 s of each second, while the GPU, which is behind, computes all the time."""
    typical = seen(*2 * [(1.0, 0.9, 0.92)], took_s=0.2, gpu=0.1).typical
    assert typical == pytest.approx(Typical(step_s=0.98, whole_s=0.2, blocked_s=0.02))


def test_a_copy_on_a_gpu_that_takes_longer_than_the_step_blocks_the_update() -> None:
    typical = seen(*2 * [(1.0, 0.0, 0.0)], took_s=0.2, every=10, gpu=0.15).typical
    assert typical == pytest.approx(Typical(step_s=0.1, whole_s=0.2, blocked_s=0.05))


def test_one_that_took_long_is_no_rule_and_one_alone_neither() -> None:
    usual, odd = (0.5, 0.0, 0.01), (9.0, 0.0, 3.0)
    assert seen(usual, took_s=0.1).typical is None
    typical = seen(usual, odd, usual, took_s=0.1).typical
    assert typical == pytest.approx(Typical(step_s=0.49, whole_s=0.1, blocked_s=0.01))
    assert seen(odd, odd, usual, usual, took_s=0.1).typical == typical


def test_what_had_to_wait_for_memory_does_not_count() -> None:
    history = TimingHistory()
    for step in range(4):
        timing = Timing(step, asked=step, began=step + 0.9, whole=step + 1.0, is_typical=False)
        history.see(timing, step + 1.0, step + 1, 0.9)
    assert history.typical is None


def test_another_stride_is_measured_anew() -> None:
    history = seen(*3 * [(0.2, 0.12, 0.18)], took_s=0.2)
    history.forget()
    assert history.typical is None
