"""Has the kernel killed for want of memory in this agent's cgroup, where the workers are too?

What it killed has ended by SIGKILL and can say nothing; the counters of the cgroup say it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_robust.util.proc import CGROUPS, PROC, MemoryCgroup, memory_cgroups, read_counters


class _Counts(NamedTuple):
    """Of one memory cgroup."""

    kills: int
    reached: int
    """How often its own limit was reached."""
    limit: int | None


class OomKills:
    """Counts from :meth:`begin` on. Reads only the kernel's own files, which do not hang."""

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._before: dict[Path, _Counts] = {}

    def begin(self) -> None:
        """What is counted already does not count."""
        self._before = dict(self._counts())

    def reason(self) -> str:
        """What ran out of memory since :meth:`begin`; "" if nothing was killed for want of it."""
        now = [(self._before[path], counts) for path, counts in self._counts() if path in self._before]
        if not any(counts.kills > before.kills for before, counts in now):
            return ""
        full = [c.limit for before, c in now if c.limit is not None and c.reached > before.reached]
        if not full:
            return "out of memory on the node, below the job's own limit"
        return f"out of memory in the job's cgroup (limit {min(full) / 1e9:.3g} GB)"

    def _counts(self) -> Iterator[tuple[Path, _Counts]]:
        for group in memory_cgroups(self._proc, self._cgroups):
            counts = _read(group)
            if counts is not None:
                yield group.folder, counts


def _read(group: MemoryCgroup) -> _Counts | None:
    """None for a cgroup that does not count kills, or that this process does not see."""
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
