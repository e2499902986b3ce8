"""A week of a job, played within a second by the code that decides in the controller."""

from __future__ import annotations

import time

import pytest

from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.model.journal import fold
from tests.unit.engine.simulated_week import STEP_S, WEEK_S, Blow, Week, drawn

EVERY_S = 8 * 3600.0
SEEN_AS = {
    Blow.CRASH: Symptom.WORKER_EXIT,
    Blow.POWER: Symptom.NODE_LOST,
    Blow.GPU: Symptom.NODE_FAULT,
    Blow.HANG: Symptom.HANG,
}


@pytest.mark.parametrize("seed", range(4))
def test_a_week_of_faults(seed: int) -> None:
    begun = time.thread_time()
    week = Week(drawn(seed, slots=4, every_s=EVERY_S))
    assert week.play() == 0
    took_s = time.thread_time() - begun

    state, wall = fold(week.journal), week.job.wall
    broken = [node for node, blow in week.struck if blow.breaks_the_node]
    assert not week.strikes
    assert wall - week.begun > 0.97 * WEEK_S
    assert state.world.best_step == week.target
    # Each fault is one incident, seen for what it is, and no node but a broken one is given up.
    opened = [event for event in week.journal if isinstance(event, ev.IncidentOpened)]
    assert [event.symptom for event in opened] == [SEEN_AS[blow] for _, blow in week.struck]
    assert list(state.evicted) == broken
    # Each generation goes on where the one before it was; standbys are used up before a requeue.
    found = summary_of(week.journal, wall)
    assert found.repeated is not None
    assert found.repeated * STEP_S < 60.0 * len(week.struck)
    assert found.ettr > 0.99
    assert week.runs - 1 == len(broken) // (week.spares + 1)
    assert took_s < 5.0  # a tenth of that on a machine that does nothing else


def test_the_same_week_again_is_decided_alike() -> None:
    first, second = (Week(drawn(1, slots=4, every_s=EVERY_S)) for _ in range(2))
    assert first.play() == second.play()
    assert first.journal == second.journal
    assert first.job.said == second.job.said


def test_a_week_without_faults_is_left_alone() -> None:
    week = Week(())
    assert week.play() == 0
    kinds = {type(event) for event in week.journal}
    assert not kinds & {ev.IncidentOpened, ev.Decided, ev.NodeEvicted, ev.CheckpointBanned}
    # A checkpoint goes to storage when the newest there is ten minutes old; time jumps by half an hour.
    stored = [event for event in week.journal if isinstance(event, ev.StorageWritten)]
    assert len(stored) > WEEK_S / 3600.0 * 0.9
