"""The questions to the index, each one statement; needs SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from slurm_robust.fleet import schema
from slurm_robust.fleet.answers import (
    DAY_S,
    HOUR_S,
    CauseRow,
    FleetIncidentRow,
    FleetReport,
    GroupRow,
    IncidentFilter,
    JobRow,
    NodeRow,
    Totals,
    TrainingReport,
    TrainingRow,
    advise,
    rated,
    ratio,
)
from slurm_robust.ledger.summary import DRILL

MAX_ROWS = 100_000
WORST = 10

_NAMES_AT_ONCE = 5000


def incidents(connection: sa.Connection, wanted: IncidentFilter) -> tuple[FleetIncidentRow, ...]:
    """Return the newest first."""
    job, incident = schema.job, schema.incident
    training = _training(connection)
    asked = (
        sa.select(incident, job.c.cluster, job.c.job_id, job.c.array_task, training.label("training"))
        .join_from(incident, job, job.c.id == incident.c.job)
        .where(incident.c.seen >= wanted.since)
    )
    if wanted.cause:
        asked = asked.where(incident.c.cause == wanted.cause)
    if wanted.user:
        asked = asked.where(incident.c.user_name == wanted.user)
    if wanted.training:
        asked = asked.where(training == wanted.training)
    if wanted.nodes:
        asked = asked.where(_blames(_ids(connection, wanted.nodes), wanted.since))
    newest = asked.order_by(incident.c.seen.desc(), incident.c.job, incident.c.number)
    found = connection.execute(newest.limit(max(0, min(wanted.limit, MAX_ROWS))))
    return tuple(
        FleetIncidentRow(
            cluster=row.cluster,
            job_id=row.job_id,
            array_task=row.array_task,
            user=row.user_name,
            number=row.number,
            t=row.seen,
            symptom=row.symptom,
            cause=row.cause,
            nodes=row.nodes,
            detail=row.detail,
            recover_s=row.recover_s,
            lost_node_hours=row.lost_node_s / HOUR_S,
            training=row.training,
        )
        for row in found
    )


def trainings(
    connection: sa.Connection, since: float, name: str = "", limit: int = MAX_ROWS
) -> tuple[TrainingRow, ...]:
    """Return trainings of which a job did anything since ``since``; only those of this ``name``, if any."""
    job, incident, training = schema.job, schema.incident, _training(connection)
    key = (job.c.cluster, job.c.user_name, training)
    ours = sa.and_(training == name if name else training != "", job.c["last"] >= since)
    work_s = sa.func.sum(job.c.work_s)
    rows = connection.execute(
        sa.select(
            *(
                column.label(label)
                for column, label in zip(key, ("cluster", "user", "training"), strict=True)
            ),
            sa.func.count().label("jobs"),
            sa.func.min(job.c.started).label("started"),
            sa.func.max(job.c["last"]).label("last"),
            work_s.label("work_s"),
            sa.func.sum(job.c.effective_s * job.c.nodes).label("effective"),
            sa.func.sum(job.c.since_start_s * job.c.nodes).label("lived"),
        )
        .where(ours)
        .group_by(*key)
        .order_by(work_s.desc(), *key)
        .limit(limit)
    ).all()
    costs = connection.execute(
        sa.select(*key, sa.func.count(), sa.func.sum(incident.c.lost_node_s))
        .join_from(incident, job, job.c.id == incident.c.job)
        .where(ours)
        .group_by(*key)
    )
    cost = {(cluster, user, which): (many, lost) for cluster, user, which, many, lost in costs}
    found = []
    for row in rows:
        many, lost = cost.get((row.cluster, row.user, row.training), (0, 0.0))
        found.append(
            TrainingRow(
                cluster=row.cluster,
                user=row.user,
                training=row.training,
                jobs=row.jobs,
                started=row.started,
                last=row.last,
                node_hours=row.work_s / HOUR_S,
                ettr=row.effective / row.lived if row.lived else None,
                incidents=many,
                lost_node_hours=lost / HOUR_S,
            )
        )
    return tuple(found)


def training_report(connection: sa.Connection, name: str, since: float) -> TrainingReport:
    """Return the trainings of one name, each with its jobs."""
    job, incident, training = schema.job, schema.incident, _training(connection)
    found = trainings(connection, since, name)
    many = sa.select(sa.func.count()).where(incident.c.job == job.c.id).correlate(job).scalar_subquery()
    every = []
    for one in found:
        rows = connection.execute(
            sa.select(job, many.label("many"))
            .where(job.c.cluster == one.cluster, job.c.user_name == one.user, training == name)
            .where(job.c["last"] >= since)
            .order_by(job.c.started, job.c.job_id)
        )
        every.append(
            tuple(
                JobRow(
                    job_id=row.job_id,
                    array_task=row.array_task,
                    started=row.started,
                    ended=row.ended,
                    exit_code=row.exit_code,
                    nodes=row.nodes,
                    ettr=row.effective_s / row.since_start_s if row.since_start_s else None,
                    incidents=row.many,
                )
                for row in rows
            )
        )
    return TrainingReport(trainings=found, jobs=tuple(every))


def report(connection: sa.Connection, since: float, until: float) -> FleetReport:
    """Return all of ``srobust fleet``."""
    found = totals(connection, since)
    return FleetReport(
        since=since,
        until=until,
        totals=found,
        causes=causes(connection, since, found.node_hours),
        types=groups(connection, since, "type"),
        racks=groups(connection, since, "rack"),
        worst=nodes(connection, since, limit=WORST),
        advice=advise(found),
        trainings=trainings(connection, since, limit=WORST),
    )


def totals(connection: sa.Connection, since: float) -> Totals:
    """Return all jobs that did anything since ``since``."""
    job = schema.job
    ours = job.c["last"] >= since
    jobs = connection.execute(
        sa.select(
            sa.func.count().label("jobs"),
            sa.func.sum(sa.case((job.c.verified, 0), else_=1)).label("unverified"),
            sa.func.sum(job.c.effective_s * job.c.nodes).label("effective"),
            sa.func.sum(job.c.since_start_s * job.c.nodes).label("lived"),
            sa.func.avg(job.c.write_s).label("write_s"),
        ).where(ours)
    ).one()
    costs = schema.cause_day
    cost = connection.execute(
        sa.select(
            sa.func.sum(costs.c.incidents).label("many"),
            sa.func.sum(costs.c.lost_node_s).label("lost"),
            sa.func.sum(costs.c.recovered).label("recovered"),
            sa.func.sum(costs.c.recover_s).label("recover_s"),
        ).where(costs.c.day >= int(since // DAY_S), costs.c.cause != DRILL)
    ).one()
    sums = _sums(since)
    work_s = connection.execute(sa.select(sa.func.sum(sums.c.work_s))).scalar()
    return Totals(
        jobs=jobs.jobs,
        unverified=int(jobs.unverified or 0),
        node_hours=(work_s or 0.0) / HOUR_S,
        ettr=jobs.effective / jobs.lived if jobs.lived else None,
        incidents=int(cost.many or 0),
        lost_node_hours=(cost.lost or 0.0) / HOUR_S,
        recover_s=cost.recover_s / cost.recovered if cost.recovered else None,
        write_s=jobs.write_s,
    )


def causes(connection: sa.Connection, since: float, node_hours: float) -> tuple[CauseRow, ...]:
    """Return the causes, the most expensive first."""
    costs = schema.cause_day
    many, lost = sa.func.sum(costs.c.incidents), sa.func.sum(costs.c.lost_node_s)
    rows = connection.execute(
        sa.select(
            costs.c.cause,
            many.label("many"),
            lost.label("lost"),
            sa.func.sum(costs.c.recovered).label("recovered"),
            sa.func.sum(costs.c.recover_s).label("recover_s"),
        )
        .where(costs.c.day >= int(since // DAY_S))
        .group_by(costs.c.cause)
        .having(many > 0)
        .order_by(lost.desc(), costs.c.cause)
    )
    return tuple(
        CauseRow(
            cause=row.cause,
            incidents=int(row.many),
            lost_node_hours=row.lost / HOUR_S,
            recover_s=row.recover_s / row.recovered if row.recovered else None,
            per_node_day=rated(int(row.many), node_hours),
        )
        for row in rows
    )


def groups(connection: sa.Connection, since: float, by: str) -> tuple[GroupRow, ...]:
    """Return the groups by the ``type`` or the ``rack`` of nodes; "" for those of which it is not known."""
    node, sums = schema.node, _sums(since)
    work_s = sa.func.sum(sums.c.work_s)
    rows = connection.execute(
        sa.select(
            node.c[by].label("name"),
            sa.func.count().label("nodes"),
            work_s.label("work_s"),
            sa.func.sum(sums.c.failures).label("failures"),
            sa.func.sum(sums.c.network).label("network"),
        )
        .join_from(sums, node, node.c.id == sums.c.node)
        .group_by(node.c[by])
        .order_by(work_s.desc())
    )
    found = []
    for row in rows:
        many, hours = int(row.failures) + int(row.network), row.work_s / HOUR_S
        found.append(
            GroupRow(
                name=row.name,
                nodes=row.nodes,
                node_hours=hours,
                failures=int(row.failures),
                network=int(row.network),
                per_node_day=rated(many, hours),
                mttf_hours=hours / many if many else None,
            )
        )
    return tuple(found)


def nodes(
    connection: sa.Connection, since: float, names: Collection[str] = (), limit: int = MAX_ROWS
) -> tuple[NodeRow, ...]:
    """Return each node that worked or failed, those with most failures first; only ``names``, if any."""
    node, sums = schema.node, _sums(since)
    every = connection.execute(
        sa.select(sa.func.sum(sums.c.failures + sums.c.network), sa.func.sum(sums.c.work_s))
    ).one()
    all_failures, all_hours = int(every[0] or 0), (every[1] or 0.0) / HOUR_S
    many = sums.c.failures + sums.c.network
    asked = sa.select(node, sums).join_from(sums, node, node.c.id == sums.c.node)
    if names:
        asked = asked.where(node.c.id.in_(_ids(connection, names)))
    rows = connection.execute(asked.order_by(many.desc(), sums.c.work_s, node.c.name).limit(limit))
    found = []
    for row in rows:
        failures, hours = int(row.failures) + int(row.network), row.work_s / HOUR_S
        found.append(
            NodeRow(
                cluster=row.cluster,
                node=row.name,
                type=row.type,
                rack=row.rack,
                node_hours=hours,
                failures=int(row.failures),
                network=int(row.network),
                per_node_day=rated(failures, hours),
                ratio=ratio(failures, hours, all_failures, all_hours),
            )
        )
    return tuple(found)


def accusations(connection: sa.Connection, since: float) -> tuple[tuple[str, int, float], ...]:
    """Return node, uid and time of the first incident for which jobs of that user blamed that node.

    Only one per user: who can write more than one summary must not count for more.
    """
    blame, job, node, incident = schema.blame, schema.job, schema.node, schema.incident
    first = sa.func.min(blame.c.seen)
    rows = connection.execute(
        sa.select(node.c.name, job.c.uid, first)
        .join_from(blame, job, job.c.id == blame.c.job)
        .join(node, node.c.id == blame.c.node)
        .join(incident, sa.and_(incident.c.job == blame.c.job, incident.c.number == blame.c.number))
        .where(blame.c.seen >= since, incident.c.cause == "node")
        .group_by(node.c.name, job.c.uid)
    )
    return tuple((name, uid, t) for name, uid, t in rows)


def node_failures(
    connection: sa.Connection, since: float, names: Collection[str] | None
) -> tuple[int, float]:
    """Return failures with cause ``node``, and node-hours of work, of all nodes or of ``names``."""
    sums = _sums(since)
    asked = sa.select(sa.func.sum(sums.c.failures), sa.func.sum(sums.c.work_s))
    if names is not None:
        asked = asked.where(sums.c.node.in_(_ids(connection, names)))
    failures, work_s = connection.execute(asked).one()
    return int(failures or 0), (work_s or 0.0) / HOUR_S


def failures_per_day(
    connection: sa.Connection, since: float, until: float, names: Collection[str] | None
) -> tuple[int, ...]:
    """Return the same failures for each whole day (UTC), from the first one on which a node worked."""
    days = schema.node_day
    first, today = int(since // DAY_S) + 1, int(until // DAY_S)
    asked = (
        sa.select(days.c.day, sa.func.sum(days.c.failures))
        .where(days.c.day >= first, days.c.day < today)
        .group_by(days.c.day)
    )
    if names is not None:
        asked = asked.where(days.c.node.in_(_ids(connection, names)))
    found = {day: int(failures or 0) for day, failures in connection.execute(asked)}
    return tuple(found.get(day, 0) for day in range(min(found, default=today), today))


# -- parts --------------------------------------------------------------------------------------------------


def _training(connection: sa.Connection) -> sa.ColumnElement[str]:
    """Return the training of a job, "" for all in an index that is older than trainings."""
    return sa.literal("") if schema.version_of(connection) < 2 else schema.job.c.training


def _sums(since: float) -> sa.Subquery:
    """Return sums by node, before any join: whole blocks if they fit, and the days before the first."""
    day = int(since // DAY_S)
    block = -(-day // schema.BLOCK_DAYS)
    days, blocks = schema.node_day, schema.node_block
    names = ("node", "work_s", "failures", "network")
    before = sa.and_(days.c.day >= day, days.c.day < block * schema.BLOCK_DAYS)
    parts = sa.union_all(
        sa.select(*(days.c[name] for name in names)).where(before),
        sa.select(*(blocks.c[name] for name in names)).where(blocks.c.block >= block),
    ).subquery("parts")
    summed = (sa.func.sum(parts.c[name]).label(name) for name in names[1:])
    return sa.select(parts.c.node, *summed).group_by(parts.c.node).subquery("sums")


def _ids(connection: sa.Connection, names: Collection[str]) -> list[int]:
    node, wanted, found = schema.node, sorted(frozenset(names)), list[int]()
    for begin in range(0, len(wanted), _NAMES_AT_ONCE):
        part = wanted[begin : begin + _NAMES_AT_ONCE]
        found += connection.execute(sa.select(node.c.id).where(node.c.name.in_(part))).scalars()
    return found


def _blames(ids: Collection[int], since: float) -> sa.ColumnElement[Any]:
    blame, incident = schema.blame, schema.incident
    pairs = sa.select(blame.c.job, blame.c.number).where(blame.c.node.in_(ids), blame.c.seen >= since)
    return sa.tuple_(incident.c.job, incident.c.number).in_(pairs)
