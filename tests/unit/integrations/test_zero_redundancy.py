"""A part of torch's ZeroRedundancyOptimizer goes on bitwise, as the refusal of the whole one says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slurm_robust as sr
from tests.unit.integrations.gloo_ranks import on_ranks

STEPS, BROKEN_AT = 6, 3


def train(steps: int, folder: str) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    torch.manual_seed(2 + dist.get_rank())
    entries = {"model": model, "optimizer": optimizer.optim}
    checkpointer = sr.Checkpointer(entries, path=folder, deduplicate=False)
    first, losses = checkpointer.restore(), []
    for step in range(first, steps):
        loss = model(torch.randn(3, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        checkpointer.step(step)
    checkpointer.close()
    moments = [value.tolist() for state in optimizer.optim.state.values() for value in state.values()]
    return first, losses, [parameter.tolist() for parameter in model.parameters()], moments


def interrupted() -> Any:
    straight = train(STEPS, "straight")
    train(BROKEN_AT, "broken")
    return straight, train(STEPS, "broken")


@pytest.mark.slow
def test_two_ranks_go_on_bitwise(tmp_path: Path) -> None:
    for straight, resumed in on_ranks(2, tmp_path / "run", interrupted):
        assert resumed[:2] == (BROKEN_AT, straight[1][BROKEN_AT:])
        assert resumed[2:] == straight[2:]
