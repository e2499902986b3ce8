"""Losses become floats, and nothing waits for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slurm_robust.checkpoint.errors import WrongUse
from slurm_robust.testing.lagging_gpus import LaggingGpus
from slurm_robust.worker.api import ScalarReader
from tests.torch_features import tensors


def collectives() -> Any:
    """Return what counts the collectives of a block; its import takes a second."""
    return pytest.importorskip(f"{tensors.__name__}.debug").CommDebugMode()


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


@pytest.fixture
def gpus() -> Iterator[LaggingGpus]:
    gpus = LaggingGpus()
    yield gpus
    gpus.release()
    gpus.close()


def test_gpu_values_arrive_later_without_waiting(gpus: LaggingGpus) -> None:
    reader = ScalarReader("loss", gpus)
    gpus.hold()
    values = [gpus.adopt(torch.tensor(float(n))) for n in range(10)]
    assert [reader.read(value) for value in values] == [None] * 10
    gpus.release()
    gpus.synchronize()
    assert reader.read(values[9]) == 3.0  # of a GPU that lags behind not every value is fetched
    reader.read(values[8])
    gpus.synchronize()
    gpus.hold()
    assert reader.read(values[7]) == 8.0


# -- DTensors -------------------------------------------------------------------------------------


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def norm(mesh: Any, placement: Any, value: float = 2.5) -> torch.Tensor:
    """As ``clip_grad_norm_`` over the parameters of ``fully_shard`` returns it."""
    made: torch.Tensor = tensors.DTensor.from_local(torch.tensor(value), mesh, [placement], run_check=False)
    return made


def test_a_replicated_dtensor_is_read_without_a_collective(mesh: Any) -> None:
    value = norm(mesh, tensors.Replicate())
    with collectives() as seen:
        assert ScalarReader("grad_norm").read(value) == 2.5
    assert seen.get_total_counts() == 0


def test_a_replicated_dtensor_on_a_gpu_is_read(mesh: Any, gpus: LaggingGpus) -> None:
    reader, value = ScalarReader("grad_norm", gpus), norm(mesh, tensors.Replicate())
    gpus.adopt(value.to_local())  # type: ignore[operator]
    gpus.hold()
    assert reader.read(value) is None
    gpus.release()
    gpus.synchronize()
    assert reader.read(value) == 2.5


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_part_of_a_value_is_left_out_and_told_once(
    mesh: Any, gpus: LaggingGpus, on_gpu: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Adding the parts up would be a collective, which only some ranks may come to."""
    reader, value = ScalarReader("grad_norm", gpus), norm(mesh, tensors.Partial())
    if on_gpu:
        gpus.adopt(value.to_local())  # type: ignore[operator]
    with collectives() as seen:
        assert [reader.read(1.0), reader.read(value), reader.read(value)] == [1.0, None, None]
    assert seen.get_total_counts() == 0
    assert caplog.text.count("grad_norm is not reported") == 1
    assert ".full_tensor()" in caplog.text
    assert reader.read(3.0) == 3.0


def test_what_cannot_be_read_ends_no_training(caplog: pytest.LogCaptureFixture) -> None:
    reader = ScalarReader("loss")
    assert [reader.read(torch.empty((), device="meta")) for _ in range(2)] == [None, None]
    assert caplog.text.count("loss is not reported: it cannot be read") == 1
