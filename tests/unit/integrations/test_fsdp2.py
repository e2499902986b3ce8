"""FSDP2 with a loop of one's own goes on bitwise: mixed precision, clipped gradients, two and four ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import slurm_robust as sr
from tests.torch_features import needs_fsdp2
from tests.unit.integrations.gloo_ranks import on_ranks

STEPS, BROKEN_AT = 4, 2


def build(replicas: int) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(1)
    # Odd sizes: the last rank's shard is smaller, of the bias of one it is empty.
    blocks = [nn.Sequential(nn.Linear(8, 13), nn.ReLU(), nn.Dropout(0.2), nn.Linear(13, 8)) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.LayerNorm(8), nn.Linear(8, 1))
    mesh = None
    if replicas > 1:
        shape = (replicas, dist.get_world_size() // replicas)
        mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def train(replicas: int, steps: int, folder: str) -> Any:
    model = build(replicas)
    torch.manual_seed(2 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    entries: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    checkpointer = sr.Checkpointer(entries, path=folder)
    first, done = checkpointer.restore(), []
    for step in range(first, steps):
        loss = model(torch.randn(3, 8)).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()  # type: ignore[operator]
        optimizer.step()
        schedule.step()
        done.append((loss.item(), norm.item()))
        checkpointer.step(step, loss=loss.detach(), grad_norm=norm)
    checkpointer.close()
    state = [model.state_dict(), *optimizer.state_dict()["state"].values()]
    local = [{name: as_list(value) for name, value in one.items()} for one in state]
    return first, done, local


def as_list(value: Any) -> Any:
    return (value.to_local() if hasattr(value, "to_local") else value).tolist()


def alone(replicas: int, steps: int) -> Any:
    return train(replicas, steps, "plain")


def interrupted(replicas: int) -> Any:
    """A run that is not interrupted, and one that begins anew in the middle."""
    straight = train(replicas, STEPS, "straight")
    train(replicas, BROKEN_AT, "broken")
    dist.barrier()  # the newest checkpoint is whole when the last rank has written its part
    return straight, train(replicas, STEPS, "broken")


@needs_fsdp2
@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (4, 1), (4, 2)])
def test_fsdp2_goes_on_bitwise(ranks: int, replicas: int, tmp_path: Path) -> None:
    for straight, resumed in on_ranks(ranks, tmp_path / "run", interrupted, replicas):
        assert (straight[0], resumed[0]) == (0, BROKEN_AT)
        assert max(norm for _, norm in straight[1]) > 0.1  # they were clipped
        assert resumed[1] == straight[1][BROKEN_AT:]
        assert resumed[2] == straight[2]
