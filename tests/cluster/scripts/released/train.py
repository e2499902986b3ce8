"""A training of which an update changes ``variant.py``: each step's loss has the weight of its release.

With ``--schedule 0:1.0,40:1.5`` the weights are those that a job had whose releases changed at these steps.
The training ends after the step that OUT.last names, if that is there.
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import variant
from torch import nn

import slurm_robust as sr

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--step-s", type=float, default=0.05)
parser.add_argument("--every", type=int, default=1)
parser.add_argument("--schedule", default="", help="first step and weight of each release")
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
pairs = [pair.split(":") for pair in options.schedule.split(",") if pair]
schedule = {int(first): float(weight) for first, weight in pairs}


def last_step() -> int:
    """The step after which all are to end; named while it is still to come."""
    try:
        return int(options.out.with_suffix(".last").read_text())
    except FileNotFoundError:
        return options.steps - 1


torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(16, variant.WIDTH), nn.Dropout(0.2), nn.Linear(variant.WIDTH, 1))
optimizer = variant.optimizer(model)
torch.manual_seed(100 + rank)
checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer}, every=options.every)
first = checkpointer.restore()
weight = variant.WEIGHT
for step in range(first, options.steps):
    if step > last_step():
        break
    weight = schedule.get(step, weight)
    optimizer.zero_grad()
    loss = weight * model(torch.randn(8, 16)).square().mean()
    loss = variant.spoil(loss, step - first, rank)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(options.step_s)
    if rank == 0 and not schedule:
        print(f"step {step} pid {os.getpid()} weight {weight}", flush=True)
    checkpointer.step(step, loss=loss.item())
if rank == 0:
    state = b"".join(t.numpy().tobytes() for _, t in sorted(model.state_dict().items()))
    options.out.write_text(hashlib.sha256(state).hexdigest())
dist.destroy_process_group()
