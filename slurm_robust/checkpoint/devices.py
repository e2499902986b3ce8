"""Copying tensors into a snapshot's buffers: by this thread, by another one, or by a GPU's copy engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

import torch

_log = logging.getLogger(__name__)

# torch spreads a copy over OpenMP threads from this many elements on. Outside of the main thread that makes a
# second team of threads, which fight with the training's own for the cores (measured: 11 s for 1 GB on two
# cores instead of 0.1 s), so larger tensors are copied in pieces below it.
_SERIAL_ELEMENTS = 32767

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Parts of ``tensor`` small enough that torch copies each in the thread that asks for it."""
    if tensor.numel() <= _SERIAL_ELEMENTS or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return (tensor,)
    flat = tensor.view(-1)
    if tensor.nbytes % 8 == 0 and tensor.data_ptr() % 8 == 0:
        flat = flat.view(torch.int64)
    return torch.split(flat, _SERIAL_ELEMENTS)


class Source:
    """A tensor to copy from, in pieces that are kept: cutting takes as long as a tenth of copying."""

    __slots__ = ("_parts", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._parts: Sequence[torch.Tensor] = ()

    def like(self, target: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """As many pieces as ``target`` has, each of the same size as there."""
        if not self._parts:
            parts = pieces(self.tensor) if len(target) > 1 else (self.tensor,)
            if (len(parts), parts[0].dtype) != (len(target), target[0].dtype):  # at an odd address, with gaps
                return pieces(self.tensor.clone(memory_format=torch.contiguous_format))
            self._parts = parts
        return self._parts


def copy(
    pairs: Iterable[tuple[Sequence[torch.Tensor], Source]], begun: threading.Event | None = None
) -> None:
    """Copy tensors into the :func:`pieces` of others, in one call that does not hold the interpreter lock.

    One call for each tensor would ask for the lock after each: with a training that is busy in Python that
    was measured to take 14 s for 1 GB in 4096 tensors. ``begun`` is set when only that call is left.
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
    """Copies from one GPU on a stream of its own, beside the training's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, pairs: Pairs) -> torch.cuda.Event:
        """Begin to copy what the training's stream has computed so far. The host does not wait."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return event

    def hold_training(self, event: torch.cuda.Event) -> None:
        """What the training enqueues from now on comes after the copies. The host does not wait."""
        torch.cuda.current_stream(self._device).wait_event(event)


class Pinned:
    """Memory of buffers that is registered with CUDA, so that copies into it run by themselves."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._refused = False

    def pin(self, address: int, nbytes: int) -> None:
        """Register a mapping once. A refusal (``ulimit -l``, say) only makes copies slower."""
        if self._refused or self._known.get(address) == nbytes:
            return
        self.unpin(address)
        status = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))  # type: ignore[no-untyped-call]
        if status == 0:
            self._known[address] = nbytes
            return
        self._refused = True
        _log.warning(
            "CUDA does not register the snapshots' memory (cudaError %d), so copying them holds training "
            "up: see ulimit -l",
            status,
        )
        try:
            torch.zeros(
                1, device="cuda"
            )  # the refusal is still CUDA's last error: it must not end a training
        except RuntimeError:
            pass

    def unpin(self, address: int) -> None:
        """Let go of a mapping, before it goes away."""
        if self._known.pop(address, None) is not None:
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
