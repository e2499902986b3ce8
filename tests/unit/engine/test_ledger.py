"""What the controller writes so that the ledger knows where the time went."""

from __future__ import annotations

import pytest

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.progress import FINISHED
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
