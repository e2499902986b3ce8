"""Processes, counters and memory cgroups, by files of the kernel that never wait for a process.

Reading ``cmdline``, ``maps`` or ``environ`` waits for a lock that a process holds while it hangs on a dead
file system; ``stat``, ``status`` and the links in ``fd`` do not (proc(5)).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

STOPPED, DEAD = frozenset("Tt"), frozenset("ZXx")
"""States of :class:`_ProcessLine`."""

# utime, stime, cutime and cstime, counted from the state; in clock ticks.
_CPU_FIELDS = slice(11, 15)
_BEGUN_FIELD = 19
_TICKS = os.sysconf("SC_CLK_TCK")

_UNLIMITED = 1 << 60  # version 1 shows a limit near 2**63 if there is none


class _ProcessLine(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    name: str
    state: str
    """The letter of proc_pid_stat(5)."""
    cpu_s: float
    """Processor time that it and its children which have ended have used."""
    begun: int = 0
    """When it began, in clock ticks since the boot: with the pid it is no other process."""


def process_table() -> dict[int, _ProcessLine]:
    """Read all processes that can be seen, by pid."""
    found = (read_process(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def read_process(pid: int) -> _ProcessLine | None:
    """Read one process; None if there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # pid (name) state parent ...: the name may hold anything, so find its last bracket.
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) <= _BEGUN_FIELD:
        return None
    cpu_s = sum(map(int, fields[_CPU_FIELDS])) / _TICKS
    name = head.partition("(")[2]
    return _ProcessLine(pid, int(fields[1]), name, fields[0], cpu_s, int(fields[_BEGUN_FIELD]))


def waited_s(pid: int) -> float:
    """Return how long its main thread has waited for a processor, in seconds; 0 if that is unknown."""
    try:
        fields = (PROC / str(pid) / "schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def cpu_idle_s(cpus: Collection[int], proc: Path = PROC) -> float:
    """Return for how long these CPUs have been idle since the boot, in seconds; 0 if that is unknown."""
    try:
        lines = (proc / "stat").read_text().splitlines()
    except OSError:
        return 0.0
    names = {f"cpu{number}" for number in cpus}
    rows = (line.split() for line in lines if line.startswith("cpu"))
    # name, user, nice, system, idle, iowait, ...: who waits for a disk uses no CPU
    return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in names) / _TICKS


def descendants(table: Mapping[int, _ProcessLine], ancestor: int) -> tuple[_ProcessLine, ...]:
    """Return the children of ``ancestor``, then their children, and so on."""
    children: dict[int, list[_ProcessLine]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: list[_ProcessLine] = []
    generation = children.get(ancestor, [])
    while generation:
        found += generation
        generation = [child for process in generation for child in children.get(process.pid, ())]
    return tuple(found)


def read_counters(path: Path, skip: int = 0) -> dict[str, int]:
    """Read a file with a name and a number in each line, as ``meminfo`` (in bytes); {} if it is absent.

    ``skip``: words in front of each name.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    rows = (line.replace(":", " ").split()[skip:] for line in lines)
    return {
        row[0]: int(row[1]) * (1024 if row[2:] == ["kB"] else 1)
        for row in rows
        if len(row) > 1 and row[1].isdecimal()
    }


class MemoryCgroup(NamedTuple):
    """One cgroup that counts memory."""

    folder: Path
    is_v1: bool

    def limit(self) -> int | None:
        """Return the limit in bytes; None if there is none, or this process does not see it."""
        limit = self._read("memory.limit_in_bytes" if self.is_v1 else "memory.max")
        return limit if limit is not None and limit < _UNLIMITED else None

    def stat(self, name: str) -> int:
        """Return a number of ``memory.stat`` for this cgroup and those below, in bytes; 0 if absent."""
        return read_counters(self.folder / "memory.stat").get(f"{'total_' if self.is_v1 else ''}{name}", 0)

    def free(self) -> int | None:
        """Return the bytes below the limit, if any; the kernel takes the cache of files back as needed."""
        limit, usage = self.limit(), self._read("memory.usage_in_bytes" if self.is_v1 else "memory.current")
        if limit is None or usage is None:
            return None
        return limit - usage + self.stat("inactive_file") + self.stat("active_file")

    def _read(self, name: str) -> int | None:
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None  # not this controller, "max", or a part of the tree that this process does not see


def memory_cgroups(proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[MemoryCgroup]:
    """Yield this process's memory cgroup and those above it, version 2 or 1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        is_v1 = "memory" in controllers.split(",")
        if controllers and not is_v1:
            continue
        root = cgroups / "memory" if is_v1 else cgroups
        folder = root / name.strip("/")
        while folder.is_relative_to(root):
            yield MemoryCgroup(folder, is_v1)
            folder = folder.parent
