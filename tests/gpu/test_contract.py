"""CUDA keeps the contract that tests without a GPU rely on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from slurm_robust.checkpoint.gpus import CUDA
from tests.contracts.gpus import GpusContract
from tests.gpu.device import occupy


class CudaWorld:
    """See :class:`~tests.contracts.gpus.GpusWorld`."""

    gpus = CUDA

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        # What a kernel needs is loaded when it is launched first, for which the host waits.
        occupy(1e-6)
        self.add(self.tensor(0.0, 1), 1.0)

    def tensor(self, value: float, elements: int) -> torch.Tensor:
        return torch.full((elements,), value, device=self.device)

    def add(self, tensor: torch.Tensor, number: float) -> None:
        tensor.add_(number)

    @contextmanager
    def busy(self) -> Iterator[None]:
        torch.cuda.synchronize()
        occupy(1.0)
        yield

    def capture(self) -> AbstractContextManager[object]:
        return torch.cuda.graph(torch.cuda.CUDAGraph())


class TestCuda(GpusContract):
    @pytest.fixture
    def world(self) -> CudaWorld:
        return CudaWorld()
