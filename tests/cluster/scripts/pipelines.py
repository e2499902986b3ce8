"""Pipelines of two ranks each, half of the world apart or neighbours, and a node whose card may break.

While there is a file FAULTS/NODE, nothing comes out of that node any more, from the tenth step of a
generation on. Its rank and the other one of its pipeline wait for each other then, and all others for them.
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import slurm_robust as sr

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.05)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--faults", type=Path, required=True)
parser.add_argument("--neighbours", action="store_true", help="ranks 0 and 1 are a pipeline, 2 and 3, ...")
options = parser.parse_args()

HEALTHY_STEPS = 10

torch.manual_seed(0)
dist.init_process_group("gloo")
rank, half = dist.get_rank(), dist.get_world_size() // 2
is_first, peer = rank < half, (rank + half) % (2 * half)
if options.neighbours:
    is_first, peer = rank % 2 == 0, rank ^ 1
card = options.faults / os.environ.get("SLURMD_NODENAME", "no node")
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(100 + rank)


def exchange(batch: torch.Tensor) -> torch.Tensor:
    """What the other stage has sent: activations to the last one, their gradients to the first one."""
    received = torch.empty_like(batch)
    if is_first:
        dist.send(batch, peer)
    dist.recv(received, peer)
    if not is_first:
        dist.send(batch, peer)
    return received


def hear_nothing(batch: torch.Tensor) -> None:
    """All that the card still does."""
    while True:
        dist.recv(torch.empty_like(batch), peer)


checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer})
begin = checkpointer.restore()
for step in range(begin, options.steps):
    batch = torch.randn(8, 16)
    if step - begin >= HEALTHY_STEPS and card.exists():
        hear_nothing(batch)
    optimizer.zero_grad()
    loss = model(exchange(batch)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(options.step_s)
    checkpointer.step(step, loss=loss.item())
    print(f"step {step} pid {os.getpid()}", flush=True)
if rank == 0:
    state = b"".join(t.numpy().tobytes() for _, t in sorted(model.state_dict().items()))
    options.out.write_text(hashlib.sha256(state).hexdigest())
dist.destroy_process_group()
