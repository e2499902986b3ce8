"""A job whose standbys are used up goes on with nodes of companions, and gives them back."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import CompanionConfig, JobConfig, SlurmConfig
from slurm_robust.engine import effects as fx
from slurm_robust.engine import questions as qs
from slurm_robust.engine.transitions import ToGathering, ToReconnecting
from slurm_robust.engine.units.companions import SWEEP_AGAIN_S
from slurm_robust.model import events as ev
from slurm_robust.model.companion import Companion, CompanionPool
from slurm_robust.model.exits import Witness
from slurm_robust.model.findings import Suspect
from slurm_robust.model.journal import fold
from tests.unit.engine.fake_job import Job, questions
from tests.unit.engine.test_detection import alert

SPARES = CompanionPool(reservation="spares")
CONFIG = JobConfig(companions=CompanionConfig(reservation="spares", wait_s=20.0))


class Borrower(Job):
    """Two nodes and no standby; keeps suspects and sweeps."""

    def __init__(self, **fields: object) -> None:
        self.suspects: list[Suspect] = []
        self.swept: list[tuple[int, ...]] = []
        super().__init__(**{"spares": (), "config": CONFIG, **fields})  # type: ignore[arg-type]

    def act(self, effects: list[fx.Effect]) -> None:
        self.suspects += [q.suspect for q in questions(effects) if isinstance(q, qs.SaveSuspect)]
        self.swept += [q.known for q in questions(effects) if isinstance(q, qs.SweepCompanions)]
        super().act(effects)

    def lose(self, node: str) -> None:
        self.power_cut(node)
        self.until(lambda: bool(self.borrowed) or bool(self.requeued))


def borrower(*lendable: str, **fields: object) -> Borrower:
    job = Borrower(**fields)
    job.lendable = lendable
    job.train_to(3)
    return job


def test_a_node_of_a_companion_takes_the_slot() -> None:
    job = borrower("n5")
    job.lose("n2")
    job.until(lambda: job.core.world.generation == 2)
    (order,) = job.borrowed
    assert (order.sources, order.missing, order.exclude) == ((SPARES,), 1, ("n2",))
    assert job.core.world.slots == ("n1", "n5")
    assert job.core.state.lenders == {"n5": 105}
    assert list(job.core.state.evicted) == ["n2"]
    assert job.started[-1] == ("n5",)
    assert len(job.core.world.attempts) == 1
    job.train_to(4)
    job.until(lambda: bool(job.events(ev.IncidentClosed)))
    assert job.requeued == []
    job.finish()
    job.until(lambda: job.code is not None or bool(job.ended))
    assert job.ended == [105]
    assert job.core.state.companions == {}


def test_nobody_lends_and_the_job_is_requeued_as_without_companions() -> None:
    job = borrower()
    job.lose("n2")
    job.until(lambda: bool(job.requeued))
    assert job.requeued == [("n2",)]
    (refusal,) = job.events(ev.NotLent)
    assert (refusal.source, refusal.reason) == (SPARES, "0 of 1 node free")
    requeue = job.events(ev.RequeueStarted)[0]
    assert requeue.reason == "1 node to replace, 0 standbys left; reservation spares: 0 of 1 node free"
    assert list(job.core.state.evicted) == ["n2"]


def test_slurm_that_never_answers_is_waited_for_within_a_bound() -> None:
    job = borrower("n5")
    job.lends = False
    job.lose("n2")
    job.until(lambda: bool(job.requeued), limit=300)
    assert "no answer within" in job.events(ev.RequeueStarted)[0].reason
    waits = "waiting for 1 node from reservation spares: 20 s (companions.wait_s), 210 s at most if Slurm"
    assert f"{waits} answers slowly" in job.said


def test_a_node_that_comes_too_late_is_given_back() -> None:
    job = borrower("n5")
    job.lends = False
    job.lose("n2")
    job.until(lambda: bool(job.requeued), limit=300)
    (lend,) = job.unlent
    lend()
    assert 105 in job.ended
    assert job.core.state.companions == {}
    assert "n5" not in job.core.state.spares


def test_what_was_lent_is_given_back_before_a_requeue() -> None:
    job = borrower("n5", slots=("n1", "n2", "n3"))
    job.power_cut("n2")
    job.power_cut("n3")
    job.given_up = {"n2", "n3"}
    job.until(lambda: bool(job.requeued), limit=400)
    assert job.ended == [105]
    kinds = [type(event) for event in job.journal]
    assert kinds.index(ev.CompanionEnded) < len(kinds)
    assert job.core.state.companions == {}


def test_a_companions_node_dies() -> None:
    """It is replaced like any node, and the companion's epilog finds the suspect."""
    job = borrower("n5", "n6")
    job.lose("n2")
    job.until(lambda: job.core.world.generation == 2)
    job.train_to(4)
    job.power_cut("n5")
    job.until(lambda: job.core.world.generation == 3)
    assert job.core.world.slots == ("n1", "n6")
    job.train_to(5)
    job.until(lambda: bool(job.ended))
    assert job.ended == [105]
    assert job.core.state.lenders == {"n6": 106}
    assert [(s.node, s.job_id) for s in job.suspects] == [("n2", 7), ("n5", 105)]
    assert job.borrowed[-1].exclude == ("n2", "n5")


def test_a_lent_node_on_which_no_agent_comes_is_replaced() -> None:
    class Absent(Borrower):
        def join(self, node: str, agent: str = "", **changes: object) -> None:
            if node != "n5":
                super().join(node, agent, **changes)

        def witness(self, node: str) -> Witness:
            found = super().witness(node)
            return structs.replace(found, against=True, gone=True) if node == "n5" else found

    job = Absent()
    job.lendable = ("n5", "n6")
    job.train_to(3)
    job.lose("n2")
    job.until(lambda: job.core.world.generation == 2, limit=900)
    assert job.core.world.slots == ("n1", "n6")
    job.train_to(4)
    job.until(lambda: bool(job.ended))
    assert job.ended == [105]


def test_a_node_whose_companion_somebody_ends_is_replaced_and_not_blamed() -> None:
    class Cancelled(Borrower):
        def join(self, node: str, agent: str = "", **changes: object) -> None:
            if node != "n5":
                super().join(node, agent, **changes)

        def witness(self, node: str) -> Witness:
            found = super().witness(node)
            return structs.replace(found, against=True, gone=True, left=True) if node == "n5" else found

    job = Cancelled()
    job.lendable = ("n5", "n6")
    job.train_to(3)
    job.lose("n2")
    job.until(lambda: job.core.world.generation == 2, limit=900)
    assert job.core.world.slots == ("n1", "n6")
    assert [event.node for event in job.events(ev.NodeEvicted)] == ["n2"]
    assert [suspect.node for suspect in job.suspects] == ["n2"]
    job.train_to(4)
    job.until(lambda: "n5" not in job.core.state.lenders, limit=200)
    assert job.core.state.spares == ()
    assert job.ended == [105]
    assert job.events(ev.CompanionEnded)[-1].reason == "Slurm has ended it, and has n5 back"


def test_an_evicted_node_is_given_back_when_its_copies_are_not_needed() -> None:
    job = borrower("n5", "n6", memory=True)
    job.train_to(4)
    job.lose("n2")
    job.until(lambda: job.core.world.generation == 2)
    job.train_to(5)
    job.change("n5", alerts=(alert(),))
    job.until(lambda: job.core.world.generation == 3)
    assert "n5" in job.core.state.evicted
    job.pass_time(30)
    assert job.ended == [], "what the next restore may need is in its memory"
    for step in range(6, 10):
        job.train_to(step)
    job.until(lambda: bool(job.ended))
    assert job.ended == [105]
    assert job.kept["n5"] is False


def test_the_owner_ends_the_job_while_it_waits_for_a_node() -> None:
    job = borrower("n5")
    job.lends = False
    job.lose("n2")
    assert job.stage == "Borrowing"
    job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
    job.pass_time(60)
    assert job.code is not None
    assert job.ended == [105]


def test_near_the_end_of_the_run_nobody_waits() -> None:
    job = borrower("n5")
    job.lends = False
    job.lose("n2")
    job.act(job.core.on_end_approaching("the end of this run is near (USR1)", job.now()))
    job.until(lambda: bool(job.requeued), limit=30)


def test_observe_mode_borrows_nothing() -> None:
    job = borrower("n5", config=structs.replace(CONFIG, mode="observe"))
    job.power_cut("n2")
    job.pass_time(60)
    assert job.borrowed == []
    assert any("would do" in text and "ask for 1 node" in text for text in job.said)


def test_companions_are_optional() -> None:
    job = borrower(config=JobConfig())
    job.lose("n2")
    assert (job.borrowed, job.swept) == ([], [])


@pytest.mark.parametrize("requeue", [True, False])
def test_a_next_controller_knows_companions_and_sweeps_the_others(requeue: bool) -> None:
    job = borrower("n5")
    job.lose("n2")
    job.until(lambda: job.core.world.generation == 2)
    journal = (*job.journal, ev.CompanionSubmitted(t=job.wall, job_id=109, source=SPARES))
    config = structs.replace(CONFIG, slurm=SlurmConfig(requeue=requeue))
    after = Borrower(slots=("n1", "n5"), history=journal, first=ToReconnecting(), config=config)
    assert after.swept == [(105,)]
    assert after.core.state.companions == {105: Companion(source=SPARES, node="n5")}
    assert after.events(ev.CompanionEnded)[0].job_id == 109


def test_a_new_run_has_none() -> None:
    job = borrower("n5")
    job.lose("n2")
    job.until(lambda: job.core.world.generation == 2)
    taken = ev.AllocationTaken(t=1.0, restart_count=1, nodes=("n1", "n3"), slots=("n1", "n3"), spares=())
    after = Borrower(history=(*job.journal, taken), first=ToGathering(start=True))
    assert after.swept == [()]
    assert fold(after.journal).companions == {}


def test_a_companion_that_lends_nothing_is_cancelled() -> None:
    """The borrower may have failed before it could do so."""
    job = borrower("n5")
    job.lends = False
    job.lose("n2")
    lost = qs.BorrowAnswer(refusals=((SPARES, "an error of its own"),))
    job.reply(qs.BorrowNodes, qs.SubmittedCompanion(job_id=109, source=SPARES))
    job.reply(qs.BorrowNodes, lost)
    assert 109 in job.ended
    assert 109 not in job.core.state.companions


def test_companions_of_earlier_controllers_are_looked_for_until_slurm_answers() -> None:
    job = borrower("n5")
    (swept,) = job.swept
    job.reply(qs.SweepCompanions, qs.NoAnswer(reason="Unable to contact slurm controller"))
    job.pass_time(SWEEP_AGAIN_S - 1.0)
    assert job.swept == [swept]
    job.pass_time(2.0)
    assert job.swept == [swept, swept]
    job.reply(qs.SweepCompanions, ())
    job.pass_time(2 * SWEEP_AGAIN_S)
    assert job.swept == [swept, swept]
