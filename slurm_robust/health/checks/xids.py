"""Judging the messages of NVIDIA's driver: XIDs of GPUs and SXids of NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.health import xid
from slurm_robust.health.check import View
from slurm_robust.health.kernelevents import SXID, XID, KernelEvent
from slurm_robust.health.kernelfacts import KernelFacts, events_of, unread, when
from slurm_robust.health.kmsg import DEVICE
from slurm_robust.health.xidtable import XidRule
from slurm_robust.model.findings import Finding, Outcome, Suggestion

# Programs whose faults on one GPU within the window speak against the GPU.
MANY_PROGRAMS = 3

_WEIGHT = {suggestion: weight for weight, suggestion in enumerate(Suggestion)}


def judge_xid(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
    """One finding for each GPU that the log speaks of: the worst, and which others there are."""
    events = [event for event in events_of(view) if event.shape == XID]
    if view.facts.gpus is None and not events:
        return
    missing = list(unread("kernel.xid", view))
    yield from missing
    since = view.at - config.gpu.xid_window_s
    bad = False
    for address in sorted({event.subject for event in events}):
        finding = _of_gpu(address, [event for event in events if event.subject == address], view, since)
        if finding:
            bad = True
            yield finding
    if not bad and not missing:
        yield Finding(check="kernel.xid", outcome=Outcome.PASS, value="no XID that matters", source=DEVICE)


def _of_gpu(address: str, events: list[KernelEvent], view: View[KernelFacts], since: float) -> Finding | None:
    rules = [(xid.rule(event.code, xid.Severity(event.severity)), event) for event in events]
    matter = [
        (rule, event)
        for rule, event in rules
        if rule.suggestion is not Suggestion.NONE and (rule.lasting or event.last_at >= since)
    ]
    if not matter:
        faults = [event for rule, event in rules if rule.application and event.last_at >= since]
        return _of_programs(address, faults, view)
    # The driver's word on what it needs (154) is not the fault: of equals name another one.
    rule, event = max(
        matter, key=lambda pair: (_WEIGHT[pair[0].suggestion], pair[0].code != xid.RECOVERY_ACTION)
    )
    others = sorted({event.code for _, event in matter} - {rule.code})
    also = f"; also {', '.join(map(str, others[:6]))}" if others else ""
    return Finding(
        check="kernel.xid",
        outcome=Outcome.FAIL,
        subject=gpu_name(address, view.facts.gpus or ()),
        text=f"XID {rule.code}, {rule.meaning}{_place(address, view)}{also}",
        value=f"XID {rule.code} at {_when(event)}",
        limit=_limit(rule),
        source=f"{DEVICE}: {event.line}",
        blame=rule.blame,
        suggestion=rule.suggestion,
    )


def _of_programs(address: str, faults: list[KernelEvent], view: View[KernelFacts]) -> Finding | None:
    """Faults of programs (13, 31 …) are theirs, until many programs meet them on one GPU."""
    programs = {pid for event in faults for pid in event.pids}
    if len(programs) < MANY_PROGRAMS:
        return None
    codes = ", ".join(str(code) for code in sorted({event.code for event in faults}))
    return Finding(
        check="kernel.xid",
        outcome=Outcome.FAIL,
        subject=gpu_name(address, view.facts.gpus or ()),
        text=f"XID {codes} in {len(programs)} programs{_place(address, view)}: test the GPU",
        value=f"{len(programs)} programs",
        limit=f"{MANY_PROGRAMS - 1} within the window",
        source=f"{DEVICE}: {faults[-1].line}",
        suggestion=Suggestion.MONITOR,
    )


def gpu_name(address: str, gpus: tuple[str, ...]) -> str:
    """``gpu3``, counted as NVML does: by PCI address; the address itself for one that the driver has not."""
    places = [place for place, name in enumerate(gpus) if name.lower().rpartition(".")[0] == address]
    return f"gpu{places[0]}" if places else address


def _place(address: str, view: View[KernelFacts]) -> str:
    return f" ({address})" if gpu_name(address, view.facts.gpus or ()) != address else ""


def _when(event: KernelEvent) -> str:
    return when(event) if event.count == 1 else f"{when(event)}, {event.count} lines"


def _limit(rule: XidRule) -> str:
    if not rule.lasting:
        return "none within the window"
    return "none" if rule.suggestion is Suggestion.REPLACE else f"none since the last {rule.suggestion.value}"


def judge_sxid(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
    """One finding for each NVSwitch that reported an error."""
    since = view.at - config.gpu.xid_window_s
    events = [event for event in events_of(view) if event.shape == SXID]
    for address in sorted({event.subject for event in events}):
        mine = [event for event in events if event.subject == address]
        fatal = [event for event in mine if event.severity == xid.Severity.FATAL.value]
        matter = fatal or [event for event in mine if event.last_at >= since]
        if matter:
            worst = max(matter, key=lambda event: event.last_at)
            yield Finding(
                check="kernel.sxid",
                outcome=Outcome.FAIL,
                subject=f"nvswitch {address}",
                text=f"SXid {worst.code}, {worst.severity} NVSwitch error",
                value=f"SXid {worst.code} at {_when(worst)}",
                limit="none since the last reset" if fatal else "none within the window",
                source=f"{DEVICE}: {worst.line}",
                suggestion=Suggestion.RESET if fatal else Suggestion.MONITOR,
            )
        else:
            yield Finding(
                check="kernel.sxid", outcome=Outcome.PASS, subject=f"nvswitch {address}", source=DEVICE
            )
