"""Reading a job's journal: one JSON object per line, each an event; the job's state is their fold.

A crash can tear only the last line, which is then left out. Damage anywhere else is an error.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path

import msgspec

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record, decoded
from slurm_robust.model.state import JobState, apply

_SECOND_S = 1.0  # Slurm's own resolution


class JournalDamaged(SrobustError):
    """A line other than the last cannot be read."""

    exit_code = ExitCode.JOURNAL


def parse(
    data: bytes, name: str = "journal", unread: Counter[str] | None = None
) -> tuple[list[ev.AnyEvent], int]:
    """Events of a journal and the offset up to which it is whole.

    What follows that offset is a torn last line. What a controller wrote after another one had taken over is
    left out. Raises :class:`JournalDamaged` for any other line that cannot be read, with its number.

    ``unread``: events of another release, which this one cannot read, are counted there by name, and a note
    stands in the place of each. Only for who reads; who goes on with a job must know all that happened.
    """
    offset = data.rfind(b"\n") + 1
    try:
        whole = ev.decode_events(data[:offset])
    except msgspec.DecodeError:  # line by line, then
        whole, offset = _by_line(data, name, unread)
    events: list[ev.AnyEvent] = []
    newest = 0
    for event in whole:
        if isinstance(event, ev.ControllerStarted) and event.epoch > newest:
            newest = event.epoch
            if event.known >= 0:
                events[event.known :] = [e for e in events[event.known :] if e.epoch in (0, newest)]
        if not 0 < event.epoch < newest:
            events.append(event)
    return events, offset


def _by_line(data: bytes, name: str, unread: Counter[str] | None) -> tuple[list[ev.AnyEvent], int]:
    """The event of each line up to a torn last one, and where that begins. Raises :class:`JournalDamaged`."""
    events: list[ev.AnyEvent] = []
    offset = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        event: ev.AnyEvent | None
        try:
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("no end of line")
            event = ev.decode_event(line)
        except msgspec.DecodeError as error:
            event = _unread_note(line, unread) if unread is not None else None
            if event is None and number == len(lines):
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
    """What stands for a whole line of an event that this release does not know; None for anything else."""
    try:
        found = decoded(_foreign, line, msgspec.DecodeError) if line.endswith(b"\n") else None
    except msgspec.DecodeError:
        return None
    if found is None:
        return None
    unread[found.event] += 1
    return ev.Noted(t=found.t, epoch=found.epoch, text=f"an event of another release: {found.event}")


def fold(events: Iterable[ev.AnyEvent]) -> JobState:
    """The state after ``events``."""
    return reduce(lambda state, event: apply(event, state), events, JobState())


def read(path: Path, unread: Counter[str] | None = None) -> list[ev.AnyEvent]:
    """All whole events of a journal that another process may be writing; ``[]`` without a journal.

    ``unread``: as of :func:`parse`. Raises :class:`JournalDamaged`, ``OSError``.
    """
    return parse(read_bytes(path), str(path), unread)[0]


def read_bytes(path: Path) -> bytes:
    """What the journal holds; b"" only where storage says that there is none. Raises ``OSError``.

    Not by ``exists()``, which says no where storage refuses (Python 3.14): the job would begin anew.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def another_job(
    events: Sequence[ev.AnyEvent], cluster: str, restart_count: int, submitted: float | None
) -> str:
    """How the job of this journal differs from that of the arguments; "" if it is the same. Pure.

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
    """The local time ``t`` (seconds since 1970) to the minute, as Slurm writes it."""
    return time.strftime("%Y-%m-%dT%H:%M", time.localtime(t))
