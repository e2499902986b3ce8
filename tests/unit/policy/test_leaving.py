"""How long a job that is to end may save, and what is said of what is lost."""

from __future__ import annotations

from signal import SIGINT, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.leaving import (
    AGAIN_S,
    Orders,
    Sentence,
    UnsavedSteps,
    approaching,
    leave_s,
    newer_s,
    store_s,
)


@pytest.mark.parametrize(("kill_wait_s", "expected"), [(30, 25), (120, 115), (5, 2), (0, 2)])
def test_slurm_leaves_kill_wait_less_a_margin(kill_wait_s: float, expected: float) -> None:
    assert leave_s(kill_wait_s) == expected


@pytest.mark.parametrize(
    ("left_s", "newer", "stored"),
    [(None, 60, 20), (600, 60, 60), (60, 22.5, 45), (20, 2.5, 5), (10, 0, 2), (-5, 0, 2)],
)
def test_a_newer_step_gets_half_of_what_is_left_and_storage_all_but_the_time_to_ask_for_the_requeue(
    left_s: float | None, newer: float, stored: float
) -> None:
    assert (newer_s(left_s, 60), store_s(left_s, 20, 60)) == (newer, stored)


times = st.floats(0, 1e4)


@given(
    terms=st.lists(times, min_size=1),
    ctrl_c=st.lists(times, max_size=4),
    first=st.sampled_from([SIGTERM, SIGINT]),
)
def test_only_ctrl_c_can_be_a_second_order_and_no_signal_that_is_passed_on(
    terms: list[float], ctrl_c: list[float], first: int
) -> None:
    orders = Orders()
    assert not orders.take(first, 0.0)
    later = sorted([*((t, SIGTERM) for t in terms), *((t, SIGINT) for t in ctrl_c)])
    seconds = [(t, number) for t, number in later if orders.take(number, t)]
    assert seconds == [(t, SIGINT) for t in sorted(ctrl_c) if t > AGAIN_S]


def test_where_time_was_not_the_cause_more_time_is_no_fix() -> None:
    loss = UnsavedSteps(newest=9, stored=4, why="n1 does not answer", waited_s=3.0, for_time=False, fix="")
    said = loss.describe(30, again=False)
    fix = "lower checkpoint.every_s so that less is only in memory"
    assert said == f"storage has step 4; steps 5 to 9 are lost: n1 does not answer; fix: {fix}"


def test_what_is_lost_is_said_in_steps_with_a_fix() -> None:
    loss = UnsavedSteps(newest=261, stored=110, why="n[1-2] did not write them", waited_s=25.2)
    said = loss.describe(30, again=False)
    assert said.startswith(
        "storage has step 110; steps 111 to 261 are lost: n[1-2] did not write them after 25 seconds "
        "(KillWait=30); fix: "
    )
    assert said.endswith("raises KillWait, or lower checkpoint.every_s so that less is only in memory")
    one = UnsavedSteps(newest=0, stored=-1, why="n1 did not write it", waited_s=1).describe(None, again=True)
    assert one.startswith("storage has no step; step 0 is lost unless the next run gets the same nodes: n1 ")
    assert "fix: submit with an earlier --signal=B:USR1@SECONDS, or lower checkpoint.every_s" in one


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (None, "Slurm has told the agents to end, and does not say why"),
        (Sentence(running=True, preempted=True, left_s=60), "preempted by Slurm, which ends it in 60 s"),
        (Sentence(running=True, preempted=True), "preempted by Slurm"),
        (Sentence(running=True, left_s=118), "the time limit is 118 s away"),
        (Sentence(running=True, left_s=36000), ""),
        (Sentence(running=True), ""),
    ],
)
def test_why_the_agents_were_told_to_end(said: Sentence | None, reason: str) -> None:
    assert approaching(said, 300) == reason
