"""What the processes of a job are doing: stacks, collectives, and the place of a fault by them."""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.record import Record

POINT_TO_POINT = ":p2p"
"""Ends the name of a group where its sends and receives are meant, which are counted apart."""


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
    """One call."""

    function: str
    file: str = ""
    """As the interpreter names it, or a native frame's library."""
    line: int = 0
    """0 if it is not known."""


class ThreadStack(Record):
    """One thread's calls."""

    frames: tuple[Frame, ...]
    """Innermost first."""
    name: str = ""
    is_main: bool = False


class ProcessStacks(Record):
    """All threads of one process."""

    pid: int
    kind: ProcessKind
    state: str = ""
    """The letter of proc_pid_stat(5): R running, S sleeping, D in the kernel, T stopped, Z dead."""
    threads: tuple[ThreadStack, ...] = ()
    error: str = ""
    """Why there are no threads."""
    cpu_s: float | None = None
    """Processor time that a worker and its descendants have used, with the time for which its main thread had
    to wait since all processors were busy; None if that is not known.
    """


class Collective(Record):
    """How far a process group of this rank is, by PyTorch's flight recorder."""

    group: str
    sequence: int
    """Number of the oldest operation that has not completed, or of the newest if all have."""
    operation: str
    """That operation."""
    state: str
    """Its state in the recorder's word: ``scheduled``, ``started``, ``completed``."""
    ranks: tuple[int, ...] = ()
    """The group's global ranks."""
    enqueued: int = -1
    """The newest number, -1 for ``sequence``: with NCCL the host runs ahead of its GPU."""
    peers: tuple[int, ...] = ()
    """Places in the group of those to whom one kernel of several sends and receives goes, or may go."""

    @property
    def key(self) -> tuple[str, int, int, str]:
        """The group by its name, first rank and size: to compare all ranks of large groups takes seconds.

        And the library: a group that has one for the CPU and one for the GPU counts in each for itself.
        """
        return self.group, self.ranks[0] if self.ranks else -1, len(self.ranks), self.library

    @property
    def library(self) -> str:
        """What carries the operation out: ``nccl``, ``nccl2``, ``gloo``; "" if that is not known."""
        library, _, name = self.operation.partition(":")
        return library if name else ""

    @property
    def recorded_as(self) -> str:
        """The library and the group, ``nccl:17:mesh_dp``, as in :attr:`.RankStacks.idle`."""
        return f"{self.library}:{self.group.removesuffix(POINT_TO_POINT)}"

    @property
    def newest(self) -> int:
        """The number of the newest operation that the host has enqueued."""
        return max(self.sequence, self.enqueued)


class Absent(Record):
    """A process that NCCL's RAS misses."""

    rank: int
    size: int
    """Ranks of its communicator."""
    dead: bool = False
    """RAS has given it up; else it has only not answered in time."""


class RankStacks(Record):
    """What one rank and its helpers were doing."""

    rank: int
    node: str
    processes: tuple[ProcessStacks, ...] = ()
    collectives: tuple[Collective, ...] = ()
    """Operations that have not completed come in the order in which they were enqueued."""
    idle: tuple[str, ...] = ()
    """Groups of which a flight recorder that has answered shows no operation but sends and receives that have
    ended: nothing of them is open, and how far the rank is in them is not known. (Some recorders show open
    operations only.)
    """
    source: str = ""
    """How they were taken: ``py-spy``, ``signal`` (the handler in the worker), "" when there are none."""
    took_s: float = 0.0
    """How long that took."""
    native: bool = False
    """The calls in libraries were asked for too."""
    absent: tuple[Absent, ...] = ()
    """Processes that NCCL misses anywhere in the job, reported with rank 0."""


class Localisation(Record):
    """The place of a fault by the stacks."""

    outliers: tuple[int, ...] = ()
    """Ranks that do something else than most."""
    ranks: tuple[int, ...] = ()
    """Ranks that are at fault; empty if nothing could be concluded."""
    group: str = ""
    """The parallel group that ``ranks`` are, ``pp 24-31``: the smallest one that covers those at fault."""
    exact: bool = False
    """``ranks`` are exactly those at fault."""
    healthy: int = 0
    """How many ranks do what most do."""
    confidence: float = 0.0
    reason: str = ""
    stack: str = ""
    """What ``ranks`` do."""
    silent: bool = False
    """``ranks`` are those of which nothing is heard, in the midst of others that wait. It convicts nobody."""
    halted: bool = False
    """Their processes are stopped or gone, which no code does to itself. (One that is blocked in the kernel
    may be waiting for storage, which is no fault of its node.)
    """
