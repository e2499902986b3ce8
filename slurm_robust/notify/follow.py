"""Follows a journal that another process writes, also over its takeovers and restarts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import JournalDamaged, parse


class Followed(NamedTuple):
    """The next event."""

    event: ev.AnyEvent
    offset: int
    """The end of its line, in bytes."""
    before: Sequence[ev.AnyEvent] | None = None
    """If events before it do not count any more: those that do."""


class JournalFollower:
    """Reads what was added to a journal. What cannot be read is passed over, and so is a torn last line."""

    def __init__(self, directory: JobDirectory) -> None:
        self._path = directory.journal
        self._offset = 0
        self._count = 0  # events that count, as controllers count them
        self._newest = 0
        self.unreadable = 0
        """Lines that were passed over: of a newer release, or damaged."""

    def read(self) -> Iterator[Followed]:
        """Yield what is new. Raises ``OSError``."""
        try:
            if os.stat(self._path).st_size == self._offset:
                return
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = self._count = self._newest = 0  # another file: what has a key is told once
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    yield from self._event(line)
        except FileNotFoundError:
            return

    def _event(self, line: bytes) -> Iterator[Followed]:
        try:
            event = ev.decode_event(line)
        except msgspec.DecodeError:
            self.unreadable += 1
            return
        before = None
        if isinstance(event, ev.ControllerStarted) and event.epoch > self._newest:
            self._newest = event.epoch
            if 0 <= event.known < self._count:
                before = self._events_before(event)
        if not 0 < event.epoch < self._newest:
            self._count += 1
            yield Followed(event, self._offset, before)

    def _events_before(self, event: ev.ControllerStarted) -> Sequence[ev.AnyEvent] | None:
        """Return what counts since another controller took over."""
        try:
            with self._path.open("rb") as file:
                events = parse(file.read(self._offset))[0]
        except JournalDamaged:
            return None
        self._count = len(events) - 1
        return events[:-1] if events and events[-1] == event else None
