"""transformers.Trainer with FSDP2 goes on bitwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.later import skip_without
from tests.torch_features import needs_fsdp2
from tests.unit.integrations.gloo_ranks import on_ranks

STEPS, STOP_AFTER = 6, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.2), nn.Linear(5, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(x).pow(2).mean()}


def train(folder: str, stop_after: int) -> Any:
    import transformers
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    from slurm_robust.integrations.huggingface import RobustCallback

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]
        losses: dict[int, float] = {}
        first = -1

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.first, self.losses = state.global_step, {}

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control.should_training_stop = state.global_step == stop_after
            return control

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "loss" in logs:
                self.losses[state.global_step] = logs["loss"], logs["grad_norm"]

    torch.manual_seed(1)
    arguments = transformers.TrainingArguments(
        output_dir="out",
        max_steps=STEPS,
        per_device_train_batch_size=2,
        use_cpu=True,
        ddp_backend="gloo",
        fsdp=True,
        fsdp_config={"version": 2},
        max_grad_norm=0.1,
        learning_rate=1e-2,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    assert arguments.device.type == "cpu"
    # Accelerate shards on accelerators only. All that it asks for is this.
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    data = [{"x": torch.tensor([number / 9, 1.0])} for number in range(20)]
    watch, robust = Watch(), RobustCallback(path=folder)
    trainer = transformers.Trainer(Net(), arguments, train_dataset=data, callbacks=[robust, watch])
    trainer.train(resume_from_checkpoint=robust.resume(trainer))
    weights = {name: value.to_local().tolist() for name, value in trainer.model.state_dict().items()}
    return watch.first, watch.losses, weights


def interrupted() -> Any:
    straight = train("straight", -1)
    train("broken", STOP_AFTER)
    return straight, train("broken", -1)


@needs_fsdp2
@pytest.mark.slow
def test_two_ranks_go_on_bitwise(tmp_path: Path) -> None:
    skip_without("transformers")
    for straight, resumed in on_ranks(2, tmp_path / "run", interrupted):
        assert (straight[0], resumed[0]) == (0, STOP_AFTER - 1)  # the last step has no snapshot
        assert resumed[1] == {step: of for step, of in straight[1].items() if step >= STOP_AFTER}
        assert resumed[2] == straight[2]
