"""Steps that vary are no slowdown; steps that are longer for a minute are."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.analysis.progress.slowdown import AGAIN_AT_LEAST_S, SUSTAINED_S, Reminder, Slowdown
from slurm_robust.model.progress import PaceHistory


def slowdowns(steps: list[float], past: PaceHistory | None = None, factor: float = 1.5) -> int:
    slowdown, found = Slowdown(factor, past or PaceHistory()), 0
    for step in steps:
        before = slowdown.is_slow
        slowdown.add(step, 1)
        found += slowdown.is_slow and not before
    return found


@given(st.lists(st.floats(1.0, 1.49), max_size=200), st.floats(0.5, 300.0))
def test_steps_within_the_factor_are_no_slowdown(steps: list[float], scale: float) -> None:
    assert slowdowns([step * scale for step in steps]) == 0


@given(st.floats(0.5, 300.0), st.floats(1.6, 50.0), st.integers(100, 300))
def test_longer_steps_are_one(step_s: float, factor: float, before: int) -> None:
    assert slowdowns([step_s] * before + [factor * step_s] * 150) == 1


VARYING: dict[str, Callable[[random.Random], float]] = {
    "every third is long": lambda draw: draw.choice((1.0, 1.0, 3.0)),
    "every other is long": lambda draw: draw.choice((1.0, 3.0)),
    "lengths of sequences": lambda draw: draw.lognormvariate(0.0, 0.2),
}


@pytest.mark.parametrize("name", VARYING)
def test_steps_that_vary_by_nature_are_no_slowdown(name: str) -> None:
    found = 0
    for seed in range(20):
        draw = random.Random(seed)
        found += slowdowns([10.0 * VARYING[name](draw) for _ in range(300)])
    assert found == 0


def test_nothing_is_said_without_a_past_or_before_a_minute_is_full() -> None:
    past = PaceHistory(steps=100, p50_s=1.0)
    assert slowdowns([2.0] * 29, past) == 0
    assert slowdowns([2.0] * 30, past) == 1
    assert slowdowns([2.0] * 500) == 0
    assert slowdowns([2.0] * 30, PaceHistory(steps=5, p50_s=1.0)) == 0


def test_of_long_steps_ten_are_wanted() -> None:
    past = PaceHistory(steps=100, p50_s=300.0)
    assert slowdowns([900.0] * 9, past) == 0
    assert slowdowns([900.0] * 10, past) == 1


def test_times_about_the_limit_are_one_slowdown() -> None:
    assert slowdowns([1.0] * 200 + [1.4, 1.6] * 200 + [1.52] * 100 + [1.45, 1.55] * 100) == 1


def told(seconds: dict[float, float]) -> list[float]:
    """The moments, each given with its seconds per step, at which a slowdown is reported."""
    reminder = Reminder(factor=1.5)
    return [now for now, recent_s in seconds.items() if reminder.is_due(recent_s, now)]


def test_a_slowdown_that_goes_on_is_reported_ever_more_rarely() -> None:
    day = told({float(now): 2.0 for now in range(0, 86_400, 10)})
    pauses = [after - before for before, after in pairwise(day)]
    assert pauses[:5] == [600.0, 1200.0, 2400.0, 4800.0, AGAIN_AT_LEAST_S]
    assert set(pauses[5:]) == {AGAIN_AT_LEAST_S}


def test_a_slowdown_that_becomes_as_much_worse_again_is_reported_when_that_is_measured() -> None:
    worse = {float(now): 2.0 if now < 100 else 3.0 for now in range(0, 1000, 10)}
    assert told(worse) == [0.0, 100.0, 700.0]
    within_the_minute = {float(now): 2.0 if now < SUSTAINED_S else 3.0 for now in range(0, 200, 10)}
    assert told(within_the_minute) == [0.0, SUSTAINED_S]
    while_it_fills = {float(now): min(2.0 + now / 40, 3.0) for now in range(0, 500, 10)}
    assert told(while_it_fills) == [0.0]
    little = {float(now): 2.0 if now < 100 else 2.9 for now in range(0, 500, 10)}
    assert told(little) == [0.0]


def test_a_slowdown_after_another_is_reported_at_once() -> None:
    reminder = Reminder(factor=1.5)
    assert reminder.is_due(2.0, 0.0)
    reminder.forget()
    assert reminder.is_due(2.0, 10.0)
    assert not reminder.is_due(2.0, 20.0)
