"""The GPU without a GPU keeps the contract that CUDA keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from slurm_robust.testing.lagging_gpus import LaggingGpus
from tests.contracts.gpus import GpusContract


class LaggingWorld:
    """See :class:`~tests.contracts.gpus.GpusWorld`."""

    def __init__(self, gpus: LaggingGpus) -> None:
        self.gpus = gpus
        self.device = torch.device("cpu")

    def tensor(self, value: float, elements: int) -> torch.Tensor:
        return self.gpus.adopt(torch.full((elements,), value))

    def add(self, tensor: torch.Tensor, number: float) -> None:
        self.gpus.launch(lambda: tensor.data.add_(number), tensor)

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.gpus.hold()
        yield
        self.gpus.release()

    def capture(self) -> AbstractContextManager[object]:
        return self.gpus.capture()


class TestLaggingGpus(GpusContract):
    @pytest.fixture(params=range(3))
    def world(self, request: pytest.FixtureRequest) -> Iterator[LaggingWorld]:
        gpus = LaggingGpus(seed=request.param)
        yield LaggingWorld(gpus)
        gpus.close()
