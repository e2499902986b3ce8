"""How often the loop checks everything: at once in a small job, ten times a second in a large one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from slurm_robust.controller.turns import REST_S, Turns
from slurm_robust.testing.clock import FakeClock


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def turns_after(pipe: tuple[int, int], tick_s: float) -> tuple[Turns, FakeClock]:
    clock = FakeClock()
    turns = Turns((), pipe[0], clock.monotonic)
    with turns.tick():
        clock.advance(tick_s)
    return turns, clock


@pytest.mark.parametrize(
    ("tick_s", "rest_s"), [(0.0, 0.0), (0.0002, 0.0018), (0.005, 0.045), (0.05, REST_S), (0.2, 0.4)]
)
def test_the_more_a_tick_takes_the_longer_is_the_rest(
    pipe: tuple[int, int], tick_s: float, rest_s: float
) -> None:
    turns, clock = turns_after(pipe, tick_s)
    assert turns.rest_s == pytest.approx(rest_s)
    clock.advance(1.0)
    assert turns.rest_s < 0


def test_a_signal_ends_the_rest(pipe: tuple[int, int]) -> None:
    turns, _ = turns_after(pipe, 0.05)
    os.write(pipe[1], b"x")
    turns.wait()  # the clock stands still, so nothing else could
    assert turns.rest_s == pytest.approx(REST_S)
