"""What the states of training engines that shard the optimizer have in common.

Each rank stores its own part. What all ranks can put together again from these parts (the weights that the
optimizer owns) is in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from slurm_robust.checkpoint.errors import EntryMismatch


def remainder(module: nn.Module, owned: Set[int]) -> dict[str, Any]:
    """Return the state of ``module`` without these parameters: buffers, extra state, what is not trained."""
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if id(value) not in owned}


def load_remainder(module: nn.Module, owned: Set[int], state: dict[str, Any]) -> None:
    """Put back what :func:`remainder` gave. Raises :class:`EntryMismatch`."""
    wrong = sorted(state.keys() ^ remainder(module, owned).keys())
    if wrong:
        raise EntryMismatch(
            f"{type(module).__name__} has other buffers, or trains other parameters, than the checkpoint: "
            f"{', '.join(wrong[:5])}"
        )
    module.load_state_dict(state, strict=False)


def own_part(optimizer: Optimizer) -> dict[str, Any]:
    """Return state and parameters of an optimizer whose parameters are this rank's part of the weights."""
    return {"optimizer": optimizer.state_dict(), "parameters": _parameters(optimizer)}


def load_own_part(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Put back what :func:`own_part` gave. Raises :class:`EntryMismatch`."""
    copy_into(_parameters(optimizer), state["parameters"])
    optimizer.load_state_dict(state["optimizer"])


def copy_into(live: list[torch.Tensor], stored: list[torch.Tensor]) -> None:
    """Copy tensor by tensor. Raises :class:`EntryMismatch` if they are of other shapes or types."""
    now = [(tensor.shape, tensor.dtype) for tensor in live]
    then = [(tensor.shape, tensor.dtype) for tensor in stored]
    if now != then:
        raise EntryMismatch(
            "the weights are divided among the ranks otherwise than in the checkpoint: start with the same "
            "number of ranks, model and configuration"
        )
    with torch.no_grad():
        for tensor, value in zip(live, stored, strict=True):
            tensor.copy_(value)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter.data for group in optimizer.param_groups for parameter in group["params"]]
