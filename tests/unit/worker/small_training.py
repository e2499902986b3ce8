"""A small training with everything that must be restored; run as a program by test_api.py.

    python training.py KIND OPTIMIZER STEPS RESULT [every]

KIND: single, ddp or fsdp. Writes the hash of the final state, and the losses of the steps it ran, to
RESULT.RANK. Rank, world size and all else come from the environment, as for any training script.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slurm_robust as sr


class Shuffled:
    """Numbers in an order shuffled anew each epoch by Python's generator."""

    def __init__(self, count: int) -> None:
        self.order = list(range(count))
        self.at = count

    def next(self) -> int:
        if self.at == len(self.order):
            random.shuffle(self.order)
            self.at = 0
        self.at += 1
        return self.order[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order, self.at = list(state_dict["order"]), state_dict["at"]


def build(kind: str, optimizer: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1)
    )
    if kind == "ddp":
        model = DistributedDataParallel(model, find_unused_parameters=True)
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(2 + rank)
    random.seed(3 + rank)
    if optimizer == "adamw":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.to_local() if hasattr(value, "to_local") else value  # type: ignore[operator]
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors(value[key])


def state_hash(*states: Any) -> str:
    digest = hashlib.sha256()
    for state in states:
        for tensor in tensors(state):
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(kind: str, optimizer_kind: str, steps: int, every: int) -> dict[str, Any]:
    model, optimizer = build(kind, optimizer_kind)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    loader = Shuffled(7)
    entries = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    path = os.environ.get("CHECKPOINTS", "checkpoints")
    checkpointer = sr.Checkpointer(entries, every=every, path=path)
    losses = {}
    for step in range(checkpointer.restore(), steps):
        loss = (model(torch.randn(6, 8)) - loader.next()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[step] = loss.item()
        checkpointer.step(step, loss=loss, grad_norm=0.0)
    checkpointer.close()
    return {"sha256": state_hash(model.state_dict(), optimizer.state_dict()), "losses": losses}


def main() -> None:
    kind, optimizer, steps, result = sys.argv[1:5]
    every = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank = os.environ.get("RANK", "0")
    if kind != "single":
        group = f"file://{Path(result).absolute()}.group"  # no port that another test could take
        dist.init_process_group(
            "gloo", init_method=group, rank=int(rank), world_size=int(os.environ["WORLD_SIZE"])
        )
    Path(f"{result}.{rank}").write_text(json.dumps(train(kind, optimizer, int(steps), every)))
    if kind != "single":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
