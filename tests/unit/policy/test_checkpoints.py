"""The stride follows the lag, by factors of two, and does not swing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.buffers import refill_order
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.policy.checkpoints import (
    LEEWAY,
    MAX_STRIDE,
    common_steps,
    next_local_stride,
    next_stride,
)

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


# -- The local stride ------------------------------------------------------------------------------


def times_at(stride: int, step_s: float, whole_s: float, blocked_s: float) -> SnapshotTimes:
    return SnapshotTimes(stride=stride, apart_s=stride * step_s, whole_s=whole_s, blocked_s=blocked_s)


def settled_local(stride: int, step_s: float, whole_s: float, blocked_s: float, share: float = 0.01) -> int:
    for _ in range(11):
        stride = next_local_stride(times_at(stride, step_s, whole_s, blocked_s), share)
    return stride


seconds = st.floats(0, 1000)


@given(strides, st.floats(0.001, 100), seconds, seconds, st.floats(0.001, 1))
def test_snapshots_are_so_far_apart_that_they_block_little(
    stride: int, step_s: float, whole_s: float, blocked_s: float, share: float
) -> None:
    found = settled_local(stride, step_s, whole_s, blocked_s, share)
    apart_s = found * step_s
    assert found == MAX_STRIDE or (apart_s >= whole_s and blocked_s <= share * apart_s * 1.0001)


@given(st.floats(0.001, 100), seconds, seconds)
def test_the_local_stride_rises_at_once_to_the_smallest_that_is_enough(
    step_s: float, whole_s: float, blocked_s: float
) -> None:
    found = next_local_stride(times_at(1, step_s, whole_s, blocked_s), 0.01)
    needed_s = max(LEEWAY * whole_s, blocked_s / 0.01)
    assert found == settled_local(1, step_s, whole_s, blocked_s)
    assert found == 1 or found // 2 * step_s < needed_s * 1.0001


@given(st.floats(0.001, 100), seconds, seconds, st.floats(0.85, 1.15))
def test_noise_does_not_make_the_local_stride_swing(
    step_s: float, whole_s: float, blocked_s: float, noise: float
) -> None:
    found = settled_local(1, step_s, whole_s, blocked_s)
    after = settled_local(found, step_s, whole_s * noise, blocked_s * noise)
    assert settled_local(after, step_s, whole_s, blocked_s) in (found, after)


@pytest.mark.parametrize(
    ("step_s", "whole_s", "blocked_s", "stride"),
    [
        (5.0, 1.5, 0.03, 1),  # training of a large model
        (0.3, 1.4, 0.002, 8),  # steps shorter than copy and sums
        (0.02, 0.1, 0.06, 512),
        (0.001, 5.0, 5.0, MAX_STRIDE),
        (1.0, 0.0, 0.0, 1),
    ],
)
def test_local_strides_of_typical_trainings(
    step_s: float, whole_s: float, blocked_s: float, stride: int
) -> None:
    assert next_local_stride(times_at(1, step_s, whole_s, blocked_s), 0.01) == stride


def test_the_local_stride_goes_back_by_half() -> None:
    assert next_local_stride(times_at(16, 1.0, 0.1, 0.001), 0.01) == 8
    assert next_local_stride(times_at(16, 1.0, 10.0, 0.001), 0.01) == 16  # 8 would do, but only just


def test_no_bound_means_every_step_and_no_time_at_all_the_largest_stride() -> None:
    slow = times_at(4, 0.01, 5.0, 5.0)
    assert next_local_stride(slow, None) == 1
    assert next_local_stride(times_at(1, 10.0, 0.1, 0.001), 0.0) == MAX_STRIDE
    assert next_local_stride(times_at(1, 0.0, 0.1, 0.001), 0.01) == MAX_STRIDE


def test_common_steps_need_all_ranks_of_the_node_and_its_shared_part() -> None:
    def copies(rank: int, *steps: int, generation: int = 2, tier: Tier = Tier.MEMORY) -> list[Copy]:
        return [Copy(rank=rank, generation=generation, step=step, tier=tier) for step in steps]

    own = [*copies(0, 4, 6, 7), *copies(1, 4, 5, 6)]
    foreign = [*copies(0, 5, tier=Tier.PEER), *copies(0, 5, generation=1), *copies(2, 8)]
    assert common_steps([*own, *foreign], 2, (0, 1)) == {4, 6}
    assert common_steps([*own, *copies(SHARED, 6, 7)], 2, (0, 1)) == {6}
    assert common_steps(own, 2, (0, 1, 2)) == set()


# -- Ranks hear of a local stride at different times ------------------------------------------------


class RankMemory:
    """The buffers of one rank, filled as it fills them."""

    def __init__(self) -> None:
        self.stride = self.local = 1
        self._held: dict[int, CheckpointId | None] = {}
        self._pending: tuple[int, int] | None = None

    def settle(self) -> None:
        """The snapshot under way becomes whole."""
        if self._pending is not None:
            buffer, step = self._pending
            self._held[buffer], self._pending = CheckpointId(generation=1, step=step), None

    def take(self, step: int) -> None:
        """Begin a snapshot, if one is due: what was in its buffer is lost."""
        if step % self.local == 0:
            self.settle()
            order = refill_order(self._held, cap=5, generation=1, restored=None, stride=self.stride)
            self._held[order[0]], self._pending = None, (order[0], step)

    @property
    def steps(self) -> set[int]:
        return {checkpoint.step for checkpoint in self._held.values() if checkpoint is not None}


@given(st.data())
def test_ranks_have_a_step_in_common_whenever_each_hears_of_the_strides(data: st.DataObject) -> None:
    """As the controller orders them: the local one when all know that of peers, and keep a step for it.

    A rank may be a step ahead of others, whose snapshots are still being summed up.
    """
    ranks = [RankMemory() for _ in range(3)]
    stride = 2 ** data.draw(st.integers(1, 4))
    told = data.draw(st.lists(st.integers(2, 9), min_size=3, max_size=3))
    late = data.draw(st.lists(st.integers(0, 40), min_size=3, max_size=3))
    newest = ordered = -1
    for step in range(140):
        for n in data.draw(st.permutations(range(3))):
            ranks[n].take(step)
            held = [rank.steps for rank in ranks]
            assert step < 2 or set.intersection(*held), (step, held)
        for n in data.draw(st.permutations(range(3)))[: data.draw(st.integers(0, 3))]:
            ranks[n].settle()
        for n, rank in enumerate(ranks):
            rank.stride = stride if step >= told[n] else 1
            rank.local = stride if 0 <= ordered <= step - late[n] else 1
        if all(rank.stride == stride for rank in ranks):
            newest = step if newest < 0 else newest
            kept = set.intersection(*(rank.steps for rank in ranks))
            if ordered < 0 and any(s > newest and s % stride == 0 for s in kept):
                ordered = step
    assert all(rank.local == stride for rank in ranks)
