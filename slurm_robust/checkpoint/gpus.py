"""What snapshots and reports ask of a GPU's runtime, and CUDA's answers.

Everything about streams, events and registered memory goes through one object, :class:`Gpus`, so that tests
of order and failure need no GPU: :class:`slurm_robust.testing.lagging_gpus.LaggingGpus` is one whose device
is a thread. Both are held to :class:`tests.contracts.gpus.GpusContract`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

_RELAXED = 2  # cudaStreamCaptureModeRelaxed, hipStreamCaptureModeRelaxed

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""Copies to make: target and source."""


class GpuEvent(Protocol):
    """A moment in a stream."""

    def query(self) -> bool:
        """Return whether the device has got there. Never waits."""

    def wait(self) -> None:
        """Sleep until the device has got there; from any thread. Raises ``RuntimeError`` if it failed."""


class Stream(Protocol):
    """Work that a device does in the order in which it was enqueued."""

    def copy(self, pairs: Pairs) -> None:
        """Enqueue copies. The host waits for those from or to memory that is not registered.

        Host memory of each must be registered as a whole or not at all. Raises ``RuntimeError``.
        """

    def record(self) -> GpuEvent:
        """Record the moment when all that is enqueued so far is done."""

    def follow(self, event: GpuEvent) -> None:
        """Put what is enqueued from now on after ``event``, of any stream. The host does not wait."""


class Gpus(Protocol):
    """The GPUs of this process."""

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` lies on one."""

    def stream(self, device: torch.device) -> Stream:
        """Make a new stream."""

    def training(self, device: torch.device) -> Stream:
        """Return the stream in which this thread's operations on tensors of ``device`` are enqueued."""

    def is_capturing(self) -> bool:
        """Return whether this thread's operations go into a graph instead of being done."""

    def relax(self) -> None:
        """From now on, nothing that this thread asks breaks a graph that another thread captures.

        Without it registering and asking or waiting for an event do: the driver refuses them then, and the
        capture ends with an error (CUDA, stream capture, prohibited and unsafe operations; measured).
        """

    def scalar(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a registered tensor of this machine's memory for one number."""

    def register(self, address: int, nbytes: int, device: torch.device) -> int:
        """Register whole pages of this machine's memory, for seconds; from any thread.

        0, or the number of the error. A refusal changes nothing for what comes after.
        """

    def unregister(self, address: int) -> None:
        """Take the registration back that begins at ``address``."""


class Cuda:
    """Gpus by CUDA, or by ROCm under its names. Starts nothing in a process that uses none."""

    def has(self, tensor: torch.Tensor) -> bool:
        """See the protocol."""
        return tensor.is_cuda

    def stream(self, device: torch.device) -> Stream:
        """See the protocol."""
        return _CudaStream(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    def training(self, device: torch.device) -> Stream:
        """See the protocol."""
        return _CudaStream(device, torch.cuda.current_stream(device))

    def is_capturing(self) -> bool:
        """See the protocol."""
        used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return used and torch.cuda.is_current_stream_capturing()

    def relax(self) -> None:
        """See the protocol."""
        _runtime("ThreadExchangeStreamCaptureMode")(ctypes.byref(ctypes.c_int(_RELAXED)))

    def scalar(self, dtype: torch.dtype) -> torch.Tensor:
        """See the protocol."""
        return torch.empty((), dtype=dtype, pin_memory=True)

    def register(self, address: int, nbytes: int, device: torch.device) -> int:
        """See the protocol."""
        # A thread's own device is GPU 0 at first: without this each rank would make a context there.
        with torch.cuda.device(device):
            error = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))  # type: ignore[no-untyped-call]
            if error:
                # Else the next kernel of this thread finds it, and torch takes it for the kernel's.
                _runtime("GetLastError")()
            return error

    def unregister(self, address: int) -> None:
        """See the protocol."""
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


@cache
def _runtime(name: str) -> Callable[..., int]:
    """Return a function of the runtime that torch has loaded, CUDA's or HIP's, which torch does not offer."""
    vendor = "hip" if torch.version.hip else "cuda"
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libc10_{vendor}.so"))
    function: Callable[..., int] = getattr(library, vendor + name)
    return function


class _CudaStream:
    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        self._stream = stream

    def copy(self, pairs: Pairs) -> None:
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    def record(self) -> GpuEvent:
        # Of a blocking event a thread that waits sleeps; of others it spins, on a core that loaders need.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _CudaEvent(self._device, event)

    def follow(self, event: GpuEvent) -> None:
        assert isinstance(event, _CudaEvent)
        self._stream.wait_event(event.event)


class _CudaEvent:
    def __init__(self, device: torch.device, event: torch.cuda.Event) -> None:
        self._device = device
        self.event = event

    def query(self) -> bool:
        happened: bool = self.event.query()  # type: ignore[no-untyped-call]
        return happened

    def wait(self) -> None:
        with torch.cuda.device(self._device):  # as in register()
            self.event.synchronize()


CUDA = Cuda()
