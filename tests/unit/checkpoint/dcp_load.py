"""Loads a checkpoint by torch.distributed.checkpoint alone: ``dcp_load.py FOLDER EXPECTED sharded|whole``.

Knows nothing of slurm_robust: to import it fails. RANK and WORLD_SIZE are as torchrun sets them; the ranks
meet at STORE.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn


def model_of(*, normed: bool) -> nn.Module:
    middle = nn.BatchNorm1d(7) if normed else nn.ReLU()
    return nn.Sequential(nn.Linear(5, 7), middle, nn.Linear(7, 3))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    torch.manual_seed(rank)
    for _ in range(2):
        model(torch.randn(6, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(value: Any) -> Any:
    """With every DTensor gathered, in the same order on all ranks."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(item, b[key]) for key, item in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    return bool(a == b)


def main() -> None:
    folder, expected_path, kind = sys.argv[1:]
    # The process may be a fork of one that has it.
    for name in [name for name in sys.modules if name.startswith("slurm_robust")]:
        del sys.modules[name]
    sys.modules["slurm_robust"] = None  # type: ignore[assignment]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
    expected = torch.load(expected_path, weights_only=True)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(99)
    model = model_of(normed="1.running_mean" in expected["model"])
    if kind == "sharded":
        dist.init_process_group("gloo", os.environ["STORE"], rank=rank, world_size=world_size)
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    stepped(model, optimizer, 50 + rank)
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert not same(whole(state["model"]), expected["model"])
    dcp.load(state, checkpoint_id=folder)
    assert same(whole(state), {key: expected[key] for key in state}), (whole(state), expected)
    if "rank-00001" in expected:
        other = {"rank-00001": {"model": {key: torch.zeros(7) for key in expected["rank-00001"]}}}
        dcp.load(other, checkpoint_id=folder)
        assert same(other["rank-00001"]["model"], expected["rank-00001"])
    if kind == "sharded":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
