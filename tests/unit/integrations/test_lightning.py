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
from tests.ranks import surroundings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # for the import of lightning
lightning = pytest.importorskip("lightning.pytorch")
integration = pytest.importorskip("slurm_robust.integrations.lightning")
data = pytest.importorskip("slurm_robust.integrations.data")

NUMBERS = torch.arange(24, dtype=torch.float32).reshape(12, 2)


class Line(lightning.LightningModule):  # type: ignore[name-defined,misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.seen = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen += float(batch[0].sum()) if isinstance(batch, list) else float(batch.sum())
        return self.linear(batch).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-5)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert "linear.weight" in checkpoint["state_dict"]
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen = checkpoint["seen"]


class Average(lightning.Callback):  # type: ignore[name-defined,misc]
    """A moving average of the weights, as users write them."""

    def __init__(self, stop_at: int = -1) -> None:
        self.weight = torch.zeros(2)
        self.stop_at = stop_at

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.weight = 0.5 * self.weight + pl_module.linear.weight.detach()[0]
        if trainer.global_step == self.stop_at:
            raise InterruptedError

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.weight = state_dict["weight"]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in surroundings():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def build(*callbacks: Any, **options: Any) -> Any:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    defaults = {**dict.fromkeys(quiet, False), "accelerator": "cpu", "max_epochs": 2}
    return lightning.Trainer(callbacks=list(callbacks), **{**defaults, **options})


def loader() -> Any:
    sampler = torch.utils.data.DistributedSampler(NUMBERS, 1, 0)  # type: ignore[arg-type]
    return data.ResumableLoader(NUMBERS, 2, sampler=sampler)


def test_the_state_of_module_and_callbacks_goes_on() -> None:
    results = []
    for folder, stops in (("straight", (-1,)), ("broken", (2, 6, 9, -1))):
        for stop in stops:
            torch.manual_seed(1)
            module, average = Line(), Average(stop)
            trainer = build(integration.RobustCallback(path=folder), average)
            if stop < 0:
                trainer.fit(module, loader())
            else:
                with pytest.raises(InterruptedError):
                    trainer.fit(module, loader())
        results.append((module.seen, average.weight.tolist(), module.linear.weight.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: torch.utils.data.DataLoader(NUMBERS, 2), "ResumableLoader, which takes the same"),
        (lambda: data.StatefulDataLoader(NUMBERS, 2), "ResumableLoader, which takes the same"),
        (
            lambda: data.ResumableLoader(NUMBERS, 2, shuffle=True),
            "sampler=torch.utils.data.DistributedSampler",
        ),
    ],
)
def test_loaders_that_a_restart_cannot_repeat_are_refused(given: Any, message: str) -> None:
    with pytest.raises(WrongUse, match=message):
        build(integration.RobustCallback()).fit(Line(), given())


def test_another_strategy_is_refused() -> None:
    strategy = lightning.strategies.FSDPStrategy()
    trainer = build(integration.RobustCallback())
    trainer._accelerator_connector.strategy = strategy  # it cannot be built without a GPU
    with pytest.raises(WrongUse, match="does not support FSDPStrategy"):
        integration._refuse_trainer(trainer)


def test_a_second_source_of_state_is_refused(tmp_path: Path) -> None:
    trainer = build()
    trainer.fit(Line(), loader())
    trainer.save_checkpoint("other.ckpt")
    with pytest.raises(WrongUse, match=r"ckpt_path='other\.ckpt' would overwrite"):
        build(integration.RobustCallback()).fit(Line(), loader(), ckpt_path="other.ckpt")


class Phases(lightning.Callback):  # type: ignore[name-defined,misc]
    """Notes what the record shows at some moments."""

    def __init__(self, record: StepRecord) -> None:
        self._record = record
        self.seen: list[tuple[str, str]] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.seen.append(("batch", self._record.phase.name))

    def on_validation_batch_start(self, *args: Any) -> None:
        self.seen.append(("validation", self._record.phase.name))

    def on_save_checkpoint(self, *args: Any) -> None:
        self.seen.append(("save", self._record.phase.name))


class Validated(Line):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing to compute."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Nothing to keep."""


def test_validations_and_saves_are_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = StepRecord.create(tmp_path / "record", generation=1, rank=0)
    monkeypatch.setenv("SROBUST_RECORD", str(record.path))
    phases, saver = Phases(record), lightning.callbacks.ModelCheckpoint(every_n_train_steps=4)
    trainer = build(
        integration.RobustCallback(every=100), phases, saver, enable_checkpointing=True, val_check_interval=3
    )
    trainer.fit(Validated(), loader(), torch.utils.data.DataLoader(NUMBERS, 12))  # type: ignore[arg-type]
    assert set(phases.seen) == {("batch", ""), ("validation", EVALUATION), ("save", CHECKPOINT)}
    assert record.phase.name == ""
