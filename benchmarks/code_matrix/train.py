"""A training whose code is wrong on purpose: two ranks or more, gloo, a hash of the final weights.

One rank commits ``--fault`` at the begin of step ``--at``: with ``--once`` in the first generation that gets
there, else in each. When it did is a line of OUT.faults, ``time.time()``. With ``--report`` it has the two
lines of the library, else it has none and stops by itself at a non-finite loss, as many scripts do.
"""

import argparse
import hashlib
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--step-s", type=float, required=True)
parser.add_argument("--fault", required=True)
parser.add_argument("--at", type=int, required=True)
parser.add_argument("--once", action="store_true")
parser.add_argument("--report", action="store_true")
parser.add_argument("--evaluation-s", type=float, required=True)
options = parser.parse_args()

SLOWER = 5
MARKER = options.out.with_suffix(".faults")
FAULTY = not (options.once and MARKER.exists())


def compute(seconds: float) -> None:
    """As code does that has more to compute than was thought."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.randn(64, 64) @ torch.randn(64, 64)


def wait_for_nothing() -> None:
    threading.Event().wait()


def begin(step: int) -> None:
    """What this rank does wrong before it computes ``step``, but wrong numbers."""
    if not FAULTY or step < options.at:
        return
    if options.fault == "slow":
        compute((SLOWER - 1) * options.step_s)
    if step > options.at:
        return
    with MARKER.open("a") as file:
        print(time.time(), file=file)
    if options.fault == "exception":
        raise ValueError(f"a sample of step {step} has no label")
    if options.fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if options.fault == "hang":
        wait_for_nothing()
    if options.fault == "evaluation":
        compute(options.evaluation_s)


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
# As in most scripts the first rank evaluates, alone.
faulty_rank = 0 if options.fault == "evaluation" else dist.get_world_size() - 1
model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())
first = 0
if options.report:
    import slurm_robust as sr

    checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer})
    first = checkpointer.restore()
for step in range(first, options.steps):
    if rank == faulty_rank:
        begin(step)
    time.sleep(options.step_s)
    optimizer.zero_grad()
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
    loss = model(batch).square().mean()
    if rank == faulty_rank and FAULTY and options.fault == "nan" and step == options.at:
        loss = loss * math.nan
    if not options.report and not math.isfinite(loss.item()):
        sys.exit(f"Loss is {loss.item()}, stopping training")
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if options.report:
        checkpointer.step(step, loss=loss.item())
    print(f"step {step} loss {loss.item():.6f}", flush=True)
if rank == 0:
    state = b"".join(t.numpy().tobytes() for _, t in sorted(model.state_dict().items()))
    options.out.write_text(hashlib.sha256(state).hexdigest())
dist.destroy_process_group()
