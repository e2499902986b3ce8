"""A state in memory is on the GPU again bit for bit, in the tensors that were there, without a detour."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from slurm_robust.checkpoint.gpus import CUDA
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.inplace import fill, moved, places_for
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Snapshot, Training, apply
from slurm_robust.checkpoint.tree import tensor_in, unflatten
from slurm_robust.model.copies import CheckpointId
from tests.gpu.device import OnCuda, Unusual, copies
from tests.unit.checkpoint.snapshot_training import PlusOne
from tests.waiting import wait_for


@pytest.fixture
def folder() -> Iterator[MemoryFolder]:
    with copies() as folder:
        yield folder


def whole_image(folder: MemoryFolder) -> tuple[Image, list[torch.Tensor], Snapshot]:
    """The image of step 7, the tensors in it, and their state."""
    path = folder.find(0, CheckpointId(generation=1, step=7))
    assert path is not None
    image = open_image(path)
    tensors = [tensor_in(data, spec) for data, spec in zip(image.data(), image.tensors, strict=True)]
    tree = unflatten(image.tree, tensors)
    return image, tensors, Snapshot(own=tree["own"], shared={}, rng=tree["rng"])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_large_state_is_put_back(folder: MemoryFolder, threads: int) -> None:
    model, live = Unusual(100_000_000), Unusual(100_000_000)
    training, of_live = OnCuda(folder, model), PlusOne(live.parameters())
    of_live.step()
    for _ in range(2):
        training.optimizer.step()
    training.take(6)
    wait_for(lambda: not training.snapshotter.reserving, 60.0, "its memory is not reserved")
    training.take(7)
    training.snapshotter.close()
    image, tensors, state = whole_image(folder)
    entries = {"model": live, "optimizer": of_live}
    places = places_for(state, Training(entries=entries), CUDA)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    fill(image, tensors, places, CUDA, threads)
    torch.cuda.synchronize()
    print(f"{threads} threads: {image.nbytes / 1e9 / (time.perf_counter() - begun):.1f} GB/s")
    apply(entries, moved(state, places))  # what lies with gaps
    image.close()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), live.parameters(), strict=True))


def stepped(model: Unusual) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def test_a_state_is_put_back_in_place(folder: MemoryFolder) -> None:
    model = Unusual()
    optimizer = stepped(model)
    training = OnCuda(folder, model, optimizer)
    training.take(7)
    training.snapshotter.close()
    live = Unusual()
    of_live = stepped(live)
    before = [tensor.data_ptr() for tensor in (*live.parameters(), *live.buffers())]
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    image, tensors, state = whole_image(folder)
    entries = {"model": live, "optimizer": of_live}
    begun = time.perf_counter()
    places = places_for(state, Training(entries=entries), CUDA)
    fill(image, tensors, places, CUDA, 2)
    apply(entries, moved(state, places))
    torch.cuda.synchronize()
    print(f"{image.nbytes / 1e9 / (time.perf_counter() - begun):.1f} GB/s")
    image.close()
    assert [tensor.data_ptr() for tensor in (*live.parameters(), *live.buffers())] == before
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), live.parameters(), strict=True))
    for one, other in zip(optimizer.state.values(), of_live.state.values(), strict=True):
        assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)
    assert torch.cuda.max_memory_allocated() - held < 0.1 * image.nbytes
