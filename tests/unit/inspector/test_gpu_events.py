"""The thread that waits for XIDs goes on whatever its driver does, and says what it met."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from slurm_robust.inspector.gpuevents import GpuEvents, XidEvent, XidEvents
from slurm_robust.nodes.gpus.nvml import NvmlError
from tests.waiting import wait_for

XID_79 = XidEvent(at=1.0, index=3, uuid="GPU-3", code=79)


class Driver(XidEvents):
    """Raises one error after the other, the next time that it is listened to; then it reports an XID."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def listen(self) -> AbstractContextManager[XidEvents]:
        return nullcontext(self)

    def within(self, timeout_s: float) -> Iterator[XidEvent]:
        if self.errors:
            raise self.errors.pop(0)
        yield XID_79
        threading.Event().wait()


def heard(*errors: Exception) -> tuple[list[XidEvent], list[str]]:
    """All that comes from a driver with these errors, until it reports an XID."""
    events = GpuEvents(Driver(*errors).listen, again_s=0.0)
    seen: list[XidEvent] = []
    reasons: list[str] = []

    def read() -> bool:
        news, unheard = events.read()
        seen.extend(news)
        reasons.extend(unheard)
        return bool(seen)

    wait_for(read)
    return seen, reasons


@pytest.mark.parametrize("error", [AttributeError("nvmlEventSetWait_v2"), RuntimeError("NVML: Timeout")])
def test_an_error_is_told_once_and_xids_are_heard_again(error: Exception) -> None:
    seen, (reason,) = heard(error, error)
    assert seen == [XID_79]
    assert reason.endswith(f"not heard as they happen: {type(error).__name__}: {error}")


def test_nothing_is_told_of_a_node_without_gpus_where_a_driver_may_come_yet() -> None:
    missing = OSError("libnvidia-ml.so.1: cannot open shared object file")
    assert heard(missing, NvmlError("Driver Not Loaded", absent=True)) == ([XID_79], [])
