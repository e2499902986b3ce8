"""What repeats the same steps is no progress: deterministic faults end after three attempts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.config.job import CheckpointConfig, JobConfig, Timings
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerError
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import comes_to, evicted, starts_again

STEPS_S = [0.05, 0.3, 1.0, 10.0]


def job(step_s: float = 1.0, *, reports: bool = True, memory: bool = True) -> Sim:
    """Two nodes whose records are read every two seconds."""
    config = JobConfig(timings=Timings(heartbeat_s=2.0), checkpoint=CheckpointConfig(memory=memory))
    sim = Sim(2, 1, seed=1, steps=4000, pace=SimulatedPace(step_s=step_s, turn_s=1.0), config=config)
    sim.training.reports = reports
    return sim


def fails_until_the_end(sim: Sim, fail: Callable[[Sim], None], step: int) -> int:
    """Each generation comes to this step, then fails; the number of generations."""
    while sim.code is None:
        comes_to(sim, step)
        fail(sim)
        starts_again(sim)
    return sim.state.world.generation


def raise_value_error(sim: Sim) -> None:
    error = WorkerError(type="ValueError", message="no", file="train.py", line=7, traceback="")
    sim.exit_rank(1, error=error)


def segfault(sim: Sim) -> None:
    sim.kill_rank(1, 11)


def bring_nan(sim: Sim) -> None:
    """Rank 1's loss is NaN at the next step; the record may be read only some steps later."""
    sim.spoil_rank(1)


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize(("fail", "most"), [(raise_value_error, 2), (segfault, 3)])
def test_the_same_failure_after_the_same_steps_ends_the_job(
    fail: Callable[[Sim], None], most: int, reports: bool, step_s: float
) -> None:
    sim = job(step_s, reports=reports)
    assert fails_until_the_end(sim, fail, 30) == most
    assert (sim.code, evicted(sim)) == (93, set())


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_nan_at_the_same_step_ends_the_job(step_s: float) -> None:
    sim = job(step_s)
    assert fails_until_the_end(sim, bring_nan, 14) == 3
    assert (sim.code, sim.state.world.best_step) == (93, 14)
    assert {ended.good_step for ended in sim.events(ev.GenerationEnded)} <= {14, -1}


def test_steps_that_ended_in_nan_and_were_done_again_count_as_repeated() -> None:
    sim = job(memory=False)  # each generation begins anew
    generations = fails_until_the_end(sim, bring_nan, 14)
    found = summary_of(sim.journal, sim.clock.now)
    assert (found.steps, found.repeated) == (15, 15 * (generations - 1))
    assert generations > 1
    assert not sim.events(ev.IncidentClosed), "no step was new"


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize(("steps", "code"), [((30, 31, 30), 93), ((30, 32, 34, 36, 38), None)])
def test_failures_a_step_apart_repeat_and_failures_further_on_each_time_are_progress(
    steps: tuple[int, ...], code: int | None, reports: bool
) -> None:
    """When a rank fails the others may not have told of their last step."""
    sim = job(reports=reports)
    for step in steps:
        comes_to(sim, step)
        segfault(sim)
        starts_again(sim)
    assert sim.code == code
