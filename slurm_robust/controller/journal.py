"""The journal: one JSON object a line, appended durably, read back after any crash.

A crash can tear only what was written last. It is set aside in ``journal.torn-<offset>`` and the journal
goes on after the last whole line. Damage anywhere else is not repaired by guessing: it is an error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from functools import reduce
from pathlib import Path

import msgspec

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.events import AnyEvent, decode_event, encode_event
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.state import JobState, apply


class JournalDamaged(SrobustError):
    """A line that is not the last one cannot be read."""

    exit_code = ExitCode.JOURNAL


def parse(data: bytes, name: str = "journal") -> tuple[list[AnyEvent], int]:
    """Events of a journal and the offset up to which it is whole.

    What follows that offset is a torn last line. Raises :class:`JournalDamaged` for any other line
    that cannot be read, with its number.
    """
    events: list[AnyEvent] = []
    offset = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("no end of line")
            events.append(decode_event(line))
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            damaged = JournalDamaged(f"{name}, line {number}: {error}")
            damaged.fix = (
                f"line {number} was changed or the storage lost data; nothing was touched. Move the job "
                "directory aside to start the job anew, or restore the journal from a copy"
            )
            raise damaged from error
        offset += len(line)
    return events, offset


def fold(events: Iterable[AnyEvent]) -> JobState:
    """The state after ``events``."""
    return reduce(lambda state, event: apply(event, state), events, JobState())


def read(path: Path) -> list[AnyEvent]:
    """All whole events of a journal somebody else may be writing; ``[]`` if there is none.

    Raises :class:`JournalDamaged`, ``OSError``.
    """
    try:
        return parse(path.read_bytes(), str(path))[0]
    except FileNotFoundError:
        return []


class Journal:
    """The journal of this controller, open for appending.

    What storage does not take now (a full folder, a quota, a stale handle) stays in memory and goes first the
    next time: training must not pay for it. Only if this controller dies meanwhile is it lost.
    """

    def __init__(self, path: Path) -> None:
        """Open or create it. ``events`` holds what was there, ``torn`` where a torn line went.

        Raises :class:`JournalDamaged`, ``OSError``.
        """
        self.path = path
        self.torn: Path | None = None
        self.trouble = ""
        """Why the newest events are in memory only, "" if all are on storage."""
        data = path.read_bytes() if path.exists() else b""
        self.events, self._durable = parse(data, str(path))
        self._unwritten = b""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._durable < len(data):
            self.torn = _set_aside(path.with_name(f"journal.torn-{self._durable}"), data[self._durable :])
            os.ftruncate(self._fd, self._durable)

    def append(self, *events: AnyEvent) -> None:
        """Write ``events`` so that they survive a crash of this machine, or keep them: see ``trouble``.

        Together they wait once for the storage, which takes 5 to 20 ms where that is NFS.
        """
        self.events.extend(events)
        self._unwritten += b"".join(encode_event(event) + b"\n" for event in events)
        self.flush()

    def flush(self) -> None:
        """Try to write what is in memory only."""
        if not self._unwritten:
            return
        try:
            self._write()
        except OSError as error:
            self.trouble = error.strerror or str(error)
            if error.errno == errno.ESTALE:
                self._reopen()
        else:
            self.trouble = ""

    def _write(self) -> None:
        # Some storage refuses only at the end, and then nobody can tell what it has kept: all of it again.
        # What is not ours another controller has written.
        if self.trouble and self._unwritten.startswith(os.pread(self._fd, 1 << 24, self._durable)):
            os.ftruncate(self._fd, self._durable)
        data = self._unwritten
        while data:
            data = data[os.write(self._fd, data) :]
        os.fdatasync(self._fd)
        self._durable += len(self._unwritten)
        self._unwritten = b""

    def _reopen(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            return
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Try for the last time."""
        self.flush()
        os.close(self._fd)


def _set_aside(path: Path, data: bytes) -> Path | None:
    """Where a torn line went; None where storage has no room for it."""
    try:
        path.write_bytes(data)
    except OSError:
        path.unlink(missing_ok=True)
        return None
    return path
