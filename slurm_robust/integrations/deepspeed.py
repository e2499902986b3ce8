"""DeepSpeed's ZeRO stages 1, 2 and 3 go on bitwise after a fault, with snapshots of every step.

::

    engine, *_ = deepspeed.initialize(...)
    ckpt = sr.Checkpointer({"engine": EngineState(engine), "loader": loader})
    for step in range(ckpt.restore(), steps):
        loss = ...
        engine.backward(loss)
        engine.step()
        ckpt.step(step, loss=loss)

Each rank stores its part of the main weights and of the optimizer's state. A restore gathers the weights from
these parts, as the optimizer does after each update. The number of ranks stays the same during a run.

Tested with DeepSpeed 0.19.8.
"""

from __future__ import annotations

from typing import Any

import torch

from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.integrations.sharding import copy_into, load_remainder, remainder

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
# Named as in DeepSpeed's own checkpoints; the rest of the optimizer's state_dict follows from the
# configuration or is not plain data.
_OF_OPTIMIZER = (
    "base_optimizer_state",
    "single_partition_of_fp32_groups",
    "optimizer_state_dict",
    "fp32_flat_groups",
    "dynamic_loss_scale",
    "overflow",
    "clip_grad",
)

_KNOWN = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer")


class EngineState:
    """One entry for :class:`slurm_robust.Checkpointer`: engine, module, optimizer and scheduler.

    Raises :class:`~slurm_robust.checkpoint.errors.WrongUse` for what cannot go on exactly: engines without
    ZeRO, pipelines, experts, offload to NVMe, ZenFlow, elastic checkpoints, optimizer state in bfloat16,
    random layer token drop, and curricula.
    """

    needs_its_layout = (
        "ZeRO cuts the optimizer into one piece for each rank",
        ", or begin anew (of a training: with --fresh) from one of DeepSpeed's universal checkpoints "
        "(engine.save_checkpoint(), ds_to_universal.py)",
    )

    holds_optimizer = True

    def __init__(self, engine: Any) -> None:
        _refuse(engine)
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part, without communication. Raises ``WrongUse`` between two optimizer steps."""
        engine = self._engine
        passes = engine.gradient_accumulation_steps()
        if done := engine.micro_steps % passes:
            raise WrongUse(
                f"{done} of {passes} passes of a step are done, and their gradients are in no checkpoint: "
                "call Checkpointer.step() after an engine.step() that has updated the weights"
            )
        known = engine.optimizer.state_dict()
        return {
            "counters": {name: getattr(engine, name) for name in _COUNTERS},
            "module": remainder(engine.module, self._not_whole()),
            "frozen": {name: p.ds_tensor for name, p in self._frozen().items()},
            "optimizer": {name: known[name] for name in _OF_OPTIMIZER if name in known},
            "loss_scaler": _numbers_of(getattr(engine.optimizer, "loss_scaler", None)),
            "scheduler": engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put it back and gather the weights; called by all ranks."""
        engine, optimizer = self._engine, self._engine.optimizer
        by_rank = [{**optimizer.state_dict(), **state_dict["optimizer"]}] * torch.distributed.get_world_size()
        load_remainder(engine.module, self._not_whole(), state_dict["module"])
        if engine.zero_optimization_partition_weights():  # stage 3
            optimizer.checkpoint_event_prologue()
            optimizer.load_state_dict(by_rank)
            parts, stored = self._frozen(), state_dict["frozen"]
            copy_into([p.ds_tensor for p in parts.values()], [stored[name] for name in parts])
            optimizer.checkpoint_event_epilogue()
        else:
            optimizer.load_state_dict(by_rank, load_from_fp32_weights=True)
            optimizer.update_lp_params()
        if state_dict["loss_scaler"]:
            vars(optimizer.loss_scaler).update(state_dict["loss_scaler"])
        if engine.lr_scheduler is not None:
            engine.lr_scheduler.load_state_dict(state_dict["scheduler"])
        for name, value in state_dict["counters"].items():
            setattr(engine, name, value)

    def _trained(self) -> set[int]:
        """Return ids of the parameters whose weights the optimizer has."""
        optimizer = self._engine.optimizer
        names = ("bit16_groups", "bf16_groups", "fp16_groups")  # stages 1 and 2, stage 1 with bf16, stage 3
        groups = next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))
        return {id(parameter) for group in groups for parameter in group}

    def _frozen(self) -> dict[str, Any]:
        """Return this rank's part of the parameters that stage 3 shards and no optimizer trains."""
        trained, named = self._trained(), self._engine.module.named_parameters()
        return {name: p for name, p in named if hasattr(p, "ds_tensor") and id(p) not in trained}

    def _not_whole(self) -> set[int]:
        return self._trained() | {id(parameter) for parameter in self._frozen().values()}


def _numbers_of(scaler: Any) -> dict[str, Any]:
    known = vars(scaler) if scaler is not None else {}
    return {name: value for name, value in known.items() if isinstance(value, bool | int | float)}


def _refuse(engine: Any) -> None:
    config, optimizer = engine._config, engine.optimizer
    zero = config.zero_config
    offloads = (zero.offload_optimizer, zero.offload_param)
    reasons = {
        f"{type(optimizer).__name__} (but ZeRO-1, 2 and 3)": type(optimizer).__name__ not in _KNOWN,
        "pipelines": any(kind.__name__ == "PipelineEngine" for kind in type(engine).__mro__),
        "experts": engine.has_moe_layers,
        "offload to NVMe": any(str(getattr(one, "device", "")).endswith("nvme") for one in offloads),
        "elastic_checkpoint": getattr(optimizer, "elastic_checkpoint", False),
        "bf16_optimizer_states": getattr(optimizer, "bf16_optimizer_states", False),
        "random layer token drop": engine.random_ltd_enabled(),
        "curriculum learning": engine.curriculum_learning_enabled(),
    }
    for reason, holds in reasons.items():
        if holds:
            raise WrongUse(
                f"EngineState does not support {reason}: switch it off, or use no Checkpointer and let the "
                "script itself save by engine.save_checkpoint() and begin with engine.load_checkpoint()"
            )
