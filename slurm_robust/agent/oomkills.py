"""Has the kernel killed for want of memory in this agent's cgroup, where the workers are too?

What it killed has ended by SIGKILL and can say nothing; the counters of the cgroup say it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_robust.model.record import Record

_UNLIMITED = 1 << 60  # version 1 tells a limit near 2**63 where there is none


class _Group(Record):
    """One memory cgroup: ``kills`` in it, how often its own ``limit`` (bytes, if any) was ``reached``."""

    kills: int
    reached: int
    limit: int | None


class OomKills:
    """Counts from :meth:`begin` on. Reads only the kernel's own files, which do not hang."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._before: dict[Path, _Group] = {}

    def begin(self) -> None:
        """What is counted already does not count."""
        self._before = dict(self._groups())

    def words(self) -> str:
        """What ran out of memory since :meth:`begin`; "" if nothing was killed for want of it."""
        now = [(self._before[path], group) for path, group in self._groups() if path in self._before]
        if not any(group.kills > before.kills for before, group in now):
            return ""
        full = [g.limit for before, g in now if g.limit is not None and g.reached > before.reached]
        if not full:
            return "out of memory on the node, below the job's own limit"
        return f"out of memory in the job's cgroup (limit {min(full) / 1e9:.3g} GB)"

    def _groups(self) -> Iterator[tuple[Path, _Group]]:
        """This process's memory cgroup and those above it, version 2 or 1."""
        try:
            lines = (self._proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, name = line.split(":", 2)
            is_v1 = "memory" in controllers.split(",")
            if controllers and not is_v1:
                continue
            root = self._cgroups / "memory" if is_v1 else self._cgroups
            folder = root / name.strip("/")
            while folder.is_relative_to(root):
                group = _read_v1(folder) if is_v1 else _read_v2(folder)
                if group is not None:
                    yield folder, group
                folder = folder.parent


def _read_v1(folder: Path) -> _Group | None:
    try:
        kills = _number(folder / "memory.oom_control", "oom_kill")
        reached = int((folder / "memory.failcnt").read_text())
        limit = int((folder / "memory.limit_in_bytes").read_text())
    except (OSError, ValueError):
        return None
    return _Group(kills=kills, reached=reached, limit=limit if limit < _UNLIMITED else None)


def _read_v2(folder: Path) -> _Group | None:
    try:
        events = folder / "memory.events"
        limit = (folder / "memory.max").read_text().strip()
        return _Group(
            kills=_number(events, "oom_kill"),
            reached=_number(events, "oom"),
            limit=None if limit == "max" else int(limit),
        )
    except (OSError, ValueError):
        return None


def _number(path: Path, name: str) -> int:
    """Raises ``OSError``, ``ValueError``."""
    pairs = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
    return int(pairs.get(name, "0"))
