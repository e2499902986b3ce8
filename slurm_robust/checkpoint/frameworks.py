"""Objects of other frameworks whose ``state_dict()`` is not the whole state: refused before the first step.

They are known by what they are made of, so that none of the frameworks has to be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from slurm_robust.checkpoint.errors import UnsupportedState

_DEEPSPEED = (
    "pass slurm_robust.integrations.deepspeed.EngineState(engine) as one entry in place of the engine, its "
    "module, optimizer and scheduler"
)
_MEGATRON = (
    "pass slurm_robust.integrations.megatron.TrainingState(model_chunks, optimizer) as one entry in place of "
    "the model and the optimizer"
)


def refuse_incomplete(entries: Mapping[str, Any]) -> None:
    """Raise :class:`UnsupportedState` with the right way for an entry that does not give its whole state."""
    for name, entry in entries.items():
        for reason in _reasons(entry):
            raise UnsupportedState(f"entry {name!r} {reason}")


def _reasons(entry: Any) -> Iterator[str]:
    kind = f"is a {type(entry).__qualname__}"
    if isinstance(entry, torch.nn.Module):
        yield from _reasons_of_module(entry, kind)
    elif _descends(entry, "deepspeed", "DeepSpeedOptimizer"):
        yield f"{kind} of DeepSpeed, which keeps its state with the engine: {_DEEPSPEED}"
    elif _descends(entry, "torch.distributed.optim", "ZeroRedundancyOptimizer"):
        yield (
            f"{kind}, whose state_dict() gathers the state of all ranks: pass its part of this rank, "
            "optimizer.optim, and say Checkpointer(…, deduplicate=False), since each rank's is another one"
        )
    elif hasattr(entry, "sharded_state_dict"):
        yield f"{kind}, whose state_dict() lacks the sharded state: {_MEGATRON}"


def _reasons_of_module(module: torch.nn.Module, kind: str) -> Iterator[str]:
    if _descends(module, "deepspeed", "DeepSpeedEngine"):
        yield f"{kind}, whose state_dict() lacks the optimizer and what ZeRO shards: {_DEEPSPEED}"
    elif any(hasattr(parameter, "ds_tensor") for parameter in module.parameters()):
        yield f"has parameters sharded by ZeRO-3, which its state_dict() lacks: {_DEEPSPEED}"
    for inner in module.modules():
        if _descends(inner, "megatron", "MegatronFSDP") or _descends(
            inner, "megatron", "FullyShardedDataParallel"
        ):
            yield (
                "uses Megatron-FSDP, which is not supported: use Megatron's DistributedDataParallel with "
                f"use_distributed_optimizer=True, and {_MEGATRON}"
            )
        elif _descends(inner, "", "FullyShardedDataParallel"):
            yield (
                "uses FullyShardedDataParallel, whose state_dict() gathers the whole model: "
                "use torch.distributed.fsdp.fully_shard"
            )


def _descends(value: object, package: str, name: str) -> bool:
    """Whether ``value`` is of a class ``name`` in ``package`` or below ("": any), or of one made from it."""
    return any(
        kind.__name__ == name and (not package or f"{kind.__module__}.".startswith(f"{package}."))
        for kind in type(value).__mro__
    )
