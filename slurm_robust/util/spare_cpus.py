"""How many CPUs nobody has used of late, and one process may therefore use beside its own work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from slurm_robust.util.proc import PROC, cpu_idle_s

# The counters are in hundredths of a second.
_LEAST_S = 0.25


class SpareCpus:
    """Of the CPUs that this process may use, those that were idle, shared among all of its kind.

    ``processes``: how many of its kind there are on the node. Where each is bound to a part of the CPUs of
    its parent, only those on the same part share it.
    """

    def __init__(
        self, processes: int, proc: Path = PROC, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proc, self._clock = proc, clock
        self._cpus = os.sched_getaffinity(0)
        self._sharing = max(1.0, processes * len(self._cpus) / max(1, _cpus_of_parent()))
        self._seen, self._idle_s = clock(), cpu_idle_s(self._cpus, proc)
        self._count = 0.0

    def count(self) -> float:
        """Return how many were idle since the call before, or the one before that if it was just now.

        0 if that is not known (yet).
        """
        passed_s = self._clock() - self._seen
        if passed_s >= _LEAST_S:
            idle_s = cpu_idle_s(self._cpus, self._proc)
            self._count = max(0.0, idle_s - self._idle_s) / passed_s / self._sharing
            self._seen, self._idle_s = self._seen + passed_s, idle_s
        return self._count


def _cpus_of_parent() -> int:
    try:
        return len(os.sched_getaffinity(os.getppid()))
    except OSError:
        return 0  # it is gone, or not ours: no part of anything is known
