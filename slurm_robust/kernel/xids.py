"""Judges the XIDs and SXids of a node together: what is a fault, and what follows from it. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from slurm_robust.kernel import xid
from slurm_robust.kernel.kmsg import DEVICE, KernelEvent
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion

MANY_PROGRAMS = 3
"""Occasions on which programs failed on one GPU within the window that speak against the GPU."""

TOGETHER_S = 600.0
"""Fatal errors of NVLink on several GPUs within this time are one fault of the fabric between them."""


def utc(at: float) -> str:
    """Return ``2026-11-21T15:04:05Z``: short, and the same in every time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


class NodeXids:
    """The XIDs of one node, and how its GPUs and processes are called."""

    def __init__(
        self, events: Sequence[KernelEvent], gpus: Sequence[str], owners: Mapping[str, str], since: float
    ) -> None:
        """Take ``gpus``, PCI addresses in NVML's order, and ``owners`` of processes, see :mod:`.owners`.

        ``since``: when the window begins in which a message counts that does not last.
        """
        self._events = events
        self._gpus = gpus
        self._owners = owners
        self._since = since

    def findings(self) -> Iterator[Finding]:
        """Yield at most one for each GPU, and one for the fabric."""
        for address in sorted({event.subject for event in self._events}):
            found = self._gpu(address, [event for event in self._events if event.subject == address])
            if found:
                yield found
        yield from self._fabric()

    def _gpu(self, address: str, events: list[KernelEvent]) -> Finding | None:
        """Return the worst, without what follows from it (13, 31, 43, 45 of programs that it took)."""
        rules = [(xid.rule(event.code, event.severity), event) for event in events]
        matter = [
            (rule, event)
            for rule, event in rules
            if rule.suggestion is not Suggestion.NONE and (rule.lasting or event.last_at >= self._since)
        ]
        if not matter:
            return self._programs(address, [event for rule, event in rules if rule.topic.value == "program"])
        # The driver's word on what it needs (154) is not the fault: of equals name another one.
        rule, event = max(
            matter, key=lambda pair: (pair[0].suggestion.weight, pair[0].code != xid.RECOVERY_ACTION)
        )
        others = sorted({event.code for _, event in matter} - {rule.code})
        also = f"; also {', '.join(map(str, others[:6]))}" if others else ""
        lasts = (
            "none"
            if rule.suggestion is Suggestion.REPLACE
            else f"none since the last {rule.suggestion.value}"
        )
        return Finding(
            check="kernel.xid",
            outcome=Outcome.FAIL,
            subject=gpu_name(address, self._gpus),
            text=f"XID {rule.code}, {rule.meaning}{self._place(address)}{also}{self._whose(event)}",
            value=f"XID {rule.code} at {when(event)}",
            limit=lasts if rule.lasting else "none within the window",
            source=f"{DEVICE}: {event.line}",
            blame=rule.blame,
            suggestion=rule.suggestion,
        )

    def _programs(self, address: str, faults: list[KernelEvent]) -> Finding | None:
        """Find faults of programs (13, 31 …), which are the programs' own until they recur on one GPU.

        What many processes meet together is one occasion: the end or the fault of one job.
        """
        recent = [event for event in faults if event.code != xid.STOPPED and event.last_at >= self._since]
        occasions = {pid for event in recent for pid in event.occasions}
        if len(occasions) < MANY_PROGRAMS:
            return None
        codes = ", ".join(str(code) for code in sorted({event.code for event in recent}))
        return Finding(
            check="kernel.xid",
            outcome=Outcome.FAIL,
            subject=gpu_name(address, self._gpus),
            text=f"XID {codes} in {len(occasions)} programs{self._place(address)}: test the GPU",
            value=f"{len(occasions)} programs",
            limit=f"{MANY_PROGRAMS - 1} within the window",
            source=f"{DEVICE}: {recent[-1].line}",
            suggestion=Suggestion.MONITOR,
        )

    def _fabric(self) -> Iterator[Finding]:
        """Find fatal errors of NVLink 5 on two GPUs or more: no pair of GPUs of the node can be trusted.

        Resets of these GPUs did not help when it was seen; a boot did
        (https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1355).
        """
        fatal = [
            event
            for event in self._events
            if event.code in xid.LINK_ERRORS and event.severity == xid.XidSeverity.FATAL
        ]
        newest = max(fatal, key=lambda event: event.last_at, default=None)
        if newest is None:
            return
        together = [event for event in fatal if newest.last_at - event.last_at <= TOGETHER_S]
        names = sorted({gpu_name(event.subject, self._gpus) for event in together})
        if len(names) < 2:
            return
        codes = ", ".join(map(str, sorted({event.code for event in together})))
        yield Finding(
            check="kernel.xid",
            outcome=Outcome.FAIL,
            subject="NVLink",
            text=f"fatal XID {codes} on {len(names)} GPUs ({', '.join(names[:8])}): "
            "NVLink of the whole node is broken, reboot it",
            value=f"{len(names)} GPUs, last at {when(newest)}",
            limit="1 GPU",
            source=f"{DEVICE}: {newest.line}",
            blame=Party.NODE,
            suggestion=Suggestion.REBOOT,
        )

    def _place(self, address: str) -> str:
        return f" ({address})" if gpu_name(address, self._gpus) != address else ""

    def _whose(self, event: KernelEvent) -> str:
        if not event.pids:
            return ""
        pid = str(event.pids[-1])
        return f"; {self._owners.get(pid) or event.process or 'process'} (pid {pid})"


def gpu_name(address: str, gpus: Sequence[str]) -> str:
    """Return ``gpu3``, counted as NVML does: by PCI address; the address itself if the driver lacks it."""
    places = [place for place, name in enumerate(gpus) if name.lower().rpartition(".")[0] == address]
    return f"gpu{places[0]}" if places else address


def when(event: KernelEvent) -> str:
    """Return when an event happened last, and how many lines it has."""
    at = utc(event.last_at)
    return at if event.count == 1 else f"{at}, {event.count} lines"


def switches(events: Sequence[KernelEvent], since: float) -> Iterator[Finding]:
    """Yield one finding for each NVSwitch that reported an error; ``since`` as for :class:`NodeXids`."""
    for address in sorted({event.subject for event in events}):
        mine = [event for event in events if event.subject == address]
        fatal = [event for event in mine if event.severity == xid.XidSeverity.FATAL]
        matter = fatal or [event for event in mine if event.last_at >= since]
        if not matter:
            yield Finding(
                check="kernel.sxid", outcome=Outcome.PASS, subject=f"nvswitch {address}", source=DEVICE
            )
            continue
        worst = max(matter, key=lambda event: event.last_at)
        yield Finding(
            check="kernel.sxid",
            outcome=Outcome.FAIL,
            subject=f"nvswitch {address}",
            text=f"SXid {worst.code}, {worst.severity} NVSwitch error",
            value=f"SXid {worst.code} at {when(worst)}",
            limit="none since the last reset" if fatal else "none within the window",
            source=f"{DEVICE}: {worst.line}",
            suggestion=Suggestion.RESET if fatal else Suggestion.MONITOR,
        )
