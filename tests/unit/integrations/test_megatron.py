"""Megatron-core's optimizers go on bitwise by TrainingState, and what it cannot do is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import slurm_robust as sr
from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.integrations.megatron import TrainingState
from tests.unit.integrations.gloo_ranks import on_ranks

STEPS, BROKEN_AT = 6, 3


class OnCpu(TorchFunctionMode):
    """Megatron asks for CUDA tensors in some places; here they are on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        found = func(*args, **given)
        is_name = func is torch.Tensor.type and isinstance(found, str)
        return found.replace("torch.", "torch.cuda.") if is_name else found


def build(dtype: torch.dtype, sharded: bool, overlap: bool) -> tuple[Any, Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    class Net(MegatronModule):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.first, self.frozen, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)
            self.frozen.requires_grad_(False)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 0.01
            hidden = torch.dropout(torch.relu(self.first(x) + self.seen.to(x.dtype)), 0.2, True)
            return self.last(self.frozen(hidden))

    torch.manual_seed(1)
    low = dtype == torch.bfloat16
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, bf16=low, params_dtype=dtype
    )
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=sharded,
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
    )
    model = DistributedDataParallel(config, ddp, Net(config).to(dtype))
    options = OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        bf16=low,
        params_dtype=dtype,
        use_distributed_optimizer=sharded,
        clip_grad=1.0,
        overlap_param_gather=overlap,
    )
    return model, get_megatron_optimizer(options, [model])


def train(dtype: torch.dtype, sharded: bool, overlap: bool, steps: int, folder: str) -> Any:
    model, optimizer = build(dtype, sharded, overlap)
    torch.manual_seed(2 + torch.distributed.get_rank())
    checkpointer = sr.Checkpointer({"training": TrainingState([model], optimizer)}, path=folder)
    first, losses = checkpointer.restore(), []
    for step in range(first, steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = model(torch.randn(2, 8, dtype=dtype)).float().pow(2).mean()
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
        losses.append(loss.item())
        checkpointer.step(step, loss=loss.detach())
    checkpointer.close()
    if overlap:  # else the weights are those of the step before
        model.start_param_sync(force_sync=True)
    weights = {name: value.float().tolist() for name, value in model.state_dict().items()}
    inner = optimizer.chained_optimizers[0].optimizer
    parts = [parameter.tolist() for group in inner.param_groups for parameter in group["params"]]
    moments = [value.tolist() for state in inner.state.values() for value in state.values()]
    return first, losses, [weights, parts, moments]


@contextmanager
def started() -> Iterator[None]:
    from megatron.core import parallel_state

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    with OnCpu():
        parallel_state.initialize_model_parallel()
        yield


def alone(dtype: torch.dtype, sharded: bool, overlap: bool, steps: int) -> Any:
    with started():
        return train(dtype, sharded, overlap, steps, "plain")


def interrupted(dtype: torch.dtype, sharded: bool, overlap: bool) -> Any:
    """A run that is not interrupted, and one that begins anew in the middle."""
    with started():
        straight = train(dtype, sharded, overlap, STEPS, "straight")
        train(dtype, sharded, overlap, BROKEN_AT, "broken")
        return straight, train(dtype, sharded, overlap, STEPS, "broken")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "sharded", "overlap"),
    [
        (torch.bfloat16, True, False),
        (torch.bfloat16, True, True),
        (torch.float32, True, False),
        (torch.bfloat16, False, False),
    ],
)
def test_two_ranks_go_on_bitwise(dtype: torch.dtype, sharded: bool, overlap: bool, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    for straight, resumed in on_ranks(2, tmp_path / "run", interrupted, dtype, sharded, overlap):
        assert (straight[0], resumed[0]) == (0, BROKEN_AT)
        assert resumed[1] == straight[1][BROKEN_AT:]
        assert resumed[2] == straight[2]


class DistributedOptimizer(SimpleNamespace):
    pass


class LayerWiseDistributedOptimizer(DistributedOptimizer):
    """Is a chain of optimizers, of which each has some layers."""


def test_an_optimizer_that_is_not_known_is_refused() -> None:
    inner = torch.optim.SGD(nn.Linear(1, 1).parameters())
    optimizer = LayerWiseDistributedOptimizer(optimizer=inner, config=None, chained_optimizers=[])
    with pytest.raises(WrongUse, match="does not support LayerWiseDistributedOptimizer"):
        TrainingState([nn.Linear(1, 1)], optimizer)


@pytest.mark.parametrize(
    ("config", "ddp", "message"),
    [
        ({}, {"use_megatron_fsdp": True}, "Megatron-FSDP"),
        ({}, {"fp8_param_gather": True}, "eight bits"),
        ({"optimizer_cpu_offload": True}, {}, "optimizer_cpu_offload"),
        ({"use_precision_aware_optimizer": True}, {}, "use_precision_aware_optimizer"),
    ],
)
def test_what_cannot_go_on_exactly_is_refused(
    config: dict[str, bool], ddp: dict[str, bool], message: str
) -> None:
    model = nn.Linear(1, 1)
    optimizer = DistributedOptimizer(
        optimizer=torch.optim.SGD(model.parameters()),
        config=SimpleNamespace(**config),
        ddp_config=SimpleNamespace(**ddp),
    )
    with pytest.raises(WrongUse, match=f"does not support .*{message}.*--save-interval"):
        TrainingState([model], optimizer)
