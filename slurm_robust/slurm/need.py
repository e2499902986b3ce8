"""What a job needs of a cluster to go on, and what it asks Slurm for. Pure.

A job of N slots and S spares can run on N nodes. So it asks for N at least and N + S at most, and leaves no
node out whose exclusion keeps it from starting: the weakest exclusion is dropped first, and a node that does
not respond costs nothing to exclude, since it gets no job anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.records import OF_RESERVATION, SlurmJob, SlurmNode

# A node in one of these is not there for a job that would start now, its own one included.
_AWAY = frozenset({"FUTURE", "UNKNOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED"})


class Need(Record):
    """With how many nodes a job can go on."""

    least: int
    """Its slots."""

    most: int
    """Its slots and spares."""


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
        found[kind].append(node.name)
    return Places(**{name: tuple(names) for name, names in found.items()})


def _is_idle(node: SlurmNode, job: SlurmJob) -> bool:
    return node.is_idle and node.usable_despite(OF_RESERVATION if job.reservation else frozenset())


def affordable(
    exclude: Sequence[str], nodes: Iterable[SlurmNode], job: SlurmJob, least: int
) -> tuple[str, ...]:
    """Return as many of ``exclude``, the weakest first, as leave the job ``least`` nodes to start on.

    A node counts if it is in a partition of the job, responds, and is neither down nor to leave. If those
    that respond are too few even without any exclusion, others count too: none responds right after a restart
    of slurmctld. What else the job asks of its nodes (features, memory) is Slurm's to judge. The job's own
    list of excluded nodes may have others than ``exclude``: they are its owner's, and stay out.
    """
    partitions = set(job.partition.split(","))
    owners = set(job.excluded_nodes) - set(exclude)
    sound = [
        node
        for node in nodes
        if not (node.is_down or node.is_leaving)
        and partitions & set(node.partitions)
        and node.name not in owners
    ]
    usable = {node.name for node in sound if node.responding}
    if len(usable) < least:
        usable = {node.name for node in sound}
    short = least - len(usable - set(exclude))
    given_up = [node for node in exclude if node in usable][: max(0, short)]
    return tuple(node for node in exclude if node not in given_up)


def size_of(need: Need, job: SlurmJob, available: int) -> Size:
    """Return the size to ask for, of a job as it was submitted or asked for before.

    Slurm takes a number of tasks as a bound for the number of nodes, in both directions: never more nodes
    than tasks, and of a job with ``--ntasks-per-node`` never fewer than its tasks need (seen on 22.05). So
    the tasks are those of the least nodes, unless that is fewer than the most nodes. Then there is one task
    for each of the most nodes; but if a task asks for something of its node, so that two may not fit on one,
    the number of nodes is settled by how many are ``available`` now.
    """
    per_node = job.tasks_per_node or _tasks_per_node(need, job)
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
