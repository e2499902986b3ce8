"""Whether the job that took a training last still has it."""

from __future__ import annotations

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.training import Chapter
from slurm_robust.policy.holding import Hold, end_of, judge, judge_elsewhere
from slurm_robust.slurm.records import SlurmJob
from tests.builders import records

CHAPTER = Chapter(job_id=7, run_id="7-a", folder="7", t=100.0, cluster="c", submitted=90.0)


def end(code: int) -> ev.RunEnded:
    return ev.RunEnded(t=200.0, code=code, reason="", final=code not in (143, 130))


def job(*states: str, submitted: float = 90.0, restarts: int = 0) -> SlurmJob:
    return records.job(name="x", states=frozenset(states), submit_time=submitted, restart_count=restarts)


@pytest.mark.parametrize("code", [0, 1, 2, 93])
@pytest.mark.parametrize("states", [("RUNNING",), ("COMPLETING",), ("PENDING",), ()])
def test_an_end_of_its_own_is_final_whatever_slurm_says(code: int, states: tuple[str, ...]) -> None:
    assert judge(CHAPTER, end(code), job(*states) if states else None, answers=bool(states)) is Hold.FREE


@pytest.mark.parametrize(
    ("states", "held", "after_an_ordered_end"),
    [
        (("RUNNING",), Hold.HELD, Hold.LEAVING),
        (("CONFIGURING",), Hold.HELD, Hold.LEAVING),
        (("RUNNING", "SUSPENDED"), Hold.HELD, Hold.LEAVING),
        (("PENDING",), Hold.HELD, Hold.HELD),
        (("PENDING", "REQUEUE_HOLD"), Hold.HELD, Hold.HELD),
        (("PENDING", "COMPLETING"), Hold.LEAVING, Hold.LEAVING),
        (("COMPLETING",), Hold.LEAVING, Hold.LEAVING),
        (("CANCELLED", "COMPLETING"), Hold.LEAVING, Hold.FREE),
        (("CANCELLED",), Hold.FREE, Hold.FREE),
        (("NODE_FAIL",), Hold.FREE, Hold.FREE),
        (("TIMEOUT",), Hold.FREE, Hold.FREE),
    ],
)
def test_whether_a_job_holds_its_training_is_slurms_word(
    states: tuple[str, ...], held: Hold, after_an_ordered_end: Hold
) -> None:
    assert judge(CHAPTER, None, job(*states), answers=True) is held
    assert judge(CHAPTER, end(143), job(*states), answers=True) is after_an_ordered_end
    assert judge(CHAPTER, end(130), job(*states), answers=True) is after_an_ordered_end


def test_a_job_that_slurm_has_forgotten_is_over() -> None:
    assert judge(CHAPTER, None, None, answers=True) is Hold.FREE


def test_a_silent_slurm_leaves_it_open_where_the_journal_has_no_end() -> None:
    assert judge(CHAPTER, None, None, answers=False) is Hold.UNKNOWN
    assert judge(CHAPTER, end(143), None, answers=False) is Hold.FREE


def test_a_job_that_slurm_has_queued_again_goes_on_by_itself() -> None:
    again = ev.RunEnded(t=200.0, code=143, reason="", final=False, preempted=True, requeued=True)
    assert end_of(again) is None
    cancelled = ev.RunEnded(t=200.0, code=143, reason="", final=False, preempted=True)
    assert end_of(cancelled) is cancelled


def test_another_job_of_the_same_id_holds_nothing_and_a_requeue_is_no_other_job() -> None:
    assert judge(CHAPTER, None, job("RUNNING", submitted=20.0), answers=True) is Hold.FREE
    assert judge(CHAPTER, None, job("RUNNING", submitted=5000.0), answers=True) is Hold.FREE
    assert judge(CHAPTER, None, job("PENDING", submitted=5000.0, restarts=1), answers=True) is Hold.HELD


def test_a_job_of_another_cluster_is_judged_by_its_journal() -> None:
    assert judge_elsewhere(None, 1000.0, 1100.0) is Hold.HELD
    assert judge_elsewhere(None, 1000.0, 1400.0) is Hold.FREE
    assert judge_elsewhere(end(143), 1000.0, 1001.0) is Hold.FREE
