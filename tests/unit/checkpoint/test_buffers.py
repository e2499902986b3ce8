"""The buffers of a part: what must survive, survives, however many there are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint.buffers import refill_order
from slurm_robust.model.copies import CheckpointId
from tests.builders.checkpoints import ref


class Ring:
    """Buffers that are refilled as a worker does it, without any data."""

    def __init__(self, cap: int, stride: int = 1) -> None:
        self.cap = cap
        self.stride = stride
        self.generation = 1
        self.restored: CheckpointId | None = None
        self.held: dict[int, CheckpointId | None] = {}

    def order(self, flush: int = -1) -> list[int]:
        return refill_order(
            self.held,
            cap=self.cap,
            generation=self.generation,
            restored=self.restored,
            stride=self.stride,
            flush=flush,
        )

    def write(self, step: int, locked: set[int] = frozenset()) -> int | None:  # type: ignore[assignment]
        """The buffer that took it; None if it was skipped."""
        chosen = next((number for number in self.order() if number not in locked), None)
        if chosen is not None:
            self.held[chosen] = None  # from here on nothing is left of what was there
            self.during = self.steps()
            self.held[chosen] = ref(self.generation, step)
        return chosen

    def steps(self) -> set[int]:
        return {one.step for one in self.held.values() if one}


def newest_two_multiples(stride: int, below: int) -> set[int]:
    last = (below - 1) // stride * stride
    return {step for step in (last, last - stride) if step >= 0}


@settings(max_examples=100, deadline=None)
@given(cap=st.integers(5, 8), stride=st.sampled_from([1, 2, 4, 8, 64]), steps=st.integers(1, 200))
def test_with_five_buffers_the_newest_two_and_two_multiples_live(cap: int, stride: int, steps: int) -> None:
    ring = Ring(cap, stride)
    for step in range(steps):
        ring.write(step)
        expected = {step - 1, step - 2} | newest_two_multiples(stride, step)
        assert ring.during >= {s for s in expected if s >= 0}
    assert len(ring.held) <= cap


@pytest.mark.parametrize("steps", [1, 2, 3, 50])
def test_with_three_buffers_and_every_step_the_newest_two_live(steps: int) -> None:
    ring = Ring(3)
    for step in range(steps):
        ring.write(step)
        assert ring.during >= {s for s in (step - 1, step - 2) if s >= 0}
    assert len(ring.held) == min(3, steps)


@settings(max_examples=200, deadline=None)
@given(
    held=st.dictionaries(
        st.integers(0, 7), st.none() | st.builds(ref, st.integers(0, 40), st.integers(1, 3)), max_size=6
    ),
    cap=st.integers(2, 6),
    stride=st.sampled_from([1, 2, 4]),
    flush=st.integers(-1, 40),
    restored=st.none() | st.builds(ref, st.integers(0, 40), st.integers(1, 2)),
)
def test_the_newest_whole_step_is_never_offered(
    held: dict[int, CheckpointId | None], cap: int, stride: int, flush: int, restored: CheckpointId | None
) -> None:
    order = refill_order(held, cap=cap, generation=3, restored=restored, stride=stride, flush=flush)
    assert len(order) == len(set(order))
    usable = [
        one
        for one in held.values()
        if one and (one.generation == 3 or (restored is not None and one.step <= restored.step))
    ]
    if usable:
        assert (
            max(usable) not in [held.get(number) for number in order if held.get(number) is not None]
            or [*held.values()].count(max(usable)) > 1
        )
    assert len([number for number in order if number not in held]) == (len(held) < cap)


def test_buffers_are_made_only_as_needed() -> None:
    ring = Ring(5)
    for step in range(50):
        ring.write(step)
    assert len(ring.held) == 3
    ring.stride = 8
    for step in range(50, 100):
        ring.write(step)
    assert len(ring.held) == 5


def test_a_locked_buffer_is_passed_over() -> None:
    ring = Ring(3)
    for step in range(6):
        ring.write(step)
    reader = next(n for n, one in ring.held.items() if one == ref(1, 3))
    assert ring.write(6, locked={reader}) != reader
    assert ring.steps() == {6, 5, 3}
    ring.write(7, locked={reader})
    assert ring.steps() == {7, 6, 3}
    ring.write(8)
    assert ring.steps() == {8, 7, 6}
    assert ring.write(9, locked=set(ring.held)) is None


def test_the_step_wanted_for_a_flush_goes_later_than_others() -> None:
    held = {n: ref(1, step) for n, step in enumerate([10, 11, 12, 13, 14])}
    common = {"cap": 5, "generation": 1, "restored": None, "stride": 64}
    assert refill_order(held, **common)[0] == 0  # type: ignore[arg-type]
    assert refill_order(held, flush=10, **common)[0] == 1  # type: ignore[arg-type]


def test_what_an_ended_generation_did_after_the_restored_step_goes_first() -> None:
    held = {0: ref(1, 7), 1: ref(1, 8), 2: ref(1, 9)}
    order = refill_order(held, cap=3, generation=2, restored=ref(1, 8), stride=1)
    assert order == [2, 0]
    fresh = refill_order(held, cap=3, generation=2, restored=None, stride=1)
    assert fresh == [0, 1, 2]


def test_the_restored_step_lives_until_two_newer_ones_do() -> None:
    ring = Ring(3)
    for step in range(9):
        ring.write(step)
    ring.generation, ring.restored = 2, ref(1, 7)
    ring.write(8)
    assert ring.during == {6, 7}
    ring.write(9)
    assert ring.during >= {7, 8}
    ring.write(10)
    assert ring.during >= {8, 9}


def test_one_buffer_is_refilled_in_place() -> None:
    ring = Ring(1)
    assert [ring.write(step) for step in range(3)] == [0, 0, 0]
