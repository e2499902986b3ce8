"""A training whose start takes 20 s on a cold node: an index of its data, then ``torch.compile``.

The index is built in ``START_INDEX``, on the node's own disk, by honest work: where the sentences
begin of a text that is made on the spot. Where it is there already, it is read.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import slurm_robust as sr

DOCUMENTS = int(os.environ["START_DOCUMENTS"])
WORDS = ["loss", "gradient", "step", "rank", "node", "batch", "token", "layer"]


def index(folder: Path) -> torch.Tensor:
    """Where the sentences of all documents begin."""
    path = folder / "offsets.pt"
    if path.exists():
        found: torch.Tensor = torch.load(path)
        return found
    folder.mkdir(parents=True, exist_ok=True)
    offsets, at = [], 0
    for number in range(DOCUMENTS):
        made = random.Random(number)
        for _ in range(10):
            offsets.append(at)
            at += sum(len(made.choice(WORDS)) + 1 for _ in range(100))
    beside = path.with_suffix(f".{os.getpid()}")
    torch.save(torch.tensor(offsets), beside)
    beside.replace(path)
    return torch.tensor(offsets)


def main() -> None:
    """Train until somebody ends it."""
    begun = time.monotonic()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    offsets = index(Path(os.environ["START_INDEX"]))
    print(f"index of {len(offsets):,} sentences after {time.monotonic() - begun:.1f} s", flush=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1))
    wrapped = nn.parallel.DistributedDataParallel(model)
    compiled = torch.compile(wrapped)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpointer = sr.Checkpointer({"model": wrapped, "optimizer": optimizer})
    for step in range(checkpointer.restore(), 10**6):
        optimizer.zero_grad()
        picked = offsets[torch.randint(len(offsets), (32, 64))] % 97
        loss = compiled(picked.float()).square().mean()
        loss.backward()
        optimizer.step()
        checkpointer.step(step, loss=loss)
        if step % 50 == 0:
            print(f"step {step} after {time.monotonic() - begun:.1f} s", flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
