"""tiny.py with faults to order: a file FAULTS/RANK names one, which that rank then commits once.

When it did so is in FAULTS/RANK.at, ``time.time()``. The training ends after the step that FAULTS/last names,
if there is one. With ``--each`` a line of OUT.steps has the hash of the weights after each step.
"""

import argparse
import ctypes
import hashlib
import os
import signal
import sys
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
parser.add_argument("--each", action="store_true")
options = parser.parse_args()

FOR_EVER_S = 3600
WATCHDOG = (
    "[rank0]:[E1121 11:12:13.141516 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=512, NumelOut=512, Timeout(ms)=600000) ran for "
    "600022 milliseconds before timing out."
)


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
    beside = options.faults / f".{rank}.at"
    beside.write_text(str(time.time()))
    beside.rename(options.faults / f"{rank}.at")
    return name


def last_step() -> int:
    """The step after which all are to end; named while it is still to come."""
    try:
        return int((options.faults / "last").read_text())
    except FileNotFoundError:
        return options.steps - 1


def digest(model: nn.Module) -> str:
    state = b"".join(t.numpy().tobytes() for _, t in sorted(model.state_dict().items()))
    return hashlib.sha256(state).hexdigest()


def commit(name: str, step: int) -> None:
    """Faults that are not in the training's numbers."""
    kind, _, what = name.partition(" ")
    match kind:
        case "exception":
            raise ValueError(f"a bug at step {step}")
        case "import":
            import no_such_module  # noqa: F401
        case "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        case "ecc":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        case "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        case "segfault":
            ctypes.string_at(0)
        case "signal":
            os.kill(os.getpid(), signal.Signals[what])
        case "exit":
            os._exit(int(what))
        case "watchdog":
            print(WATCHDOG, file=sys.stderr, flush=True)
            os.abort()
        case "write":
            Path(what).write_bytes(bytes(1 << 20))
        case "read":
            Path(what).read_bytes()
        case "eat":
            eaten = [bytearray(1 << 20) for _ in range(1 << 12)]
            raise MemoryError(f"{len(eaten)} MiB were there")
        case _:
            hang(kind)


def hang(kind: str) -> None:
    """Faults after which the rank does not get on."""
    match kind:
        case "c":
            ctypes.CDLL(None).sleep(FOR_EVER_S)
        case "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "loader":
            next(iter(DataLoader(Stuck(), num_workers=1)))
        case "skip":
            dist.barrier(side)  # while all others are in the reduction that it skips
        case "pause":
            time.sleep(6.5)


torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
side = dist.new_group()
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(100 + rank)
checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer})
slow_s = 0.0
spike_until = -1
for step in range(checkpointer.restore(), options.steps):
    if step > last_step():
        break
    fault = ordered(rank)
    commit(fault, step)
    slow_s = 10 * options.step_s if fault == "slow" else slow_s
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    if fault == "nan":
        loss = loss * float("nan")
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(options.step_s + slow_s)
    spike_until = step + 25 if fault == "spike" else spike_until
    checkpointer.step(step, loss=1e6 if step < spike_until else loss.item())
    print(f"step {step} pid {os.getpid()}", flush=True)
    if options.each and rank == 0:
        with options.out.with_suffix(".steps").open("a") as file:
            file.write(f"{step} {digest(model)}\n")
if rank == 0:
    options.out.write_text(digest(model))
dist.destroy_process_group()
