"""How one worker ended, as the agent saw it."""

from __future__ import annotations

import signal

from slurm_robust.model.record import Record


class WorkerError(Record):
    """An exception that ended a worker's script, taken where it was raised.

    ``file`` and ``line`` name the innermost frame in the user's own code (not in site-packages),
    so that the same bug has the same signature on every rank. ``full``: if a write failed for want of room,
    the mount point of the node's own file system that had none left.
    """

    type: str
    message: str
    file: str = ""
    line: int = 0
    traceback: str = ""
    full: str = ""


class WorkerExit(Record):
    """End of one worker process. Exactly one of ``code`` and ``signal`` is set.

    ``age_s`` is how long ago it ended when the agent sent the record (the node's monotonic clock),
    so that the controller orders exits of different nodes without trusting their wall clocks. ``oom``: the
    kernel had killed it, or a child, for want of memory; in words. ``taken``: of rank 0, who else listened on
    its ``MASTER_PORT``, in words.
    """

    rank: int
    code: int | None = None
    signal: int | None = None
    age_s: float = 0.0
    error: WorkerError | None = None
    tail: tuple[str, ...] = ()
    oom: str = ""
    taken: str = ""

    @property
    def failed(self) -> bool:
        """True unless the worker ended by itself with code 0."""
        return self.code != 0

    def describe(self) -> str:
        """One short line: ``rank 2: SIGKILL``, ``rank 0: ValueError at train.py:12``."""
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            return f"rank {self.rank}: {name}" + (f", {self.oom}" if self.oom else "")
        if self.error is not None:
            where = f" at {self.error.file}:{self.error.line}" if self.error.file else ""
            return f"rank {self.rank}: {self.error.type}{where}"
        return f"rank {self.rank}: exit code {self.code}"
