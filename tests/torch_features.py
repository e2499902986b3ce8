"""What tests with DTensors and FSDP2 need of the installed torch."""

from __future__ import annotations

import importlib.util

import pytest

try:
    from torch.distributed import tensor as tensors
    from torch.distributed.tensor import DTensor
except ImportError:  # before torch 2.5
    from torch.distributed import _tensor as tensors
    from torch.distributed._tensor import DTensor

__all__ = ["DTensor", "needs_fsdp2", "tensors"]

needs_fsdp2 = pytest.mark.skipif(
    importlib.util.find_spec("torch.distributed.fsdp._fully_shard") is None,
    reason="torch before 2.6 has no public fully_shard, and its private one needs GPUs",
)
