"""The journal: one JSON object a line, appended durably, read back after any crash.

A crash can tear only what was written last. It is set aside in ``journal.torn-<offset>`` and the journal
goes on after the last whole line. Damage anywhere else is not repaired by guessing: it is an error.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from slurm_robust.model.events import AnyEvent, encode_event
from slurm_robust.model.journal import parse, read_bytes
from slurm_robust.util.threads import start_thread


class FileSystem:
    """The file system as it is. Each call may block for minutes; each raises ``OSError``."""

    def open(self, path: Path, flags: int) -> int:
        """Return a descriptor of ``path``, 0600 if it is made now."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes) -> int:
        """Append what fits; return how many bytes that were."""
        return os.write(fd, data)

    def tail(self, fd: int, offset: int) -> bytes:
        """Return what the file has after ``offset``."""
        with open(fd, "rb", closefd=False) as file:  # appending does not depend on the position
            file.seek(offset)
            return file.read()

    def size(self, fd: int) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(fd).st_size

    def cut(self, fd: int, size: int) -> None:
        """Shorten the file to ``size`` bytes."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return when what was written survives a crash of this machine and of the server."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """Close the descriptor."""
        os.close(fd)


# A healthy storage takes what is written within this time, and what follows from it is done immediately.
PATIENCE_S = 0.2
# A write without an answer for this long is reported as trouble.
HANGS_S = 5.0
# Between a write that storage has refused and the next one.
AGAIN_S = 1.0
# For the last write of a controller that ends; Slurm kills it half a minute after its TERM.
CLOSE_S = 10.0
_FLAGS = os.O_RDWR | os.O_APPEND
_NOT_OURS = "storage has lost events that it had taken, and this controller did not write what is there now"


class Journal:
    """The journal of this controller, open for appending.

    One thread writes, in order, since storage may hang for minutes; :attr:`written` says how far it has come.
    What storage does not take (a full folder, a quota, a stale handle) stays in memory and is tried again
    before what comes later. What storage had taken and has lost (a file server that crashed) is written
    again before the next event, unless another controller has gone on from what was left. Only if this
    controller dies meanwhile is it lost. One other thread uses it.
    """

    def __init__(self, path: Path, disk: FileSystem | None = None) -> None:
        """Open or create it. ``events`` holds what was there, ``torn`` the file with a torn line.

        Raises :class:`JournalDamaged`, ``OSError``.
        """
        self.path = path
        self.torn: Path | None = None
        self.wake: Callable[[], None] = lambda: None
        """Called by the writing thread when :attr:`written` or :attr:`trouble` may have changed."""
        self.epoch = 0
        """The epoch of the controller that writes; 0: not known."""
        self.is_ours: Callable[[], bool] = lambda: True
        """Asked by the writing thread before it tries again what storage has refused: another controller may
        have taken over meanwhile. May raise ``OSError``.
        """
        self._disk = disk or FileSystem()
        data = read_bytes(path)
        self.events, self._durable = parse(data, str(path))
        self._fd = self._disk.open(path, _FLAGS | os.O_CREAT)
        if self._durable < len(data):
            self.torn = _set_aside(path.with_name(f"journal.torn-{self._durable}"), data[self._durable :])
            self._disk.cut(self._fd, self._durable)
        self._thread: threading.Thread | None = None
        self._is_retry = False  # the writing thread's, as are the descriptor and the offset once it runs
        self._is_last = False  # that thread's: what it tries now it was asked to try for the last time
        self._lost = b""  # lines that storage had taken, and that are still to be written again
        self._read = data[: self._durable]  # by controllers before this one
        self._known = len(self.events)
        self._end = _last_line(self._read)  # of what is durable, by which the file is recognised
        self._changed = threading.Condition()  # of what follows
        self._unwritten: list[bytes] = []
        self._written = len(self.events)
        self._restored = 0
        self._begun: float | None = None  # when the write began that is under way
        self._error = ""
        self._closing = False
        self._died: BaseException | None = None

    @property
    def written(self) -> int:
        """How many of ``events`` are on storage. Raises ``RuntimeError`` if the writer has ended."""
        with self._changed:
            self._check()
            return self._written

    @property
    def restored(self) -> int:
        """How many times so far storage had lost an event that it had taken, and it was written again."""
        with self._changed:
            return self._restored

    @property
    def trouble(self) -> str:
        """Why the newest events are in memory only; "" if all are on storage, or about to be."""
        with self._changed:
            waited_s = time.monotonic() - self._begun if self._begun is not None else 0.0
            return f"storage has not answered for {waited_s:.0f} s" if waited_s > HANGS_S else self._error

    def append(self, *events: AnyEvent) -> None:
        """Have ``events`` written; :attr:`written` says when they will survive a crash of this machine.

        Together they wait once for the storage, and the caller with them as long as healthy storage takes.
        Raises ``RuntimeError`` if the writer has ended.
        """
        stamped = [structs.replace(event, epoch=event.epoch or self.epoch) for event in events]
        self.events.extend(stamped)
        with self._changed:
            self._check()
            is_behind = bool(self._unwritten)
            self._unwritten += [encode_event(event) + b"\n" for event in stamped]
            self._changed.notify_all()
        if self._thread is None:
            self._thread = start_thread("journal", self._serve)
        if not is_behind:
            self.settle(PATIENCE_S)

    def settle(self, timeout_s: float) -> bool:
        """Wait until storage has taken or refused all events; return whether it has taken all."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unwritten or self._error or self._died, timeout_s)
            return not self._unwritten

    def abandon(self) -> None:
        """Forget what is not on storage: another controller writes there now."""
        with self._changed:
            self._unwritten.clear()

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Try for the last time, ``timeout_s`` at most; whether all is on storage."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        else:
            self._disk.close(self._fd)
        with self._changed:
            return not self._unwritten

    def _check(self) -> None:
        if self._died is not None:
            raise RuntimeError(f"the thread that writes {self.path} has died") from self._died

    # -- the writing thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (lines := self._next_lines()) is not None:
                self._take_back(lines, self._try(b"".join(lines)))
                self.wake()
            self._disk.close(self._fd)
        except BaseException as error:  # noqa: BLE001 - the reader of ``written`` gets it
            with self._changed:
                self._died = error
                self._changed.notify_all()
            self.wake()

    def _next_lines(self) -> list[bytes] | None:
        """Wait for lines to write; None when the journal is closed."""
        with self._changed:
            if self._error and self._is_last:
                return None
            if self._error:
                self._changed.wait_for(lambda: self._closing, AGAIN_S)
            self._changed.wait_for(lambda: self._unwritten or self._closing)
            self._is_last = self._closing
            self._begun = time.monotonic() if self._unwritten else None
            return list(self._unwritten) or None

    def _take_back(self, lines: list[bytes], error: str) -> None:
        with self._changed:
            self._begun, self._error = None, error
            if not error:
                del self._unwritten[: len(lines)]
                self._written += len(lines)
            self._changed.notify_all()

    def _try(self, data: bytes) -> str:
        """Write ``data``; why storage did not take it, "" if it did."""
        try:
            if self._is_retry and not self.is_ours():
                return "another controller has taken over"
            self._write(data)
        except OSError as error:
            self._is_retry = True
            self._reopen()
            return error.strerror or str(error)
        self._is_retry = False
        return ""

    def _write(self, data: bytes) -> None:
        disk, fd = self._disk, self._fd
        if not disk.tail(fd, self._durable - len(self._end)).startswith(self._end):
            # Learn which lines are missing if the end of what was written is not there any more. Raises
            # ``OSError`` if more is wrong than that.
            ours = self.events[self._known : self._written]
            whole = self._read + b"".join(encode_event(event) + b"\n" for event in ours)
            found = self._found(0)
            if not whole.startswith(found):
                raise OSError(errno.ESTALE, _NOT_OURS)
            self._durable = found.rfind(b"\n") + 1
            self._end = _last_line(found[: self._durable])
            self._lost = whole[self._durable :]
        data = self._lost + data
        if self._is_retry or self._lost:
            # Some storage refuses only at the end, and then does not tell what it has kept: write all of it
            # again. What is not ours another controller has written.
            if data.startswith(self._found(self._durable)):
                disk.cut(fd, self._durable)
            elif self._lost:
                raise OSError(errno.ESTALE, _NOT_OURS)
        rest = data
        while rest:
            rest = rest[disk.write(fd, rest) :]
        disk.sync(fd)
        begins = disk.size(fd) - len(data)
        self._end = disk.tail(fd, begins)
        self._durable = begins + len(self._end)
        with self._changed:
            self._restored += self._lost.count(b"\n")
        self._lost = b""

    def _found(self, offset: int) -> bytes:
        """Read what follows ``offset``, but for the zeros that a crash leaves in place of lines."""
        return self._disk.tail(self._fd, offset).rstrip(b"\0")

    def _reopen(self) -> None:
        """Open the file anew: a descriptor may be stale, or its client thrown out by the file server."""
        try:
            fd = self._disk.open(self.path, _FLAGS)
        except OSError:
            return
        old, self._fd = self._fd, fd
        with suppress(OSError):  # what it refused before it may refuse once more now
            self._disk.close(old)


def _last_line(data: bytes) -> bytes:
    return data[data.rfind(b"\n", 0, -1) + 1 :]


def _set_aside(path: Path, data: bytes) -> Path | None:
    """Return the file to which a torn line went; None if storage has no room for it."""
    try:
        path.write_bytes(data)
    except OSError:
        path.unlink(missing_ok=True)
        return None
    return path
