"""XIDs that the driver reports as they happen, also if users may not read the kernel's log."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from slurm_robust.kernel import xid
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.model.record import Record
from slurm_robust.nodes.gpus.nvml import Nvml, NvmlError
from slurm_robust.util.threads import start_thread
from slurm_robust.util.wakeup import Inbox

_WAIT_S = 1.0


class XidEvent(Record):
    """An XID."""

    at: float
    """Wall-clock time, seconds since 1970."""

    index: int | None
    uuid: str
    code: int
    """0: the GPU is lost, and nothing more will come from it."""


class XidEvents:
    """Waits for XIDs of all GPUs of this node. Use it in a ``with`` block.

    The driver keeps events that happen while no process waits. Entering raises ``OSError`` if there
    is no NVIDIA library and ``RuntimeError`` if the driver gives no events.
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
        """Yield events for ``timeout_s``, as they come. Raises ``RuntimeError`` if the driver fails."""
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
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


_AGAIN_S = 30.0
_AFTER_LOSS_S = 1.0


class GpuEvents:
    """Waits in a thread, since the driver may hang. Whatever ends the waiting, it begins again."""

    def __init__(
        self,
        listen: Callable[[], AbstractContextManager[XidEvents]] = XidEvents,
        *,
        again_s: float = _AGAIN_S,
    ) -> None:
        """Take ``again_s``, the pause after an error."""
        self._listen = listen
        self._again_s = again_s
        self._found: Inbox[XidEvent | str] = Inbox()
        start_thread("xids", self._run)

    def fileno(self) -> int:
        """Return the descriptor, readable when :meth:`read` has something."""
        return self._found.fileno()

    def read(self) -> tuple[list[XidEvent], list[str]]:
        """Return what happened since the last call; why nothing was heard, each reason when it is new."""
        found = self._found.take()
        reasons = [reason for reason in found if isinstance(reason, str)]
        return [event for event in found if isinstance(event, XidEvent)], reasons

    def _run(self) -> None:
        reason = ""
        while True:
            pause_s = _AFTER_LOSS_S
            try:
                with self._listen() as events:
                    for event in events.within(math.inf):
                        self._found.put(event)
                # A GPU is lost, and the set of events with it. Another one has the GPUs that are left.
            except Exception as error:  # noqa: BLE001  # whatever it is, XIDs must be heard again
                pause_s = self._again_s
                if not _without_gpus(error) and reason != (reason := f"{type(error).__name__}: {error}"):
                    self._found.put(f"inspection: the driver's XIDs are not heard as they happen: {reason}")
            time.sleep(pause_s)


def _without_gpus(error: Exception) -> bool:
    """Return whether there is nothing to be heard: no library of NVIDIA's, or no driver."""
    return isinstance(error, OSError) or (isinstance(error, NvmlError) and error.absent)


def findings_of(events: Iterable[XidEvent]) -> list[Finding]:
    """Return the events that mean broken hardware, as findings of the kernel's log. Pure."""
    rules = [(event, xid.rule(event.code)) for event in events if event.code]
    return [
        Finding(
            check="kernel.xid",
            outcome=Outcome.FAIL,
            subject=event.uuid if event.index is None else f"gpu{event.index}",
            text=f"XID {event.code}, {rule.meaning}",
            value=f"XID {event.code}",
            limit="none",
            source="NVML events",
            blame=rule.blame,
            suggestion=rule.suggestion,
        )
        for event, rule in rules
        if rule.suggestion.keeps_jobs_away
    ]
