"""How often snapshots are copied to peers. Pure."""

from __future__ import annotations

MAX_STRIDE = 1024
# A stride steps must take so many times as long as a copy lags behind, or copies of different ranks are
# of different steps when a node is lost.
HEADROOM = 2.0
# Going back needs this much more room, so that noise does not make the stride swing.
SLACK = 1.5


def next_stride(stride: int, seconds_per_step: float, lag_s: float) -> int:
    """The stride that should follow ``stride``: the same, double or half.

    It tends to the smallest power of two (up to 1024) with ``stride * seconds_per_step >= 2 * lag_s``.
    ``lag_s``: worst time in seconds from a snapshot's completion until its peer has it. Without a
    measured step time nothing changes.
    """
    if seconds_per_step <= 0:
        return stride
    if stride * seconds_per_step < HEADROOM * lag_s:
        return min(2 * stride, MAX_STRIDE)
    if stride > 1 and stride // 2 * seconds_per_step >= HEADROOM * SLACK * lag_s:
        return stride // 2
    return stride
