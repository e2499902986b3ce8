"""What the releases of a job differ in."""

import torch
from torch import nn

WEIGHT = 1.0
WIDTH = 32


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def spoil(loss: torch.Tensor, done: int, rank: int) -> torch.Tensor:
    """Faults of a release go here; ``done`` steps of this launch are over."""
    return loss
