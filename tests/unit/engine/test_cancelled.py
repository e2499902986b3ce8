"""A job that Slurm ends behind the controller's back: the agents are told, and they tell."""

from __future__ import annotations

from slurm_robust.engine.units.departure import ORDERED_BY_SLURM
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from tests.unit.engine.stories import blames_no_node, opened, requeues, trained


def test_scancel_of_an_interactive_job_saves_the_newest_step_and_starts_nothing_again() -> None:
    sim = trained(4, 1)
    step = sim.step
    sim.cancel(interactive=True)
    assert sim.run_to_end(within_s=25.0) == ExitCode.TERMINATED
    (ordered,) = sim.events(ev.StopOrdered)
    assert ordered.reason == ORDERED_BY_SLURM
    assert [event.step for event in sim.events(ev.StorageWritten)][-1] >= step
    assert (opened(sim), requeues(sim), sim.state.world.generation) == ([], [], 1)
    assert blames_no_node(sim)
