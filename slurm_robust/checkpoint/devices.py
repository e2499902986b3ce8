"""Copying tensors into a snapshot's buffers: by this thread, by another one, or by a GPU's copy engine."""

from __future__ import annotations

import ctypes
import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slurm_robust.checkpoint.gpus import GpuEvent, Gpus, Pairs
from slurm_robust.util.process import fault_in

_log = logging.getLogger(__name__)

# torch spreads a copy over OpenMP threads from this many elements on. Outside of the main thread that makes a
# second team of threads, which fight with those of training for the cores (measured: 11 s for 1 GB on two
# cores instead of 0.1 s), so larger tensors are copied in pieces below it.
_SERIAL_ELEMENTS = 32767

# Memory is registered in pieces, because while the driver registers one, launches of kernels wait (measured:
# 14 ms for one of 256 MiB whose pages are there, 150 to 300 ms if they are not; 180 ms and 2 s for 4 GiB). It
# also refuses a single one of some hundred GB (reported: beyond 96 to 512).
PIECE_BYTES = 256 * 2**20


def pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the parts of ``tensor`` small enough that torch copies each in the thread that asks for it."""
    if tensor.numel() <= _SERIAL_ELEMENTS or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return (tensor,)
    flat = tensor.view(-1)
    if tensor.nbytes % 8 == 0 and tensor.data_ptr() % 8 == 0:
        flat = flat.view(torch.int64)
    return torch.split(flat, _SERIAL_ELEMENTS)


class SourceTensor:
    """A tensor to copy from, in pieces that are kept: cutting takes as long as a tenth of copying."""

    __slots__ = ("_parts", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._parts: Sequence[torch.Tensor] = ()

    def like(self, target: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return as many pieces as ``target`` has, each of the same size as there."""
        if not self._parts:
            parts = pieces(self.tensor) if len(target) > 1 else (self.tensor,)
            if (len(parts), parts[0].dtype) != (len(target), target[0].dtype):  # at an odd address, with gaps
                return pieces(self.tensor.clone(memory_format=torch.contiguous_format))
            self._parts = parts
        return self._parts


def copy(
    pairs: Iterable[tuple[Sequence[torch.Tensor], SourceTensor]], begun: threading.Event | None = None
) -> None:
    """Copy tensors into the :func:`pieces` of others, in one call that does not hold the interpreter lock.

    One call for each tensor would ask for the lock after each: if training is busy in Python, that was
    measured to take 14 s for 1 GB in 4096 tensors. ``begun`` is set when only that call is left.
    """
    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    for target, source in pairs:
        targets += target
        sources += source.like(target)
    if begun is not None:
        begun.set()
    if targets:
        torch._foreach_copy_(targets, sources)


class GpuCopies:
    """Copies from one GPU on a stream of its own, beside that of training. The host waits for nothing."""

    def __init__(self, gpus: Gpus, device: torch.device) -> None:
        self._gpus = gpus
        self._device = device
        self._stream = gpus.stream(device)

    def follow_training(self) -> None:
        """Copy from now on what training has computed so far."""
        self._stream.follow(self._gpus.training(self._device).record())

    def copy(self, pairs: Pairs) -> None:
        """Begin to copy. Raises ``RuntimeError``."""
        self._stream.copy(pairs)

    def copied(self) -> GpuEvent:
        """Record the moment when all copies that were begun are done."""
        return self._stream.record()

    def hold_training(self, event: GpuEvent) -> None:
        """Put what training enqueues from now on after the copies."""
        self._gpus.training(self._device).follow(event)


class Pinned:
    """Memory of buffers that is registered with the GPUs' runtime, so that copies into it run by themselves.

    Nothing is registered before :attr:`device` is set, the GPU that the copies come from.
    """

    def __init__(self, gpus: Gpus) -> None:
        self.device: torch.device | None = None
        self._gpus = gpus
        self._borders: list[int] = []  # borders between pieces, sorted
        self._reported = False

    def pin(self, memory: memoryview) -> Callable[[], None]:
        """Register a mapping, which takes seconds; returns what takes that back.

        A piece that is refused makes the copies into it slower, and holds training up for them.
        """
        begin, end = _address(memory), _address(memory) + len(memory)
        device = self.device
        if device is None:
            return lambda: None
        self._gpus.relax()
        places, refusals = range(begin, end, PIECE_BYTES), {}
        for at in places:
            nbytes = min(PIECE_BYTES, end - at)
            fault_in(at, nbytes)
            refusals[at] = self._gpus.register(at, nbytes, device)
        self._borders = sorted([*self._borders, *places[1:]])
        refused = {at: error for at, error in refusals.items() if error}
        if refused and not self._reported:
            self._reported = True
            _log.warning(
                "CUDA does not register %d of %d pieces of the snapshots' memory (cudaError %d), so copying "
                "into these holds training up: the driver cannot lock so much memory (ulimit -l is not what "
                "limits it); see NVRM in the kernel's log, and what the node has free",
                len(refused),
                len(refusals),
                next(iter(refused.values())),
            )

        def unpin() -> None:
            self._borders = [at for at in self._borders if at not in places]
            for at in refusals.keys() - refused.keys():
                self._gpus.unregister(at)

        return unpin

    def pairs(self, target: torch.Tensor, source: torch.Tensor) -> Pairs:
        """Return the copy of ``source`` into ``target``, cut so that each part is in one piece."""
        begin, end = target.data_ptr(), target.data_ptr() + target.nbytes
        cuts = self._borders[bisect_right(self._borders, begin) : bisect_left(self._borders, end)]
        if not cuts:
            return [(target, source)]
        marks = [(at - begin) // target.element_size() for at in cuts]
        flat = target.view(-1).tensor_split(marks), source.view(-1).tensor_split(marks)
        return list(zip(*flat, strict=True))


class Captures:
    """Sees whether an optimizer's update goes into a CUDA graph, of whose replays no hook is called."""

    def __init__(self, gpus: Gpus) -> None:
        self.seen = False
        self._gpus = gpus
        # A compiled step() must not try to trace this: it is called between the graphs instead.
        hook = torch.compiler.disable(self._on_step)  # type: ignore[no-untyped-call]
        self._hook = register_optimizer_step_pre_hook(hook)

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def _on_step(self, optimizer: object, args: object, kwargs: object) -> None:
        if not self.seen and self._gpus.is_capturing():
            self.seen = True


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
