"""A training by Lightning, small; for ``test_lightning``, which imports it when a test runs."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch

from slurm_robust.integrations import data
from slurm_robust.worker.step_record import StepRecord

NUMBERS = torch.arange(24, dtype=torch.float32).reshape(12, 2)


class Line(lightning.LightningModule):
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


class Average(lightning.Callback):
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


def build(*callbacks: Any, **options: Any) -> Any:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    defaults = {**dict.fromkeys(quiet, False), "accelerator": "cpu", "max_epochs": 2}
    return lightning.Trainer(callbacks=list(callbacks), **{**defaults, **options})


def loader() -> Any:
    sampler = torch.utils.data.DistributedSampler(NUMBERS, 1, 0)  # type: ignore[arg-type]
    return data.ResumableLoader(NUMBERS, 2, sampler=sampler)


class Phases(lightning.Callback):
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
