"""A training by transformers.Trainer, small; for ``test_huggingface``, which imports it when a test runs."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from slurm_robust.worker.step_record import StepRecord


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.linear(x).pow(2).mean()}


def build(*callbacks: Any, model: torch.nn.Module | None = None, **arguments: Any) -> Any:
    options = {
        "max_steps": 5,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
    }
    args = transformers.TrainingArguments(output_dir="out", disable_tqdm=True, **{**options, **arguments})
    data = [{"x": torch.ones(2) * number} for number in range(24)]
    return transformers.Trainer(
        model or Line(), args, train_dataset=data, eval_dataset=data, callbacks=list(callbacks)
    )


class Phases(transformers.TrainerCallback):
    """Notes what the record shows at some moments."""

    def __init__(self, record: StepRecord) -> None:
        self._record = record
        self.seen: list[tuple[str, str]] = []

    def note(self, moment: str) -> None:
        self.seen.append((moment, self._record.phase.name))

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.note("step")

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        self.note("prediction")

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self.note("save")
