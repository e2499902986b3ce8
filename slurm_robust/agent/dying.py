"""Whether killed workers still make progress towards their end, seen from outside."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from slurm_robust.model.record import Record
from slurm_robust.util.proc import PROC, read_counters

# Pages that device drivers have let go of, on the whole node (Linux 5.7; mm/gup.c).
_RELEASED = "nr_foll_pin_released"


class Remaining(Record):
    """What is left of the workers: how many they are, their resident pages; ``released``: see above."""

    workers: int
    resident: int
    released: int

    def follows(self, before: Remaining) -> bool:
        """Whether something has moved since ``before``."""
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
        """Seconds since something moved at the killed workers ``pids``.

        None without any, and where the kernel does not count what drivers give back: then nobody knows.
        """
        released = self._released() if pids else None
        if released is None:
            self._left = None
            return None
        left = Remaining(workers=len(pids), resident=sum(map(self._resident, pids)), released=released)
        if self._left is None or left.follows(self._left):
            self._moved = now
        self._left = left
        return now - self._moved

    def _released(self) -> int | None:
        return read_counters(self._proc / "vmstat").get(_RELEASED)

    def _resident(self, pid: int) -> int:
        try:
            return int((self._proc / str(pid) / "statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0  # it has ended meanwhile
