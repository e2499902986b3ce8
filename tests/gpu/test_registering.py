"""Registering the buffers' memory with a real driver: what is refused, and what goes on beside it."""

from __future__ import annotations

import mmap
import statistics
import threading
import time

import pytest
import torch

from slurm_robust.checkpoint import devices
from slurm_robust.checkpoint.gpus import CUDA

GB = 10**9


def memory(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes // mmap.PAGESIZE * mmap.PAGESIZE)


def pinned() -> devices.Pinned:
    made = devices.Pinned(CUDA)
    made.device = torch.device("cuda", torch.cuda.current_device())
    return made


def test_a_refusal_does_not_come_up_in_what_the_training_does_next(caplog: pytest.LogCaptureFixture) -> None:
    mapped = memory(1 << 22)
    unpin = pinned().pin(memoryview(mapped))
    pinned().pin(memoryview(mapped))  # registered already
    assert "does not register 1 of 1 pieces" in caplog.text
    assert float((torch.ones(10, device="cuda") + 1).sum()) == 20.0
    torch.cuda.synchronize()
    unpin()


def test_pieces_are_copied_to_at_the_rate_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor over several of them too."""
    monkeypatch.setattr(devices, "PIECE_BYTES", 2**28)
    mapped, pins = memory(GB), pinned()
    unpin = pins.pin(memoryview(mapped))
    target = torch.frombuffer(mapped, dtype=torch.float32)
    source = torch.arange(float(target.numel()), device="cuda")
    pairs = pins.pairs(target, source)
    assert len(pairs) == 4
    assert all(into.is_pinned() for into, _ in pairs)
    copies = devices.GpuCopies(CUDA, source.device)
    copies.follow_training()
    copies.copy(pairs)
    copies.copied().wait()
    assert torch.equal(target, source.cpu())
    unpin()


def test_kernels_are_launched_while_another_thread_registers() -> None:
    mapped, x = memory(8 * GB), torch.ones(1000, device="cuda")
    undo = []

    def pin() -> None:
        begun = time.perf_counter()
        undo.append(pinned().pin(memoryview(mapped)))
        print(f"registered at {(time.perf_counter() - begun) / 8:.2f} s/GB")

    thread = threading.Thread(target=pin)
    thread.start()
    times = []
    while thread.is_alive():
        begun = time.perf_counter()
        x.add_(1)
        times.append(time.perf_counter() - begun)
    torch.cuda.synchronize()
    print(f"launch: median {1e6 * statistics.median(times):.0f} us, worst {1e3 * max(times):.0f} ms")
    assert max(times) < 1.0
    undo[0]()
