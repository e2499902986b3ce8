"""tiny.py with faults to order: a file FAULTS/RANK names one, which that rank then commits once."""

import argparse
import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import slurm_robust as sr

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.05)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--faults", type=Path, required=True)
options = parser.parse_args()

FOR_EVER_S = 3600


class Stuck(IterableDataset):
    """Its worker process never delivers anything."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(FOR_EVER_S)
        yield 0


def ordered(rank: int) -> str:
    """The fault that this rank is to commit now; only once."""
    path = options.faults / str(rank)
    try:
        name = path.read_text().strip()
        path.unlink()
    except FileNotFoundError:
        return ""
    return name


def commit(name: str, step: int) -> None:
    """Faults that are not in the training's numbers."""
    match name:
        case "exception":
            raise ValueError(f"a bug at step {step}")
        case "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        case "ecc":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        case "segfault":
            ctypes.string_at(0)
        case "c":
            ctypes.CDLL(None).sleep(FOR_EVER_S)
        case "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "loader":
            next(iter(DataLoader(Stuck(), num_workers=1)))
        case "pause":
            time.sleep(6.5)


torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(100 + rank)
checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer})
slow_s = 0.0
for step in range(checkpointer.restore(), options.steps):
    fault = ordered(rank)
    commit(fault, step)
    slow_s = 5 * options.step_s if fault == "slow" else slow_s
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    for number, parameter in enumerate(model.parameters()):
        if not (fault == "skip" and number == 2):
            dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(options.step_s + slow_s)
    told = {"nan": float("nan"), "spike": 1e6}.get(fault, loss.item())
    checkpointer.step(step, loss=told)
    print(f"step {step} pid {os.getpid()}", flush=True)
if rank == 0:
    state = b"".join(t.numpy().tobytes() for _, t in sorted(model.state_dict().items()))
    options.out.write_text(hashlib.sha256(state).hexdigest())
dist.destroy_process_group()
