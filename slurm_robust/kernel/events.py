"""From records of the kernel's log to its facts: what happened, how often, to what, and when last. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from slurm_robust.kernel import shapes, xid
from slurm_robust.kernel.kmsg import KERNEL, KernelEvent, KernelRecord
from slurm_robust.kernel.xid import SXID, XID
from slurm_robust.model.record import Record

MARK = "slurm-robust: reset "
"""Written into /dev/kmsg by root, with a subject (a GPU's address, a disk): what was said of it is over.

With ``all`` all XIDs are over.
"""

# The first message of the driver when it is loaded; that of its version comes after it met the GPUs.
_DRIVER_LOADS = "nvidia-nvlink: Nvlink Core is being initialized"
_ALL_GPUS = ""

# XIDs that take back an earlier one of the same GPU.
_TAKES_BACK = {162: 163}

# A GPU that fell off the bus, if the driver tells it in several messages: they follow each other immediately.
_SEVERAL_S = 1.0

_DRIVER = ("NVRM: ", "nvidia-nvswitch", _DRIVER_LOADS)

BEGINS = tuple(begin.encode() for begin in (*_DRIVER, MARK, *shapes.BEGINS))
"""How the records begin that :func:`summarise` needs."""

_LINE = 160
_MAX_EVENTS = 96
_MAX_TIMES = 1024
_MAX_PROCESSES = 8

BURST_S = 60.0
"""Messages of one kind that follow each other within this time are one occasion, as when a job ends."""


class KernelFacts(Record):
    """What the kernel says of the node: its log, its state, and records of crashes."""

    boot_at: float
    events: tuple[KernelEvent, ...] = ()
    cleared: dict[str, float] = {}
    """Until when events are over, by subject; the empty one stands for all GPUs, and an XID may follow."""

    error: str = ""
    """Why the log cannot be read."""

    cut: bool = False
    """The log was not read to its end."""

    tainted: int | None = None
    gpus: tuple[str, ...] | None = None
    """PCI addresses of the GPUs that NVIDIA's driver has, in its order; None without the driver."""

    owners: dict[str, str] = {}
    """Ranks of jobs, by the ids of the processes that the log names."""

    crashed_at: float = 0.0
    """When a crash left a record, the newest; 0 for none."""


def summarise(
    records: Iterable[KernelRecord],
    boot_at: float,
    now: float,
    window_s: Callable[[str], float],
    *,
    injected: bool = False,
) -> KernelFacts:
    """Add up records, oldest first. ``window_s`` tells for a shape how long back is recent.

    With ``injected`` records count that root wrote into the device, as for an exercise.
    """
    found: dict[_Kind, deque[KernelEvent]] = {}
    cleared: dict[str, float] = {}
    recognise = _Reader()
    for record in records:
        at = boot_at + record.uptime_s
        for over in _clears(record):
            cleared[over] = at
            found = {kind: events for kind, events in found.items() if not _is_of(events[-1], over)}
        if record.facility != KERNEL and not injected:
            continue
        seen = recognise(record)
        if seen is None or (_kind(seen) not in found and len(found) >= _MAX_EVENTS):
            continue
        earlier = found.setdefault(_kind(seen), deque(maxlen=_MAX_TIMES))
        last = earlier[-1] if earlier else None
        seen = replace(
            seen,
            last_at=at,
            count=last.count + 1 if last else 1,
            process=seen.process or (last.process if last else ""),
            line=record.text[:_LINE],
        )
        earlier.append(seen)
    added = (_sum(events, now - window_s(events[-1].shape)) for events in found.values())
    return KernelFacts(boot_at=boot_at, events=tuple(added), cleared=cleared)


def _sum(events: Sequence[KernelEvent], since: float) -> KernelEvent:
    recent = [event for event in events if event.last_at >= since]
    pids = tuple(dict.fromkeys(pid for event in recent for pid in event.pids))
    newest = events[-1]
    return replace(
        newest,
        recent=len(recent),
        pids=pids[-_MAX_PROCESSES:],
        process=newest.process if pids else "",
        occasions=_occasions(recent),
    )


def _occasions(recent: Sequence[KernelEvent]) -> tuple[int, ...]:
    """Return the first process of each burst."""
    before = float("-inf")
    first: dict[int, None] = {}
    for event in recent:
        if event.last_at - before > BURST_S:
            first |= dict.fromkeys(event.pids)
        before = event.last_at
    return tuple(first)[-_MAX_PROCESSES:]


class _Reader:
    """Recognises messages, in the order in which they were written."""

    def __init__(self) -> None:
        self._unfinished = ("", 0.0)

    def __call__(self, record: KernelRecord) -> KernelEvent | None:
        text = record.text
        if text.startswith("NVRM: ") and (found := self._xid(text, record.uptime_s)):
            return found
        if text.startswith("nvidia-nvswitch"):
            return xid.parse_switch(text)
        known = shapes.recognise(text)
        return KernelEvent(shape=known[0].name, subject=known[1]) if known else None

    def _xid(self, text: str, at: float) -> KernelEvent | None:
        address, since = self._unfinished
        if text.startswith(xid.FELL_OFF_END) and address and at - since <= _SEVERAL_S:
            self._unfinished = ("", 0.0)
            return KernelEvent(shape=XID, subject=address, code=xid.FELL_OFF)
        found = xid.parse(text)
        if found is None and (begun := xid.parse_address(text)):
            self._unfinished = (begun, at)
        return found


def _clears(record: KernelRecord) -> tuple[str, ...]:
    """Return the subjects whose events are over with this record: none for most records."""
    text = record.text
    if text.startswith(MARK):
        name = text.removeprefix(MARK).strip()
        # XIDs name a GPU without the function that its address has everywhere else.
        return (_ALL_GPUS,) if name == "all" else (name, name.lower().rpartition(".")[0] or name.lower())
    if record.facility != KERNEL:
        return ()
    if text.startswith(_DRIVER_LOADS):
        return (_ALL_GPUS,)
    if text.startswith("NVRM: Xid") and (found := xid.parse(text)):
        if found.code == xid.RECOVERY_ACTION and found.severity == xid.XidSeverity.NONE:
            return (found.subject,)
        if found.code in _TAKES_BACK:
            return (f"{found.subject} {_TAKES_BACK[found.code]}",)
    if text.startswith("amdgpu ") and (reset := shapes.reset_of(text)):
        return (reset,)
    return ()


_Kind = tuple[str, str, int, str]


def _kind(event: KernelEvent) -> _Kind:
    """Return what must be equal for two messages to count as one event."""
    return event.shape, event.subject, event.code, event.severity


def _is_of(event: KernelEvent, subject: str) -> bool:
    if not subject:
        return event.shape in (XID, SXID) or shapes.SHAPES[event.shape].check == shapes.OF_GPUS
    return subject in (event.subject, f"{event.subject} {event.code}")


def with_earlier(now: KernelFacts, earlier: Sequence[KernelFacts]) -> tuple[KernelEvent, ...]:
    """Add what earlier runs found in the same log and a full log has lost since."""
    events = {_kind(event): event for event in now.events}
    for past in reversed(earlier):
        for event in past.events:
            over_at = [at for subject, at in now.cleared.items() if _is_of(event, subject)]
            if _kind(event) not in events and event.last_at > max(over_at, default=0.0):
                events[_kind(event)] = event
    return tuple(events.values())
