"""What the controller writes so that the ledger knows where the time went."""

from __future__ import annotations

import itertools

import pytest

from slurm_robust.config.job import JobConfig, UpdateConfig
from slurm_robust.engine.units.steps import apart_s
from slurm_robust.evidence.incident_text import facts
from slurm_robust.evidence.incidents import incident_reports
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.progress import FINISHED
from slurm_robust.model.updates import UpdateResult, update_rows
from slurm_robust.testing.sim.environment import SimulatedPace, SimulatedRelease
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import core_of, trained


def beat(sim: Sim, node: str) -> None:
    """The agent of ``node`` tells what it knows now."""
    agent = sim.nodes[node].agent
    assert agent is not None
    agent.beat()
    sim.run(0.1)


def test_the_longest_time_of_any_rank_in_each_phase_is_written_with_the_steps() -> None:
    sim = trained(2)
    sim.nodes["n1"].spent = {"checkpoint": 1.25, "evaluation": 3.0}
    sim.nodes["n2"].spent = {"checkpoint": 2.5}
    sim.run(30.0)
    assert sim.events(ev.ProgressMade)[-1].spent == {"checkpoint": 2.5, "evaluation": 3.0}


def follows(step_s: float) -> Sim:
    """A job that has just made its first steps, each of ``step_s``."""
    return trained(2, to=0, steps=10_000, pace=SimulatedPace(step_s=step_s))


def test_lines_of_progress_come_every_second_at_first() -> None:
    sim = follows(0.5)
    sim.run(120.0)
    assert 80 <= len(sim.events(ev.ProgressMade)) <= 100


def test_each_line_of_progress_has_a_new_step_if_steps_are_long() -> None:
    sim = follows(4.0)
    sim.run(60.0)
    steps = [event.step for event in sim.events(ev.ProgressMade)]
    assert len(steps) == len(set(steps)) >= 12


def test_a_generation_has_300_lines_of_progress_more_than_one_each_ten_seconds() -> None:
    whole = list(itertools.accumulate(map(apart_s, range(2000))))
    assert [apart_s(0), apart_s(60), apart_s(600), apart_s(10**6)] == [1.0, 1.0, 10.0, 10.0]
    assert [round(len(whole) - whole[-1] / 10)] == [297]


def test_a_phase_that_goes_on_counts_as_far_as_it_has_come() -> None:
    sim = trained(2)
    sim.nodes["n1"].spent = {"evaluation": 3.0}
    sim.rank(0).phase, sim.rank(0).phase_at = "evaluation", sim.now - 4.0
    beat(sim, "n1")
    core, now = core_of(sim)
    assert core.spent(now)["evaluation"] == pytest.approx(7.1, abs=0.1)
    sim.rank(0).phase = FINISHED
    beat(sim, "n1")
    core, now = core_of(sim)
    assert core.spent(now) == {"evaluation": 3.0}


def test_a_clock_is_recorded_when_it_differs_and_when_it_is_right_again() -> None:
    sim = trained(2)
    core, now = core_of(sim)
    for ahead_s in (0.7, 63.2, 63.9, 0.1, 0.0):
        core.on_clock(ahead_s, now)
    sim.run(1.0)
    assert [event.ahead_s for event in sim.events(ev.ClockCompared)] == [63.2, 0.1]


def test_a_clock_that_jumps_an_hour_costs_the_job_nothing() -> None:
    sim = trained(2)
    sim.nodes["n1"].ahead_s = 3600.0
    sim.run(30.0)
    core, now = core_of(sim)
    core.on_clock(3600.0, now)
    sim.run(30.0)
    found = summary_of(sim.journal, sim.clock.now)
    assert found.wall_ms == pytest.approx(1000 * (sim.clock.now - sim.journal[0].t), abs=3000)
    assert TimeClass.SLOW not in found.classes


# -- updates ---------------------------------------------------------------------------------------------


def updated(release: SimulatedRelease) -> Sim:
    """A job whose second release was asked for at a step boundary, at its end."""
    untried = JobConfig(updates=UpdateConfig(good_steps=40, trial=False))
    sim = trained(2, to=45, config=untried, release="a" * 12)
    sim.has_release("b" * 12, release)
    sim.update("b" * 12)
    assert sim.run_to_end() == 0
    return sim


def test_an_update_costs_the_time_in_which_no_rank_made_a_step() -> None:
    sim = updated(SimulatedRelease())
    found, (row,) = summary_of(sim.journal, sim.clock.now), update_rows(sim.journal)
    assert (row.result, found.repeated) == (UpdateResult.GOOD, 0)
    assert row.stopped_s is not None
    held_and_first_step_s = 3.0
    assert found.classes[TimeClass.UPDATING] / 1000 == pytest.approx(row.stopped_s, abs=held_and_first_step_s)
    assert sum(found.classes.values()) == found.wall_ms


def test_what_a_release_that_is_rolled_back_had_done_is_done_again() -> None:
    sim = updated(SimulatedRelease(fails_at=65))
    found, (row,) = summary_of(sim.journal, sim.clock.now), update_rows(sim.journal)
    assert (row.result, row.incident, row.back_to) == (UpdateResult.ROLLED_BACK, 1, "a" * 12)
    (incident,) = found.incidents
    assert (incident.cause, incident.nodes) == ("code", ())
    assert found.repeated == pytest.approx(64 - row.step, abs=1)
    assert incident.classes[TimeClass.RECOMPUTING] == found.classes[TimeClass.RECOMPUTING]
    (report,) = incident_reports(sim.journal)
    assert report.steps_repeated == found.repeated
    assert sum(found.classes.values()) == found.wall_ms


def test_an_incident_on_a_candidate_names_its_update_and_the_way_out() -> None:
    sim = updated(SimulatedRelease(fails_at=65))
    (report,) = incident_reports(sim.journal)
    told = dict(facts(report))
    assert told["blamed"].startswith(f"the code (release {'b' * 12}) (by the change of its release, ")
    assert told["release"].startswith(f"{'b' * 12}, not good yet: update 1 to release {'b' * 12} by ada ")
    assert told["next"].startswith(f"'srobust diff {sim.state.job_id} {'a' * 12} {'b' * 12}'")
