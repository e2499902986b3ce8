"""How often the loop checks everything: at once in a small job, ten times a second in a large one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.controller.turns import LONGEST_HOLD_S, REST_S, ClockWatch, StorageHold, Turns
from slurm_robust.engine.clock import Now
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


def test_the_longest_turn_is_that_of_the_last_minute_without_its_rest(pipe: tuple[int, int]) -> None:
    clock = FakeClock()
    turns = Turns((pipe[0],), pipe[0], clock.monotonic)
    os.write(pipe[1], b"x")  # there is always news, so no wait takes time

    def turn(seconds: float) -> float:
        turns.wait()
        clock.advance(seconds)
        turns.wait()
        return turns.longest_s

    assert turn(0.01) == pytest.approx(0.01)
    assert turn(3.0) == pytest.approx(3.0)
    assert turn(0.01) == pytest.approx(3.0)
    for _ in range(3):
        longest = turn(29.0)
    assert longest == pytest.approx(29.0)
    for _ in range(70):
        longest = turn(1.0)
    assert longest == pytest.approx(1.0)


# -- While the journal is behind nothing is decided, and no deadline comes nearer ------------------


class Clocks:
    def __init__(self) -> None:
        self.mono, self.wall = 1000.0, 1.7e9

    def __call__(self) -> Now:
        return Now(mono=self.mono, wall=self.wall)

    def go(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += seconds


def test_the_clock_stands_still_during_a_hold_and_people_keep_theirs() -> None:
    clocks = Clocks()
    hold = StorageHold(clocks)
    assert hold.follow(behind=False, urgent=False) == 0.0
    hold.follow(behind=True, urgent=False)
    clocks.go(600.0)
    assert (hold.holds, hold.now().mono, hold.now().wall) == (True, 1000.0, clocks.wall)
    assert hold.follow(behind=False, urgent=False) == 600.0
    clocks.go(5.0)
    assert (hold.holds, hold.now().mono) == (False, 1005.0)


def test_the_end_of_the_run_waits_for_no_storage() -> None:
    clocks = Clocks()
    hold = StorageHold(clocks)
    hold.follow(behind=True, urgent=False)
    clocks.go(3.0)
    assert hold.follow(behind=True, urgent=True) == 3.0
    assert (hold.holds, hold.gave_up) == (False, True)
    clocks.go(10.0)
    assert (hold.follow(behind=True, urgent=True), hold.now().mono) == (0.0, 1010.0)


def test_after_half_an_hour_storage_is_not_waited_for_before_it_is_whole_again() -> None:
    clocks = Clocks()
    hold = StorageHold(clocks)
    hold.follow(behind=True, urgent=False)
    clocks.go(LONGEST_HOLD_S - 1)
    hold.follow(behind=True, urgent=False)
    assert hold.holds
    clocks.go(2)
    assert hold.follow(behind=True, urgent=False) == LONGEST_HOLD_S + 1
    clocks.go(100)
    hold.follow(behind=True, urgent=False)
    assert (hold.holds, hold.gave_up) == (False, True)
    hold.follow(behind=False, urgent=False)
    hold.follow(behind=True, urgent=False)
    assert (hold.holds, hold.gave_up) == (True, False)


@given(st.lists(st.tuples(st.floats(0.0, 3000.0), st.booleans(), st.booleans())))
def test_the_clock_never_goes_back_nor_loses_more_than_was_held(
    course: list[tuple[float, bool, bool]],
) -> None:
    clocks = Clocks()
    hold = StorageHold(clocks)
    begun, last, lost = clocks.mono, hold.now().mono, 0.0
    for seconds, behind, urgent in course:
        clocks.go(seconds)
        assert hold.now().mono >= last - 1e-6
        last = hold.now().mono
        lost += hold.follow(behind=behind, urgent=urgent)
        assert hold.holds <= behind
        assert not (hold.holds and urgent)
    lost += hold.follow(behind=False, urgent=False)
    assert abs((clocks.mono - begun) - (hold.now().mono - 1000.0) - lost) < 1e-3


# -- A clock that is set ----------------------------------------------------------------------------


def test_a_clock_that_is_set_is_noticed_once() -> None:
    clocks = Clocks()
    watch = ClockWatch(clocks)
    clocks.go(100.0)
    clocks.wall += 0.4  # as NTP does it
    assert watch.step() == 0.0
    watch.compared(7.0)
    clocks.wall -= 600.0
    assert watch.step() == pytest.approx(-600.0)
    assert watch.step() == 0.0
    assert watch.ahead_s == pytest.approx(-593.0)
