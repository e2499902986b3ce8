"""From marks to the first new step, and from times to the paper's weighted average."""

from __future__ import annotations

import pytest

from benchmarks import recovery
from benchmarks.recovery import OURS, cases, new_step, standbys, switch, was, was_table
from benchmarks.timeline import Mark


def step(t: float, rank: int, number: int) -> Mark:
    return Mark(t, "step", rank, number, 0, rank)


def test_a_step_counts_when_all_ranks_have_done_it_that_none_had_done() -> None:
    before = [step(1.0, 0, 6), step(1.1, 1, 6), step(1.9, 0, 7)]
    again = [step(5.0, 0, 7), step(5.1, 1, 7)]
    assert new_step([*before, *again], 2.0, 2) is None
    assert new_step([*before, *again, step(6.0, 0, 8)], 2.0, 2) is None
    done = [*before, *again, step(6.0, 0, 8), step(6.5, 1, 8), step(7.0, 0, 9), step(7.0, 1, 9)]
    assert new_step(done, 2.0, 2) == (6.5, 8)
    assert new_step([*done, step(9.0, 1, 8)], 2.0, 2) == (6.5, 8)  # repeated by a later run


def test_was_is_the_papers_formula() -> None:
    assert was({1: 10.0}, 10.0, 128) == pytest.approx(10.0)
    assert was({1: 10.0}, 110.0, 128) == pytest.approx(0.99 * 10.0 + 0.01 * 110.0)
    p = 0.0012
    one, two = 128 * p * (1 - p) ** 127, 128 * 127 / 2 * p**2 * (1 - p) ** 126
    mean = (one * 10 + two * 20) / (one + two)
    assert was({1: 10.0, 2: 20.0}, mean, 128) == pytest.approx(mean)


def test_standbys_and_catastrophes_are_those_of_the_paper() -> None:
    assert [standbys(n) for n in (4, 16, 128, 256, 512, 1024)] == [1, 1, 2, 2, 3, 4]
    assert [switch(n) for n in (4, 16, 128)] == [2, 4, 32]


def test_every_policy_has_its_was_when_all_of_its_cases_were_measured() -> None:
    every = cases(4, all_of_was=True)
    assert len({case.title for case in every}) == len(every)
    times = {
        "warm standby": 2.0, "warm standby, 2 nodes lost": 3.0, "shared spare": 10.0,
        "shared spare, 2 nodes lost": 12.0, "requeue, tuned": 40.0, "requeue, tuned, 2 nodes lost": 50.0,
        "standbys and shared spares, 2 nodes lost": 44.0,
    }  # fmt: skip
    found = was_table(times, every, 4)
    assert found == {
        OURS: pytest.approx(0.99 * 2 + 0.44),
        recovery.ORACLE: pytest.approx(0.99 * 2 + 0.03),
        recovery.RESCHEDULE: pytest.approx(0.99 * 10 + 0.12),
        recovery.REQUEUE: pytest.approx(0.99 * 40 + 0.5),
    }
    del times["shared spare, 2 nodes lost"]
    assert recovery.RESCHEDULE not in was_table(times, every, 4)
