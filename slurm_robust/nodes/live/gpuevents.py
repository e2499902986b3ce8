"""XIDs that the driver reports as they happen, also where users may not read the kernel's log."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.nodes.gpus.events import XidEvent, XidEvents
from slurm_robust.nodes.gpus.nvml import DriverError
from slurm_robust.nodes.kernel import xid
from slurm_robust.util.wakeup import Inbox

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
        """``again_s``: pause after an error."""
        self._listen = listen
        self._again_s = again_s
        self._found: Inbox[XidEvent | str] = Inbox()
        threading.Thread(target=self._run, name="srobust-xids", daemon=True).start()

    def fileno(self) -> int:
        """Readable when :meth:`read` has something."""
        return self._found.fileno()

    def read(self) -> tuple[list[XidEvent], list[str]]:
        """What happened since the last call; why nothing was heard, each reason when it is new."""
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
            except Exception as error:  # noqa: BLE001  # whatever it is, XIDs are to be heard again
                pause_s = self._again_s
                if not _without_gpus(error) and reason != (reason := f"{type(error).__name__}: {error}"):
                    self._found.put(f"inspection: the driver's XIDs are not heard as they happen: {reason}")
            time.sleep(pause_s)


def _without_gpus(error: Exception) -> bool:
    """Whether there is nothing to be heard: no library of NVIDIA's, or no driver."""
    return isinstance(error, OSError) or (isinstance(error, DriverError) and error.absent)


def findings_of(events: Iterable[XidEvent]) -> list[Finding]:
    """Events that mean broken hardware, as findings of the kernel's log. Pure."""
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
