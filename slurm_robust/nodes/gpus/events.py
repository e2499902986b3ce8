"""XIDs of NVIDIA's driver as they happen, through NVML's event sets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from slurm_robust.model.record import Record
from slurm_robust.nodes.gpus.nvml import Nvml

_WAIT_S = 1.0


class XidEvent(Record):
    """An XID. ``at`` is wall-clock time, seconds since 1970; ``code`` 0: the GPU is lost, and nothing more
    will come from it.
    """

    at: float
    index: int | None
    uuid: str
    code: int


class XidEvents:
    """Waits for XIDs of all GPUs of this node. Use it in a ``with`` block.

    Events that happen while nobody waits are kept by the driver. Entering raises ``OSError`` where there
    is no NVIDIA library and ``RuntimeError`` where the driver gives no events.
    """

    def __init__(self) -> None:
        self._gpus: dict[int, tuple[int, str]] = {}

    def __enter__(self) -> XidEvents:
        self._nvml = Nvml()
        api = self._nvml.api
        try:
            self._set = api.nvmlEventSetCreate()
            for index in range(api.nvmlDeviceGetCount()):
                self._register(index)
        except api.NVMLError as error:
            self._nvml.close()
            raise RuntimeError(f"NVML gives no events: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._nvml.api.nvmlEventSetFree(self._set)
        self._nvml.close()

    def within(self, timeout_s: float) -> Iterator[XidEvent]:
        """Events as they come, for at most ``timeout_s``. Raises ``RuntimeError`` if the driver breaks."""
        api = self._nvml.api
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                data = api.nvmlEventSetWait_v2(self._set, max(1, int(min(left, _WAIT_S) * 1000)))
            except api.NVMLError as error:
                if error.value == api.NVML_ERROR_TIMEOUT:
                    continue
                if error.value != api.NVML_ERROR_GPU_IS_LOST:
                    raise RuntimeError(f"NVML: {error}") from error
                # The driver does not say which one; the facts do.
                yield XidEvent(at=time.time(), index=None, uuid="", code=0)
                return
            # By its handle: a GPU that has just been lost does not tell its UUID any more.
            index, uuid = self._gpus.get(_address(data.device), (None, ""))
            yield XidEvent(at=time.time(), index=index, uuid=uuid, code=int(data.eventData))

    def _register(self, index: int) -> None:
        api = self._nvml.api
        try:
            handle = api.nvmlDeviceGetHandleByIndex(index)
            self._gpus[_address(handle)] = index, self._nvml.text("nvmlDeviceGetUUID", handle)
            api.nvmlDeviceRegisterEvents(handle, api.nvmlEventTypeXidCriticalError, self._set)
        except api.NVMLError:
            pass  # A GPU that is lost already has no more events; the others have.


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0
