"""How workers end, seen from outside: whether killed ones get further, and whom the kernel has killed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_robust.model.record import Record
from slurm_robust.util.proc import CGROUPS, PROC, MemoryCgroup, memory_cgroups, read_counters

# Pages that device drivers have let go of, on the whole node (Linux 5.7; mm/gup.c).
_RELEASED = "nr_foll_pin_released"


class Remaining(Record):
    """What is left of the workers."""

    workers: int
    """How many they are."""
    resident: int
    """Their resident pages."""
    released: int
    """Pages that device drivers have let go of."""

    def follows(self, before: Remaining) -> bool:
        """Return whether something has moved since ``before``."""
        return (
            self.workers < before.workers
            or self.resident < before.resident
            or self.released > before.released
        )


class DeathWatch:
    """Follows the killed workers of one node. Times are monotonic seconds."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._left: Remaining | None = None
        self._moved = 0.0

    def still_s(self, pids: Collection[int], now: float) -> float | None:
        """Return the seconds since something moved at the killed workers ``pids``.

        None without such workers, or if the kernel does not count what drivers release.
        """
        released = read_counters(self._proc / "vmstat").get(_RELEASED) if pids else None
        if released is None:
            self._left = None
            return None
        left = Remaining(workers=len(pids), resident=sum(map(self._resident, pids)), released=released)
        if self._left is None or left.follows(self._left):
            self._moved = now
        self._left = left
        return now - self._moved

    def _resident(self, pid: int) -> int:
        try:
            return int((self._proc / str(pid) / "statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0  # it has ended meanwhile


class _Counts(NamedTuple):
    """What one memory cgroup has counted."""

    kills: int
    reached: int
    """How often its own limit was reached."""
    limit: int | None


class OomKills:
    """Whether the kernel has killed for want of memory in this agent's cgroup, which holds the workers, too.

    What it killed has ended by SIGKILL and can say nothing; the counters of the cgroup say it. Counts from
    :meth:`begin` on. Reads only the kernel's own files, which do not hang.
    """

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._before: dict[Path, _Counts] = {}

    def begin(self) -> None:
        """Count from now on: what was counted before does not count."""
        self._before = dict(self._counts())

    def reason(self) -> str:
        """Return what ran out of memory since :meth:`begin`; "" if nothing was killed for want of it."""
        now = [(self._before[path], counts) for path, counts in self._counts() if path in self._before]
        if not any(counts.kills > before.kills for before, counts in now):
            return ""
        full = [c.limit for before, c in now if c.limit is not None and c.reached > before.reached]
        if not full and self._cgroups in self._before:
            # The root of version 2 counts nothing: this one is a part of the tree, as a container shows it.
            return "out of memory on the node, or at the job's limit, which the container does not show"
        if not full:
            return "out of memory on the node, below the job's own limit"
        return f"out of memory in the job's cgroup (limit {min(full) / 1e9:.3g} GB)"

    def _counts(self) -> Iterator[tuple[Path, _Counts]]:
        for group in memory_cgroups(self._proc, self._cgroups):
            counts = _read(group)
            if counts is not None:
                yield group.folder, counts


def _read(group: MemoryCgroup) -> _Counts | None:
    """Read the counter; None for a cgroup that does not count kills, or that this process does not see."""
    events = read_counters(group.folder / ("memory.oom_control" if group.is_v1 else "memory.events"))
    if not events:
        return None
    reached = events.get("oom", 0)
    if group.is_v1:
        try:
            reached = int((group.folder / "memory.failcnt").read_text())
        except (OSError, ValueError):
            return None
    return _Counts(kills=events.get("oom_kill", 0), reached=reached, limit=group.limit())
