"""From the spool into the index, whatever lies there and whatever Slurm says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.fleet import queries
from slurm_robust.fleet.accept import DAY_S
from slurm_robust.fleet.answers import IncidentFilter
from slurm_robust.fleet.collect import SLURM_AWAY_S, SLURMDBD_LATE_S, Collected, collect
from slurm_robust.fleet.errors import NoIndex
from slurm_robust.fleet.index import FleetIndex
from slurm_robust.fleet.spool import SpooledFile, remove, waiting_in
from slurm_robust.model.jobsummary import FORMAT, SpooledSummary, encode
from slurm_robust.slurm import errors
from slurm_robust.slurm.records import AccountingRow
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.unit.fleet.samples import incident, spooled, summary
from tests.users import as_root


class Site:
    """A cluster, the spool of its nodes, and the index."""

    def __init__(self, folder: Path, index: FleetIndex) -> None:
        self.cluster = FakeCluster(nodes=[f"n{number}" for number in range(1, 5)])
        self.slurm = FakeSlurm(self.cluster, user="root")
        self.spool = folder / "spool"
        self.spool.mkdir(mode=0o700)
        self.index = index

    @property
    def now(self) -> float:
        return self.cluster.clock.time()

    def job(self, nodes: int = 2, hours: float = 2.0) -> int:
        """One that ran, as accounting has it; returns its id."""
        request = SubmitRequest(command=("x",), nodes=nodes)
        job_id = self.slurm.submit(request)
        self.slurm.jobs()
        assert self.slurm.job(job_id).is_running
        self.cluster.clock.advance(hours * 3600)
        self.cluster.finish(job_id)
        return job_id

    def put(self, job_id: int, **changes: object) -> SpooledSummary:
        """What the epilog spools of it."""
        said = summary(
            job_id=job_id, submitted=self.now - 7300, started=self.now - 7200, ended=self.now, wall_s=7300.0,
            since_start_s=7200.0, effective_s=7000.0, work=(), incidents=(incident(t=self.now - 60),),
        )  # fmt: skip
        made = structs.replace(
            spooled(said, job_id=job_id, t=self.now, started=self.now - 7200, cluster=""), **changes
        )
        (self.spool / f"{made.uid}.{job_id}.json").write_bytes(encode(made))
        return made

    def collect(self, slurm: FakeSlurm | None = None) -> Collected:
        return collect(self.spool, self.index, slurm or self.slurm, rack="", now=self.now)

    @property
    def left(self) -> list[str]:
        return sorted(os.listdir(self.spool))


@pytest.fixture
def site(tmp_path: Path):  # type: ignore[no-untyped-def]
    with FleetIndex(str(tmp_path / "fleet.sqlite"), create=True) as index:
        yield Site(tmp_path, index)


class WithoutAccounting(FakeSlurm):
    """A site whose accounting is off."""

    def accounting(self, job_id: int) -> tuple[AccountingRow, ...]:
        raise errors.CommandFailed("Slurm accounting storage is disabled")


class Silent(FakeSlurm):
    """A slurmdbd that does not answer."""

    def accounting(self, job_id: int) -> tuple[AccountingRow, ...]:
        raise errors.SlurmTimeout("sacct gave no answer")


def test_a_job_goes_from_the_spool_into_the_index(site: Site) -> None:
    site.put(site.job())
    assert site.collect() == Collected(new=1)
    assert site.left == []
    found = site.index.read(lambda c: queries.totals(c, 0.0))
    assert (found.jobs, found.unverified, round(found.node_hours)) == (1, 0, 4)
    (row,) = site.index.read(lambda c: queries.incidents(c, IncidentFilter()))
    assert (row.nodes, row.user) == ("n2", "alice")
    assert site.collect() == Collected()


def test_a_user_cannot_blame_a_node_of_others(site: Site) -> None:
    """The job ran on one node, as Slurm's accounting knows; it says that it held all and blames another's."""
    job_id = site.job(nodes=1)
    said = summary(job_id=job_id, incidents=(incident(t=site.now - 60, nodes=("n1", "n3", "n4")),))
    site.put(job_id, summary=said)
    site.collect()
    rows = site.index.read(lambda c: queries.nodes(c, 0.0))
    assert [(row.node, row.failures) for row in rows] == [("n1", 1)]


def test_without_accounting_the_index_says_so(site: Site) -> None:
    job_id = site.job()
    site.put(
        job_id, nodes="n[1-2]", summary=summary(job_id=job_id, incidents=(incident(nodes=("n2", "n4")),))
    )
    assert site.collect(WithoutAccounting(site.cluster)) == Collected(new=1, unverified=1)
    (row,) = site.index.read(lambda c: queries.incidents(c, IncidentFilter()))
    assert row.nodes in ("", "n2")
    assert site.index.read(lambda c: queries.totals(c, 0.0)).unverified == 1


def test_a_summary_waits_for_an_accounting_that_is_late(site: Site) -> None:
    site.put(4242, t=site.now)
    assert site.collect() == Collected(waiting=1)
    assert len(site.left) == 1
    site.cluster.clock.advance(SLURMDBD_LATE_S)
    assert site.collect() == Collected(new=1, unverified=1)


def test_a_summary_waits_for_a_slurm_that_is_away_but_not_for_ever(site: Site) -> None:
    site.put(site.job())
    silent = Silent(site.cluster)
    assert site.collect(silent) == Collected(waiting=1)
    site.cluster.clock.advance(SLURM_AWAY_S)
    assert site.collect(silent) == Collected(new=1, unverified=1)


def test_a_job_of_another_cluster_is_not_looked_up_here(site: Site) -> None:
    site.put(site.job(), cluster="elsewhere")
    assert site.collect().unverified in (0, 1)
    assert site.index.read(lambda c: queries.totals(c, 0.0)).jobs == 1


@pytest.mark.parametrize(
    ("data", "kept"),
    [(b"", False), (b"\0" * 50, False), (b'{"format":1}', False), (b"[" * 10**6, False),
     (b'{"format":%d,"new":[1]}' % (FORMAT + 1), True)],
)  # fmt: skip
def test_torn_empty_foreign_and_future_files(site: Site, data: bytes, kept: bool) -> None:
    """Those of a later release stay for it; those that nobody can read go. The others are taken all the
    same.
    """
    (site.spool / "1001.99.json").write_bytes(data)
    site.put(site.job())
    found = site.collect()
    assert (found.new, found.kept, found.dropped) == (1, int(kept), int(not kept))
    assert found.problems[0].startswith("1001.99.json: ")
    assert site.left == (["1001.99.json"] if kept else [])


def test_what_is_no_file_of_the_spool_is_left_alone(site: Site, tmp_path: Path) -> None:
    (site.spool / "notes.txt").write_text("mine")
    (site.spool / ".1001.7.json.abc").write_text("half")
    (tmp_path / "secret").write_text("root's")
    (site.spool / "1001.5.json").symlink_to(tmp_path / "secret")
    os.mkfifo(site.spool / "1001.6.json")
    found = site.collect()
    assert (found.kept, found.dropped) == (2, 0)
    assert len(site.left) == 4


@as_root
def test_a_file_of_a_user_does_not_count(site: Site) -> None:
    site.put(site.job())
    (name,) = site.left
    os.chown(site.spool / name, 1001, 1001)
    found = site.collect()
    assert (found.new, found.kept) == (0, 1)


def test_a_newer_summary_that_comes_meanwhile_is_not_lost(site: Site) -> None:
    job_id = site.job()
    site.put(job_id)
    (taken,) = waiting_in(site.spool)
    assert isinstance(taken, SpooledFile)
    newer = site.put(job_id, t=site.now + 5)
    remove(taken)
    (left,) = waiting_in(site.spool)
    assert isinstance(left, SpooledFile)
    assert left.spooled == newer
    assert len(site.left) == 1
    remove(left)
    remove(left)
    assert site.left == []


def test_a_missing_spool_is_refused_with_its_key(site: Site, tmp_path: Path) -> None:
    with pytest.raises(NoIndex) as told:
        list(waiting_in(tmp_path / "nowhere"))
    assert "fleet.spool_dir" in told.value.fix


def test_the_index_stays_whole_when_the_same_job_comes_again_later(site: Site) -> None:
    """A requeue: the job's second summary holds all of its life."""
    job_id = site.job()
    first = site.put(job_id)
    site.collect()
    later = structs.replace(first.summary, wall_s=7300 + DAY_S, t=site.now)
    site.put(job_id, summary=later)
    assert site.collect().renewed == 1
    assert site.index.read(lambda c: queries.totals(c, 0.0)).incidents == 1
