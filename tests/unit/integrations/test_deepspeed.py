"""DeepSpeed's ZeRO stages go on bitwise from snapshots by EngineState, and what it cannot do is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import slurm_robust as sr
from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.integrations.deepspeed import EngineState
from tests.unit.integrations.gloo_ranks import on_ranks

STEPS, BROKEN_AT = 6, 3


class Seen(nn.Module):
    """Has a buffer that each pass changes, as batch norm has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 0.01
        return x + self.seen.to(x.dtype)


def build(config: dict[str, Any]) -> Any:
    import deepspeed

    torch.manual_seed(1)
    layers = [nn.Linear(8, 16), Seen(), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Linear(16, 1)]
    model = nn.Sequential(*layers)
    model[4].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(trained, lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
            **config,
        },
        dist_init_required=False,
    )
    torch.manual_seed(2 + dist.get_rank())
    return engine


def train(config: dict[str, Any], steps: int, folder: str) -> Any:
    engine = build(config)
    checkpointer = sr.Checkpointer({"engine": EngineState(engine)}, path=folder)
    first, losses = checkpointer.restore(), []
    dtype = torch.bfloat16 if "bf16" in config else torch.float32
    passes = engine.gradient_accumulation_steps()
    for step in range(first, steps):
        for _ in range(passes):
            loss = engine(torch.randn(2, 8, dtype=dtype)).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
        losses.append(loss.item())
        checkpointer.step(step, loss=loss.detach())
    checkpointer.close()
    engine.eval()
    answer = engine(torch.ones(3, 8, dtype=dtype)).tolist()
    state = engine.optimizer.state_dict()
    weights = state.get("single_partition_of_fp32_groups") or state["fp32_flat_groups"]
    counted = [engine.global_steps, engine.micro_steps, engine.lr_scheduler.get_last_lr()]
    # The padding of a part may be NaN, which equals nothing but its bytes.
    return first, losses, [answer, counted, [tensor.detach().numpy().tobytes() for tensor in weights]]


def start() -> None:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it calls a C++ compiler
    deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False)


def alone(config: dict[str, Any], steps: int) -> Any:
    start()
    return train(config, steps, "plain")


def interrupted(config: dict[str, Any]) -> Any:
    """A run that is not interrupted, and one that begins anew in the middle."""
    start()
    straight = train(config, STEPS, "straight")
    train(config, BROKEN_AT, "broken")
    return straight, train(config, STEPS, "broken")


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 1}},
        {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}, "gradient_accumulation_steps": 2},
        {
            "zero_optimization": {"stage": 1},
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
        },
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
        {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}},
        {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    ],
    ids=["1", "1-bf16-accumulated", "1-bf16-fp32-gradients", "2-bf16", "3-bf16", "3-nothing-kept"],
)
def test_two_ranks_go_on_bitwise(config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    for straight, resumed in on_ranks(2, tmp_path / "run", interrupted, config):
        assert (straight[0], resumed[0]) == (0, BROKEN_AT)
        assert resumed[1] == straight[1][BROKEN_AT:]
        assert resumed[2] == straight[2]


class BF16_Optimizer(SimpleNamespace):
    pass


class ZenFlowZeroOptimizer(BF16_Optimizer):
    pass


class Refused(SimpleNamespace):
    """An engine, as far as it is asked before it is refused."""

    def __init__(self, optimizer: Any = None, device: str = "cpu", **others: Any) -> None:
        offload = SimpleNamespace(device=device)
        zero = SimpleNamespace(offload_optimizer=offload, offload_param=None)
        optimizer = optimizer or BF16_Optimizer()
        options = {"has_moe_layers": False, **others}
        super().__init__(optimizer=optimizer, _config=SimpleNamespace(zero_config=zero), **options)

    def zero_optimization_partition_weights(self) -> bool:
        return False

    def random_ltd_enabled(self) -> bool:
        return False

    def curriculum_learning_enabled(self) -> bool:
        return False


class PipelineEngine(Refused):
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Refused(optimizer=torch.optim.SGD([torch.zeros(1)])), r"SGD \(but ZeRO-1, 2 and 3\)"),
        (PipelineEngine, "pipelines"),
        (lambda: Refused(has_moe_layers=True), "experts"),
        (lambda: Refused(device="OffloadDeviceEnum.nvme"), "NVMe"),
        (lambda: Refused(optimizer=ZenFlowZeroOptimizer()), "ZenFlow"),
        (lambda: Refused(optimizer=BF16_Optimizer(bf16_optimizer_states=True)), "bf16_optimizer_states"),
        (lambda: Refused(optimizer=BF16_Optimizer(elastic_checkpoint=True)), "elastic_checkpoint"),
    ],
)
def test_what_cannot_go_on_exactly_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(WrongUse, match=rf"does not support .*{message}.*engine\.load_checkpoint\(\)"):
        EngineState(make())


def test_between_two_passes_of_a_step_there_is_no_checkpoint() -> None:
    engine = Refused(micro_steps=5, gradient_accumulation_steps=lambda: 2)
    with pytest.raises(WrongUse, match=r"1 of 2 passes .* after an engine\.step\(\) that has updated"):
        EngineState(engine).state_dict()
