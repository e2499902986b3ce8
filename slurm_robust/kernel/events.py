"""From records of the kernel's log to what happened: how often, to what, and when last. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from slurm_robust.kernel import shapes, xid
from slurm_robust.kernel.kmsg import KERNEL, KernelRecord
from slurm_robust.model.record import Record

XID, SXID = "xid", "sxid"

MARK = "slurm-robust: reset "
"""Written into /dev/kmsg by root, with a subject (a GPU's address, a disk): what was said of it is over.

With ``all`` all XIDs are over.
"""

# The first message of the driver when it is loaded; that of its version comes after it met the GPUs.
_DRIVER_LOADS = "nvidia-nvlink: Nvlink Core is being initialized"
_ALL_GPUS = ""

# XIDs that take back an earlier one of the same GPU.
_TAKES_BACK = {162: 163}

# A GPU that fell off the bus, where the driver tells it in several messages: they follow each other at once.
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


class KernelEvent(Record):
    """Messages of one kind about one subject. Times are seconds since 1970."""

    shape: str
    """XID, SXID or a name of :data:`shapes.SHAPES`."""

    last_at: float
    subject: str = ""
    code: int = 0
    severity: str = ""
    count: int = 1
    """Lines, not faults, that the log still has."""

    recent: int = 0
    """Those within the window before it was read."""

    pids: tuple[int, ...] = ()
    """Processes that recent ones name."""

    process: str = ""
    """The name of the newest of them, in plain characters: a user chooses it."""

    occasions: tuple[int, ...] = ()
    """Of each recent burst the first process, see :data:`BURST_S`."""

    line: str = ""
    """The newest."""


class Happened(Record):
    """What the log says in all."""

    events: tuple[KernelEvent, ...] = ()
    cleared: dict[str, float] = {}
    """Until when events are over, by subject; the empty one stands for all GPUs, and an XID may follow."""


class _Sight(NamedTuple):
    shape: str
    subject: str = ""
    code: int = 0
    severity: str = ""


class _Seen(NamedTuple):
    """A message that means something."""

    sight: _Sight
    pid: int = 0
    process: str = ""


class _Tally:
    """What is known of one sight while the log is gone through."""

    def __init__(self) -> None:
        self.times: deque[tuple[float, int]] = deque(maxlen=_MAX_TIMES)
        self.count = 0
        self.line = ""
        self.process = ""

    def add(self, at: float, seen: _Seen, line: str) -> None:
        self.times.append((at, seen.pid))
        self.count += 1
        self.line = line[:_LINE]
        self.process = seen.process or self.process


def summarise(
    records: Iterable[KernelRecord],
    boot_at: float,
    now: float,
    window_s: Callable[[str], float],
    *,
    injected: bool = False,
) -> Happened:
    """Add up records, oldest first. ``window_s`` tells for a shape how long back is recent.

    With ``injected`` records count that root wrote into the device, as for an exercise.
    """
    tallies: dict[_Sight, _Tally] = {}
    cleared: dict[str, float] = {}
    recognise = _Reader()
    for record in records:
        at = boot_at + record.uptime_s
        for over in _clears(record):
            cleared[over] = at
            tallies = {sight: tally for sight, tally in tallies.items() if not _is_of(sight, over)}
        if record.facility != KERNEL and not injected:
            continue
        seen = recognise(record)
        if seen is not None and (seen.sight in tallies or len(tallies) < _MAX_EVENTS):
            tallies.setdefault(seen.sight, _Tally()).add(at, seen, record.text)
    events = (_event(sight, tally, now - window_s(sight.shape)) for sight, tally in tallies.items())
    return Happened(events=tuple(events), cleared=cleared)


def _event(sight: _Sight, tally: _Tally, since: float) -> KernelEvent:
    recent = [(at, pid) for at, pid in tally.times if at >= since]
    pids = dict.fromkeys(pid for _, pid in recent if pid)
    return KernelEvent(
        **sight._asdict(),
        last_at=tally.times[-1][0],
        count=tally.count,
        recent=len(recent),
        pids=tuple(pids)[-_MAX_PROCESSES:],
        process=tally.process if pids else "",
        occasions=_occasions(recent),
        line=tally.line,
    )


def _occasions(recent: Sequence[tuple[float, int]]) -> tuple[int, ...]:
    """The first process of each burst."""
    before = float("-inf")
    first: dict[int, None] = {}
    for at, pid in recent:
        if at - before > BURST_S and pid:
            first[pid] = None
        before = at
    return tuple(first)[-_MAX_PROCESSES:]


class _Reader:
    """Recognises messages, in the order in which they were written."""

    def __init__(self) -> None:
        self._unfinished = ("", 0.0)

    def __call__(self, record: KernelRecord) -> _Seen | None:
        text = record.text
        if text.startswith("NVRM: ") and (found := self._xid(text, record.uptime_s)):
            return _Seen(
                _Sight(XID, found.address, found.code, found.severity.value), found.pid, found.process
            )
        if text.startswith("nvidia-nvswitch"):
            switch = xid.parse_switch(text)
            severity = xid.Severity.FATAL if switch and switch.fatal else xid.Severity.NON_FATAL
            return _Seen(_Sight(SXID, switch.address, switch.code, severity.value)) if switch else None
        known = shapes.recognise(text)
        return _Seen(_Sight(known[0].name, known[1])) if known else None

    def _xid(self, text: str, at: float) -> xid.Xid | None:
        address, since = self._unfinished
        if text.startswith(xid.FELL_OFF_END) and address and at - since <= _SEVERAL_S:
            self._unfinished = ("", 0.0)
            return xid.Xid(address=address, code=xid.FELL_OFF)
        found = xid.parse(text)
        if found is None and (begun := xid.parse_address(text)):
            self._unfinished = (begun, at)
        return found


def _clears(record: KernelRecord) -> tuple[str, ...]:
    """The subjects whose events are over with this record: none for most records."""
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
        if found.code == xid.RECOVERY_ACTION and found.severity is xid.Severity.NONE:
            return (found.address,)
        if found.code in _TAKES_BACK:
            return (f"{found.address} {_TAKES_BACK[found.code]}",)
    if text.startswith("amdgpu ") and (reset := shapes.reset_of(text)):
        return (reset,)
    return ()


def _is_of(sight: _Sight, subject: str) -> bool:
    if not subject:
        return sight.shape in (XID, SXID) or shapes.SHAPES[sight.shape].check == shapes.OF_GPUS
    return subject in (sight.subject, f"{sight.subject} {sight.code}")


def with_earlier(now: Happened, earlier: Sequence[Happened]) -> tuple[KernelEvent, ...]:
    """Add what earlier runs found in the same log and a full log has lost since."""
    events = {_key(event): event for event in now.events}
    for past in reversed(earlier):
        for event in past.events:
            sight = _key(event)
            over_at = [at for subject, at in now.cleared.items() if _is_of(sight, subject)]
            if sight not in events and event.last_at > max(over_at, default=0.0):
                events[sight] = event
    return tuple(events.values())


def _key(event: KernelEvent) -> _Sight:
    return _Sight(event.shape, event.subject, event.code, event.severity)
