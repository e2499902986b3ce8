"""What Lightning cannot go on from exactly is refused with its fix; its hooks for state are called."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.model.progress import CHECKPOINT, EVALUATION
from slurm_robust.worker.step_record import StepRecord
from tests.later import Later, skip_without
from tests.ranks import surroundings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # for the import of lightning
skip_without("lightning")
lightning = Later("lightning.pytorch")
integration = Later("slurm_robust.integrations.lightning")
data = Later("slurm_robust.integrations.data")
parts = Later("tests.unit.integrations.lightning_parts")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in surroundings():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def test_the_state_of_module_and_callbacks_goes_on() -> None:
    results = []
    for folder, stops in (("straight", (-1,)), ("broken", (2, 6, 9, -1))):
        for stop in stops:
            torch.manual_seed(1)
            module, average = parts.Line(), parts.Average(stop)
            trainer = parts.build(integration.RobustCallback(path=folder), average)
            if stop < 0:
                trainer.fit(module, parts.loader())
            else:
                with pytest.raises(InterruptedError):
                    trainer.fit(module, parts.loader())
        results.append((module.seen, average.weight.tolist(), module.linear.weight.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: torch.utils.data.DataLoader(parts.NUMBERS, 2), "ResumableLoader, which takes the same"),
        (lambda: data.StatefulDataLoader(parts.NUMBERS, 2), "ResumableLoader, which takes the same"),
        (
            lambda: data.ResumableLoader(parts.NUMBERS, 2, shuffle=True),
            "sampler=torch.utils.data.DistributedSampler",
        ),
    ],
)
def test_loaders_that_a_restart_cannot_repeat_are_refused(given: Any, message: str) -> None:
    with pytest.raises(WrongUse, match=message):
        parts.build(integration.RobustCallback()).fit(parts.Line(), given())


def test_another_strategy_is_refused() -> None:
    strategy = lightning.strategies.FSDPStrategy()
    trainer = parts.build(integration.RobustCallback())
    trainer._accelerator_connector.strategy = strategy  # it cannot be built without a GPU
    with pytest.raises(WrongUse, match="does not support FSDPStrategy"):
        integration._refuse_trainer(trainer)


def test_a_second_source_of_state_is_refused(tmp_path: Path) -> None:
    trainer = parts.build()
    trainer.fit(parts.Line(), parts.loader())
    trainer.save_checkpoint("other.ckpt")
    with pytest.raises(WrongUse, match=r"ckpt_path='other\.ckpt' would overwrite"):
        parts.build(integration.RobustCallback()).fit(parts.Line(), parts.loader(), ckpt_path="other.ckpt")


def test_validations_and_saves_are_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = StepRecord.create(tmp_path / "record", generation=1, rank=0)
    monkeypatch.setenv("SROBUST_RECORD", str(record.path))
    phases, saver = parts.Phases(record), lightning.callbacks.ModelCheckpoint(every_n_train_steps=4)
    trainer = parts.build(
        integration.RobustCallback(every=100), phases, saver, enable_checkpointing=True, val_check_interval=3
    )
    trainer.fit(parts.Validated(), parts.loader(), torch.utils.data.DataLoader(parts.NUMBERS, 12))  # type: ignore[arg-type]
    assert set(phases.seen) == {("batch", ""), ("validation", EVALUATION), ("save", CHECKPOINT)}
    assert record.phase.name == ""
