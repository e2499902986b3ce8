"""The fleet index in a database: SQLite in a file, or PostgreSQL. Needs SQLAlchemy; see :mod:`.opening`.

Every write is one transaction that may be repeated: a job replaces what was known of it, by cluster, job id
and submit time. Writers take turns (``BEGIN IMMEDIATE``, an advisory lock), so that several may collect at
once. A database that is away is asked again for a bounded time, and no single answer is waited for without
limit.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite

from slurm_robust.fleet import schema
from slurm_robust.fleet.accept import DAY_S, JobEntry, NodePlace, shares_of
from slurm_robust.fleet.errors import BadIndexUrl, IndexAway, IndexRefused, NoIndex
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import one_line

PATIENCE_S = 10.0
"""How long a person at a screen waits."""

ANSWER_S = 120.0
"""Time limit of one statement."""

LOCK_S = 30.0
"""How long to wait for another writer."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_TURN = 0x5352_4F42  # of the advisory lock
_BATCH = 500
# PostgreSQL says so while it answers; nothing of this passes by itself.
_REFUSALS = re.compile(
    r"authentication failed|no pg_hba\.conf entry|does not exist|permission denied|no password supplied|"
    r"readonly database|unable to open database|disk is full|No space left",
    re.IGNORECASE,
)

T = TypeVar("T")


class Added(Record):
    """What became of entries."""

    new: int = 0
    renewed: int = 0
    unchanged: int = 0
    older: int = 0
    """The index knew the job for longer than they do."""


class FleetIndex:
    """An open index. Instances are used by one thread."""

    def __init__(
        self,
        url: str,
        *,
        create: bool = False,
        patience_s: float = PATIENCE_S,
        lock_s: float = LOCK_S,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take ``url``, of SQLite or PostgreSQL, or a file's path. ``create``: make what is not there.

        ``patience_s``: how long a database may be away; ``lock_s``: how long one attempt waits for the turn
        of another writer. Raises the errors of :mod:`.errors`.
        """
        self._url = _url(url)
        # Without what follows the database, which may hold a password too.
        self.name = self._url.set(query={}).render_as_string(hide_password=True)
        self.is_postgresql = self._url.get_backend_name() == "postgresql"
        self._patience_s, self._clock, self._pause = patience_s, clock, pause
        if not self.is_postgresql and not create and not os.path.exists(self._url.database or ""):
            raise self._missing()
        self._engine = _engine(self._url, lock_s, create=create)
        try:
            if create:
                self.write(self._create)
            else:
                self.read(self._check)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the database."""
        self._engine.dispose()

    def __enter__(self) -> FleetIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- transactions ------------------------------------------------------------------------------

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Return what ``work`` finds in one transaction. It may be called again. Raises :mod:`.errors`."""
        return self._patiently(work, writes=False)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Do the same for work that changes something, alone among the writers."""
        return self._patiently(work, writes=True)

    def _patiently(self, work: Callable[[sa.Connection], T], *, writes: bool) -> T:
        end, pause_s = self._clock() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                with self._transaction(writes) as connection:
                    return work(connection)
            except exc.DBAPIError as error:
                text = one_line(str(error.orig))
                if not _is_away(error, text):
                    raise self._refused(text) from error
                self._engine.dispose()
                if self._clock() + pause_s > end:
                    raise IndexAway(
                        f"the fleet index {self.name} has not answered for {self._patience_s:g} s: {text}",
                        fix="see whether its database runs; nothing is lost, so try again then",
                    ) from error
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[sa.Connection]:
        options: dict[str, Any] = {"srobust_writes": writes}
        connected = self._engine.connect().execution_options(**options)
        with connected as connection, _bounded(connection), connection.begin():
            if writes and self.is_postgresql:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURN)))
            yield connection

    # -- the tables --------------------------------------------------------------------------------

    def _create(self, connection: sa.Connection) -> None:
        tables = set(sa.inspect(connection).get_table_names())
        if schema.about.name in tables:
            self._check(connection)
            schema.convert(connection)
            return
        if tables and not self.is_postgresql:
            raise self._foreign()
        schema.metadata.create_all(connection)
        facts = {"mark": schema.MARK, "schema_version": str(schema.VERSION)}
        connection.execute(
            sa.insert(schema.about), [{"name": name, "value": value} for name, value in facts.items()]
        )

    def _check(self, connection: sa.Connection) -> None:
        tables = set(sa.inspect(connection).get_table_names())
        if schema.about.name not in tables:
            raise self._missing() if self.is_postgresql or not tables else self._foreign()
        facts = {row.name: row.value for row in connection.execute(sa.select(schema.about))}
        version = facts.get("schema_version", "")
        if facts.get("mark") != schema.MARK or not version.isdecimal():
            raise self._foreign()
        if int(version) not in schema.READABLE:
            raise IndexRefused(
                f"the fleet index {self.name} has tables of version {int(version)}; this release has version "
                f"{schema.VERSION}",
                fix="use it with the release of slurm_robust that wrote it, or a later one",
            )

    def _missing(self) -> NoIndex:
        return NoIndex(
            f"there is no fleet index at {self.name} yet",
            fix="fill it with 'srobust admin fleet collect' on the node that collects, or name another one",
        )

    def _foreign(self) -> IndexRefused:
        return IndexRefused(
            f"{self.name} is not a fleet index: something else is in that database",
            fix="name another file or database; nothing was changed",
        )

    def _refused(self, text: str) -> IndexRefused:
        if "file is not a database" in text or "malformed" in text:
            return IndexRefused(
                f"{self.name} is not an index, or damaged: {text}",
                fix="name another file; or move it aside, and collect anew",
            )
        return IndexRefused(
            f"the fleet index {self.name} cannot be used: {text}",
            fix="see who may read and write it; SQLite needs to write beside its file even to read",
        )

    # -- adding ------------------------------------------------------------------------------------

    def add(self, entries: Sequence[JobEntry], places: Mapping[str, NodePlace] | None = None) -> Added:
        """Put the jobs in, each in place of what was known of it; all of them or none.

        ``places``: type and rack of the nodes for which they are known now. Raises :mod:`.errors`.
        """

        def work(connection: sa.Connection) -> Added:
            schema.convert(connection)
            return _Adding(connection, places or {}).add(entries)

        return self.write(work)

    def forget(self, before: float) -> int:
        """Remove jobs that ended before the four weeks of ``before`` (seconds since 1970) began; how many.

        With them goes what was summed up of that time.
        """
        block = int(before // DAY_S) // schema.BLOCK_DAYS
        day = block * schema.BLOCK_DAYS

        def work(connection: sa.Connection) -> int:
            job = schema.job
            is_old = job.c["last"] < day * DAY_S
            for table in (schema.blame, schema.incident):
                old = sa.select(job.c.id).where(is_old)
                connection.execute(sa.delete(table).where(table.c.job.in_(old)))
            for table in (schema.node_day, schema.cause_day):
                connection.execute(sa.delete(table).where(table.c.day < day))
            connection.execute(sa.delete(schema.node_block).where(schema.node_block.c.block < block))
            return connection.execute(sa.delete(job).where(is_old)).rowcount

        return self.write(work)


class _Adding:
    """One transaction that adds entries."""

    def __init__(self, connection: sa.Connection, places: Mapping[str, NodePlace]) -> None:
        self._connection = connection
        self._places = places
        self._nodes: dict[tuple[str, str], int] = {}
        self._change: dict[tuple[int, int], list[float]] = {}
        """By day and node: what to add to work, failures and network."""
        self._costs: dict[tuple[int, str], list[float]] = {}
        """By day and cause: what to add to incidents, lost time, recoveries and their time."""
        self._incidents: list[dict[str, Any]] = []
        self._blames: list[dict[str, Any]] = []

    def add(self, entries: Sequence[JobEntry]) -> Added:
        """Add all of them; the last of several entries of one job counts."""
        counts = {"new": 0, "renewed": 0, "unchanged": 0, "older": 0}
        by_key = {(e.cluster, e.job_id, e.submitted): e for e in entries}
        self._learn_nodes(by_key.values())
        for entry in by_key.values():
            counts[self._one(entry)] += 1
        self._flush()
        return Added(**counts)

    def _one(self, entry: JobEntry) -> str:
        job, connection = schema.job, self._connection
        key = (
            job.c.cluster == entry.cluster,
            job.c.job_id == entry.job_id,
            job.c.submitted == entry.submitted,
        )
        packed = zlib.compress(msgspec.msgpack.encode(entry), 6)
        known = connection.execute(sa.select(job.c.id, job.c.wall_s, job.c.entry).where(*key)).first()
        if known is not None and known.entry == packed:
            return "unchanged"
        if known is not None and known.wall_s > entry.wall_s:
            return "older"
        values = {
            **{one.name: getattr(entry, one.name) for one in job.c if one.name in JobEntry.__struct_fields__},
            "user_name": entry.user,
            "work_s": entry.work_s,
            "last": max([entry.ended or 0.0, entry.started, *(one.end for one in entry.work)]),
            "entry": packed,
        }
        if known is None:
            added = sa.insert(job).values(values).returning(job.c.id)
            number = connection.execute(added).scalar_one()
        else:
            number = known.id
            # Take away what an older summary of the job has added.
            for table in (schema.blame, schema.incident):
                self._connection.execute(sa.delete(table).where(table.c.job == number))
            old = _unpack(known.entry)
            if old is not None:
                self._learn_nodes((old,))
                self._count(old, -1)
            connection.execute(sa.update(job).where(job.c.id == number).values(values))
        self._count(entry, 1)
        self._collect_incidents(number, entry)
        return "new" if known is None else "renewed"

    def _count(self, entry: JobEntry, sign: int) -> None:
        for (day, name), share in shares_of(entry).items():
            change = self._change.setdefault((day, self._nodes[entry.cluster, name]), [0.0, 0, 0])
            for place, value in enumerate((share.work_s, share.failures, share.network)):
                change[place] += sign * value
        for one in entry.incidents:
            cost = self._costs.setdefault((int(one.t // DAY_S), one.cause), [0, 0.0, 0, 0.0])
            lost_s = sum(one.lost_node_s.values())
            recovered = one.recover_s is not None
            for place, value in enumerate((1, lost_s, recovered, one.recover_s or 0.0)):
                cost[place] += sign * value

    def _collect_incidents(self, number: int, entry: JobEntry) -> None:
        for one in entry.incidents:
            self._incidents.append(
                {
                    "job": number,
                    "number": one.number,
                    "seen": one.t,
                    "user_name": entry.user,
                    "symptom": one.symptom,
                    "cause": one.cause,
                    "nodes": fold(one.nodes),
                    "detail": one.detail,
                    "recover_s": one.recover_s,
                    "lost_node_s": sum(one.lost_node_s.values()),
                }
            )
            self._blames += (
                {"job": number, "number": one.number, "node": self._nodes[entry.cluster, name], "seen": one.t}
                for name in one.nodes
            )

    def _flush(self) -> None:
        connection = self._connection
        for table, rows in ((schema.incident, self._incidents), (schema.blame, self._blames)):
            for part in _parts(rows):
                connection.execute(sa.insert(table), part)
        blocks: dict[tuple[int, int], list[float]] = {}
        for (day, node), change in self._change.items():
            whole = blocks.setdefault((day // schema.BLOCK_DAYS, node), [0.0, 0, 0])
            for place, value in enumerate(change):
                whole[place] += value
        self._add_up(schema.node_day, self._change)
        self._add_up(schema.node_block, blocks)
        self._add_up(schema.cause_day, self._costs)

    def _add_up(self, table: sa.Table, changes: Mapping[tuple[int, Any], Sequence[float]]) -> None:
        """Add to the rows of a table of sums, whose first two columns are the key."""
        keys, sums = [column.name for column in table.c][:2], [column.name for column in table.c][2:]
        is_postgresql = self._connection.dialect.name == "postgresql"
        insert = (postgresql.insert if is_postgresql else sqlite.insert)(table)
        added = insert.on_conflict_do_update(
            index_elements=[table.c[name] for name in keys],
            set_={name: table.c[name] + insert.excluded[name] for name in sums},
        )
        rows = [
            dict(zip((*keys, *sums), (*key, *values), strict=True))
            for key, values in sorted(changes.items())
            if any(values)
        ]
        for part in _parts(rows):
            self._connection.execute(added, part)

    def _learn_nodes(self, entries: Iterable[JobEntry]) -> None:
        """Learn the ids of all nodes of the entries, and what is new of their places."""
        names: dict[str, set[str]] = {}
        for entry in entries:
            wanted = names.setdefault(entry.cluster, set())
            for work in entry.work:
                wanted.update(work.nodes)
            for one in entry.incidents:
                wanted.update(one.nodes)
        for cluster, wanted in names.items():
            missing = sorted(name for name in wanted if (cluster, name) not in self._nodes)
            for part in _parts(missing):
                self._learn(cluster, part)

    def _learn(self, cluster: str, names: Sequence[str]) -> None:
        node, connection = schema.node, self._connection
        of_these = (node.c.cluster == cluster, node.c.name.in_(names))
        found = {row.name: row for row in connection.execute(sa.select(node).where(*of_these))}
        new = [
            {"cluster": cluster, "name": name, "type": place.type, "rack": place.rack}
            for name in names
            if name not in found
            for place in (self._places.get(name, NodePlace()),)
        ]
        if new:
            connection.execute(sa.insert(node), new)
            found = {row.name: row for row in connection.execute(sa.select(node).where(*of_these))}
        for name, row in found.items():
            self._nodes[cluster, name] = row.id
            place = self._places.get(name)
            if place is not None and (row.type, row.rack) != (place.type, place.rack):
                connection.execute(
                    sa.update(node).where(node.c.id == row.id).values(type=place.type, rack=place.rack)
                )


# -- entries as they are kept -------------------------------------------------------------------------------

_entries = msgspec.msgpack.Decoder(JobEntry)
_MAX_UNPACKED = 2**26


def _unpack(packed: bytes) -> JobEntry | None:
    """Return the entry; None for what another release has kept in a way that this one cannot read."""
    try:
        return _entries.decode(zlib.decompressobj().decompress(packed, _MAX_UNPACKED))
    except (zlib.error, *UNREADABLE):
        return None


def _parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    return (rows[begin : begin + _BATCH] for begin in range(0, len(rows), _BATCH))


# -- the database -------------------------------------------------------------------------------------------


def _url(text: str) -> sa.URL:
    """Parse the URL. Raises :class:`BadIndexUrl`."""
    if text.startswith("/") and "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:  # a port that is no number, brackets
        raise _bad_url() from error
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    is_file = url.drivername == "sqlite" and (url.database or "").startswith("/")
    if not (is_file or url.drivername == "postgresql+psycopg"):
        raise _bad_url()
    return url


def _bad_url() -> BadIndexUrl:
    # It may hold a password, so it is not repeated.
    return BadIndexUrl(
        "what names the fleet index is neither an absolute path nor a URL of SQLite or PostgreSQL",
        fix="write /var/lib/slurm-robust/fleet.sqlite or postgresql://user@host/database",
    )


def _engine(url: sa.URL, lock_s: float, *, create: bool) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        options = {
            "statement_timeout": f"{ANSWER_S:g}s",
            "lock_timeout": f"{lock_s:g}s",
            "idle_in_transaction_session_timeout": f"{ANSWER_S:g}s",
        }
        words = " ".join(f"-c {name}={value}" for name, value in options.items())
        arguments = {"connect_timeout": 5, "options": words, "application_name": "srobust"}
        return sa.create_engine(url, connect_args=arguments, pool_size=1, max_overflow=0)
    engine = sa.create_engine(url, connect_args={"timeout": lock_s}, pool_size=1, max_overflow=0)

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        # This module begins transactions itself; the driver's own do not cover reading.
        connection.isolation_level = None
        if create:
            connection.execute("PRAGMA journal_mode=WAL")
        for pragma in ("foreign_keys=ON", "synchronous=NORMAL", "cache_size=-65536", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("srobust_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _is_away(error: exc.DBAPIError, text: str) -> bool:
    """Return whether it may pass: no connection, or another writer's turn."""
    if isinstance(error, exc.OperationalError) or error.connection_invalidated:
        return not _REFUSALS.search(text)
    return False


@contextmanager
def _bounded(connection: sa.Connection) -> Iterator[None]:
    """Cut the connection if the server neither answers nor goes away: it obeys its own limits no more."""
    if connection.dialect.name != "postgresql":
        yield
        return
    number = os.dup(connection.connection.driver_connection.pgconn.socket)  # type: ignore[union-attr]
    with socket.socket(fileno=number) as ours:

        def cut() -> None:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(ANSWER_S + LOCK_S, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
