"""Registered memory through which the bytes of an image get to GPUs."""

from __future__ import annotations

import mmap
import queue
from collections.abc import Collection, Sequence
from typing import Self

import torch

from slurm_robust.checkpoint.chunks import CHUNK_BYTES, DeviceBytes
from slurm_robust.checkpoint.gpus import GpuEvent, Gpus, Pairs, Stream
from slurm_robust.util.process import fault_in


class GpuStaging:
    """See :class:`~slurm_robust.checkpoint.chunks.Staging`. When it ends, all copies are done.

    Copying from the image itself is slower by far: each of its pages had to be mapped first (measured: 0.4 s
    for a GB), and the driver would copy it to registered memory all the same.
    """

    def __init__(self, gpus: Gpus, devices: Collection[torch.device], rooms: int) -> None:
        self._gpus = gpus
        self._memory = mmap.mmap(-1, rooms * CHUNK_BYTES)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._free: queue.SimpleQueue[tuple[memoryview, list[GpuEvent]]] = queue.SimpleQueue()
        self._streams: dict[torch.device, Stream] = {}
        for device in devices:  # what made the tensors may not have got to them yet
            self._streams[device] = gpus.stream(device)
            self._streams[device].follow(gpus.training(device).record())
        address, size = self._bytes.data_ptr(), len(self._memory)
        fault_in(address, size)
        # Refused, it makes copies slower.
        self._registered = gpus.register(address, size, next(iter(devices))) == 0
        whole = memoryview(self._memory)
        for number in range(rooms):
            self._free.put((whole[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES], []))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            for _ in range(len(self._memory) // CHUNK_BYTES):
                self.take()
        finally:
            if self._registered:
                self._gpus.unregister(self._bytes.data_ptr())

    def take(self) -> memoryview:
        """See the protocol."""
        room, events = self._free.get()
        try:
            for event in events:
                event.wait()
        except RuntimeError:
            self._free.put((room, events))  # whoever comes next hears it too
            raise
        return room

    def give_back(self, room: memoryview, copies: Sequence[tuple[DeviceBytes, memoryview]]) -> None:
        """See the protocol."""
        pairs: dict[torch.device, Pairs] = {}
        for target, part in copies:
            assert isinstance(target, torch.Tensor)
            pair = target, torch.frombuffer(part, dtype=torch.uint8)
            pairs.setdefault(target.device, []).append(pair)
        events: list[GpuEvent] = []
        try:
            for device, found in pairs.items():
                stream = self._streams[device]
                try:
                    stream.copy(found)
                finally:  # what was begun must have ended before the room is used again
                    events.append(stream.record())
        finally:
            self._free.put((room, events))
