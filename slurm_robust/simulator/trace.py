"""Failure traces: which nodes were out of service, when and why. Pure.

There are two formats: CSV, which a site writes by hand or from Slurm's accounting, and the JSON of
InfiniteHBD-Trace. In CSV a line is one outage::

    # nodes: 400
    # until: 2026-02-01T00:00+00:00
    node,start,end,kind,description
    gpu017,2026-01-05T08:00+00:00,2026-01-05T20:00+00:00,GPU,XID 79

Times are ISO 8601 with a time zone (``start``, ``end``), or numbers with their unit in the head: ``start_s``
and ``end_s``, ``start_hours`` and ``end_hours``, ``start_days`` and ``end_days``. An outage without an end
lasts to the end of the trace.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from slurm_robust.home import page
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util.text import count, one_line, some_of

DAY_S = 86400.0

MAX_NODES = 1_000_000
"""A trace of more nodes is a mistake."""

_MAX_SHOWN = 20

# A pause that is this many times as long as the mean one is no accident, even where outages come in bursts.
_GAP = 50.0

_UNITS_S = {"s": 1.0, "hours": 3600.0, "days": DAY_S}
_OPEN = frozenset({"", "-", "unknown", "none"})
_SETTING = re.compile(r"#\s*(nodes|from|until)\s*:\s*(.*?)\s*$", re.IGNORECASE)
_LEAST = ("node", "start", "end")
_HEAD_FIX = "begin with the line node,start,end,kind for dates, or node,start_s,end_s,kind (or _hours, _days)"


class Outage(Record):
    """One time in which a node was out of service."""

    node: str
    start: float
    """Seconds since the beginning of the trace."""
    end: float | None = None
    """None: it still lasted at the end of the trace."""
    kind: str = ""
    description: str = ""


class FailureTrace(Record):
    """The outages of ``nodes`` in ``span_s`` seconds, by start; those of one node do not overlap."""

    nodes: int
    span_s: float
    outages: tuple[Outage, ...]
    notes: tuple[str, ...] = ()
    """What was assumed or joined, in words for people."""

    def lasted(self, outage: Outage) -> float:
        """Return for how many seconds a node was out, until the end of the trace at most."""
        return (self.span_s if outage.end is None else outage.end) - outage.start


class TraceInvalid(SrobustError):
    """A trace has mistakes; the message has all of them, each with its line or entry."""

    exit_code = ExitCode.NO_INPUT
    fix = f"correct them; the format is at {page('fleet.md#failure-traces')}"

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        shown = [one_line(problem) for problem in self.problems[:_MAX_SHOWN]]
        if more := len(self.problems) - len(shown):
            shown.append(f"and {more:,} more")
        super().__init__("\n".join([f"{count(len(self.problems), 'mistake')} in the trace:", *shown]))


class _Found(NamedTuple):
    """An outage on the clock of its file."""

    where: str
    node: str
    start: float
    end: float | None
    kind: str
    description: str


class _Read:
    """What a file says, and what is wrong with it."""

    def __init__(self) -> None:
        self.found: list[_Found] = []
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.nodes: int | None = None
        self.begin: float | None = None
        self.until: float | None = None

    def add(self, found: _Found) -> None:
        if found.end is not None and found.end < found.start:
            self.problems.append(f"{found.where}: the outage ends before it starts; exchange start and end")
        self.found.append(found)


def parse(data: bytes, nodes: int | None = None) -> FailureTrace:
    """Read a trace of either format. Raises :class:`TraceInvalid`.

    ``nodes``: the number of nodes that it is of, with those that had no outage; None: what it says itself.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceInvalid([f"byte {error.start}: no UTF-8; save the trace as CSV in UTF-8"]) from error
    begin = text.lstrip()[:1]
    if not begin:
        raise TraceInvalid([f"the file is empty; {_HEAD_FIX}"])
    read = _from_json(text) if begin in "[{" else _from_csv(text)
    return _trace(read, nodes)


# -- CSV ----------------------------------------------------------------------------------------------------


def _from_csv(text: str) -> _Read:
    read = _Read()
    settings: dict[str, tuple[str, str]] = {}
    rows = csv.reader(_without_comments(text, settings), strict=True)
    clock: Callable[[str], float] | None = None
    places: dict[str, int] = {}
    zones: set[str] = set()
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            where = f"line {rows.line_num}"
            if clock is None:
                clock, places = _head(cells, where, read, zones)
            elif len(cells) <= max(places[name] for name in _LEAST):
                read.problems.append(
                    f"{where}: {count(len(cells), 'column')}, and the head has {len(places)}"
                )
            else:
                _row(cells, places, where, clock, read)
    except csv.Error as error:
        read.problems.append(f'line {rows.line_num}: {error}; quote texts by " and end each quote')
    if clock is None:
        raise TraceInvalid([*read.problems, f"no line beside comments; {_HEAD_FIX}"])
    _settings(settings, clock, read)
    if len(zones) > 1:
        read.notes.append(
            f"times have {len(zones)} zones ({some_of(sorted(zones))}); each counts with its own"
        )
    return read


def _without_comments(text: str, settings: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the lines; comments are empty ones, so that the others keep their numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#"):
            yield line.replace("\0", "?")
            continue
        if match := _SETTING.match(line):
            settings[match[1].lower()] = (f"line {number}", match[2])
        yield ""


def _head(
    cells: list[str], where: str, read: _Read, zones: set[str]
) -> tuple[Callable[[str], float], dict[str, int]]:
    """Return what reads a time, and where the columns are. Raises :class:`TraceInvalid`."""
    names = [cell.lower() for cell in cells]
    units = {unit for unit in _UNITS_S if f"start_{unit}" in names}
    unit = units.pop() if len(units) == 1 else ""
    plain = [
        name.removesuffix(f"_{unit}") if unit and name.startswith(("start_", "end_")) else name
        for name in names
    ]
    if units or any(plain.count(name) != 1 for name in _LEAST):
        raise TraceInvalid([f"{where}: no head of a trace: {','.join(cells)}; {_HEAD_FIX}"])
    unread = [name for name in plain if name not in (*_LEAST, "kind", "description")]
    if unread:
        read.notes.append(f"columns that are not read: {some_of(unread)}")
    places = {name: plain.index(name) for name in plain if name not in unread}
    if not unit:
        return (lambda text: _date(text, zones)), places
    return (lambda text: _number(text) * _UNITS_S[unit]), places


def _row(
    cells: list[str], places: dict[str, int], where: str, clock: Callable[[str], float], read: _Read
) -> None:
    def cell(name: str) -> str:
        place = places.get(name, len(cells))
        return cells[place] if place < len(cells) else ""

    problems = []
    start = end = math.nan
    if not (node := cell("node")):
        problems.append("no node; name the node in the column node")
    if cell("start").lower() in _OPEN:
        problems.append("an end without a start; write when the outage began, or leave the line out")
    else:
        try:
            start = clock(cell("start"))
        except ValueError as error:
            problems.append(f"start {error}")
    is_open = cell("end").lower() in _OPEN
    if not is_open:
        try:
            end = clock(cell("end"))
        except ValueError as error:
            problems.append(f"end {error}")
    if problems:
        read.problems += [f"{where}: {problem}" for problem in problems]
    else:
        read.add(_Found(where, node, start, None if is_open else end, cell("kind"), cell("description")))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is no number; dates need a head without a unit (start,end)")
    return value


def _date(text: str, zones: set[str]) -> float:
    iso = f"{text[:-1]}+00:00" if text[-1:] in "Zz" else text
    # As date prints a zone; Python 3.10 reads it with a colon only.
    iso = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", iso) if "T" in iso or " " in iso else iso
    try:
        found = datetime.fromisoformat(iso)
        if found.tzinfo is not None:
            zones.add(found.strftime("%z"))
            return found.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no date such as 2026-01-05T08:00+00:00; numbers need a unit in the head (start_s)"
        ) from None
    raise ValueError(
        f"{text!r} has no time zone; write for example 2026-01-05T08:00+00:00 or 2026-01-05T08:00Z"
    )


def _settings(settings: dict[str, tuple[str, str]], clock: Callable[[str], float], read: _Read) -> None:
    for name, (where, text) in settings.items():
        try:
            if name == "nodes":
                read.nodes = _many(text)
            elif name == "from":
                read.begin = clock(text)
            else:
                read.until = clock(text)
        except ValueError as error:
            read.problems.append(f"{where}: {name} {error}")


def _many(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= MAX_NODES):
        raise ValueError(f"{text!r} is no number from 1 to {MAX_NODES:,}")
    return int(text)


# -- the JSON of InfiniteHBD-Trace --------------------------------------------------------------------------


class _Fault(Record):
    kind: str = msgspec.field(default="", name="Class")
    description: str = msgspec.field(default="", name="Desc")


class _Event(Record):
    node_id: str
    event_time: float
    event_type: str
    fault_type: _Fault = _Fault()


def _from_json(text: str) -> _Read:
    """Pair the starts and ends of each node and class of fault; times are days since the trace began."""
    try:
        entries: Any = msgspec.json.decode(text)
    except UNREADABLE as error:
        raise TraceInvalid([f"{error}; the trace is no whole JSON document"]) from error
    if not isinstance(entries, list):
        raise TraceInvalid(
            ["a JSON object; a trace is CSV, or the list of fault_start and fault_end of InfiniteHBD-Trace"]
        )
    read = _Read()
    read.begin = 0.0
    events: list[tuple[float, int, _Event]] = []
    for number, entry in enumerate(entries, 1):
        try:
            event = msgspec.convert(entry, _Event)
            if not math.isfinite(event.event_time):
                raise msgspec.ValidationError("event_time is no finite number")
            events.append((event.event_time * DAY_S, number, event))
        except UNREADABLE as error:
            read.problems.append(f"entry {number}: {error}")
    waiting: defaultdict[tuple[str, _Fault], list[tuple[float, int]]] = defaultdict(list)
    # An end stands behind a start of the same moment.
    for at, number, event in sorted(events, key=lambda e: (e[0], e[2].event_type != "fault_start", e[1])):
        begun = waiting[event.node_id, event.fault_type]
        if event.event_type == "fault_start":
            begun.append((at, number))
        elif event.event_type != "fault_end":
            read.problems.append(
                f"entry {number}: event_type {event.event_type!r} is neither fault_start nor fault_end"
            )
        elif not begun:
            read.problems.append(
                f"entry {number}: an end without a start of {event.node_id}; add its fault_start"
            )
        else:
            start, first = begun.pop(0)
            read.add(_found(f"entry {first}", event, start, at))
    for (node, fault), begun in waiting.items():
        for start, number in begun:
            event = _Event(node_id=node, event_time=start, event_type="", fault_type=fault)
            read.add(_found(f"entry {number}", event, start, None))
    return read


def _found(where: str, event: _Event, start: float, end: float | None) -> _Found:
    return _Found(where, event.node_id, start, end, event.fault_type.kind, event.fault_type.description)


# -- both ---------------------------------------------------------------------------------------------------


def _trace(read: _Read, given: int | None) -> FailureTrace:
    """Make the trace of what was read. Raises :class:`TraceInvalid`."""
    notes = list(read.notes)
    names = dict.fromkeys(found.node for found in read.found)
    nodes = given or read.nodes
    if nodes is None:
        nodes = len(names)
        notes.append(
            f"the trace does not say its number of nodes: {nodes} that had an outage are counted, and all "
            "others are missing; add '# nodes: N', or give --trace-nodes N"
        )
    if len(names) > nodes:
        beyond = [*names][nodes:]
        read.problems.append(
            f"{len(names)} nodes have an outage, and the trace is of {nodes} (beyond these: "
            f"{some_of(beyond, 3)}); correct the number of nodes"
        )
    begin, until = _span(read, notes)
    for found in read.found:
        last = max(found.start, found.end or found.start)
        if found.start < begin or last > until:
            read.problems.append(
                f"{found.where}: outside of the trace; correct its time, or '# from:' and '# until:'"
            )
    if not read.found and not read.problems:
        read.problems.append("no outage; a trace needs one line for each")
    elif until <= begin and not read.problems:
        read.problems.append("the trace takes no time; add '# from:' and '# until:'")
    if read.problems:
        raise TraceInvalid(read.problems)
    outages = _joined(read.found, begin, notes)
    _note_gap(outages, until - begin, notes)
    return FailureTrace(nodes=nodes, span_s=until - begin, outages=outages, notes=tuple(notes))


def _span(read: _Read, notes: list[str]) -> tuple[float, float]:
    begin, until = read.begin, read.until
    if begin is None:
        begin = min((found.start for found in read.found), default=0.0)
        notes.append("the trace begins with its first outage; '# from:' would say when it really does")
    if until is None:
        until = max((max(found.start, found.end or found.start) for found in read.found), default=0.0)
        notes.append(
            "the trace ends with the last time that it names; '# until:' would say when it really does"
        )
    return begin, until


def _joined(every: Iterable[_Found], begin: float, notes: list[str]) -> tuple[Outage, ...]:
    """Return the outages by start; those of one node that overlap are one, of the kind of the first."""
    last: dict[str, int] = {}
    outages: list[Outage] = []
    joined = []
    for found in sorted(every, key=lambda f: (f.start, f.node)):
        end = None if found.end is None else found.end - begin
        start = found.start - begin
        before = outages[last[found.node]] if found.node in last else None
        if before is not None and (before.end is None or start < before.end):
            joined.append(found)
            longer = None if before.end is None or end is None else max(before.end, end)
            outages[last[found.node]] = msgspec.structs.replace(before, end=longer)
            continue
        last[found.node] = len(outages)
        outages.append(
            Outage(node=found.node, start=start, end=end, kind=found.kind, description=found.description)
        )
    if joined:
        where = some_of([found.where for found in joined], 3)
        notes.append(
            f"{count(len(joined), 'outage')} within another one of the same node counted with that ({where})"
        )
    return tuple(outages)


def _note_gap(outages: tuple[Outage, ...], span_s: float, notes: list[str]) -> None:
    times = [0.0, *(outage.start for outage in outages), span_s]
    gap, after = max((later - sooner, sooner) for sooner, later in pairwise(times))
    if gap > _GAP * span_s / len(outages):
        notes.append(
            f"no outage began for {gap / DAY_S:.0f} days after day {after / DAY_S:.0f}: is a part of the "
            "trace missing?"
        )
