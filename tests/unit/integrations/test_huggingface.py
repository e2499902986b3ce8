"""What transformers.Trainer cannot go on from exactly is refused with its fix; progress is reported."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.model.progress import CHECKPOINT, EVALUATION, FINISHED
from slurm_robust.worker.step_record import StepRecord
from tests.builders.workers import worker
from tests.later import Later, skip_without
from tests.ranks import surroundings

pytestmark = pytest.mark.slow  # for the import of transformers
skip_without("transformers")
transformers = Later("transformers")
integration = Later("slurm_robust.integrations.huggingface")
parts = Later("tests.unit.integrations.trainer_parts")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in surroundings():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_a_start_without_resume_is_reported() -> None:
    with pytest.raises(WrongUse, match=r"resume_from_checkpoint=robust.resume\(trainer\)"):
        parts.build(integration.RobustCallback()).train()


def test_a_checkpoint_that_was_not_given_to_the_trainer_is_reported() -> None:
    robust = integration.RobustCallback()
    trainer = parts.build(robust)
    trainer.train(resume_from_checkpoint=robust.resume(trainer))
    again = integration.RobustCallback()
    trainer = parts.build(again)
    assert again.resume(trainer)
    with pytest.raises(WrongUse, match="begins at step 0 and the checkpoint at 4"):
        trainer.train()


@pytest.mark.parametrize("option", ["ignore_data_skip", "auto_find_batch_size"])
def test_options_that_change_the_order_of_the_data_are_refused(option: str) -> None:
    robust = integration.RobustCallback()
    with pytest.raises(WrongUse, match=f"{option}=True"):
        robust.resume(parts.build(robust, **{option: True}))


def test_deepspeed_is_refused() -> None:
    robust = integration.RobustCallback()
    trainer = parts.build(robust)
    trainer.is_deepspeed_enabled = True  # it does not run in one process without a GPU
    with pytest.raises(WrongUse, match=r"does not support DeepSpeed: .*frameworks\.md"):
        robust.resume(trainer)


def test_the_first_fsdp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    robust = integration.RobustCallback()
    trainer = parts.build(robust)
    known = vars(trainer.accelerator.state)  # shared by all of the process
    monkeypatch.setitem(known, "fsdp_plugin", SimpleNamespace(fsdp_version=1))
    with pytest.raises(WrongUse, match=r"the first FSDP \(say fsdp_config=\{'version': 2\}\)"):
        robust.resume(trainer)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StepRecord:
    """That of the only worker under ``srobust run``."""
    made, place = worker(tmp_path)
    for name, value in place.to_env().items():
        monkeypatch.setenv(name, value)
    return made


def test_under_srobust_steps_and_losses_are_reported(record: StepRecord) -> None:
    robust = integration.RobustCallback(every=2)
    trainer = parts.build(robust)
    trainer.train(resume_from_checkpoint=robust.resume(trainer))
    progress = record.progress(time.monotonic())
    assert (progress.step, progress.reported) == (3, True)  # of the last step nothing is kept
    assert progress.loss is not None
    assert progress.loss > 0
    assert progress.grad_norm is not None


def test_evaluations_and_saves_are_phases(record: StepRecord) -> None:
    phases, robust = parts.Phases(record), integration.RobustCallback(every=2)
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3}
    trainer = parts.build(phases, robust, max_steps=4, **steps)
    trainer.train(resume_from_checkpoint=robust.resume(trainer))
    assert set(phases.seen) == {("step", ""), ("prediction", EVALUATION), ("save", CHECKPOINT)}
    assert record.phase.name == FINISHED
    trainer.evaluate()
    assert record.phase.name == FINISHED


def test_early_stopping_goes_on_counting() -> None:
    """The Trainer restores such counters only on request; without them it would end later."""
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=3)
    robust = integration.RobustCallback()
    trainer = parts.build(robust, stopping)
    counters = integration._Counters()
    stopping.early_stopping_patience_counter = 2
    counters.take(trainer, trainer.state, robust)
    stopping.early_stopping_patience_counter = 0
    counters.give_to_callbacks(trainer, robust)
    assert stopping.early_stopping_patience_counter == 2
