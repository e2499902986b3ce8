"""What the processes of a training are doing: stacks, collectives, and where these place a fault."""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.record import Record


class ProcessKind(str, Enum):
    """What a process is for."""

    WORKER = "worker"
    """Runs the training script."""

    LOADER = "loader"
    """Fetches data for a worker (torch.utils.data's worker processes)."""

    WRITER = "writer"
    """Writes a checkpoint for a worker."""

    OTHER = "other"


class Frame(Record):
    """One call. ``file`` as the interpreter names it, or a native frame's library; ``line`` 0: unknown."""

    function: str
    file: str = ""
    line: int = 0


class ThreadStack(Record):
    """One thread's calls, innermost first."""

    frames: tuple[Frame, ...]
    name: str = ""
    is_main: bool = False


class ProcessStacks(Record):
    """All threads of one process.

    ``state`` is the letter of proc_pid_stat(5) (R running, S sleeping, D in the kernel, T stopped, Z dead);
    ``error`` says why there are no threads. ``cpu_s``: processor time that a worker and all its descendants
    have used, None where that is not known.
    """

    pid: int
    kind: ProcessKind
    state: str = ""
    threads: tuple[ThreadStack, ...] = ()
    error: str = ""
    cpu_s: float | None = None


class Collective(Record):
    """Where a process group of this rank stands, by PyTorch's flight recorder.

    ``sequence`` counts the group's operations. It is that of the oldest one that has not completed, or of
    the newest where all have; ``operation`` and ``state`` (the recorder's word: ``scheduled``, ``started``,
    ``completed``) are that one's. ``enqueued`` is the newest number, -1 for ``sequence``: with NCCL the host
    runs ahead of its GPU. ``ranks`` are the group's global ranks.
    """

    group: str
    sequence: int
    operation: str
    state: str
    ranks: tuple[int, ...] = ()
    enqueued: int = -1

    @property
    def newest(self) -> int:
        """The number of the newest operation that the host has enqueued."""
        return max(self.sequence, self.enqueued)


class Absent(Record):
    """A process that NCCL's RAS misses: ``rank`` of a communicator of ``size`` ranks.

    ``dead``: RAS has given it up; else it has only not answered in time.
    """

    rank: int
    size: int
    dead: bool = False


class RankStacks(Record):
    """What one rank and its helpers were doing.

    ``source`` says how the stacks were taken: ``py-spy``, ``signal`` (the handler in the worker), or "" when
    there are none. ``took_s`` is how long that took. Of the ``collectives`` that have not completed the one
    that was enqueued first comes first. ``native``: the calls in libraries were asked for too. ``absent``:
    processes that NCCL misses anywhere in the job, reported with rank 0.
    """

    rank: int
    node: str
    processes: tuple[ProcessStacks, ...] = ()
    collectives: tuple[Collective, ...] = ()
    source: str = ""
    took_s: float = 0.0
    native: bool = False
    absent: tuple[Absent, ...] = ()


class Localisation(Record):
    """Where stacks place a fault.

    ``outliers`` are ranks that do something else than most; ``ranks`` those that are at fault: the parallel
    group that covers them (``group``, as ``pp 24-31``), or exactly they when ``exact``. ``stack``: what these
    ranks do. ``halted``: their processes are stopped or gone, which no code does to itself; one
    that is blocked in the kernel may be waiting for storage, which is no fault of its node. ``healthy``: how
    many ranks do what most do. Empty ``ranks``: nothing could be concluded.
    """

    outliers: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    group: str = ""
    exact: bool = False
    healthy: int = 0
    confidence: float = 0.0
    reason: str = ""
    stack: str = ""
    halted: bool = False
