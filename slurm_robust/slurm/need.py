"""What a job needs of a cluster to go on, and what it asks Slurm for. Pure.

A job of N slots and S spares can run on N nodes. So it asks for N at least and N + S at most, and leaves no
node out whose exclusion keeps it from starting: the weakest exclusion is dropped first, and a node that does
not respond costs nothing to exclude, since it gets no job anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.records import OF_RESERVATION, SlurmJob, SlurmNode, Switch

# A node in one of these is not there for a job that would start now, its own one included.
_AWAY = frozenset({"FUTURE", "UNKNOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED"})


class Need(Record):
    """With how many nodes a job can go on."""

    least: int
    """Its slots."""

    most: int
    """Its slots and spares."""

    segment: int = 0
    """What ``--segment`` asked for, where Slurm does not show it of the job; 0 for none."""


class Segments(Record):
    """A job whose nodes are placed in segments, each within one block (topology/block)."""

    size: int
    """Nodes of a segment."""

    blocks: tuple[frozenset[str], ...]
    """The nodes of each block that may have one."""

    @classmethod
    def of(cls, job: SlurmJob, need: Need | None, topology: Iterable[Switch]) -> Segments | None:
        """Return the segments of ``job``; None if it has none, or if Slurm does not show their blocks.

        A segment that is larger than a base block is placed in the smallest blocks above that have room.
        Source: Slurm's src/plugins/topology/block/eval_nodes_block.c, 24.05 to 26.05.
        """
        size = segment_of(job, need)
        blocks = [block for block in topology if block.is_block]
        large = [block for block in blocks if len(block.nodes) >= size]
        if not size or not large:
            return None
        level, least = min((block.level, len(block.nodes)) for block in large)
        fit = [b for b in blocks if b.level == level and (not level or len(b.nodes) == least)]
        return cls(size=size, blocks=tuple(frozenset(block.nodes) for block in fit))

    def room(self, nodes: Collection[str]) -> int:
        """Return how many of ``nodes`` whole segments can take."""
        return self.size * sum(len(block.intersection(nodes)) // self.size for block in self.blocks)

    def describe_lack(self, nodes: Collection[str], least: int) -> str:
        """Say how many segments of a job of ``least`` nodes fit on ``nodes``; "" if all do."""
        fit, wanted = self.room(nodes) // self.size, -(-least // self.size)
        if fit >= wanted:
            return ""
        return f"{fit} of its {wanted} segments of {self.size} nodes (--segment={self.size}) fit"


def segment_of(job: SlurmJob, need: Need | None) -> int:
    """Return the nodes of a segment of ``job``; 0 for none.

    Slurm ignores segments that are larger than the least nodes of a job.
    """
    size = job.segment or (need.segment if need is not None else 0)
    least = need.least if need is not None else max(job.least_nodes, job.num_nodes)
    return size if size <= least else 0


class Size(Record):
    """What a pending job asks for."""

    least: int
    most: int
    """Nodes."""

    tasks: int
    cpus: int

    def describe(self) -> str:
        """Return the need in words: ``4-5 nodes``."""
        nodes = str(self.most) if self.least == self.most else f"{self.least}-{self.most}"
        return f"{nodes} node{'' if self.most == 1 else 's'}"

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments for ``scontrol update``."""
        return (f"NumNodes={self.least}-{self.most}", f"NumTasks={self.tasks}", f"NumCPUs={self.cpus}")


_IN_A_MOMENT = frozenset({"COMPLETING", "PLANNED"})


class Places(Record):
    """The nodes of a job's partitions, each in one list."""

    free: tuple[str, ...] = ()
    """Idle: the job could get them now."""

    busy: tuple[str, ...] = ()
    """Other jobs or reservations have them or will get them, or Slurm is about to reboot them."""

    dead: tuple[str, ...] = ()
    """They are down, or do not respond to Slurm."""

    drained: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """They would count as free or busy, if the job did not exclude them."""

    left_out_free: tuple[str, ...] = ()
    """The nodes of ``left_out`` that are idle."""

    soon: tuple[str, ...] = ()
    """The nodes of ``busy`` on which no job runs: Slurm ends the jobs before there, or plans the next."""


def places(job: SlurmJob, nodes: Iterable[SlurmNode], own: Collection[str] = ()) -> Places:
    """Return the nodes of the job's partitions by what they are to it; ``own``: those it gives back."""
    found: dict[str, list[str]] = {name: [] for name in Places.__struct_fields__}
    partitions = set(job.partition.split(","))
    for node in nodes:
        if not partitions & set(node.partitions):
            continue
        if node.is_down or not node.responding or node.states & _AWAY:
            kind = "dead"
        elif node.is_leaving:
            kind = "drained"
        else:
            is_ours = node.name in own and "REBOOT_REQUESTED" not in node.states
            kind = "free" if is_ours or _is_idle(node, job) else "busy"
            if node.name in job.excluded_nodes:
                if kind == "free":
                    found["left_out_free"].append(node.name)
                kind = "left_out"
            elif kind == "busy" and "IDLE" in node.states and node.states & _IN_A_MOMENT:
                found["soon"].append(node.name)
        found[kind].append(node.name)
    return Places(**{name: tuple(names) for name, names in found.items()})


def _is_idle(node: SlurmNode, job: SlurmJob) -> bool:
    return node.is_idle and node.usable_despite(OF_RESERVATION if job.reservation else frozenset())


def affordable(
    exclude: Sequence[str],
    nodes: Iterable[SlurmNode],
    job: SlurmJob,
    least: int,
    segments: Segments | None = None,
) -> tuple[str, ...]:
    """Return ``exclude`` without the fewest, the weakest first, that keep the job from starting.

    It needs ``least`` nodes, in whole ``segments``; if these do not fit whatever is given up, that is not the
    fault of an exclusion, and the number alone counts.

    A node counts if it is in a partition of the job, responds, and is neither down nor to leave. If those
    that respond are too few even without any exclusion, others count too: none responds right after a restart
    of slurmctld. What else the job asks of its nodes (features, memory) is Slurm's to judge. The job's own
    list of excluded nodes may have others than ``exclude``: they are its owner's, and stay out.
    """
    usable = _sound(nodes, job, exclude, least)
    order = [node for node in exclude if node in usable]
    room = segments.room if segments is not None and segments.room(usable) >= least else len
    given_up = to_give_up(order, usable - set(exclude), least, room)
    return tuple(node for node in exclude if node not in given_up)


def lack_of_segments(
    exclude: Collection[str], nodes: Iterable[SlurmNode], job: SlurmJob, least: int, segments: Segments | None
) -> str:
    """Say how many segments fit on the nodes that are left, whoever has them now; "" if all do."""
    if segments is None:
        return ""
    return segments.describe_lack(_sound(nodes, job, exclude, least) - set(exclude), least)


def _sound(nodes: Iterable[SlurmNode], job: SlurmJob, exclude: Collection[str], least: int) -> frozenset[str]:
    partitions = set(job.partition.split(","))
    owners = set(job.excluded_nodes) - set(exclude)
    sound = [
        node
        for node in nodes
        if not (node.is_down or node.is_leaving)
        and partitions & set(node.partitions)
        and node.name not in owners
    ]
    usable = frozenset(node.name for node in sound if node.responding)
    return usable if len(usable) >= least else frozenset(node.name for node in sound)


def to_give_up(
    order: Sequence[str], others: Collection[str], least: int, room: Callable[[Collection[str]], int] = len
) -> tuple[str, ...]:
    """Return which of ``order``, the weakest first, must be used beside ``others`` so that ``least`` nodes
    have ``room``; all if even these are too few.
    """
    given: list[str] = []
    for node in order:
        if room({*others, *given}) >= least:
            break
        given.append(node)
    if room({*others, *given}) >= least:
        for node in reversed(given[:-1]):  # one that helped no segment stays out
            if room({*others, *given} - {node}) >= least:
                given.remove(node)
    return tuple(given)


def size_of(need: Need, job: SlurmJob, available: int) -> Size:
    """Return the size to ask for, of a job as it was submitted or asked for before.

    Slurm takes a number of tasks as a bound for the number of nodes, in both directions: never more nodes
    than tasks, and of a job with ``--ntasks-per-node`` never fewer than its tasks need (seen on 22.05). So
    the tasks are those of the least nodes, unless that is fewer than the most nodes. Then there is one task
    for each of the most nodes; but if a task asks for something of its node, so that two may not fit on one,
    the number of nodes is settled by how many are ``available`` now.

    So it is for a job in segments: Slurm gives it the least nodes and no more, and never starts it if these
    are not whole segments (BadConstraints; seen on 26.05).
    """
    per_node = job.tasks_per_node or _tasks_per_node(need, job)
    if segment := segment_of(job, need):
        least, most = -(-need.least // segment) * segment, need.most // segment * segment
        whole = min(most, max(least, available // segment * segment)) if least <= most else need.most
        need = Need(least=whole, most=whole, segment=segment)
    if per_node * need.least >= need.most:
        tasks = per_node * need.least
    elif job.tasks_per_node or job.cpus_per_task > 1:
        tasks = per_node * min(need.most, max(need.least, available))
    else:
        tasks = need.most
    return Size(least=need.least, most=need.most, tasks=tasks, cpus=tasks * job.cpus_per_task)


def _tasks_per_node(need: Need, job: SlurmJob) -> int:
    """Return the tasks per node of a job that names only their number, which may be for the least nodes."""
    counts = (need.most, need.least) if not job.restart_count else (need.least, need.most)
    exact = (job.num_tasks // count for count in counts if job.num_tasks % count == 0)
    return max(1, next(exact, -(-job.num_tasks // need.most)))
