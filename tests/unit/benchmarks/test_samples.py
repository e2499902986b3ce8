"""Statistics of the benchmarks: what they claim must not depend on luck or order."""

from __future__ import annotations

import random

import pytest

from benchmarks.samples import Summary, interleaved, median_ratio, windowed


def test_summary_shows_median_and_range() -> None:
    summary = Summary.of([3.0, 1.0, 2.0])
    assert Summary(n=3, median=2.0, low=1.0, high=3.0) == summary
    assert summary.text() == "2.00 (1.00-3.00)"


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no sample"):
        Summary.of([])


def test_ratio_sees_a_small_difference_through_a_drift_of_the_machine() -> None:
    noise = random.Random(1)
    speeds = [1.0 + 0.3 * noise.random() for _ in range(20)]  # the machine: up to 30 % slower
    pairs = [(1.01 * s * noise.gauss(1, 0.002), s * noise.gauss(1, 0.002)) for s in speeds]
    ratio = median_ratio(pairs)
    assert ratio.low < 1.01 < ratio.high
    assert ratio.low > 1.005


def test_ratio_of_equal_things_includes_one() -> None:
    noise = random.Random(2)
    pairs = [(noise.gauss(1, 0.01), noise.gauss(1, 0.01)) for _ in range(20)]
    ratio = median_ratio(pairs)
    assert ratio.low < 1.0 < ratio.high


def test_ratio_is_not_moved_by_bursts_in_single_runs() -> None:
    noise = random.Random(3)
    pairs = [(noise.gauss(1.01, 0.002), noise.gauss(1, 0.002)) for _ in range(20)]
    pairs[3:6] = [(1.0, 5.0), (9.0, 1.0), (1.0, 2.0)]
    ratio = median_ratio(pairs)
    assert 1.005 < ratio.low < 1.01 < ratio.high < 1.015


@pytest.mark.parametrize("pairs", [[], [(1.0, 1.0)], [(1.0, 1.0), (0.0, 1.0)]])
def test_ratio_needs_pairs_of_times(pairs: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="two or more pairs"):
        median_ratio(pairs)


def test_interleaving_gives_each_the_same_number_and_moves_the_first() -> None:
    order = list(interleaved("ABC", 3))
    assert [name for _, name in order] == list("ABCBCACAB")
    assert [rep for rep, _ in order] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_only_whole_steps_of_a_window_count() -> None:
    ends = [0.5, 1.0, 1.5, 9.0, 9.25, 9.5, 9.75]
    assert windowed(ends, [(0.0, 2.0), (8.0, 9.6)]) == [[0.5, 0.5], [0.25, 0.25]]
    assert windowed(ends, [(0.0, 2.0), (8.0, 9.6)], skip=1) == [[0.5], [0.25]]
    assert windowed(ends, [(2.0, 8.0)]) == [[]]
