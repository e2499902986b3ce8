"""CUDA keeps the contract that tests without a GPU rely on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        # Kernels are loaded and torch's streams made when they are used first, for which the host waits.
        occupy(1e-6)
        self.add(self.tensor(0.0, 1), 1.0)
        CUDA.stream(self.device)

    def tensor(self, value: float, elements: int) -> torch.Tensor:
        return torch.full((elements,), value, device=self.device)

    def add(self, tensor: torch.Tensor, number: float) -> None:
        tensor.add_(number)

    @contextmanager
    def busy(self) -> Iterator[None]:
        torch.cuda.synchronize()
        occupy(1.0)
        yield

    @contextmanager
    def capture(self) -> Iterator[None]:
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                yield
        except RuntimeError:
            # torch's random numbers are captured until a capture has ended well.
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                pass
            raise


class TestCuda(GpusContract):
    @pytest.fixture
    def world(self) -> CudaWorld:
        return CudaWorld()
