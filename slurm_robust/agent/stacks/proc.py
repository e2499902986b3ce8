"""Processes as /proc tells them, by the files that never wait for the process itself.

Reading ``cmdline``, ``maps`` or ``environ`` waits for a lock that a process holds while it hangs on a dead
file system; ``stat``, ``status`` and the links in ``fd`` do not (proc(5)).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_robust.model.record import Record
from slurm_robust.worker.dump import DUMP_SIGNAL, STACKS_SUFFIX

STOPPED, DEAD = frozenset("Tt"), frozenset("ZXx")

# utime, stime, cutime and cstime, counted from the state; in clock ticks.
_CPU_FIELDS = slice(11, 15)
_TICKS = os.sysconf("SC_CLK_TCK")

_OUR_BIT = 1 << (DUMP_SIGNAL - 1)


class Process(Record):
    """One line of the process table; ``state`` is the letter of proc_pid_stat(5).

    ``cpu_s``: processor time that it and its children which have ended have used.
    """

    pid: int
    parent: int
    name: str
    state: str
    cpu_s: float = 0.0


def process_table() -> dict[int, Process]:
    """All processes that can be seen, by pid."""
    found = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def read_process(pid: int) -> Process | None:
    """One process; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # pid (name) state parent ...: the name may hold anything, so look for its last bracket.
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 2:
        return None
    ticks = sum(map(int, fields[_CPU_FIELDS]))
    return Process(
        pid=pid, parent=int(fields[1]), name=head.partition("(")[2], state=fields[0], cpu_s=ticks / _TICKS
    )


def descendants(table: Mapping[int, Process], ancestor: int) -> tuple[Process, ...]:
    """Children of ``ancestor``, then their children, and so on."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    generation = children.get(ancestor, [])
    while generation:
        found += generation
        generation = [child for process in generation for child in children.get(process.pid, ())]
    return tuple(found)


def stacks_file(pid: int, known: Path | None) -> Path | None:
    """The file that the handler of ``DUMP_SIGNAL`` in ``pid`` writes to; None where there is no handler.

    A process that has the file open has the handler, unless it has called exec, which closes it. Where the
    kernel hides its files, ``known`` is believed. Raises ``OSError`` when it has ended.
    """
    folder = f"/proc/{pid}/fd"
    try:
        files: Iterable[str] = [os.readlink(f"{folder}/{entry}") for entry in os.listdir(folder)]
    except PermissionError:
        files = [] if known is None else [str(known)]
    ours = next((file for file in files if file.endswith(STACKS_SUFFIX)), None)
    handled = _signals(f"/proc/{pid}/status", "SigCgt")
    return Path(ours) if ours is not None and handled and Path(ours).exists() else None


def is_pending(pid: int) -> bool:
    """Whether ``DUMP_SIGNAL`` waits for a thread of ``pid`` to take it. Raises ``OSError``."""
    return _signals(f"/proc/{pid}/status", "ShdPnd")


def blocking_threads(pid: int) -> frozenset[str]:
    """Threads of ``pid`` that block ``DUMP_SIGNAL``: always, or while they run its handler."""
    folder = f"/proc/{pid}/task"
    found = set()
    for thread in os.listdir(folder):
        try:
            if _signals(f"{folder}/{thread}/status", "SigBlk"):
                found.add(thread)
        except OSError:
            continue  # that thread has ended
    return frozenset(found)


def _signals(status: str, field: str) -> bool:
    prefix = f"{field}:"
    for line in Path(status).read_text(errors="replace").splitlines():
        if line.startswith(prefix):
            return bool(int(line.removeprefix(prefix), 16) & _OUR_BIT)
    return False
