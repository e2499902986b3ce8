"""Megatron-core goes on bitwise after a fault, also with its distributed optimizer.

::

    state = TrainingState(model_chunks, optimizer)
    ckpt = sr.Checkpointer({"training": state, "scheduler": opt_param_scheduler})

Each rank stores its part of the main weights and of the optimizer's state. A restore copies the main weights
into the model as an optimizer step does, and gathers them. So a checkpoint is a few bytes per parameter over
all ranks together, and holds while ``overlap_param_gather`` still gathers the weights of the step before.

The layout of the ranks (tensor, pipeline, expert and data parallel) stays the same during a run.

Tested with megatron-core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from slurm_robust.checkpoint.errors import EntryMismatch, WrongUse
from slurm_robust.integrations.sharding import load_own_part, load_remainder, own_part, remainder

_KNOWN = ("DistributedOptimizer", "Float16OptimizerWithFloat16Params", "FP32Optimizer")


class TrainingState:
    """One entry for :class:`slurm_robust.Checkpointer`: the model's chunks and their Megatron optimizer.

    ``model_chunks`` as given to ``get_megatron_optimizer``, ``optimizer`` as it returned it.

    Raises :class:`~slurm_robust.checkpoint.errors.WrongUse` for what cannot go on exactly: Megatron-FSDP, an
    optimizer that is offloaded to the CPU, aware of precision or divided by layers, parameters in eight bits.
    """

    needs_its_layout = (
        "Megatron cuts the optimizer into one piece for each rank",
        ", or begin anew (of a training: with --fresh) from one of Megatron's own checkpoints (--save, "
        "--load with --ckpt-format torch_dist)",
    )

    holds_optimizer = True

    def __init__(self, model_chunks: Sequence[nn.Module], optimizer: Any) -> None:
        self._chunks: list[Any] = list(model_chunks)
        is_chain = type(optimizer).__name__ == "ChainedOptimizer"
        chained = optimizer.chained_optimizers if is_chain else [optimizer]
        self._optimizers = [one for one in chained if getattr(one, "optimizer", None) is not None]
        for one in self._optimizers:
            _refuse(one)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part. No communication."""
        return {
            "model": [remainder(chunk, _trained(chunk)) for chunk in self._chunks],
            "optimizers": [_state_of(one) for one in self._optimizers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put it back and gather the weights; called by all ranks."""
        there = [len(state_dict["model"]), len(state_dict["optimizers"])]
        if there != [len(self._chunks), len(self._optimizers)]:
            raise EntryMismatch(
                f"the checkpoint has {there[0]} chunks of the model and {there[1]} optimizers on this rank, "
                f"the training {len(self._chunks)} and {len(self._optimizers)}: keep the layout of the ranks"
            )
        for chunk, state in zip(self._chunks, state_dict["model"], strict=True):
            load_remainder(chunk, _trained(chunk), state)
        for one, state in zip(self._optimizers, state_dict["optimizers"], strict=True):
            load_own_part(one.optimizer, state["own"])
            if getattr(one, "grad_scaler", None):
                one.grad_scaler.load_state_dict(state["grad_scaler"])
            if hasattr(one, "_copy_main_params_to_model_params"):  # without main weights there is no copy
                one._copy_main_params_to_model_params()
        for chunk in self._chunks:
            if getattr(getattr(chunk, "ddp_config", None), "use_distributed_optimizer", False):
                chunk.start_param_sync(force_sync=True)


def _trained(chunk: nn.Module) -> set[int]:
    """Return the ids of all parameters that need a gradient: Megatron's optimizers have them all."""
    return {id(parameter) for parameter in chunk.parameters() if parameter.requires_grad}


def _state_of(optimizer: Any) -> dict[str, Any]:
    scaler = getattr(optimizer, "grad_scaler", None)
    return {
        "own": own_part(optimizer.optimizer),
        "grad_scaler": scaler.state_dict() if scaler else None,
    }


def _refuse(optimizer: Any) -> None:
    config, ddp = optimizer.config, getattr(optimizer, "ddp_config", None)
    name = type(optimizer).__name__
    reasons = {
        name: name not in _KNOWN,
        "Megatron-FSDP": getattr(ddp, "use_megatron_fsdp", False),
        "parameters in eight bits (fp8_param_gather)": getattr(ddp, "fp8_param_gather", False),
        "optimizer_cpu_offload": getattr(config, "optimizer_cpu_offload", False),
        "use_precision_aware_optimizer": getattr(config, "use_precision_aware_optimizer", False),
    }
    for reason, holds in reasons.items():
        if holds:
            raise WrongUse(
                f"TrainingState does not support {reason}: switch it off, or use no Checkpointer and let the "
                "script itself save and load Megatron's own checkpoints (--save, --load, --save-interval)"
            )
