"""Standbys that were used or went bad are replaced from the reservation, while training goes on."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import CompanionConfig, JobConfig, StandbyConfig
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.findings import Outcome
from slurm_robust.testing.sim.environment import Tell
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import (
    PACE,
    borrowed,
    core_of,
    evicted,
    gets_on,
    next_controller,
    questions,
    reserve,
    starts,
    trained,
)
from tests.unit.engine.test_standby import settles, under_test

SPARES = CompanionPool(reservation="spares")
SLOW = structs.replace(PACE, lend_s=60.0)
"""Slurm has a node for a companion after a minute."""


def settings(replenish: str = "reservation", *, partition: bool = False) -> JobConfig:
    return JobConfig(
        companions=CompanionConfig(reservation="spares", partition=partition, wait_s=20.0),
        standby=StandbyConfig(rehearse=False, test_s=60.0, replenish=replenish),  # type: ignore[arg-type]
    )


def job_with(*lendable: str, config: JobConfig | None = None, **more: object) -> Sim:
    """A job of two nodes and a standby; ``lendable``: the nodes of the reservation, of which n4 is one."""
    sim = trained(2, 1, config=config or settings(), **{"others": len(lendable) or 1, "steps": 2000} | more)
    reserve(sim, *lendable)
    return sim


def uses_the_standby(sim: Sim) -> None:
    sim.node_dies("n2")
    gets_on(sim, 2)


def companions(sim: Sim) -> list[int]:
    """The jobs that were submitted to lend nodes."""
    return [job for job in sim.cluster.jobs if job != sim.job_id]


def is_cancelled(sim: Sim, companion: int) -> bool:
    return sim.cluster.jobs[companion].is_finished


class HeldLoans:
    """Requests for nodes that are answered when the test says so."""

    def __init__(self) -> None:
        self.tells: list[Tell] = []

    def __call__(self, asked: qs.BorrowNodes, tell: Tell) -> None:
        self.tells.append(tell)


def test_a_used_standby_is_replaced_while_training_goes_on() -> None:
    sim = job_with("n4")
    assert borrowed(sim) == []
    uses_the_standby(sim)
    (order,) = borrowed(sim)
    assert (order.sources, order.missing, order.exclude, order.some) == ((SPARES,), 1, ("n2",), True)
    assert (sim.state.spares, starts(sim)[-1]) == (("n4",), ("n4",))
    assert (sim.state.world.generation, sim.state.world.incident) == (2, None)
    settles(sim, 3.0)
    assert under_test(sim)[-1] == "n4", "it goes through the same stages"
    sim.node_dies("n3")
    gets_on(sim, 3)
    assert sim.state.world.slots == ("n1", "n4")
    companion = sim.state.lenders["n4"]
    assert not is_cancelled(sim, companion)
    sim.training.steps = sim.step + 2
    assert sim.run_to_end() == 0
    assert companion in [job for asked in questions(sim, qs.EndCompanions) for job in asked.jobs]


def test_a_standby_that_fails_its_quick_test_is_replaced() -> None:
    sim = job_with("n4")
    sim.nodes["n3"].is_broken = True
    sim.run_until(lambda: "n3" in evicted(sim), within_s=60.0)
    sim.run_until(lambda: sim.state.spares == ("n4",), within_s=5.0)
    sim.run_until(lambda: "n4" in sim.state.standby_tests, within_s=60.0)
    assert sim.state.standby_tests["n4"].outcome is Outcome.PASS
    assert evicted(sim) == {"n3"}


def test_slurm_is_asked_ever_more_rarely_for_a_standby_if_no_node_is_free() -> None:
    sim = job_with("n4", leap_s=20.0)
    sim.cluster.set_node("n4", states=frozenset({"IDLE", "DRAIN"}), reason="being repaired")
    uses_the_standby(sim)
    sim.run(600.0)
    assert [event.attempt for event in sim.events(ev.ReplenishBegun)] == [1, 2, 3, 4]
    assert sum("asking for" in text for text in sim.said) == 1
    assert sim.state.companions == {}
    assert (len(companions(sim)), all(is_cancelled(sim, job) for job in companions(sim))) == (4, True)
    sim.cluster.set_node("n4", states=frozenset({"IDLE"}), reason="")
    sim.run(500.0)
    assert sim.state.spares == ("n4",)


@pytest.mark.parametrize(
    ("config", "sources"),
    [
        (settings("none"), None),
        (settings(partition=True), (SPARES,)),
        (settings("partition", partition=True), (SPARES, CompanionPool())),
        (JobConfig(), None),
    ],
    ids=["none", "only for faults", "both", "default"],
)
def test_the_partition_gives_standbys_only_if_that_is_configured(
    config: JobConfig, sources: tuple[CompanionPool, ...] | None
) -> None:
    sim = job_with(config=config)
    uses_the_standby(sim)
    assert [order.sources for order in borrowed(sim)] == ([] if sources is None else [sources])


def test_a_fault_waits_for_the_node_that_is_on_its_way() -> None:
    sim = job_with("n4", pace=SLOW)
    uses_the_standby(sim)
    assert (len(borrowed(sim)), sim.state.spares) == (1, ())
    sim.node_dies("n3")
    sim.run_until(lambda: sim.stage == "Borrowing", within_s=10.0)
    sim.run_until(lambda: sim.state.world.generation == 3, within_s=120.0)
    assert (sim.state.world.slots, len(borrowed(sim)), len(companions(sim))) == (("n1", "n4"), 1, 1)


def test_a_fault_asks_for_a_node_itself_if_no_standby_came() -> None:
    loans = HeldLoans()
    sim = job_with("n4", replies={qs.BorrowNodes: loans})
    uses_the_standby(sim)
    sim.node_dies("n3")
    sim.run_until(lambda: sim.stage == "Borrowing", within_s=10.0)
    sim.run(2.0)
    assert len(borrowed(sim)) == 1
    sim.answer(qs.BorrowNodes, None)
    loans.tells[0](qs.BorrowAnswer(refusals=((SPARES, "0 of 1 node free"),)))
    sim.run_until(lambda: sim.state.world.generation == 3, within_s=30.0)
    assert (sim.state.world.slots, len(borrowed(sim)), len(companions(sim))) == (("n1", "n4"), 2, 1)


def test_slurm_that_never_answers_is_waited_for_within_a_bound() -> None:
    loans = HeldLoans()
    sim = job_with("n4", replies={qs.BorrowNodes: loans}, leap_s=20.0)
    uses_the_standby(sim)
    sim.run_until(lambda: len(borrowed(sim)) > 1, within_s=400.0)
    loans.tells[0](qs.SubmittedCompanion(job_id=105, source=SPARES), is_last=False)
    loans.tells[0](qs.BorrowAnswer(nodes={105: "n4"}))
    sim.run(1.0)
    ended = [asked.jobs for asked in questions(sim, qs.EndCompanions)]
    assert (ended, sim.state.spares) == ([(105,)], ()), "too late, it is given back"


def test_the_next_controller_does_not_ask_twice_for_a_standby() -> None:
    sim = job_with("n4", "n5")
    uses_the_standby(sim)
    next_controller(sim)
    sim.run(70.0)
    assert (len(borrowed(sim)), sim.state.spares, len(companions(sim))) == (1, ("n4",), 1)


def test_a_takeover_while_a_companion_waits_gives_it_back_and_asks_anew() -> None:
    sim = job_with("n4", pace=SLOW)
    uses_the_standby(sim)
    (first,) = sim.state.companions
    next_controller(sim)
    assert is_cancelled(sim, first)
    sim.run_until(lambda: sim.state.spares == ("n4",), within_s=120.0)
    assert [event.attempt for event in sim.events(ev.ReplenishBegun)] == [1, 2]
    assert sim.state.lenders == {"n4": companions(sim)[-1]}


def test_observe_mode_borrows_no_standby() -> None:
    config = JobConfig(mode="observe", companions=CompanionConfig(reservation="spares"))
    sim = job_with("n4", config=config)
    core, now = core_of(sim)
    core.evict("n3", "test", now)
    sim.run(60.0)
    assert (evicted(sim), borrowed(sim)) == ({"n3"}, [])
