"""What does not give its whole state is refused when it is registered, with the way to pass it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from slurm_robust.checkpoint.errors import UnsupportedState
from slurm_robust.worker.api import Checkpointer


def stand_in(module: str, name: str, base: type = object, **members: Any) -> Any:
    """An object of a class as a framework has it, also where the framework is not installed."""
    both = {"state_dict": lambda self: {}, "load_state_dict": lambda self, state: None}
    own = {} if issubclass(base, nn.Module) else both
    kind = type(name, (base,), {**own, **members, "__module__": module})
    return type(f"My{name}", (kind,), {})()  # users derive their own


def partitioned() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight.ds_tensor = torch.zeros(2)
    return nn.Sequential(model)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            stand_in("deepspeed.runtime.engine", "DeepSpeedEngine", nn.Module),
            r"lacks the optimizer.*integrations\.deepspeed\.EngineState\(engine\)",
        ),
        (
            stand_in("deepspeed.runtime.base_optimizer", "DeepSpeedOptimizer"),
            r"keeps its state with the engine.*EngineState\(engine\)",
        ),
        (partitioned(), r"sharded by ZeRO-3.*EngineState\(engine\)"),
        (
            stand_in(
                "megatron.core.optimizer.distrib_optimizer",
                "DistributedOptimizer",
                sharded_state_dict=lambda self: {},
            ),
            r"lacks the sharded state.*integrations\.megatron\.TrainingState\(model_chunks, optimizer\)",
        ),
        (
            stand_in("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"),
            r"optimizer\.optim, and say Checkpointer\(…, deduplicate=False\)",
        ),
        (
            nn.Sequential(
                stand_in("torch.distributed.fsdp.x", "FullyShardedDataParallel", nn.Module), nn.Linear(1, 1)
            ),
            r"use torch\.distributed\.fsdp\.fully_shard",
        ),
        (
            stand_in("megatron.core.distributed.fsdp.x", "FullyShardedDataParallel", nn.Module),
            r"Megatron-FSDP.*use_distributed_optimizer=True",
        ),
    ],
)
def test_an_unsupported_entry_is_refused_with_the_way_to_pass_it(entry: Any, message: str) -> None:
    with pytest.raises(UnsupportedState, match=f"^entry 'it' .*{message}"):
        Checkpointer({"model": nn.Linear(1, 1), "it": entry})


def test_modules_of_megatron_give_their_whole_state() -> None:
    """They have the same method, and a state_dict() that lacks nothing."""
    module = stand_in(
        "megatron.core.transformer.module", "MegatronModule", nn.Module, sharded_state_dict=lambda self: {}
    )
    Checkpointer({"model": module})
