"""A job whose standbys are used up goes on with nodes of companions, and gives them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import CompanionConfig, JobConfig, SlurmConfig
from slurm_robust.engine import questions as qs
from slurm_robust.engine.units.companions import SWEEP_AGAIN_S
from slurm_robust.model import events as ev
from slurm_robust.model.companion import Companion, CompanionPool
from slurm_robust.model.findings import Suspect
from slurm_robust.model.journal import fold
from slurm_robust.testing.sim.environment import Reply, always, never
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import BAD_GPU
from slurm_robust.wire.messages import Shutdown
from tests.unit.engine.stories import (
    borrowed,
    evicted,
    gets_on,
    orders,
    questions,
    requeues,
    reserve,
    trained,
)

SPARES = CompanionPool(reservation="spares")
CONFIG = JobConfig(companions=CompanionConfig(reservation="spares", wait_s=20.0))
Replies = Mapping[type[qs.Question[Any]], Reply]


def borrower(*lendable: str, config: JobConfig = CONFIG, replies: Replies | None = None) -> Sim:
    """Two nodes that train without a standby, while ``lendable`` ones (n3, …) wait in a reservation."""
    sim = trained(2, 0, others=len(lendable), config=config, replies=replies)
    reserve(sim, *lendable)
    return sim


def loses(sim: Sim, node: str = "n2") -> Sim:
    """The node dies, and the job has asked for what is to follow."""
    sim.node_dies(node)
    sim.run_until(lambda: bool(borrowed(sim) or requeues(sim)), within_s=60.0)
    return sim


def swept(sim: Sim) -> list[tuple[int, ...]]:
    return [asked.known for asked in questions(sim, qs.SweepCompanions)]


def suspects(sim: Sim) -> list[Suspect]:
    return [asked.suspect for asked in questions(sim, qs.SaveSuspect)]


def lender(sim: Sim, node: str) -> int:
    """The companion that has lent the node."""
    return next(event.job_id for event in sim.events(ev.CompanionStarted) if event.node == node)


def cancelled(sim: Sim) -> list[int]:
    return [job for asked in questions(sim, qs.EndCompanions) for job in asked.jobs]


def lends_late(asked: qs.BorrowNodes, tell: Any) -> None:
    """A companion is submitted, and nothing more is heard of it."""
    tell(qs.SubmittedCompanion(job_id=105, source=SPARES), is_last=False)


def test_a_node_of_a_companion_takes_the_slot() -> None:
    sim = loses(borrower("n3"))
    gets_on(sim, 2)
    (asked,) = borrowed(sim)
    assert (asked.sources, asked.missing, asked.exclude) == ((SPARES,), 1, ("n2",))
    assert sim.state.world.slots == ("n1", "n3")
    assert sim.state.lenders == {"n3": lender(sim, "n3")}
    assert (evicted(sim), requeues(sim)) == ({"n2"}, [])
    assert len(sim.events(ev.IncidentClosed)) == 1
    companion = lender(sim, "n3")
    sim.training.steps = sim.step + 3
    assert sim.run_to_end(within_s=60.0) == 0
    assert cancelled(sim) == [companion]
    assert fold(sim.journal).companions == {}


def test_a_job_to_which_no_node_is_lent_is_requeued_as_without_companions() -> None:
    sim = borrower()
    loses(sim)
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    assert requeues(sim) == [("n2",)]
    (refusal,) = sim.events(ev.NotLent)
    assert (refusal.source, refusal.reason) == (SPARES, "no node is free")
    requeue = sim.events(ev.RequeueStarted)[0]
    assert requeue.reason == "1 node to replace, 0 standbys left; reservation spares: no node is free"
    assert evicted(sim) == {"n2"}


def test_slurm_that_never_answers_is_waited_for_within_a_bound_and_a_late_companion_is_cancelled() -> None:
    sim = loses(borrower("n3", replies={qs.BorrowNodes: lends_late}))
    sim.run_until(lambda: bool(requeues(sim)), within_s=300.0)
    assert "no answer within" in sim.events(ev.RequeueStarted)[0].reason
    waits = "waiting for 1 node from reservation spares: 20 s (companions.wait_s), 210 s at most if Slurm"
    assert f"{waits} answers slowly" in sim.said
    assert 105 in cancelled(sim)
    assert sim.state.companions == {}


def test_a_node_that_is_lent_too_late_is_given_back() -> None:
    told: list[Any] = []
    sim = loses(borrower("n3", replies={qs.BorrowNodes: lambda asked, tell: told.append(tell)}))
    sim.answer(qs.BeginRequeue, never)
    sim.run_until(lambda: bool(requeues(sim)), within_s=300.0)
    (tell,) = told
    tell(qs.SubmittedCompanion(job_id=105, source=SPARES), is_last=False)
    tell(qs.BorrowAnswer(nodes={105: "n3"}))
    sim.run(2.0)
    assert 105 in cancelled(sim)
    assert (sim.state.companions, sim.state.spares) == ({}, ())


def test_what_was_lent_is_given_back_before_a_requeue() -> None:
    sim = trained(3, 0, others=1, config=CONFIG)
    reserve(sim, "n4")
    sim.node_dies("n2")
    sim.node_dies("n3")
    sim.run_until(lambda: bool(requeues(sim)), within_s=400.0)
    seen = [type(event) for event in sim.journal]
    assert seen.index(ev.CompanionStarted) < seen.index(ev.CompanionEnded)
    assert lender(sim, "n4") in cancelled(sim)
    assert sim.state.companions == {}


def test_a_lent_node_that_dies_is_replaced_and_its_companion_finds_the_suspect() -> None:
    sim = loses(borrower("n3", "n4"))
    gets_on(sim, 2)
    first = lender(sim, "n3")
    sim.node_dies("n3")
    gets_on(sim, 3)
    assert sim.state.world.slots == ("n1", "n4")
    sim.run_until(lambda: bool(cancelled(sim)), within_s=60.0)
    assert cancelled(sim) == [first]
    assert sim.state.lenders == {"n4": lender(sim, "n4")}
    assert [(s.node, s.job_id) for s in suspects(sim)] == [("n2", sim.job_id), ("n3", first)]
    assert borrowed(sim)[-1].exclude == ("n2", "n3")


def test_a_lent_node_on_which_no_agent_comes_is_replaced() -> None:
    sim = borrower("n3", "n4")
    sim.no_agent["n3"] = "srun: error: n3: task 0: Exited with exit code 2"
    loses(sim)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=900.0)
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n4")
    assert lender(sim, "n3") in cancelled(sim)


def test_a_lent_node_whose_companion_somebody_ends_is_replaced_and_not_blamed() -> None:
    sim = borrower("n3", "n4")
    loses(sim)
    gets_on(sim, 2)
    companion = lender(sim, "n3")
    sim.cluster.finish(companion, "CANCELLED")
    sim.nodes["n3"].end_agents()
    gets_on(sim, 3)
    assert sim.state.world.slots == ("n1", "n4")
    assert (evicted(sim), [suspect.node for suspect in suspects(sim)]) == ({"n2"}, ["n2"])
    sim.run_until(lambda: "n3" not in sim.state.lenders, within_s=200.0)
    assert sim.state.spares == ()
    ended = [event for event in sim.events(ev.CompanionEnded) if event.job_id == companion]
    assert [event.reason for event in ended] == ["Slurm has ended it, and has n3 back"]


def test_an_evicted_lent_node_is_given_back_when_its_copies_are_not_needed() -> None:
    sim = loses(borrower("n3", "n4"))
    gets_on(sim, 2)
    sim.takes_snapshots = False
    sim.alert("n3", BAD_GPU)
    gets_on(sim, 3)
    assert evicted(sim) == {"n2", "n3"}
    assert cancelled(sim) == [], "what the next restore may need is in its memory"
    sim.takes_snapshots = True
    sim.run_until(lambda: bool(cancelled(sim)), within_s=60.0)
    assert cancelled(sim) == [lender(sim, "n3")]
    assert orders(sim, Shutdown)["n3"].keep_copies is False


def test_an_order_to_end_while_the_job_waits_for_a_node_cancels_the_companion() -> None:
    sim = loses(borrower("n3", replies={qs.BorrowNodes: lends_late}))
    sim.run_until(lambda: 105 in sim.state.companions, within_s=5.0)
    assert sim.stage == "Borrowing"
    sim.cancel()
    sim.run_to_end(within_s=60.0)
    assert cancelled(sim) == [105]


def test_near_the_end_of_the_run_no_node_is_waited_for() -> None:
    sim = loses(borrower("n3", replies={qs.BorrowNodes: never}))
    sim.warn()
    sim.run_until(lambda: bool(requeues(sim)), within_s=30.0)


def test_observe_mode_borrows_nothing() -> None:
    sim = borrower("n3", config=structs.replace(CONFIG, mode="observe"))
    sim.node_dies("n2")
    sim.run(60.0)
    assert borrowed(sim) == []
    assert any("would do" in text and "ask for 1 node" in text for text in sim.said)


def test_slurm_is_asked_for_no_companion_if_none_is_configured() -> None:
    sim = loses(borrower(config=JobConfig()))
    assert (borrowed(sim), swept(sim)) == ([], [])


@pytest.mark.parametrize("requeue", [True, False])
def test_a_next_controller_knows_companions_and_sweeps_the_others(requeue: bool) -> None:
    sim = loses(borrower("n3", config=structs.replace(CONFIG, slurm=SlurmConfig(requeue=requeue))))
    gets_on(sim, 2)
    companion = lender(sim, "n3")
    sim.journal.append(ev.CompanionSubmitted(t=sim.clock.now, job_id=109, source=SPARES))
    sim.controller_dies()
    sim.run_until(lambda: len(swept(sim)) == 2, within_s=30.0)
    assert swept(sim)[-1] == (companion,)
    assert sim.state.companions == {companion: Companion(source=SPARES, node="n3")}
    assert sim.events(ev.CompanionEnded)[0].job_id == 109


def test_the_next_run_has_no_companions_and_sweeps_all() -> None:
    sim = loses(borrower("n3"))
    gets_on(sim, 2)
    sim.node_returns("n2")
    sim.run_dies()
    sim.run_until(lambda: sim.runs == 2 and len(swept(sim)) == 2, within_s=400.0)
    assert swept(sim)[-1] == ()
    assert sim.state.companions == {}


def test_a_companion_that_lends_nothing_is_cancelled() -> None:
    """The borrower may have failed before it could do so."""
    failed = qs.BorrowAnswer(refusals=((SPARES, "an error of its own"),))
    reply = always(qs.SubmittedCompanion(job_id=109, source=SPARES), failed)
    sim = loses(borrower("n3", replies={qs.BorrowNodes: reply}))
    sim.run_until(lambda: bool(cancelled(sim)), within_s=5.0)
    assert 109 in cancelled(sim)
    assert 109 not in sim.state.companions


def test_companions_of_earlier_controllers_are_looked_for_until_slurm_answers() -> None:
    silent = qs.NoAnswer(reason="Unable to contact slurm controller")
    sim = trained(2, 0, config=CONFIG, to=0, replies={qs.SweepCompanions: always(silent)})
    sim.run(SWEEP_AGAIN_S - sim.now - 1.0)
    assert swept(sim) == [()]
    sim.answer(qs.SweepCompanions, None)
    sim.run(3.0)
    assert swept(sim) == [(), ()]
    sim.run(2 * SWEEP_AGAIN_S)
    assert swept(sim) == [(), ()]
