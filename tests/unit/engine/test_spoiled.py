"""Weights that numbers have spoiled are not restored: what counts ends where these were still finite."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, DetectConfig, JobConfig
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.journal import fold
from slurm_robust.testing.sim.environment import Tell
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine import stories
from tests.unit.engine.stories import PACE, begins, restored

UNTESTED = JobConfig(detect=DetectConfig(diagnose=False))


def trained(**more: Any) -> Sim:
    """Two nodes that have made step 10, of which nothing is tested, with step 5 on storage."""
    sim = stories.trained(2, **{"config": UNTESTED} | more)
    sim.storage.write(CheckpointId(step=5, generation=1), ranks=(0, 1), world_size=2)
    return sim


def spoils(sim: Sim, generation: int) -> None:
    """The first step that this generation makes from now on has no number for a loss; the next one begins."""
    begins(sim, generation)
    sim.spoil_rank(1)
    sim.run_until(lambda: sim.state.world.generation > generation or sim.code is not None, within_s=60.0)


def test_training_goes_on_from_the_newest_step_with_finite_numbers() -> None:
    sim = trained()
    spoils(sim, 1)
    (ended,) = sim.events(ev.GenerationEnded)
    assert (ended.good_step, ended.sealed_step, restored(sim)[0]) == (10, 10, 10)


def test_the_rank_that_is_heard_last_may_have_been_spoiled_first() -> None:
    sim = trained(pace=structs.replace(PACE, step_s=0.8))
    sim.spoil_rank(1)
    sim.agent_stalls("n2")
    sim.run_until(lambda: sim.stage == "Stopping", within_s=5.0)
    sim.agent_stalls("n2", stalls=False)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    (ended,) = sim.events(ev.GenerationEnded)
    assert (ended.good_step, ended.sealed_step, restored(sim)[0]) == (10, 10, 10)
    assert ended.reason == "loss is nan at step 11 on rank 1 first; on the others from step 12 on"
    assert sim.events(ev.Decided)[0].reason.startswith(ended.reason)


def test_a_fault_without_nan_restores_the_newest_step() -> None:
    sim = trained()
    sim.kill_rank(1)
    begins(sim, 2)
    assert sim.events(ev.GenerationEnded)[0].good_step is None
    assert restored(sim)[0] == 10


def test_weights_that_were_spoiled_before_the_loss_showed_it_are_left_for_older_ones() -> None:
    sim = trained()
    spoils(sim, 1)
    spoils(sim, 2)
    assert [e.checkpoint for e in sim.events(ev.CheckpointBanned)] == [CheckpointId(generation=1, step=10)]
    assert restored(sim)[0] < 10
    assert sim.events(ev.GenerationEnded)[-1].sealed_step == -1


def test_nan_that_comes_again_without_progress_ends_the_job() -> None:
    sim = trained()
    sim.spoil_rank(1)
    sim.nodes["n2"].spoils = True
    assert sim.run_to_end(within_s=600.0) == ExitCode.DO_NOT_REQUEUE
    assert sim.state.world.best_step == 10


def test_checkpoints_that_storage_lists_later_count_up_to_the_last_finite_step() -> None:
    sim = trained(config=structs.replace(UNTESTED, checkpoint=CheckpointConfig(memory=False)))
    sim.storage.write(CheckpointId(step=11, generation=1), ranks=(0, 1), world_size=2)
    waiting: list[Tell] = []
    sim.answer(qs.FindCheckpoint, lambda asked, tell: waiting.append(tell))
    sim.spoil_rank(1)
    sim.run_until(lambda: bool(sim.events(ev.GenerationEnded)), within_s=60.0)
    assert fold(sim.journal).world.good_steps == {1: 10}
    sim.run(60.0)
    assert sim.state.world.generation == 1
    waiting[-1](sim.storage.listed())
    begins(sim, 2)
    assert restored(sim)[0] == 5
