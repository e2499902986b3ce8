"""The contract of the fleet index as tests: SQLite and PostgreSQL must both pass it.

Derive a class from :class:`FleetIndexContract` in a pytest module and give it a fixture ``url``, of an empty
place.
"""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from msgspec import structs

from slurm_robust.fleet import queries, schema
from slurm_robust.fleet.accept import NodePlace
from slurm_robust.fleet.answers import IncidentFilter
from slurm_robust.fleet.errors import IndexRefused, NoIndex
from slurm_robust.fleet.index import Added, FleetIndex
from slurm_robust.model.jobsummary import NodeWork
from tests.unit.fleet.samples import BEGIN, HOUR, NODES, entry, incident

PLACES = {name: NodePlace(type="8xh200", rack="r1" if name < "n3" else "r2") for name in NODES}
WRITERS, JOBS_EACH = 2, 30


class FleetIndexContract:
    """The tests. Each docstring is the promise."""

    @pytest.fixture
    def index(self, url: str):  # type: ignore[no-untyped-def]
        with FleetIndex(url, create=True) as opened:
            yield opened

    def test_nothing_is_made_by_reading(self, url: str) -> None:
        """Where there is no index, a reader says so."""
        with pytest.raises(NoIndex) as told:
            FleetIndex(url)
        assert "srobust admin fleet collect" in told.value.fix

    def test_a_new_index_is_empty(self, index: FleetIndex) -> None:
        """An empty index has empty answers, and no division by zero."""
        found = index.read(lambda c: queries.report(c, 0.0, BEGIN))
        assert (found.totals.jobs, found.totals.ettr, found.causes, found.worst) == (0, None, (), ())
        assert index.read(lambda c: queries.incidents(c, IncidentFilter())) == ()

    def test_adding_twice_is_adding_once(self, index: FleetIndex) -> None:
        """The same summary changes nothing the second time."""
        assert index.add([entry()], PLACES) == Added(new=1)
        before = everything(index)
        assert index.add([entry()], PLACES) == Added(unchanged=1)
        assert everything(index) == before

    def test_a_job_that_went_on_replaces_what_was_known(self, index: FleetIndex) -> None:
        """A later summary of the job takes the place of the earlier one, in sums too."""
        later = entry(
            wall_s=20 * HOUR,
            incidents=(incident(), incident(2, nodes=("n3",), cause="network")),
            work=(NodeWork(nodes=NODES[:3], start=BEGIN, end=BEGIN + 20 * HOUR),),
        )
        index.add([entry()], PLACES)
        assert index.add([later], PLACES) == Added(renewed=1)
        with_both = everything(index)
        assert index.add([entry()], PLACES) == Added(older=1)
        assert everything(index) == with_both
        rows = {row.node: row for row in index.read(lambda c: queries.nodes(c, 0.0))}
        assert {name: round(row.node_hours) for name, row in rows.items() if row.node_hours} == {
            "n1": 20, "n2": 20, "n3": 20,
        }  # fmt: skip
        assert [(rows[n].failures, rows[n].network) for n in ("n1", "n2", "n3")] == [(0, 0), (1, 0), (0, 1)]

    def test_another_job_with_the_same_id(self, index: FleetIndex) -> None:
        """Slurm gives out ids again, and clusters share them: submit time and cluster tell jobs apart."""
        others = [entry(), entry(submitted=int(BEGIN) + 9), entry(cluster="beta")]
        assert index.add(others, PLACES) == Added(new=3)
        assert index.read(lambda c: queries.totals(c, 0.0)).jobs == 3

    def test_the_report(self, index: FleetIndex) -> None:
        """Rates by type and rack, losses by cause, the worst nodes first."""
        index.add([entry(), entry(8, incidents=(incident(cause="code", nodes=()),))], PLACES)
        found = index.read(lambda c: queries.report(c, 0.0, BEGIN + 86400))
        assert found.totals.jobs == 2
        assert found.totals.ettr == pytest.approx(11 / 12)
        assert (found.totals.incidents, round(found.totals.node_hours)) == (2, 96)
        assert {row.cause: round(row.lost_node_hours, 3) for row in found.causes} == {
            "code": 0.111, "node": 0.111,
        }  # fmt: skip
        assert [(row.name, row.nodes, row.failures) for row in found.types] == [("8xh200", 4, 1)]
        assert {row.name: (row.failures, round(row.mttf_hours or 0)) for row in found.racks} == {
            "r1": (1, 48), "r2": (0, 0),
        }  # fmt: skip
        (first, *_) = found.worst
        assert (first.node, first.failures, first.rack) == ("n2", 1, "r1")
        assert first.per_node_day is not None
        assert first.per_node_day.low < first.per_node_day.rate < first.per_node_day.high
        assert first.ratio is not None
        assert first.ratio > 1

    def test_advice_on_the_interval_needs_incidents(self, index: FleetIndex) -> None:
        """An interval between checkpoints is advised for jobs of some sizes, from ten incidents on."""
        nine = entry(incidents=tuple(incident(n) for n in range(1, 10)))
        index.add([nine], PLACES)
        assert index.read(lambda c: queries.report(c, 0.0, BEGIN + 86400)).advice == ()
        index.add([entry(8)], PLACES)
        found = index.read(lambda c: queries.report(c, 0.0, BEGIN + 86400))
        assert [advice.nodes for advice in found.advice] == [8, 64, 512]

    def test_incidents_by_all_that_can_be_asked(self, index: FleetIndex) -> None:
        """Filters by time, node, cause and user, newest first, with a limit."""
        one = entry(incidents=tuple(incident(n, nodes=(f"n{n}",)) for n in (1, 2, 3)))
        two = entry(8, user="bob", incidents=(incident(4, cause="code", nodes=()),))
        index.add([one, two], PLACES)

        def numbers(**wanted: object) -> list[int]:
            rows = index.read(lambda c: queries.incidents(c, IncidentFilter(**wanted)))  # type: ignore[arg-type]
            return [row.number for row in rows]

        assert numbers() == [4, 3, 2, 1]
        assert numbers(limit=2) == [4, 3]
        assert numbers(since=BEGIN + 3 * HOUR) == [4, 3]
        assert numbers(nodes=("n1", "n3")) == [3, 1]
        assert numbers(nodes=("nowhere",)) == []
        assert numbers(cause="code") == [4]
        assert numbers(user="alice", cause="node", limit=1) == [3]

    def test_hostile_text_comes_back_as_it_went_in(self, index: FleetIndex) -> None:
        """Quotes and statements in names are data."""
        odd = "x'); DROP TABLE srobust_job; --%s :a"
        index.add([entry(user=odd, incidents=(incident(detail=odd),))], PLACES)
        (row,) = index.read(lambda c: queries.incidents(c, IncidentFilter(user=odd)))
        assert (row.user, row.detail) == (odd, odd)

    def test_two_writers_at_once_add_all_of_both_to_the_index(self, url: str, index: FleetIndex) -> None:
        """All of what both add is there, once, although they add to the same nodes on the same day."""
        failed: list[BaseException] = []

        def work(first: int) -> None:
            try:
                with FleetIndex(url, create=True) as mine:
                    for number in range(JOBS_EACH):
                        # Every job is added by both.
                        mine.add([entry(number), entry(1000 * first + number)], PLACES)
            except BaseException as error:  # noqa: BLE001 - the test's thread raises it
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, WRITERS + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failed == []
        jobs = JOBS_EACH * (1 + WRITERS)
        assert index.read(lambda c: queries.totals(c, 0.0)).jobs == jobs
        rows = index.read(lambda c: queries.nodes(c, 0.0))
        assert {round(row.node_hours) for row in rows} == {12 * jobs}
        assert sum(row.failures for row in rows) == jobs

    def test_forgetting_what_is_old(self, index: FleetIndex) -> None:
        """Jobs that ended before a day go with all that they had added then; the others stay."""
        late = BEGIN + 40 * 86400
        new = entry(
            8, submitted=int(late), started=late, ended=late + HOUR, incidents=(incident(t=late),),
            work=(NodeWork(nodes=NODES, start=late, end=late + HOUR),),
        )  # fmt: skip
        index.add([entry(), new], PLACES)
        assert index.forget(late - 86400) == 1
        found = index.read(lambda c: queries.totals(c, 0.0))
        assert (found.jobs, found.incidents, round(found.node_hours)) == (1, 1, 4)

    def test_an_index_of_a_later_release(self, url: str, index: FleetIndex) -> None:
        """It is refused, by readers and writers."""
        about = schema.about
        newer = sa.update(about).where(about.c.name == "schema_version").values(value="99")
        index.write(lambda c: c.execute(newer))
        for create in (False, True):
            with pytest.raises(IndexRefused) as told:
                FleetIndex(url, create=create)
            assert "version 99" in str(told.value)

    def test_a_table_of_somebody_else(self, url: str, index: FleetIndex) -> None:
        """A table that only has our name is not touched."""
        index.write(lambda c: c.execute(sa.delete(schema.about)))
        with pytest.raises(IndexRefused):
            FleetIndex(url, create=True)

    def test_nodes_that_move(self, index: FleetIndex) -> None:
        """The place of a node is the one that was seen last."""
        index.add([entry()], PLACES)
        index.add([entry(8)], {"n2": NodePlace(type="4xgb200", rack="r9")})
        rows = {row.node: (row.type, row.rack) for row in index.read(lambda c: queries.nodes(c, 0.0))}
        assert (rows["n2"], rows["n1"]) == (("4xgb200", "r9"), ("8xh200", "r1"))

    def test_each_user_accuses_a_node_once(self, index: FleetIndex) -> None:
        """Each user once for each node, however many jobs say so."""
        blamed = [entry(number) for number in range(5)]
        index.add([*blamed, structs.replace(entry(9), uid=1002)], PLACES)
        found = index.read(lambda c: queries.accusations(c, 0.0))
        assert sorted((node, uid) for node, uid, _ in found) == [("n2", 1001), ("n2", 1002)]

    def test_the_jobs_of_a_training(self, index: FleetIndex) -> None:
        """A training is one of a user and a cluster; jobs without one belong to none."""
        chapters = [entry(number, training="gpt", started=BEGIN + number) for number in (3, 1, 2)]
        others = [entry(8), entry(9, training="gpt", user="bob", incidents=()), entry(10, training="big")]
        index.add([*chapters, *others], PLACES)
        found = index.read(lambda c: queries.training_report(c, "gpt", 0.0))
        first, second = sorted(found.trainings, key=lambda row: row.user)
        assert (first.user, first.jobs, first.incidents, first.started) == ("alice", 3, 3, BEGIN + 1)
        assert first.node_hours == pytest.approx(3 * 48)
        assert first.ettr == pytest.approx(11 / 12)
        assert (second.user, second.jobs, second.incidents, second.lost_node_hours) == ("bob", 1, 0, 0.0)
        jobs = dict(zip((row.user for row in found.trainings), found.jobs, strict=True))
        assert [job.job_id for job in jobs["alice"]] == [1, 2, 3]
        assert [job.incidents for job in jobs["alice"]] == [1, 1, 1]
        report = index.read(lambda c: queries.report(c, 0.0, BEGIN))
        assert [(row.training, row.user) for row in report.trainings] == [
            ("gpt", "alice"), ("big", "alice"), ("gpt", "bob"),
        ]  # fmt: skip
        rows = index.read(lambda c: queries.incidents(c, IncidentFilter(training="gpt")))
        assert {(row.job_id, row.training) for row in rows} == {(number, "gpt") for number in (1, 2, 3)}
        assert index.read(lambda c: queries.incidents(c, IncidentFilter(training="none"))) == ()
        assert index.read(lambda c: queries.training_report(c, "none", 0.0)).jobs == ()

    def test_an_index_from_before_there_were_trainings(self, index: FleetIndex, url: str) -> None:
        """It is read as it is, and converted by the next who adds to it; nothing is lost."""
        index.add([entry()], PLACES)
        index.write(back_to_version_1)
        with FleetIndex(url) as reader:
            (row,) = reader.read(lambda c: queries.incidents(c, IncidentFilter()))
            assert (row.job_id, row.training) == (7, "")
            assert reader.read(lambda c: queries.incidents(c, IncidentFilter(training="gpt"))) == ()
            assert reader.read(lambda c: queries.training_report(c, "gpt", 0.0)).trainings == ()
            assert reader.read(lambda c: queries.report(c, 0.0, BEGIN)).totals.jobs == 1
            assert reader.read(schema.version_of) == 1
        for _ in range(2):
            with FleetIndex(url, create=True) as writer:
                assert writer.read(schema.version_of) == schema.VERSION
        index.write(back_to_version_1)
        assert index.add([entry(8, training="gpt")], PLACES).new == 1
        assert len(index.read(lambda c: queries.incidents(c, IncidentFilter()))) == 2
        assert len(index.read(lambda c: queries.incidents(c, IncidentFilter(training="gpt")))) == 1


def back_to_version_1(connection: sa.Connection) -> None:
    """What the first release made."""
    connection.exec_driver_sql("DROP INDEX srobust_job_training")
    connection.exec_driver_sql("ALTER TABLE srobust_job DROP COLUMN training")
    connection.execute(
        sa.update(schema.about).where(schema.about.c.name == "schema_version").values(value="1")
    )


def everything(index: FleetIndex) -> object:
    """All rows, of which only ids may differ from one database to another."""

    def rows(connection: sa.Connection) -> list[object]:
        tables = schema.metadata.sorted_tables
        return [sorted(map(str, connection.execute(sa.select(table)))) for table in tables]

    return index.read(rows)
