"""XIDs that the driver reports as they happen, also where users may not read the kernel's log."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable

from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.nodes.gpus.events import XidEvent, XidEvents
from slurm_robust.nodes.kernel import xid
from slurm_robust.util.wakeup import Inbox

_AGAIN_S = 30.0
_AFTER_LOSS_S = 1.0


class GpuEvents:
    """Waits in a thread, since the driver may hang."""

    def __init__(self) -> None:
        self._found: Inbox[XidEvent] = Inbox()
        threading.Thread(target=self._run, name="srobust-xids", daemon=True).start()

    def fileno(self) -> int:
        """Readable when :meth:`read` has something."""
        return self._found.fileno()

    def read(self) -> list[XidEvent]:
        """What happened since the last call."""
        return self._found.take()

    def _run(self) -> None:
        while True:
            pause_s = _AFTER_LOSS_S
            try:
                with XidEvents() as events:
                    for event in events.within(math.inf):
                        self._found.put(event)
                # A GPU is lost, and the set of events with it. Another one has the GPUs that are left.
            except (OSError, ImportError):
                return  # no driver of NVIDIA's
            except RuntimeError:
                pause_s = _AGAIN_S
            time.sleep(pause_s)


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
