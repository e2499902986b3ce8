"""The stride follows the lag, by factors of two, and does not swing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.checkpoints import MAX_STRIDE, next_stride

strides = st.integers(0, 10).map(lambda n: 2**n)


def settled(stride: int, step_s: float, lag_s: float) -> int:
    for _ in range(30):
        stride = next_stride(stride, step_s, lag_s)
    return stride


@given(strides, st.floats(0.001, 100), st.floats(0, 1000))
def test_one_factor_of_two_at_a_time_within_bounds(stride: int, step_s: float, lag_s: float) -> None:
    following = next_stride(stride, step_s, lag_s)
    assert following in (stride, 2 * stride, stride // 2)
    assert 1 <= following <= MAX_STRIDE


@given(st.floats(0.001, 100), st.floats(0, 1000))
def test_from_1_the_stride_reaches_the_smallest_that_is_enough(step_s: float, lag_s: float) -> None:
    stride = settled(1, step_s, lag_s)
    assert stride == MAX_STRIDE or stride * step_s >= 2 * lag_s
    assert stride == 1 or stride // 2 * step_s < 2 * lag_s
    assert settled(stride, step_s, lag_s) == stride


@given(strides, st.floats(0.001, 100), st.floats(0, 1000), st.floats(0.8, 1.2))
def test_noise_does_not_make_it_swing(stride: int, step_s: float, lag_s: float, noise: float) -> None:
    stride = settled(stride, step_s, lag_s)
    up = settled(stride, step_s, lag_s * noise)
    assert next_stride(up, step_s, lag_s) == up


def test_an_unknown_speed_changes_nothing() -> None:
    assert next_stride(4, 0.0, 10.0) == 4


def test_fast_copies_bring_it_down_again() -> None:
    assert settled(64, 1.0, 0.1) == 1
