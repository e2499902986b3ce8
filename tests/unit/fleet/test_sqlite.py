"""The fleet index in a file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from slurm_robust.fleet.errors import BadIndexUrl, IndexAway, IndexRefused, NoIndex
from slurm_robust.fleet.index import FleetIndex
from tests.contracts.fleet import FleetIndexContract
from tests.unit.fleet.samples import entry


class TestSqlite(FleetIndexContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "fleet.sqlite")


@pytest.mark.parametrize("content", [b"no database at all " * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fleet.sqlite"
    file.write_bytes(content)
    for create in (True, False):
        with pytest.raises(IndexRefused):
            FleetIndex(str(file), create=create)
    assert file.read_bytes() == content


def test_the_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE things (name TEXT)")
    other.close()
    for create in (True, False):
        with pytest.raises(IndexRefused) as told:
            FleetIndex(f"sqlite:///{file}", create=create)
        assert "something else" in str(told.value)
    with sqlite3.connect(file) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("things",)]
    other.close()


def test_an_empty_file_is_no_index_yet(tmp_path: Path) -> None:
    file = tmp_path / "fleet.sqlite"
    file.touch()
    with pytest.raises(NoIndex):
        FleetIndex(str(file))
    with FleetIndex(str(file), create=True) as index:
        assert index.add([entry()]).new == 1


@pytest.mark.parametrize(
    "url",
    [
        "f.sqlite",
        "mysql://u:secret@h/d",
        "sqlite://",
        "sqlite:///relative",
        "::",
        "postgresql://u:secret@h:abc/d",
    ],
)
def test_a_url_that_names_no_index_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(BadIndexUrl) as told:
        FleetIndex(url, create=True)
    assert "secret" not in told.value.in_full()


def test_a_name_has_no_password() -> None:
    url = "postgresql://u:secret@127.0.0.1:1/d?password=secret"
    with pytest.raises(IndexAway) as told:
        FleetIndex(url, create=True, patience_s=0.0)
    assert "secret" not in told.value.in_full()


def test_a_writer_that_keeps_its_turn_is_waited_for_with_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "fleet.sqlite"
    now, paused = [0.0], []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        now[0] += seconds

    with FleetIndex(
        str(file), create=True, patience_s=7, lock_s=0.01, clock=lambda: now[0], pause=pause
    ) as index:
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(IndexAway) as told:
            index.write(lambda c: None)
        assert "locked" in str(told.value)
        holder.execute("ROLLBACK")
        holder.close()
        assert index.add([entry()]).new == 1
    assert 3 < sum(paused) <= 7
