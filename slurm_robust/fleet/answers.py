"""What the index answers: records, and the arithmetic between counts and rates. Pure, without SQLAlchemy."""

from __future__ import annotations

from slurm_robust.model.record import Record
from slurm_robust.policy.interval import MIN_INCIDENTS, daly
from slurm_robust.policy.spares import Measured, measure

HOUR_S = 3600.0
DAY_S = 86400.0


class IncidentFilter(Record):
    """Which incidents; empty fields want all."""

    since: float = 0.0
    """Seconds since 1970."""
    nodes: tuple[str, ...] = ()
    cause: str = ""
    user: str = ""
    limit: int = 100
    training: str = ""


class FleetIncidentRow(Record):
    """One incident of any job."""

    cluster: str
    job_id: int
    array_task: str
    user: str
    number: int
    t: float
    """When it was seen, in seconds since 1970."""
    symptom: str
    cause: str
    nodes: str
    """A hostlist of the blamed nodes."""
    detail: str
    recover_s: float | None
    lost_node_hours: float
    training: str = ""
    """The training of which the job is a chapter, "" for none."""


class TrainingRow(Record):
    """One training of one user: all jobs of that name."""

    cluster: str
    user: str
    training: str
    jobs: int
    started: float
    """When its first job was started, in seconds since 1970."""
    last: float
    """When a job of it was last seen."""
    node_hours: float
    ettr: float | None
    """Share of the time since each job's first start, weighted by nodes; time between jobs does not count."""
    incidents: int
    lost_node_hours: float


class JobRow(Record):
    """One job of a training."""

    job_id: int
    array_task: str
    started: float
    ended: float | None
    exit_code: int | None
    nodes: int
    ettr: float | None
    incidents: int


class TrainingReport(Record):
    """``srobust fleet --training NAME``."""

    trainings: tuple[TrainingRow, ...]
    """Trainings of that name, one for each user and cluster."""
    jobs: tuple[tuple[JobRow, ...], ...]
    """For each of them, oldest first."""


class Totals(Record):
    """All jobs together."""

    jobs: int
    unverified: int
    """Jobs whose nodes and times Slurm's accounting has not confirmed."""
    node_hours: float
    ettr: float | None
    """Effective time by time since the first start, of all jobs, each weighted by its nodes."""
    incidents: int
    lost_node_hours: float
    recover_s: float | None
    """Mean, from decision to first new step."""
    write_s: float | None
    """Mean time until a checkpoint is on shared storage."""


class CauseRow(Record):
    """What one cause has done."""

    cause: str
    incidents: int
    lost_node_hours: float
    recover_s: float | None
    per_node_day: Measured | None
    """Incidents per node-day of work."""


class GroupRow(Record):
    """Nodes of one type, or of one rack."""

    name: str
    nodes: int
    node_hours: float
    failures: int
    """Times that a job blamed a node for an incident with cause ``node``; each job once for each node."""
    network: int
    """The same with cause ``network``."""
    per_node_day: Measured | None
    """Both together, per node-day of work."""
    mttf_hours: float | None
    """Mean time to failure of one node; None without a failure."""


class NodeRow(Record):
    """One node."""

    cluster: str
    node: str
    type: str
    rack: str
    node_hours: float
    failures: int
    network: int
    per_node_day: Measured | None
    ratio: float | None = None
    """Its rate by that of all other nodes; None if either is not known."""


class Advice(Record):
    """How often a job of this many nodes writes a checkpoint to storage, by Daly
    (:mod:`slurm_robust.policy.interval`).
    """

    nodes: int
    mtbf_s: float
    every_s: float


class FleetReport(Record):
    """``srobust fleet``. ``since`` and ``until`` are seconds since 1970."""

    since: float
    until: float
    totals: Totals
    causes: tuple[CauseRow, ...]
    types: tuple[GroupRow, ...]
    racks: tuple[GroupRow, ...]
    worst: tuple[NodeRow, ...]
    advice: tuple[Advice, ...]
    trainings: tuple[TrainingRow, ...] = ()
    """The trainings that took most node-hours."""


def rated(count: int, node_hours: float) -> Measured | None:
    """Return a rate per node-day with its 95 % interval."""
    return measure(count, node_hours / 24)


def ratio(own: int, hours: float, all_failures: int, all_hours: float) -> float | None:
    """Return a node's rate by that of the others plus half a failure, so that it is never zero."""
    others = all_hours - hours
    if hours <= 0 or others <= 0:
        return None
    return (own / hours) / ((max(0, all_failures - own) + 0.5) / others)


def advise(totals: Totals, sizes: tuple[int, ...] = (8, 64, 512)) -> tuple[Advice, ...]:
    """Return the interval for jobs of some sizes, by the fleet's incidents; ``()`` if these are few."""
    if not totals.write_s or totals.incidents < MIN_INCIDENTS or not totals.node_hours:
        return ()
    mtbf_s = totals.node_hours * HOUR_S / totals.incidents
    return tuple(
        Advice(nodes=size, mtbf_s=mtbf_s / size, every_s=daly(totals.write_s, mtbf_s / size))
        for size in sizes
    )
