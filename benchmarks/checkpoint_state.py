"""What all checkpoint contenders save: a training whose state has a given size; the bare copy of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn

WIDTH = 1024  # a float32 matrix of this width has 4 MiB
LAYER_BYTES = 3 * 4 * (WIDTH * WIDTH + 2 * WIDTH)  # a parameter and its two moments
MB = 10**6
MICRO_BATCH = 8192


class Layer(nn.Module):
    """One tensor of 4 MiB and two small ones, as many to each as in a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.linear(x))
        return x + normed


class Training:
    """A model and its AdamW, of about ``megabytes`` (10^6 bytes) together, gradients not counted."""

    def __init__(self, megabytes: int, device: str = "cpu", *, seed: int = 0) -> None:
        self.device = device
        torch.manual_seed(seed)
        layers = max(1, round(megabytes * MB / LAYER_BYTES))
        self.model = nn.Sequential(*(Layer() for _ in range(layers))).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self._batch = torch.randn(MICRO_BATCH, WIDTH, device=device)

    def forward_backward(self, batch: int) -> None:
        """Compute gradients with so many samples, in micro-batches."""
        # Gradients keep their memory: to get it anew would make steps of the same work differ.
        self.optimizer.zero_grad(set_to_none=False)
        for begin in range(0, batch, MICRO_BATCH):
            samples = self._batch[: min(MICRO_BATCH, batch - begin)]
            self.model(samples).square().mean().backward()

    def update(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """What a script would save."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the state, in a fixed order."""
        moments = [
            t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)
        ]
        return [p.detach() for p in self.model.parameters()] + moments

    def nbytes(self) -> int:
        """Bytes of the state."""
        return sum(t.nbytes for t in self.tensors())

    def fix_gradients(self) -> None:
        """The same gradients in every process, so that the next update tells whether the states agree."""
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)

    def digest(self) -> str:
        """Sum of all bytes of the state, to compare it with another process's."""
        found = xxhash.xxh3_64()
        for tensor in self.tensors():
            found.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()


class Contender:
    """One way to keep the state: :meth:`save` is called after each step.

    ``warm``: so many are taken before the measurement, until all memory and files are there.
    """

    warm = 2

    def save(self, step: int) -> None:
        """Take the checkpoint of ``step``; what follows may go on behind the training's back."""
        raise NotImplementedError

    def before_update(self) -> None:
        """Wait until the optimizer may change the state."""

    def drain(self) -> None:
        """Wait until nothing goes on any more."""

    def close(self) -> None:
        """Let go of everything."""


class NotRunnable(RuntimeError):
    """This contender does not work here: the message says why, in its own words where it has some."""


class BareCopy:
    """``memmove`` between live CPU tensors and memory in /dev/shm that was touched before: the limit."""

    def __init__(self, folder: Path, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        size = sum(t.nbytes for t in tensors)
        with (folder / "copy").open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.out()

    def out(self) -> float:
        """From the tensors into shared memory; seconds."""
        began = time.perf_counter()
        for tensor, at in self._places():
            ctypes.memmove(at, tensor.data_ptr(), tensor.nbytes)
        return time.perf_counter() - began

    def back(self, live: int | None = None) -> float:
        """From shared memory into the first ``live`` tensors, and into new memory for the rest; seconds.

        None: into all of them.
        """
        live = len(self._tensors) if live is None else live
        began = time.perf_counter()
        # A mapping, because an allocator may give out memory that the process has had before.
        new = mmap.mmap(-1, 1 + sum(t.nbytes for t in self._tensors[live:]))
        view = ctypes.c_char.from_buffer(new)
        to = ctypes.addressof(view)
        for number, (tensor, at) in enumerate(self._places()):
            if number < live:
                ctypes.memmove(tensor.data_ptr(), at, tensor.nbytes)
            else:
                ctypes.memmove(to, at, tensor.nbytes)
                to += tensor.nbytes
        seconds = time.perf_counter() - began
        del view
        new.close()
        return seconds

    def _places(self) -> Iterator[tuple[torch.Tensor, int]]:
        at = self._base
        for tensor in self._tensors:
            yield tensor, at
            at += tensor.nbytes


def batch_for(timed: Callable[[int], float], seconds: float) -> int:
    """How many samples make ``timed``, which tells how long so many take, last ``seconds``."""
    small, large = 32, 128
    short, long = timed(small), timed(large)
    per_sample = max((long - short) / (large - small), 1e-9)
    return max(1, round(small + (seconds - short) / per_sample))
