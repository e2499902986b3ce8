"""The fleet index in a real PostgreSQL, which also goes away."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from slurm_robust.fleet import queries
from slurm_robust.fleet.errors import IndexAway, IndexRefused
from slurm_robust.fleet.index import FleetIndex
from tests.contracts.fleet import FleetIndexContract
from tests.unit.fleet.postgres import Server, running_server
from tests.unit.fleet.samples import entry
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as started:
        yield started


class TestPostgresql(FleetIndexContract):
    @pytest.fixture
    def url(self, server: Server) -> str:
        return server.database()


def test_a_server_that_goes_away_and_comes_back_loses_nothing(server: Server) -> None:
    """A writer goes on when the server is back, within its patience, and nothing counts twice."""
    url = server.database()
    written, failed = [], []

    def write() -> None:
        try:
            with FleetIndex(url, create=True, patience_s=60) as index:
                for number in range(200):
                    written.append(index.add([entry(number)]))
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait_for(lambda: len(written) >= 20 or failed, 60)
    server.stop("immediate")  # as a crash
    try:
        with pytest.raises(IndexAway) as told:
            FleetIndex(url, patience_s=0.3)
        assert "has not answered for 0.3 s" in str(told.value)
        assert thread.is_alive()
    finally:
        server.start()
    thread.join(90)
    assert failed == []
    assert len(written) == 200
    with FleetIndex(url) as index:
        assert index.read(lambda c: queries.totals(c, 0.0)).jobs == 200
        (worst, *_) = index.read(lambda c: queries.nodes(c, 0.0))
        assert (worst.failures, round(worst.node_hours)) == (200, 2400)


def test_a_server_that_refuses_is_not_asked_again(server: Server) -> None:
    url = server.database().replace("/fleet", "/nosuch")
    with pytest.raises(IndexRefused) as told:
        FleetIndex(url, create=True, patience_s=600)
    assert "does not exist" in str(told.value)


def test_a_password_is_never_shown(server: Server) -> None:
    url = server.database().replace("postgres@", "postgres:geheim@").replace("/fleet", "/nosuch")
    with pytest.raises(IndexRefused) as told:
        FleetIndex(url)
    assert "geheim" not in told.value.in_full()


def test_other_tables_of_the_database_are_left_alone(server: Server) -> None:
    url = server.database()
    with FleetIndex(url, create=True) as index:
        index.write(lambda c: c.exec_driver_sql("CREATE TABLE theirs (n INTEGER)"))
        index.write(lambda c: c.exec_driver_sql("INSERT INTO theirs VALUES (1)"))
    with FleetIndex(url, create=True) as index:
        assert index.read(lambda c: c.exec_driver_sql("SELECT n FROM theirs").scalar()) == 1
