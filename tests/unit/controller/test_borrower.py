"""Companions and Slurm: who gets a node, and what is said where nobody does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_robust.config.job import CompanionConfig
from slurm_robust.controller.borrower import CANCEL_TRIES, Borrower
from slurm_robust.engine.questions import BorrowAnswer
from slurm_robust.model.companion import CompanionPool
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.records import Switch
from slurm_robust.slurm.requests import ReservationRequest, SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm

SPARES, PARTITION = CompanionPool(reservation="spares"), CompanionPool()
MAKE_IT = "(fix: srobust spares create, or another companions.reservation)"


class Site:
    """Six nodes: a job runs on n1 and n2, and n5 and n6 are alice's spares."""

    def __init__(self, folder: Path, time_limit_s: float | None = 36000.0) -> None:
        self.folder = folder
        self.slurm = FakeSlurm(FakeCluster([f"n{i}" for i in range(1, 7)]))
        self.cluster, self.clock = self.slurm.cluster, self.slurm.cluster.clock
        self.job = self.start(nodes=2, time_limit_s=time_limit_s)
        self.reserve("n5", "n6")
        self.submitted: list[tuple[int, CompanionPool]] = []
        self.lent = Lent(self.slurm.allocation(self.job))
        self.borrower = self.new_lender(self.job, self.lent)

    def reserve(self, *nodes: str) -> None:
        self.slurm.create_reservation(ReservationRequest(name="spares", nodes=nodes, users=("alice",)))

    def start(self, **fields: object) -> int:
        """A job of somebody that runs now."""
        job = self.slurm.submit(SubmitRequest(command=("train",), **fields))  # type: ignore[arg-type]
        assert self.slurm.job(job).is_running
        return job

    def new_lender(self, job: int, lent: Lent, run_id: str = "", ahead_s: float = 0.0) -> Borrower:
        return Borrower(
            FakeSlurm(self.cluster),
            CompanionConfig(reservation="spares", wait_s=20.0),
            lent,
            job_id=job,
            run=0,
            run_id=run_id or f"{job}-ab",
            folder=self.folder,
            user="alice",
            environ={"SLURM_JOB_PARTITION": "main"},
            clock=self.clock,
            wall=lambda: self.clock.time() + ahead_s,
        )

    def borrow(
        self,
        sources: Sequence[CompanionPool] = (SPARES,),
        missing: int = 1,
        exclude: Sequence[str] = (),
        near: Sequence[str] = (),
    ) -> BorrowAnswer:
        return self.borrower.borrow(
            sources, missing, exclude, lambda job, source: self.submitted.append((job, source)), near=near
        )

    def has_racks(self, *racks: Sequence[str]) -> None:
        self.cluster.switches = tuple(
            Switch(name=f"rack{number}", level=0, nodes=tuple(nodes), is_block=True)
            for number, nodes in enumerate(racks)
        )

    def alive(self) -> list[int]:
        """Companions that wait or run."""
        return [job for job, _ in self.submitted if not self.slurm.job(job).is_finished]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_spare_is_lent(site: Site) -> None:
    found = site.borrow()
    ((job, source),) = site.submitted
    assert (found, source) == (BorrowAnswer(nodes={job: "n5"}), SPARES)
    assert site.lent.holder("n5").job_id == job
    assert site.lent.holder("n5").gpus_per_node == {"n5": 8}
    asked = site.cluster.requests[job]
    assert (asked.gres, asked.reservation, asked.requeue) == ("gpu:8", "spares", False)
    assert asked.time_limit_s == pytest.approx(36000.0, abs=60.0)


def test_several_spares_are_lent_at_once(site: Site) -> None:
    assert sorted(site.borrow(missing=2).nodes.values()) == ["n5", "n6"]


def test_a_full_reservation_is_known_without_waiting(site: Site) -> None:
    for _ in range(2):
        site.start(reservation="spares")
    before = site.clock.time()
    found = site.borrow()
    assert found.refusals == ((SPARES, "0 of 2 nodes free (n[5-6]; see srobust spares status)"),)
    assert (site.submitted, site.clock.time()) == ([], before)


def test_too_few_spares_are_left_alone(site: Site) -> None:
    site.start(reservation="spares")
    found = site.borrow(missing=2)
    assert found.refusals == ((SPARES, "1 of 2 nodes free (n[5-6]; see srobust spares status)"),)
    assert site.submitted == []


def test_what_the_reservation_lacks_comes_from_the_partition(site: Site) -> None:
    site.start(reservation="spares")
    found = site.borrow((SPARES, PARTITION), missing=2)
    assert sorted(found.nodes.values()) == ["n3", "n6"]
    assert [source for _, source in site.submitted] == [SPARES, PARTITION]


def test_a_reservation_that_is_missing(site: Site) -> None:
    site.slurm.delete_reservation("spares")
    ((_, why),) = site.borrow().refusals
    assert why == f"Requested reservation is invalid {MAKE_IT}"


def test_a_reservation_of_others(site: Site) -> None:
    site.slurm.delete_reservation("spares")
    site.slurm.create_reservation(ReservationRequest(name="spares", nodes=("n5",), users=("bob",)))
    ((_, why),) = site.borrow().refusals
    assert why.startswith("Access denied to requested reservation (fix: an administrator lets your user ")


def test_a_submit_limit_leads_to_the_next_source(site: Site) -> None:
    site.cluster.submit_refusal = "Job violates accounting/QOS policy (job submit limit)"
    found = site.borrow((SPARES, PARTITION))
    assert found.refusals == tuple((source, site.cluster.submit_refusal) for source in (SPARES, PARTITION))


def test_a_companion_that_waits_is_given_up(site: Site) -> None:
    for _ in range(2):  # all others are taken
        site.start()
    before = site.clock.time()
    found = site.borrow((PARTITION,))
    ((job, _),) = site.submitted
    why = f"companion {job} has not started within 20 s (Resources)"
    assert found == BorrowAnswer(refusals=((PARTITION, why),))
    assert site.alive() == []
    assert site.clock.time() - before == pytest.approx(20.0, abs=1.0)


def test_two_jobs_want_the_last_spare(site: Site) -> None:
    """Both saw it free; one gets it, and the other one learns why it does not."""
    site.start(reservation="spares")
    rival = site.start()
    lent = Lent(site.slurm.allocation(rival))
    other = site.new_lender(rival, lent)
    free = other._free
    other._free = lambda source, exclude: (["n5"], "")  # type: ignore[method-assign]
    assert free(SPARES, ())[0] == ["n6"]
    assert list(site.borrow().nodes.values()) == ["n6"]
    found = other.borrow((SPARES,), 1, (), lambda job, source: None)
    assert found.nodes == {}
    ((_, why),) = found.refusals
    assert "has not started within 20 s" in why


@pytest.mark.parametrize("reason", ["ReservationDeleted", "Reservation_spares_was_deleted"])
def test_a_reservation_that_goes_while_a_companion_waits(site: Site, reason: str) -> None:
    site.slurm.drain(["n5", "n6"], "test")
    site.borrower._free = lambda source, exclude: (["n5"], "")  # type: ignore[method-assign]

    def delete(now: float) -> None:
        ((job, _),) = site.submitted
        site.cluster.reservations.pop("spares", None)
        site.cluster.put(site.cluster.jobs[job], reason=reason, priority=0)

    site.clock.on_advance.append(delete)
    ((_, why),) = site.borrow().refusals
    assert why.endswith(f"has not started within 20 s ({reason}) {MAKE_IT}")
    assert site.alive() == []


def test_nodes_that_the_job_evicted_are_not_lent(site: Site) -> None:
    assert list(site.borrow(exclude=("n5",)).nodes.values()) == ["n6"]


def test_a_failed_prolog_lends_nothing(site: Site) -> None:
    site.cluster.failing_prologs.update(("n5", "n6"))
    found = site.borrow()
    assert found.nodes == {}
    assert len(found.refusals) == 1
    assert site.alive() == []


def test_without_slurmctld_nothing_is_lent(site: Site) -> None:
    site.cluster.unreachable = True
    ((source, why),) = site.borrow((SPARES, PARTITION)).refusals
    assert source == SPARES
    assert "Unable to contact slurm controller" in why


def test_near_its_end_a_job_borrows_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, time_limit_s=100.0)
    ((_, why),) = site.borrow().refusals
    assert why in ("only 100 s are left of the job's time", "only 99 s are left of the job's time")


def test_the_time_left_is_by_slurmctlds_clock(tmp_path: Path) -> None:
    site = Site(tmp_path, time_limit_s=300.0)
    site.borrower = site.new_lender(site.job, site.lent, ahead_s=200.0)
    assert site.borrow().refusals == ()
    late = Site(tmp_path, time_limit_s=100.0)
    late.borrower = late.new_lender(late.job, late.lent, ahead_s=-200.0)
    ((_, why),) = late.borrow().refusals
    assert why in ("only 100 s are left of the job's time", "only 99 s are left of the job's time")


def test_a_job_without_a_time_limit(tmp_path: Path) -> None:
    site = Site(tmp_path, time_limit_s=None)
    (job,) = site.borrow().nodes
    assert "--time=UNLIMITED" in site.cluster.requests[job].options


def test_ending(site: Site) -> None:
    (job,) = site.borrow().nodes
    assert site.borrower.end((job, 4711)) == ()
    assert site.alive() == []
    site.cluster.unreachable = True
    before = site.clock.time()
    (text,) = site.borrower.end((job,))
    assert text.startswith(f"companion {job} could not be cancelled in {CANCEL_TRIES} attempts (")
    assert site.clock.time() - before < 600


def test_a_companion_is_cancelled_once_slurm_answers_again(site: Site) -> None:
    (job,) = site.borrow().nodes
    site.cluster.unreachable = True
    end = site.clock.time() + 40

    def mend(now: float) -> None:
        site.cluster.unreachable = now < end

    site.clock.on_advance.append(mend)
    assert site.borrower.end((job,)) == ()
    assert site.alive() == []


def test_a_companion_whose_answer_was_lost_is_found_and_used(site: Site) -> None:
    site.cluster.lost_answers = 1
    found = site.borrow(missing=2)
    assert sorted(found.nodes.values()) == ["n5", "n6"]
    assert found.refusals == ()
    assert {job for job, _ in site.submitted} == set(found.nodes)
    assert site.borrower.settle() == ()


def test_a_companion_that_appears_when_nobody_waits_is_cancelled(site: Site) -> None:
    """Slurm has taken it, and shows it only later."""
    site.cluster.hides_jobs = True
    site.cluster.lost_answers = 1
    found = site.borrow()
    assert found.nodes == {}
    ((_, why),) = found.refusals
    assert "sbatch gave no answer" in why
    site.cluster.hides_jobs = False
    (stray,) = site.borrower.settle()
    assert site.slurm.job(stray).is_finished
    assert site.borrower.settle() == ()


def test_only_strays_of_this_run_are_swept(site: Site) -> None:
    known, stray = site.borrow(missing=2).nodes
    of_other = site.new_lender(site.job, site.lent, run_id="another")
    assert of_other.sweep(()) == ()
    assert site.borrower.sweep(()) == (), "what was submitted here is no stray"
    after = site.new_lender(site.job, site.lent)
    assert after.sweep((known,)) == (stray,)
    assert site.alive() == [known]


def test_only_a_node_of_the_rack_of_the_lost_one_is_lent(site: Site) -> None:
    site.has_racks(("n1", "n3", "n6"), ("n2", "n4", "n5"))
    assert list(site.borrow(near=("n1",)).nodes.values()) == ["n6"]
    assert list(site.borrow(near=("n2",)).nodes.values()) == ["n5"]


def test_each_of_two_lost_nodes_gets_one_of_its_rack(site: Site) -> None:
    site.has_racks(("n1", "n3", "n6"), ("n2", "n4", "n5"))
    assert sorted(site.borrow(missing=2, near=("n1", "n2")).nodes.values()) == ["n5", "n6"]


def test_spares_of_other_racks_are_left_alone_and_the_partition_gives_what_it_has(site: Site) -> None:
    site.has_racks(("n1", "n3"), ("n2", "n4", "n5", "n6"))
    found = site.borrow((SPARES, PARTITION), near=("n1",))
    assert list(found.nodes.values()) == ["n3"]
    ((source, why),) = found.refusals
    assert source == SPARES
    assert why.startswith("0 of n[5-6] in the NVLink cliques of the lost nodes (fix: more standbys")


def test_where_each_job_has_its_own_imex_channel_nothing_is_lent(site: Site) -> None:
    site.has_racks(("n1", "n6"), ("n2", "n5"))
    site.cluster.settings["SwitchType"] = "switch/nvidia_imex"
    ((source, why),) = site.borrow((SPARES, PARTITION), near=("n1",)).refusals
    assert "an IMEX channel of its own (SwitchType=switch/nvidia_imex)" in why
    assert (source, site.submitted) == (SPARES, [])
    assert site.borrow().nodes, "a job whose nodes share no clique, or whose owner allows it"


def test_a_rack_that_slurm_does_not_show_lends_nothing(site: Site) -> None:
    ((_, why),) = site.borrow(near=("n1",)).refusals
    assert why.startswith("no block of topology/block shows the NVLink clique of n1 (fix: ")
