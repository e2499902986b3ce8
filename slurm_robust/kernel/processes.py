"""The processes of a node, as /proc lists them (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from slurm_robust.kernel.host import Host

# Kernel threads have this flag; some of them sleep uninterruptibly all their life.
_KERNEL_THREAD = 0x00200000
_PARENT_OF_THREADS = "2"
# Places in /proc/PID/stat, counted from the tenth field on: the time of the start, signals that are pending.
_START, _PENDING = 12, 21
_SIGKILL = 1 << 8


class KernelProcess(NamedTuple):
    """One process."""

    pid: int
    name: str
    state: bytes
    """Its letter."""

    parent: int
    start: int
    """0 unless it waits uninterruptibly."""

    uid: int
    killed: bool = False
    """It waits uninterruptibly although it was sent SIGKILL."""


def listed(host: Host) -> Iterator[KernelProcess]:
    """Yield all but threads of the kernel. A process that ends meanwhile is left out."""
    # There may be thousands: this reads a file in a third of the time that pathlib takes.
    folder = os.open(host.path("/proc"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        threads = _kernel_threads(host, folder)
        for name in os.listdir(folder):
            if name[0] in "123456789" and name not in threads:
                try:
                    process = _process(folder, name)
                except (OSError, ValueError, IndexError):
                    continue
                if process:
                    yield process
    finally:
        os.close(folder)


def _kernel_threads(host: Host, folder: int) -> frozenset[str]:
    """Return those that the kernel lists in one file, if it is built to: a large node has thousands."""
    try:
        if _process(folder, _PARENT_OF_THREADS) is not None:
            return frozenset()  # in a container it is any process
    except (OSError, ValueError, IndexError):
        return frozenset()
    return frozenset(host.read_or(f"/proc/{_PARENT_OF_THREADS}/task/{_PARENT_OF_THREADS}/children").split())


def _process(folder: int, name: str) -> KernelProcess | None:
    file = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=folder)
    try:
        data = os.read(file, 1024)
    finally:
        os.close(file)
    # A program may have blanks and brackets in its name: the last bracket ends it.
    end = data.rindex(b")")
    fields = data[end + 2 :].split(b" ", 7)
    if int(fields[6]) & _KERNEL_THREAD:
        return None
    state = fields[0]
    # From the place after the parent's faults on (proc(5), fields 10 and up).
    rest = fields[7].split(b" ", 22) if state == b"D" else []
    return KernelProcess(
        pid=int(name),
        name=_printable(data[data.index(b"(") + 1 : end]),
        state=state,
        parent=int(fields[1]),
        start=int(rest[_START]) if rest else 0,
        # The files of a process belong to root when it may not be traced; its folder never does.
        uid=os.stat(name, dir_fd=folder).st_uid,
        killed=len(rest) > _PENDING and bool(int(rest[_PENDING]) & _SIGKILL),
    )


def _printable(name: bytes) -> str:
    text = name.decode("ascii", errors="replace")
    return text if text.isprintable() and text.isascii() else ascii(text)[1:-1]
