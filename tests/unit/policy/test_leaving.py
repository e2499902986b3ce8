"""How long a job that is to end may save, and what is said of what is lost."""

from __future__ import annotations

import pytest

from slurm_robust.policy.leaving import Loss, Sentence, approaching, leave_s, newer_s, store_s


@pytest.mark.parametrize(("kill_wait_s", "expected"), [(30, 25), (120, 115), (5, 2), (0, 2)])
def test_slurm_leaves_kill_wait_less_a_margin(kill_wait_s: float, expected: float) -> None:
    assert leave_s(kill_wait_s) == expected


@pytest.mark.parametrize(
    ("left_s", "expected"), [(None, 60), (600, 60), (60, 22.5), (20, 2.5), (10, 0), (-5, 0)]
)
def test_a_newer_step_gets_half_of_what_is_left(left_s: float | None, expected: float) -> None:
    assert newer_s(left_s, 60) == expected


@pytest.mark.parametrize(("left_s", "expected"), [(None, 20), (600, 60), (60, 45), (10, 2)])
def test_storage_is_waited_for_until_the_requeue_must_be_asked_for(
    left_s: float | None, expected: float
) -> None:
    assert store_s(left_s, 20, 60) == expected


def test_what_is_lost_is_said_in_steps_with_a_fix() -> None:
    loss = Loss(newest=261, stored=110, why="n[1-2] did not write them", waited_s=25.2)
    said = loss.describe(30, again=False)
    assert said.startswith(
        "storage has step 110; steps 111 to 261 are lost: n[1-2] did not write them after 25 seconds "
        "(KillWait=30); fix: "
    )
    assert said.endswith("raises KillWait, or lower checkpoint.every_s so that less is only in memory")
    one = Loss(newest=0, stored=-1, why="n1 did not write it", waited_s=1).describe(None, again=True)
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
