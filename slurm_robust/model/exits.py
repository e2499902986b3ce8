"""How workers end, as the agent sees it, and how agents end, as Slurm says."""

from __future__ import annotations

import signal
from enum import Enum

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

    ``age_s`` is how long ago it ended when the agent sent the record (the node's monotonic clock), so that
    the controller orders exits of different nodes without trusting their wall clocks. ``oom``: the kernel had
    killed it, or a child, for want of memory. ``taken``: of rank 0, which other process listened on its
    ``MASTER_PORT``.
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


class Outlook(str, Enum):
    """Whether the same step could start later."""

    PASSES = "passes"  # slurmctld restarts, a daemon is busy
    STAYS = "stays"  # Slurm will not grant it, however often it is asked
    UNKNOWN = "unknown"


class StepEnd(Record):
    """The end of agents on ``nodes`` as Slurm reports it: of one srun, or of some of its tasks.

    ``code`` is srun's exit code, or a task's where Slurm reports that (-1: it does not). ``named`` are nodes
    that the message itself holds responsible. ``fix``: what the reader can do, "" where the message does not
    say enough. ``is_task``: the agent itself ended, and Slurm still speaks with its node.
    """

    nodes: tuple[str, ...]
    code: int
    message: str = ""
    outlook: Outlook = Outlook.UNKNOWN
    fix: str = ""
    named: dict[str, str] = {}
    is_task: bool = False


class Witness(Record):
    """What Slurm says of one node: its state and reason, and whether that speaks ``against`` using it.

    ``gone``: Slurm has given the node up, or has taken it from the job.
    """

    node: str
    message: str
    against: bool
    gone: bool = False
