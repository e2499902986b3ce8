"""A training in miniature: two ranks or more, gloo, checkpoints, a hash of the final weights."""

import argparse
import atexit
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
parser.add_argument("--no-hurry", action="store_true", help="pause also while the test waits for the end")
parser.add_argument("--every", type=int, default=1)
parser.add_argument("--width", type=int, default=32, help="hidden units: 216 bytes of state each")
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--fail-at", type=int, default=-1, help="raise ValueError in rank 0 at this step, always")
parser.add_argument("--hang-at", type=int, default=-1, help="rank 1 stands still at this step, always")
parser.add_argument("--talks", type=int, default=1 << 30, help="steps that are printed, from the first on")
parser.add_argument("--hog", type=Path, help="when this file is there, rank 1 takes memory without end")
parser.add_argument("--aborts", type=int, default=-1, help="this rank aborts in an exit handler")
options = parser.parse_args()

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(16, options.width), nn.Dropout(0.2), nn.Linear(options.width, 1))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(100 + rank)
checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer}, every=options.every)
for step in range(checkpointer.restore(), options.steps):
    if step == options.fail_at and rank == 0:
        raise ValueError(f"a bug at step {step}")
    if step == options.hang_at and rank == 1:
        time.sleep(3600)
    hoard = []
    while rank == 1 and options.hog and options.hog.exists():
        hoard.append(bytearray(b"x") * (16 << 20))
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if options.no_hurry or not options.out.with_suffix(".hurry").exists():
        time.sleep(options.step_s)
    checkpointer.step(step, loss=loss.item())
    if step < options.talks:
        print(f"step {step} pid {os.getpid()}", flush=True)
if rank == 0:
    state = b"".join(t.numpy().tobytes() for _, t in sorted(model.state_dict().items()))
    options.out.write_text(hashlib.sha256(state).hexdigest())
if rank == options.aborts:
    atexit.register(os.abort)
dist.destroy_process_group()
