"""What a generation's start waited for is in the journal: by phase and node, and by stage of the recovery."""

from __future__ import annotations

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from tests.unit.engine.fake_job import Job


def test_a_first_start_has_agents_and_zygotes_a_restart_in_place_has_none() -> None:
    job = Job()
    for node in ("n1", "n2"):
        job.change(node, timings={"zygote": 4.0, "launch": 0.1, "model": 2.0 if node == "n2" else 1.0})
    job.train_to(0)
    (measured,) = job.events(ev.StartMeasured)
    assert [times.phase for times in measured.phases] == ["agent", "zygote", "launch", "model"]
    assert measured.phases[-1].nodes == {"n2": 2.0, "n1": 1.0}
    assert measured.took_s == pytest.approx(0.0)
    job.kill_rank(1)
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running")
    job.train_to(1)
    assert [times.phase for times in job.events(ev.StartMeasured)[-1].phases] == ["launch", "model"]


def test_a_standby_that_was_there_costs_no_zygote_and_one_that_is_started_does() -> None:
    job = Job()
    job.change("n3", timings={"zygote": 7.0})
    job.train_to(0)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running")
    job.change("n3", timings={"zygote": 7.0, "launch": 0.5})
    job.train_to(1)
    measured = job.events(ev.StartMeasured)[-1]
    assert [times.phase for times in measured.phases] == ["launch"]
    job.step_dies("n1", "n3", message="srun: error: Connection refused")
    job.until(lambda: job.core.world.generation == 3 and job.stage == "Running")
    for node in ("n1", "n3"):
        job.change(node, timings={"zygote": 5.0})
    job.train_to(2)
    assert {"agent", "zygote"} <= {times.phase for times in job.events(ev.StartMeasured)[-1].phases}


def test_a_generation_that_makes_no_step_shows_how_far_its_start_was() -> None:
    job = Job()
    job.change("n2", timings={"imports": 3.0})
    job.kill_rank(0)
    job.until(lambda: job.core.world.generation == 2)
    (measured,) = job.events(ev.StartMeasured)
    assert (measured.generation, measured.took_s) == (1, None)
    assert measured.phases[-1].nodes == {"n2": 3.0}


def test_the_stages_of_a_recovery_add_up_to_the_time_from_fault_to_new_step() -> None:
    job = Job()
    job.train_to(5)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running")
    job.pass_time(3.0)
    job.train_to(4)
    job.pass_time(2.0)
    job.train_to(6)
    (closed,) = job.events(ev.IncidentClosed)
    (opened,) = job.events(ev.IncidentOpened)
    assert opened.symptom is Symptom.NODE_LOST
    assert closed.stages["detecting"] >= opened.detect_s
    assert closed.stages["running"] == pytest.approx(3.0, abs=0.6)
    assert closed.stages["repeating"] == pytest.approx(2.0, abs=0.6)
    assert sum(closed.stages.values()) == pytest.approx(opened.detect_s + closed.t - opened.t, abs=0.01)
