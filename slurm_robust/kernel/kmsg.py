r"""The kernel's log as records: ``/dev/kmsg``, or a file that holds what was read from it.

A record is one line ``prefix,sequence,microseconds,flags;text``, then lines that begin with a blank and name
its device, which are left out here (Documentation/ABI/testing/dev-kmsg). The kernel writes characters that do
not print as ``\xNN``, so a record cannot break out of its line; a file may hold anything anyway.
"""

from __future__ import annotations

import os
import re
import time
from types import TracebackType

from slurm_robust.kernel.host import Host
from slurm_robust.model.record import Record

DEVICE = "/dev/kmsg"
KERNEL = 0
"""The facility of records that the kernel itself wrote; it lets no other process use it."""

# More than the longest record (8 KiB before Linux 6.5, 2 KiB since), which the kernel hands out whole only.
_CHUNK = 16 * 1024
_LONGEST = 64 * 1024
_HEADER = re.compile(rb"(\d{1,5}),(\d{1,20}),(\d{1,20}),([^,;]{0,8})(?:,[^;]{0,200})?;")
_UNPRINTABLE = re.compile(r"\\x[0-9a-f]{2}|[^ -~]")


class KernelRecord(Record):
    """One message."""

    sequence: int
    uptime_s: float
    """The kernel's clock when it was written: seconds since the boot."""

    level: int
    """Syslog's, 0 (emergency) to 7 (debug)."""

    facility: int
    """Syslog's: :data:`KERNEL`, or another one for what root wrote into the device."""

    text: str
    """Printable ASCII only, in one line."""


class KernelEvent(Record):
    """Messages of one kind about one subject, or one of them. Times are seconds since 1970."""

    shape: str
    """XID, SXID or a name of :data:`~slurm_robust.kernel.shapes.SHAPES`."""

    last_at: float = 0.0
    subject: str = ""
    """A GPU's or a switch's PCI address as ``0000:9b:00``, without function; else what the message names."""

    code: int = 0
    severity: str = ""
    """A value of :class:`~slurm_robust.kernel.xid.Severity`."""

    cause: int = 0
    """The earlier XID that the newest message follows, or 0."""

    count: int = 1
    """Lines, not faults, that the log still has."""

    recent: int = 0
    """How many of them lie in the window before it was read."""

    pids: tuple[int, ...] = ()
    """Processes that recent ones name."""

    process: str = ""
    """The name of the newest of them, in plain characters: a user chooses it."""

    occasions: tuple[int, ...] = ()
    """The first process of each recent burst, see :data:`~slurm_robust.kernel.events.BURST_S`."""

    line: str = ""
    """The newest."""


def parse(line: bytes) -> KernelRecord | None:
    """Return the record of one line; None for anything else, and for the later parts of a broken-up message.

    A part (flag ``+``, before Linux 5.10) may begin with what a user chose, and must not pass for a message.
    """
    head = _HEADER.match(line)
    if head is None or head[4] == b"+":
        return None
    prefix = int(head[1])
    text = line[head.end() :].decode("ascii", errors="replace")
    return KernelRecord(
        sequence=int(head[2]),
        uptime_s=int(head[3]) / 1e6,
        level=prefix & 7,
        facility=prefix >> 3,
        text=_UNPRINTABLE.sub(" ", text),
    )


def boot_time(host: Host) -> float:
    """Return when the machine booted: add a record's ``uptime_s`` for its wall-clock time.

    The kernel's clock is not steered by NTP, so times of records drift by seconds within weeks.
    """
    return time.time() - host.uptime_s()


class KernelLog:
    """An open kernel log, read from its beginning or after the sequence number ``since``; never waits.

    ``sequence`` is the newest record that was read. ``cut`` says that the last :meth:`read` ended at its
    limits. ``fileno()`` can be polled.
    """

    def __init__(self, host: Host, since: int = -1) -> None:
        """Open the log. Raises ``OSError``: ``PermissionError`` for users under ``kernel.dmesg_restrict``."""
        self._file = os.open(host.path(DEVICE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self.sequence = since
        self.cut = False

    def __enter__(self) -> KernelLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def fileno(self) -> int:
        """Return the descriptor, readable when there are new records (of the device only)."""
        return self._file

    def read(
        self, begins: tuple[bytes, ...] = (b"",), *, max_bytes: int = 2**24, max_s: float = 2.0
    ) -> list[KernelRecord]:
        """Return all records that were not read yet, if their text begins with one of ``begins``."""
        lines = b"".join((self._rest, *self._chunks(max_bytes, time.monotonic() + max_s))).split(b"\n")
        self._rest = lines.pop()[:_LONGEST]
        # Nearly all records are of no interest, so they are not parsed: that would take most of the time.
        wanted = [line for line in lines if line.startswith(begins, line.find(b";") + 1)]
        found = [record for record in map(parse, wanted) if record and record.sequence > self.sequence]
        newest = next(filter(None, map(parse, reversed(lines))), None)
        if newest:
            self.sequence = max(self.sequence, newest.sequence)
        return found

    def _chunks(self, max_bytes: int, until: float) -> list[bytes]:
        """Return all that can be read now; the device gives one record at a time."""
        chunks: list[bytes] = []
        self.cut = False
        while True:
            try:
                chunk = os.read(self._file, _CHUNK)
            except BlockingIOError:
                return chunks
            except BrokenPipeError:
                pass  # records were overwritten unread: goes on with the oldest one left
            else:
                if not chunk:
                    return chunks
                chunks.append(chunk)
                max_bytes -= len(chunk)
            if max_bytes <= 0 or time.monotonic() > until:
                self.cut = True
                return chunks
