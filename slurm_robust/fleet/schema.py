"""The tables of the fleet index, the same on SQLite and PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

VERSION = 2
"""Version of the tables. A release that changes them raises it, and converts what is older when it opens it
to add.

2: jobs have a training. An index of version 1 is read as if no job had one.
"""

READABLE = (1, VERSION)

MARK = "slurm_robust fleet index"

metadata = sa.MetaData()

about = sa.Table(
    "srobust_about",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.String, nullable=False),
)
"""``schema_version`` and ``mark``."""

node = sa.Table(
    "srobust_node",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("cluster", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("type", sa.String, nullable=False, server_default=""),
    sa.Column("rack", sa.String, nullable=False, server_default=""),
    sa.UniqueConstraint("cluster", "name"),
)

job = sa.Table(
    "srobust_job",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("cluster", sa.String, nullable=False),
    sa.Column("job_id", sa.BigInteger, nullable=False),
    sa.Column("submitted", sa.BigInteger, nullable=False),
    sa.Column("uid", sa.BigInteger, nullable=False),
    sa.Column("user_name", sa.String, nullable=False),
    sa.Column("array_task", sa.String, nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    sa.Column("last", sa.Float, nullable=False),
    sa.Column("ended", sa.Float),
    sa.Column("exit_code", sa.Integer),
    sa.Column("wall_s", sa.Float, nullable=False),
    sa.Column("since_start_s", sa.Float, nullable=False),
    sa.Column("effective_s", sa.Float, nullable=False),
    sa.Column("work_s", sa.Float, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("generations", sa.Integer, nullable=False),
    sa.Column("write_s", sa.Float),
    sa.Column("verified", sa.Boolean, nullable=False),
    sa.Column("left_out", sa.Integer, nullable=False),
    # The entry itself, compressed: what an older version of it has added is taken away by it.
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("training", sa.String, nullable=False, server_default=""),
    sa.UniqueConstraint("cluster", "job_id", "submitted"),
    sa.Index("srobust_job_last", "last"),
    sa.Index("srobust_job_training", "training"),
)

incident = sa.Table(
    "srobust_incident",
    metadata,
    sa.Column("job", sa.Integer, sa.ForeignKey(job.c.id), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("seen", sa.Float, nullable=False),
    sa.Column("user_name", sa.String, nullable=False),
    sa.Column("symptom", sa.String, nullable=False),
    sa.Column("cause", sa.String, nullable=False),
    sa.Column("nodes", sa.String, nullable=False),
    sa.Column("detail", sa.String, nullable=False),
    sa.Column("recover_s", sa.Float),
    sa.Column("lost_node_s", sa.Float, nullable=False),
    sa.Index("srobust_incident_seen", "seen"),
    sa.Index("srobust_incident_cause", "cause", "seen"),
    sa.Index("srobust_incident_user", "user_name", "seen"),
)

blame = sa.Table(
    "srobust_blame",
    metadata,
    sa.Column("job", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("node", sa.Integer, sa.ForeignKey(node.c.id), primary_key=True),
    sa.Column("seen", sa.Float, nullable=False),
    sa.Index("srobust_blame_node", "node", "seen"),
)

node_day = sa.Table(
    "srobust_node_day",
    metadata,
    sa.Column("day", sa.Integer, primary_key=True),
    sa.Column("node", sa.Integer, sa.ForeignKey(node.c.id), primary_key=True),
    sa.Column("work_s", sa.Float, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("network", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""What all jobs together add to the account of one node on one day (UTC, counted from 1970)."""

BLOCK_DAYS = 28

node_block = sa.Table(
    "srobust_node_block",
    metadata,
    sa.Column("block", sa.Integer, primary_key=True),
    sa.Column("node", sa.Integer, sa.ForeignKey(node.c.id), primary_key=True),
    sa.Column("work_s", sa.Float, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("network", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""The same in blocks of four weeks (day // 28), so that a year is no more to read than a month."""

cause_day = sa.Table(
    "srobust_cause_day",
    metadata,
    sa.Column("day", sa.Integer, primary_key=True),
    sa.Column("cause", sa.String, primary_key=True),
    sa.Column("incidents", sa.Integer, nullable=False),
    sa.Column("lost_node_s", sa.Float, nullable=False),
    sa.Column("recovered", sa.Integer, nullable=False),
    sa.Column("recover_s", sa.Float, nullable=False),
    sqlite_with_rowid=False,
)
"""What incidents of one cause have cost on one day; ``recover_s`` of the ``recovered`` ones together."""


def version_of(connection: sa.Connection) -> int:
    """Return the version of the tables that are there."""
    asked = sa.select(about.c.value).where(about.c.name == "schema_version")
    return int(connection.execute(asked).scalar() or 0)


def convert(connection: sa.Connection) -> None:
    """Bring tables of an older version up to this one, within the transaction of a writer."""
    if version_of(connection) == 1:
        column = sa.schema.CreateColumn(job.c.training).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {job.name} ADD COLUMN {column}")
        next(index for index in job.indexes if index.name == "srobust_job_training").create(connection)
        newer = sa.update(about).where(about.c.name == "schema_version").values(value="2")
        connection.execute(newer)
