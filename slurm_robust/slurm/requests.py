"""Orders to Slurm that need more than a name: a job, a step, a reservation."""

from __future__ import annotations

from slurm_robust.model.container import OUTSIDE, Container
from slurm_robust.model.record import Record
from slurm_robust.slurm.records import Allocation

NODES_PER_STEP = 6
"""The largest step for which Slurm builds no tree.

In a tree each node reports the end of the step to its parent, which waits 60 s or more for a child that is
dead (``REVERSE_TREE_WIDTH`` and ``REVERSE_TREE_CHILDREN_TIMEOUT`` in Slurm's source). Meanwhile the job stays
COMPLETING, and is not requeued: 70 s with 8 nodes in one step, 0.3 s with 6 (measured, 22.05.8).
"""

MAX_STEPS = 250
"""At one time: each is two processes and 4 MB of memory on the host of the batch script (measured)."""


class SubmitRequest(Record):
    """A batch job. Fields left at their default are left to Slurm."""

    command: tuple[str, ...]
    """The script with its arguments, or with ``wrap`` any command."""

    wrap: bool = False
    name: str = ""
    nodes: int | None = None
    partition: str = ""
    reservation: str = ""
    time_limit_s: float | None = None
    output: str = ""
    work_dir: str = ""
    comment: str = ""
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    hold: bool = False
    requeue: bool = True
    exclusive: bool = False
    gres: str = ""
    environment: dict[str, str] = {}
    """Added to that of the caller."""

    options: tuple[str, ...] = ()
    """Further sbatch options, as written on the command line."""


class StepRequest(Record):
    """One task per node of ``command`` on ``nodes`` of a job, as a step that shares everything."""

    job_id: int
    nodes: tuple[str, ...]
    """Live nodes of the allocation only: a dead one in the list makes the launch fail after 5 to 12 s."""

    command: tuple[str, ...]
    name: str = "agents"
    gpus_per_node: int | None = None
    """None leaves GPUs to what the job asked per node; a job submitted with ``--gpus-per-task`` then gets
    only one task's share, so give the number (as :func:`whole_node_steps` does)."""

    environment: dict[str, str] = {}
    options: tuple[str, ...] = ()
    """Further options of srun; none that changes the shape of the step."""


class ReservationRequest(Record):
    """A reservation to be created, of ``nodes`` or of any ``node_count`` of them."""

    name: str
    nodes: tuple[str, ...] = ()
    node_count: int | None = None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partition: str = ""
    flags: tuple[str, ...] = ()
    """Slurm's names (``IGNORE_JOBS``, ``REPLACE_DOWN``, …); REPLACE_DOWN needs ``node_count``."""

    duration_s: float | None = None
    """None is UNLIMITED."""

    start_time: float | None = None
    """By slurmctld's clock, in seconds since 1970, cut to whole ones; None is now by this host's clock."""


def whole_node_steps(
    allocation: Allocation,
    nodes: tuple[str, ...],
    command: tuple[str, ...],
    *,
    name: str = "agents",
    environment: dict[str, str] | None = None,
    container: Container = OUTSIDE,
) -> tuple[StepRequest, ...]:
    """Return steps that together run ``command`` once on each of ``nodes`` with all that the job has there.

    ``command`` begins with this process's Python if the steps run in a ``container``.

    A step has ``NODES_PER_STEP`` nodes at most, unless that takes more than ``MAX_STEPS``. All hold the same
    number of GPUs, since Slurm cannot express different ones in one step.
    """
    groups: dict[int, list[str]] = {}
    for node in nodes:
        groups.setdefault(allocation.gpus_per_node.get(node, 0), []).append(node)
    most = NODES_PER_STEP if len(nodes) <= NODES_PER_STEP * MAX_STEPS else len(nodes)
    return tuple(
        StepRequest(
            job_id=allocation.job_id,
            nodes=tuple(group[first : first + most]),
            command=container.inside(command),
            name=name,
            gpus_per_node=gpus or None,
            environment=dict(environment or {}),
            options=container.srun_options,
        )
        for gpus, group in groups.items()
        for first in range(0, len(group), most)
    )
