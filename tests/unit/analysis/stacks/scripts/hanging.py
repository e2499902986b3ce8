"""A small data-parallel training of which one rank comes to a halt: ``hanging.py KIND VICTIM``."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

KIND, VICTIM = sys.argv[1], int(sys.argv[2])
HANG_AT = 3


def halted(kind: str) -> bool:
    return kind == KIND and dist.get_rank() == VICTIM


class Samples(Dataset[torch.Tensor]):
    """Numbers; those of the victim's loader stop coming."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if KIND == "loader" and self.rank == VICTIM and index >= 4 * HANG_AT:
            ctypes.CDLL(None).sleep(3600)
        return torch.full((8,), float(index))


class Layer(nn.Module):
    """A linear layer in which the victim may stay, in C code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if halted("c") and self.calls == HANG_AT:
            ctypes.CDLL(None).sleep(3600)
        return torch.relu(self.linear(x))


def read_forever() -> None:
    os.mkfifo(path := f"pipe-{os.getpid()}")
    with open(path, "rb") as file:
        file.read()


def pass_on(rank: int, world: int) -> None:
    """A pipeline of one tensor; the victim sends nothing."""
    tensor = torch.zeros(4)
    if rank > 0:
        dist.recv(tensor, rank - 1)
    if halted("p2p"):
        ctypes.CDLL(None).sleep(3600)
    if rank < world - 1:
        dist.send(tensor, rank + 1)


def train(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Sequential(Layer(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for step, batch in enumerate(DataLoader(Samples(rank), batch_size=4, num_workers=2)):
        if step == HANG_AT:
            if halted("lock"):
                with (lock := threading.Lock()):
                    lock.acquire()
            if halted("io"):
                read_forever()
            if halted("skip"):
                dist.barrier()
            if KIND == "p2p":
                pass_on(rank, world)
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if KIND == "stop" and step == HANG_AT and rank == VICTIM:
            os.kill(os.getpid(), 19)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(dist.get_rank(), dist.get_world_size())
