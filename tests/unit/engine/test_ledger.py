"""What the controller writes so that the ledger knows where the time went."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from tests.unit.engine.fake_job import Job


def running() -> Job:
    job = Job()
    job.until(lambda: job.stage == "Running")
    job.train_to(0)
    return job


def test_phases_and_checkpoints_are_written_with_the_steps_each_of_the_rank_with_most() -> None:
    job = running()
    job.change("n1", spent={"checkpoint": 1.25, "evaluation": 3.0})
    job.change("n2", spent={"checkpoint": 2.5})
    job.pass_time(20.0, tick=1.0)
    job.train_to(5)
    job.pass_time(2.0, tick=1.0)
    newest = job.events(ev.ProgressMade)[-1]
    assert newest.spent == {"checkpoint": 2.5, "evaluation": 3.0}


def test_a_phase_that_goes_on_counts_as_far_as_it_has_come() -> None:
    job = running()
    job.change("n1", spent={"evaluation": 3.0})
    (progress, *others) = job.core.fleet.heartbeats(("n1",))["n1"].progress
    begun = structs.replace(progress, step=1, phase="evaluation", phase_s=4.0)
    job.change("n1", progress=(begun, *others))
    assert job.core.spent(job.now())["evaluation"] == pytest.approx(7.0)
    lasting = structs.replace(begun, phase="after training")
    job.change("n1", progress=(lasting, *others))
    assert job.core.spent(job.now()) == {"evaluation": 3.0}


def test_a_clock_is_recorded_when_it_differs_and_when_it_is_right_again() -> None:
    job = running()
    for ahead_s in (0.7, 63.2, 63.9, 0.1, 0.0):
        job.core.on_clock(ahead_s, job.now())
    job.act(job.core.on_tick(job.now()))
    assert [event.ahead_s for event in job.events(ev.ClockCompared)] == [63.2, 0.1]


def test_a_clock_that_jumps_an_hour_costs_the_job_nothing() -> None:
    job = running()
    began = job.wall
    job.pass_time(30.0, tick=1.0, wall_jump=3600.0)
    job.core.on_clock(3600.0, job.now())
    job.train_to(30)
    job.pass_time(30.0, tick=1.0)
    job.train_to(60)
    found = summary_of(job.journal, job.wall - 3600)
    assert found.wall_ms == pytest.approx(60_000 + 1000 * (began - job.journal[0].t), abs=3000)
    assert TimeClass.SLOW not in found.classes
