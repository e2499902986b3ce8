"""Runs that end at the time limit: the job is requeued as long as that gets training further."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from slurm_robust.engine import questions as qs
from slurm_robust.engine.units.departure import NO_CHECKPOINT
from slurm_robust.model.errors import ExitCode
from slurm_robust.policy.leaving import Sentence
from slurm_robust.testing.sim.environment import always, never
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import PACE, requeues, trained, writes

WARNING = "the end of this run is near (USR1)"
NO_STEP_S = 1e5


def job(limit_s: float | None = None) -> Sim:
    """A job with a time limit, whose steps take longer than that."""
    return Sim(2, 1, steps=400, pace=structs.replace(PACE, step_s=NO_STEP_S), time_limit_s=limit_s)


def ends(sim: Sim, *, after_s: float = 0.0, when: Callable[[], bool] = lambda: True) -> bool:
    """Slurm warns of the end of this run after so long, when that holds; whether there is a next one."""
    asked, run = len(requeues(sim)), sim.runs
    sim.run_until(
        lambda: sim.stage == "Running" and sim.clock.now - sim.state.allocated >= after_s and when(), 600.0
    )
    sim.warn()
    sim.run_until(lambda: len(requeues(sim)) > asked or sim.code is not None, 300.0)
    if sim.code is None:
        sim.run_until(lambda: sim.runs == run + 1, 300.0)
    return sim.code is None


@pytest.mark.parametrize("after_s", [20.0, 55.0], ids=["warned long before", "warned just before"])
def test_runs_without_a_step_are_not_requeued_for_ever(after_s: float) -> None:
    sim = job(limit_s=60.0)
    assert [ends(sim, after_s=after_s) for _ in range(3)] == [True, True, False]
    assert (sim.code, requeues(sim)) == (ExitCode.DO_NOT_REQUEUE, [(), ()])
    assert sim.state.ended is not None
    reason = sim.state.ended.reason
    assert reason.startswith("3 runs in a row ended at the time limit (or a preemption) without a new step: ")
    assert "the time limit of 1 minute is too short for the start and the first new step; fix: " in reason


@pytest.mark.parametrize("reports", [True, False])
def test_a_new_step_begins_the_count_of_runs_anew(reports: bool) -> None:
    sim = job(limit_s=60.0)
    sim.training.reports = reports
    for run in range(1, 8):
        # To a controller, a script that does not report its steps gets further with each of them.
        trains = run % 3 == 0
        sim.training.step_s = 5.0 if trains else NO_STEP_S
        assert ends(sim, after_s=30.0, when=lambda trains=trains: sim.step >= 0 or not trains)
    assert requeues(sim) == [()] * 7


def test_runs_that_only_repeat_steps_are_not_requeued_for_ever() -> None:
    sim = trained(2, 1)
    sim.answer(qs.AskAboutRun, always(Sentence(running=True, left_s=5.0)))  # no checkpoint can be waited for
    writes(sim, anything=False)
    assert ends(sim, when=lambda: sim.step >= 20)
    for again in (True, True, False):
        for node in sim.nodes.values():
            node.forget_copies()
        assert ends(sim, when=lambda: 5 <= sim.step < 15) is again
    assert sim.code == ExitCode.DO_NOT_REQUEUE


def test_a_controller_that_goes_on_asking_for_a_requeue_does_not_count_as_a_run() -> None:
    sim = job()
    sim.answer(qs.BeginRequeue, never)
    sim.run_until(lambda: sim.stage == "Running", within_s=60.0)
    sim.warn()
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    assert sim.state.runs_without_progress == 1
    sim.controller_dies()
    sim.run_until(lambda: len(requeues(sim)) == 2, within_s=60.0)
    assert sim.state.runs_without_progress == 1


@pytest.mark.parametrize("trains", [True, False])
def test_a_checkpoint_is_announced_only_while_something_trains(trains: bool) -> None:
    sim = trained(2) if trains else job()
    if not trains:
        sim.run_until(lambda: sim.stage == "Gathering", within_s=60.0)
    sim.warn()
    sim.run(0.1)
    assert (f"{WARNING}: taking a checkpoint first" in sim.said) is trains
    assert (f"{WARNING}: nothing trains now, so no checkpoint is taken" in sim.said) is not trains


def test_a_script_without_our_api_is_told_that_no_checkpoint_is_taken() -> None:
    sim = Sim(2, 1, pace=PACE)
    sim.training.reports = False
    sim.run_until(lambda: sim.state.world.steps_here >= 3, within_s=120.0)
    sim.warn()
    sim.run_until(lambda: bool(requeues(sim)), within_s=10.0)
    assert f"{WARNING}: {NO_CHECKPOINT}" in sim.said
    assert not any("taking a checkpoint" in text for text in sim.said)


def test_a_run_that_is_preempted_early_says_nothing_of_its_time_limit() -> None:
    sim = job(limit_s=7200.0)
    assert all(ends(sim, after_s=60.0) for _ in range(4))
    assert requeues(sim) == [()] * 4


def test_before_the_first_step_no_checkpoint_is_waited_for() -> None:
    sim = job()
    sim.run_until(lambda: sim.stage == "Running", within_s=60.0)
    sim.run(10.0)
    sim.warn()
    sim.run_until(lambda: bool(requeues(sim)), within_s=5.0)  # Slurm ends the run soon, and takes none then
