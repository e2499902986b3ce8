"""From the marks of a training to the time that a change of its code took."""

from __future__ import annotations

import pytest

from benchmarks.hot_update import change
from benchmarks.timeline import Mark

RANKS = 2


def steps(run: int, numbers: range, start: float) -> list[Mark]:
    """A step a second; rank 1 is a tenth of a second late."""
    return [
        Mark(start + i + rank / 10, "step", rank, number, run, 10 * run + rank)
        for i, number in enumerate(numbers)
        for rank in range(RANKS)
    ]


def test_a_change_is_over_when_all_ranks_of_new_processes_have_done_a_step() -> None:
    old = steps(0, range(8), 0.0)
    assert change(old, 4.5, RANKS) is None
    assert change([*old, *steps(1, range(8, 9), 9.0)[:1]], 4.5, RANKS) is None
    found = change([*old, *steps(1, range(8, 12), 9.0)], 4.5, RANKS)
    assert found is not None
    assert (found.asked, found.stopped, found.lost) == (pytest.approx(4.6), pytest.approx(2.0), 0)


def test_steps_that_are_done_again_are_lost() -> None:
    found = change([*steps(0, range(8), 0.0), *steps(1, range(5, 12), 9.0)], 4.5, RANKS)
    assert found is not None
    assert found.lost == 3


def test_a_step_that_not_all_ranks_had_done_is_not_lost() -> None:
    torn = steps(0, range(9), 0.0)[:-1]
    found = change([*torn, *steps(1, range(8, 9), 10.0)], 4.5, RANKS)
    assert found is not None
    assert (found.stopped, found.lost) == (pytest.approx(3.0), 0)
