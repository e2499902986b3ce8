"""Reading a job's journal: one JSON object per line, each an event; the job's state is their fold.

A crash can tear only the last line, which is then left out. Damage anywhere else is an error.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path

import msgspec

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record, decoded
from slurm_robust.model.state import JobState, apply

_SECOND_S = 1.0  # Slurm's own resolution
_PIECE = 1 << 20  # bytes that are decoded between two reports of how far a journal is read


class JournalDamaged(SrobustError):
    """A line other than the last cannot be read."""

    exit_code = ExitCode.JOURNAL


def parse(
    data: bytes,
    name: str = "journal",
    advance: Callable[[int], None] | None = None,
    unread: Counter[str] | None = None,
) -> tuple[list[ev.AnyEvent], int]:
    """Return the events of a journal and the offset up to which it is whole.

    What follows that offset is a torn last line. What a controller wrote after another one had taken over is
    left out. ``advance`` is told now and then how many more bytes are read. Raises :class:`JournalDamaged`
    for any other line that cannot be read, with its number.

    ``unread``: events of another release, which this one cannot read, are counted there by name, and a note
    stands in the place of each. Only for who reads; who goes on with a job must know all that happened.
    """
    found = Events()
    offset = number = 0
    for piece, is_last in _pieces(data):
        try:
            if not piece.endswith(b"\n"):
                raise msgspec.DecodeError("no end of line")
            events, whole = ev.decode_events(piece), len(piece)
        except msgspec.DecodeError:  # line by line, then
            events, whole = _by_line(piece, name, unread, number, is_last=is_last)
        for event in events:
            found.add(event)
        number += len(events)
        offset += whole
        if advance is not None:
            advance(whole)
    return found.events, offset


def _pieces(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield ``data`` in pieces of many lines each, and whether it is the last one."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin + _PIECE) + 1 or len(data)
        yield data[begin:end], end == len(data)
        begin = end


class Events:
    """The events of a journal that count, as it grows."""

    def __init__(self) -> None:
        self.events: list[ev.AnyEvent] = []
        """Only to be read."""
        self.cuts = 0
        """How often some of them turned out not to count, so that a fold of them must begin anew."""
        self._newest = 0

    def add(self, event: ev.AnyEvent) -> bool:
        """Take in the next line; False for one that a controller wrote after another had taken over."""
        if isinstance(event, ev.ControllerStarted) and event.epoch > self._newest:
            self._newest = event.epoch
            if event.known >= 0:
                late = self.events[event.known :]
                self.events[event.known :] = [e for e in late if e.epoch in (0, self._newest)]
                self.cuts += len(self.events) < event.known + len(late)
        counts = not 0 < event.epoch < self._newest
        if counts:
            self.events.append(event)
        return counts


def _by_line(
    data: bytes, name: str, unread: Counter[str] | None, before: int, *, is_last: bool
) -> tuple[list[ev.AnyEvent], int]:
    """Decode the event of each line up to a torn last one of the file; return them and its offset.

    ``before``: lines ahead of these. Raises :class:`JournalDamaged`.
    """
    events: list[ev.AnyEvent] = []
    offset = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, before + 1):
        event: ev.AnyEvent | None
        try:
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("no end of line")
            event = ev.decode_event(line)
        except msgspec.DecodeError as error:
            event = _unread_note(line, unread) if unread is not None else None
            if event is None and is_last and number == before + len(lines):
                break
            if event is None:
                raise JournalDamaged(
                    f"{name}, line {number}: {error}",
                    fix=f"line {number} was changed, or written by another version of slurm_robust, or "
                    "storage lost data; nothing was touched. Go on with the version that wrote it, restore "
                    "the journal from a copy, or move the job directory aside to start the job over",
                ) from error
        events.append(event)
        offset += len(line)
    return events, offset


class _Foreign(Record):
    """What events of every release have."""

    event: str
    t: float
    epoch: int = 0


_foreign = msgspec.json.Decoder(_Foreign)


def _unread_note(line: bytes, unread: Counter[str]) -> ev.Noted | None:
    """Return what stands for a whole line of an event of another release; None for anything else."""
    try:
        found = decoded(_foreign, line, msgspec.DecodeError) if line.endswith(b"\n") else None
    except msgspec.DecodeError:
        return None
    if found is None:
        return None
    unread[found.event] += 1
    return ev.Noted(t=found.t, epoch=found.epoch, text=f"an event of another release: {found.event}")


def fold(events: Iterable[ev.AnyEvent]) -> JobState:
    """Return the state after ``events``."""
    return reduce(lambda state, event: apply(event, state), events, JobState())


def read(path: Path, unread: Counter[str] | None = None) -> list[ev.AnyEvent]:
    """Read all whole events of a journal that another process may be writing; ``[]`` without a journal.

    ``unread``: as of :func:`parse`. Raises :class:`JournalDamaged`, ``OSError``.
    """
    return parse(read_bytes(path), str(path), unread=unread)[0]


def read_bytes(path: Path) -> bytes:
    """Read what the journal holds; b"" only if storage says that there is none. Raises ``OSError``.

    It does not use ``exists()``, which says no if storage refuses (Python 3.14): the job would begin anew.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def another_job(
    events: Sequence[ev.AnyEvent], cluster: str, restart_count: int, submitted: float | None
) -> str:
    """Say how the job of this journal differs from that of the arguments; "" if it is the same. Pure.

    The restart count of a job only grows, and each of its runs has one submit time. What is unknown on
    either side is ignored.
    """
    started = next((e for e in events if isinstance(e, ev.RunStarted)), None)
    if started is not None and started.cluster and cluster and started.cluster != cluster:
        return f"of cluster {started.cluster}"
    runs = {e.restart_count: e.submitted for e in events if isinstance(e, ev.AllocationTaken)}
    if restart_count not in runs:
        return "restarted more often" if any(run > restart_count for run in runs) else ""
    before = runs[restart_count]
    if before is None or submitted is None or abs(before - submitted) < _SECOND_S:
        return ""
    return f"submitted at {minute(before)}"


def minute(t: float) -> str:
    """Format the local time ``t`` (seconds since 1970) to the minute, as Slurm writes it."""
    return time.strftime("%Y-%m-%dT%H:%M", time.localtime(t))
