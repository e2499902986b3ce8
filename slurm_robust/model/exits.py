"""How workers end, as the agent sees it, and how agents end, as Slurm says."""

from __future__ import annotations

import re
import signal
from enum import Enum

from slurm_robust.model.record import Record


class WorkerError(Record):
    """An exception that ended a worker's script, taken when it was raised."""

    type: str
    message: str
    file: str = ""
    """File of the innermost frame in the user's own code (not in site-packages): so the same bug has the same
    signature on every rank.
    """
    line: int = 0
    """Line of that frame."""
    traceback: str = ""
    full: str = ""
    """If a write failed for want of room: mount point of the node's own file system that had none left."""


def signal_name(number: int) -> str:
    """Return the name of a signal: ``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


NO_ROOM = re.compile(r"No space left on device|\bENOSPC\b|\bBus error\b|unable to \w+ shared memory")
"""How Python, torch and NCCL say that a file system, mostly ``/dev/shm``, had no room.

Anything may print that: it counts only if the file system was seen to be full at that moment.
"""

QUIET_S = 3.0
"""Lines that are older than this when a signal ends their writer have nothing to do with it."""


class WorkerExit(Record):
    """End of one worker process, by an exit code or by a signal."""

    rank: int
    code: int | None = None
    signal: int | None = None
    age_s: float = 0.0
    """How long ago it ended when the agent sent the record, by the node's monotonic clock: so the controller
    orders exits of different nodes without trusting their wall clocks.
    """
    error: WorkerError | None = None
    tail: tuple[str, ...] = ()
    """The last lines of its output."""
    quiet_s: float | None = None
    """How long before its end it wrote the last of them, None if that is not known."""
    oom: str = ""
    """The kernel had killed it, or a child, for want of memory: how that is known."""
    taken: str = ""
    """For rank 0: which other process listened on its ``MASTER_PORT``."""
    full: str = ""
    """Mount point of the node's own file system that its agent found full when the worker ended."""

    @property
    def no_room(self) -> str:
        """Mount point of the full file system that has ended it; "" if it says nothing of it or none was."""
        if self.error is not None and self.error.full:
            return self.error.full
        said = (self.error.message if self.error is not None else "", *self.tail)
        return self.full if self.signal == signal.SIGBUS or NO_ROOM.search("\n".join(said)) else ""

    @property
    def failed(self) -> bool:
        """True unless the worker ended by itself with code 0."""
        return self.code != 0

    @property
    def says_nothing(self) -> str:
        """Why its last lines do not explain its end, ``wrote no error message in its last 8 s``; else "".

        What a signal kills cannot say why; its last lines may be an old warning.
        """
        if self.signal is None or self.error is not None or self.quiet_s is None or self.quiet_s < QUIET_S:
            return ""
        return f"wrote no error message in its last {self.quiet_s:.0f} s"

    def describe(self) -> str:
        """Return one short line: ``rank 2: SIGKILL``, ``rank 0: ValueError at train.py:12``."""
        if self.signal is not None:
            why = self.oom or (f"no room left in {self.no_room}" if self.no_room else "")
            return f"rank {self.rank}: {signal_name(self.signal)}" + (f", {why}" if why else "")
        if self.error is not None:
            where = f" at {self.error.file}:{self.error.line}" if self.error.file else ""
            return f"rank {self.rank}: {self.error.type}{where}"
        return f"rank {self.rank}: exit code {self.code}"


class Outlook(str, Enum):
    """Whether the same step could start later."""

    PASSES = "passes"  # slurmctld restarts, a daemon is busy
    STAYS = "stays"  # Slurm will not grant it, however often it is asked
    UNKNOWN = "unknown"


OUT_OF_MEMORY = re.compile(r"out of memory|oom.kill", re.IGNORECASE)
"""In the message of a :class:`StepEnd`: agents ended for want of memory."""


class StepEnd(Record):
    """The end of agents as Slurm reports it: of one srun, or of some of its tasks."""

    nodes: tuple[str, ...]
    code: int
    """srun's exit code, or a task's if Slurm reports that, else -1."""
    message: str = ""
    outlook: Outlook = Outlook.UNKNOWN
    fix: str = ""
    """What the reader can do, "" if the message does not say enough."""
    named: dict[str, str] = {}
    """Nodes that the message itself holds responsible, with the message."""
    is_task: bool = False
    """The agent itself ended, and Slurm still reaches its node."""
    killed: tuple[str, ...] = ()
    """Nodes of a step that Slurm ended as a whole, of whose tasks it has reported the ends: none lives on."""
    age_s: float = 0.0
    """How long before this report an earlier controller saw the end; 0 if none did."""


class Witness(Record):
    """What Slurm says of one node."""

    node: str
    message: str
    """Its state and reason."""
    against: bool
    """Whether that speaks against using the node."""
    gone: bool = False
    """Slurm has given the node up, or has taken it from the job."""
    left: bool = False
    """The node is up, and Slurm has taken it from the job."""
