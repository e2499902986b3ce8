"""Snapshots of a state on a real GPU: right in whatever order it works, cheap for who trains."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from slurm_robust.checkpoint.memory import MemoryFolder
from tests.gpu.device import OnCuda, Unusual, copies, occupy
from tests.unit.checkpoint.snapshot_training import state_at, steps_in


@pytest.fixture
def folder() -> Iterator[MemoryFolder]:
    with copies() as folder:
        yield folder


def values_at(folder: MemoryFolder, step: int) -> set[float]:
    """The least and the largest number of every tensor."""
    own = state_at(folder, step).own
    tensors = [*own["model"].values(), *(s["count"] for s in own["optimizer"]["state"].values())]
    return {float(x) for tensor in tensors for x in (tensor.float().min(), tensor.float().max())}


def test_every_snapshot_holds_its_step(folder: MemoryFolder) -> None:
    """The host runs ahead of the GPU, which gets to the copies late or soon. bfloat16 counts to 256."""
    training = OnCuda(folder, Unusual())
    for step in range(100):
        if step % 3:
            occupy(0.004 * (step % 7))
        training.model()
        training.optimizer.step()
        training.take(step)
        if step % 10 == 9:
            training.snapshotter.settle()
            assert all(values_at(folder, kept) == {kept + 1.0} for kept in steps_in(folder))
    assert training.snapshotter.skipped == 0
    training.snapshotter.close()


def test_step_and_update_do_not_wait_for_the_gpu(folder: MemoryFolder) -> None:
    training = OnCuda(folder, Unusual())
    training.optimizer.step()
    training.ready()
    torch.cuda.synchronize()
    occupy(1.0)
    begun = time.perf_counter()
    training.take(0)
    training.optimizer.step()
    held_up = time.perf_counter() - begun
    torch.cuda.synchronize()
    assert held_up < 0.5
    training.snapshotter.close()


@pytest.mark.parametrize("tensors", [100, 1000, 3000])
def test_a_snapshot_costs_microseconds_a_tensor(folder: MemoryFolder, tensors: int) -> None:
    training = OnCuda(folder, Unusual(elements=1000, tensors=tensors // 2))
    training.optimizer.step()
    training.ready()
    times = []
    for step in range(10):
        training.optimizer.step()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        training.take(step)
        times.append(time.perf_counter() - begun)
    print(f"{tensors} tensors: {1e3 * statistics.median(times):.1f} ms")
    assert statistics.median(times) < 50e-6 * tensors + 5e-3
    training.snapshotter.close()


def test_the_thread_that_waits_for_a_copy_sleeps(folder: MemoryFolder) -> None:
    training = OnCuda(folder, Unusual())
    training.optimizer.step()
    training.ready()
    torch.cuda.synchronize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    occupy(2.0)
    training.take(0)
    training.snapshotter.settle()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 1.0
    training.snapshotter.close()


def test_a_captured_update_tears_no_image(folder: MemoryFolder, caplog: pytest.LogCaptureFixture) -> None:
    weight = nn.Parameter(torch.zeros(50_000_000, device="cuda"))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=1.0, maximize=True)
    training = OnCuda(folder, nn.ParameterList([weight]), optimizer)
    training.ready()
    graph = torch.cuda.CUDAGraph()
    training.take(0)
    with torch.cuda.graph(graph):
        optimizer.step()
    for step in range(1, 12):
        graph.replay()
        training.take(step)
        for _ in range(3):
            graph.replay()
    training.snapshotter.settle()
    for step in steps_in(folder):
        own = state_at(folder, step).own["model"]["0"]
        assert float(own.min()) == float(own.max())
    assert steps_in(folder)[-1] == 11
    assert "captured in a CUDA graph" in caplog.text
    training.snapshotter.close()


def test_a_scaler_is_asked_without_waiting(folder: MemoryFolder) -> None:
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones(1, device="cuda"))
    training = OnCuda(folder, Unusual())
    training.training.entries["scaler"] = scaler  # type: ignore[index]
    training.optimizer.step()
    training.ready()
    torch.cuda.synchronize()
    occupy(1.0)
    begun = time.perf_counter()
    training.take(0)
    assert time.perf_counter() - begun < 0.5
    training.snapshotter.close()
