"""What the tests on a GPU share: work that keeps it busy, and a place for snapshots."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slurm_robust.checkpoint.buffers import TensorPlace
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.snapshot import Snapshotter
from slurm_robust.checkpoint.state import Training
from tests.unit.checkpoint.snapshot_training import RUN, PlusOne, header

# Cycles a second at which no GPU of today runs: it is busy at least as long as it is told.
_FASTEST_HZ = 2_500_000_000


def occupy(seconds: float) -> None:
    """Give the current stream work for so long. The host does not wait."""
    torch.cuda._sleep(int(seconds * _FASTEST_HZ))


@contextmanager
def copies() -> Iterator[MemoryFolder]:
    """A folder for snapshots in shared memory."""
    base = Path(tempfile.mkdtemp(prefix="test-gpu-", dir="/dev/shm"))
    try:
        yield MemoryFolder.create(RUN, base)
    finally:
        shutil.rmtree(base)


class Unusual(nn.Module):
    """Parameters of several kinds on the GPU that are N + 1 after step N, and a buffer like that."""

    def __init__(self, elements: int = 2_000_000, tensors: int = 10) -> None:
        super().__init__()
        weights = [torch.zeros(elements, device="cuda") for _ in range(tensors)]
        weights.append(torch.zeros(64, 1000, device="cuda").t())  # another order
        weights.append(torch.zeros(100_000, device="cuda", dtype=torch.bfloat16))
        weights.append(torch.zeros(200_000, device="cuda")[::2])  # with gaps
        self.weights = nn.ParameterList(weights)
        self.register_buffer("seen", torch.zeros(1_000_000, device="cuda"))

    def forward(self) -> None:
        self.seen.add_(1)


class OnCuda:
    """A training on the GPU whose right state after every step is known, and its snapshots."""

    def __init__(self, folder: MemoryFolder, model: nn.Module, optimizer: Any = None, **options: Any) -> None:
        self.folder = folder
        self.model = model
        self.optimizer = optimizer or PlusOne(model.parameters())
        place = TensorPlace(header=header(1), first_on_node=True, ranks_on_node=1, nodes=1)
        self.snapshotter = Snapshotter(folder, place, **options)
        self.training = Training(entries={"model": model, "optimizer": self.optimizer})

    def take(self, step: int) -> None:
        self.snapshotter.take(step, self.training)

    def ready(self) -> None:
        """Buffers are reserved and registered."""
        for step in range(-20, 0):
            self.take(step)
            self.snapshotter.settle()
            end = time.monotonic() + 60.0
            while self.snapshotter.reserving and time.monotonic() < end:
                torch.cuda.synchronize()
