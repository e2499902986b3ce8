"""Losses become floats, and nothing waits for a GPU."""

from __future__ import annotations

import pytest
import torch

from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.worker.values import ScalarReader

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        torch.tensor(2),
        torch.tensor([2.0]),
        torch.tensor(2.0, requires_grad=True),
        torch.tensor(True) * 2,
    ],
    ids=repr,
)
def test_numbers_and_cpu_tensors_are_read_at_once(value: float | torch.Tensor) -> None:
    assert ScalarReader().read(value) == 2.0


def test_none_stays_none() -> None:
    reader = ScalarReader()
    assert [reader.read(1.0), reader.read(None), reader.read(3.0)] == [1.0, None, 3.0]


def test_several_values_are_refused() -> None:
    with pytest.raises(WrongUse, match=r"shape \(2,\): reduce it"):
        ScalarReader().read(torch.zeros(2))


@needs_cuda
def test_cuda_values_arrive_later_without_waiting() -> None:
    reader = ScalarReader()
    torch.cuda._sleep(2_000_000_000)  # the device is busy for about a second
    busy = torch.tensor(1.5, device="cuda")
    assert reader.read(busy) is None
    assert [reader.read(torch.tensor(float(n), device="cuda")) for n in range(10)] == [None] * 10
    torch.cuda.synchronize()
    assert reader.read(torch.tensor(9.0, device="cuda")) in (2.0, 9.0)
    torch.cuda.synchronize()
    assert reader.read(torch.tensor(7.0, device="cuda")) in (7.0, 9.0)
