"""Where each bound comes from, and that it says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.analysis.progress import bounds
from slurm_robust.analysis.progress.bounds import WINDOW, StepTimes, span
from slurm_robust.config.job import DetectConfig
from slurm_robust.model.progress import PaceHistory

CONFIG = DetectConfig()
SECONDS = st.floats(0.0, 1e5)


def measured(*steps: float) -> StepTimes:
    times = StepTimes()
    for step in steps:
        times.add(step)
    return times


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_a_measured_time_that_its_share_does_not_exceed(
    steps: list[float], share: float
) -> None:
    found = measured(*steps).quantile(share)
    assert found in steps
    assert sum(step <= found for step in steps) >= share * len(steps)
    assert sum(step < found for step in steps) < share * len(steps)


def test_only_the_newest_times_make_quantiles() -> None:
    times = measured(100.0, *[1.0] * WINDOW)
    assert (times.quantile(1.0), times.longest, times.steps, len(times)) == (1.0, 100.0, WINDOW + 1, WINDOW)
    assert StepTimes().quantile(0.5) == 0.0


@given(st.lists(SECONDS, max_size=30), SECONDS, SECONDS, SECONDS, st.integers(0, 100), st.booleans())
def test_no_bound_is_below_the_floor_or_without_a_reason(
    steps: list[float], p99_s: float, first_s: float, pause_s: float, count: int, hung_here: bool
) -> None:
    past = PaceHistory(steps=count, p99_s=p99_s, longest_s=p99_s, first_step_s=first_s, pause_s=pause_s)
    for bound in (
        bounds.between_steps(CONFIG, measured(*steps), past, hung_here=hung_here),
        bounds.first_step(CONFIG, first_s),
        bounds.in_phases(CONFIG, {"evaluation": 1.0}, {"evaluation": p99_s}),
    ):
        assert bound.seconds >= CONFIG.hang_floor_s
        assert bound.why


@given(SECONDS)
def test_seldom_things_are_never_allowed_more_than_the_configured_time(longest_s: float) -> None:
    assert bounds.first_step(CONFIG, longest_s).seconds <= CONFIG.first_step_s
    assert bounds.in_phases(CONFIG, {"x": 1.0}, {"x": longest_s}).seconds <= CONFIG.phase_s


@pytest.mark.parametrize(
    ("own", "past", "seconds", "why"),
    [
        ([], PaceHistory(), 1800.0, "no step time is known yet"),
        ([], PaceHistory(first_step_s=40.0), 120.0, "3 x 40 s, the longest so far with the first step"),
        ([], PaceHistory(first_step_s=4000.0), 1800.0, "with the first step"),
        ([50.0], PaceHistory(first_step_s=40.0), 150.0, "3 x 50 s, the longest step so far"),
        ([1.0], PaceHistory(steps=99, p99_s=9.0, longest_s=30.0, first_step_s=99.0), 90.0, "made only few"),
        (
            [1.0] * 20,
            PaceHistory(),
            14.0,
            "the minimum; 3 x 1 s, the 99th percentile of step times, would be less",
        ),
        (
            [10.0] * 20,
            PaceHistory(steps=99, p99_s=12.0, longest_s=50.0),
            36.0,
            "3 x 12 s, the 99th percentile",
        ),
        ([10.0] * 1000, PaceHistory(steps=99, p99_s=12.0), 30.0, "3 x 10 s, the 99th percentile"),
        ([1.0] * 20, PaceHistory(pause_s=100.0), 300.0, "3 x 100 s, the longest pause"),
        ([1.0] * 20, PaceHistory(pause_s=1e4), 1800.0, "longest pause"),
        ([1000.0] * 20, PaceHistory(pause_s=1e4), 3000.0, "99th percentile"),
    ],
)
def test_the_bound_between_steps_follows_the_pace(
    own: list[float], past: PaceHistory, seconds: float, why: str
) -> None:
    bound = bounds.between_steps(CONFIG, measured(*own), past)
    assert bound.seconds == pytest.approx(seconds)
    assert why in bound.why


def test_of_several_phases_the_longest_bound_holds() -> None:
    longest = {"evaluation": 100.0, "upload": 200.0}
    assert bounds.in_phases(CONFIG, {"evaluation": 1.0, "upload": 1.0}, longest).seconds == 600.0


def test_times_are_printed_in_two_digits() -> None:
    assert [span(s) for s in (0.0123, 0.5, 15.24, 1834.0)] == ["0.012 s", "0.5 s", "15 s", "1800 s"]
