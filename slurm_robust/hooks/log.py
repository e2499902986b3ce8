"""What hooks did and found: JSON lines in a file, and a line in syslog for what an administrator should
see.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Protocol

import msgspec

from slurm_robust.config.node import Paths
from slurm_robust.util.isolate import call
from slurm_robust.util.text import as_json, ascii_line

TAG = "slurm-robust"
WRITE_S = 1.0
"""How long a line may take; then it is lost."""

_LINE_BYTES = 2**16
_SYSLOG_BYTES = 800


class Log(Protocol):
    """A log of events."""

    def write(self, event: str, **facts: object) -> None:
        """Write an event. Never raises, never blocks."""
        ...


class EventLog:
    """Appends events. Never raises and never blocks for longer than :data:`WRITE_S`.

    The file may be on a full or a dead disk, and syslog may be gone, just when there is something to say: so
    a child writes, and what it cannot write is lost. A line that the file does not take goes to syslog.
    """

    def __init__(self, paths: Paths, node: str) -> None:
        self._paths = paths
        self._node = node

    def write(self, event: str, **facts: object) -> None:
        """Write one event now, also to syslog. ``facts`` are what msgspec can encode."""
        self._write(event, facts, quiet=False)

    def note(self, event: str, **facts: object) -> None:
        """Write one event now that needs no action: only to the file."""
        self._write(event, facts, quiet=True)

    def _write(self, event: str, facts: dict[str, object], *, quiet: bool) -> None:
        head = {"at": round(time.time(), 3), "node": self._node, "event": event}
        line = _encode(head | facts)
        if len(line) > _LINE_BYTES:
            line = _encode(head | {"left_out": f"{len(line)} bytes"})
        fields = " ".join(f"{name}={_plain(value)}" for name, value in facts.items())
        text = ascii_line(f"{event} {fields}", _SYSLOG_BYTES)
        call({"line": lambda: self._put(line, text, quiet)}, {"line": WRITE_S}, WRITE_S)

    def _put(self, line: bytes, text: str, quiet: bool) -> bytes:
        try:
            _append(self._paths.log, line)
        except OSError as error:
            quiet, text = False, f"{text} ({self._paths.log}: {error.strerror})"
        if self._paths.syslog and not quiet:
            import syslog  # in the child only, and seldom

            syslog.openlog(TAG, syslog.LOG_PID, syslog.LOG_DAEMON)
            syslog.syslog(syslog.LOG_WARNING, text)
        return b""


def _append(name: str, line: bytes) -> None:
    os.makedirs(os.path.dirname(name), mode=0o750, exist_ok=True)
    # A pipe or device in its place is not waited for and not written to.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, 0o640)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "not a regular file")
        os.write(fd, line + b"\n")
    finally:
        os.close(fd)


def _encode(facts: dict[str, object]) -> bytes:
    """Encode as JSON in ASCII. A job's name may be any bytes except zero."""
    try:
        line = msgspec.json.encode(facts, enc_hook=repr)
    except UnicodeEncodeError:  # bytes that were no UTF-8
        line = b""
    if line and line.isascii() and b"\x7f" not in line:
        return line
    return as_json(msgspec.to_builtins(facts, enc_hook=repr), indent=None).encode()


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _encode({"": value})[4:-1].decode()
