"""What `srobust drill` is answered, what it does, and that a real fault beside it stays one."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.config.job import JobConfig
from slurm_robust.engine.questions import SaveSuspect
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.drill import DrillFault
from slurm_robust.model.incident import Blame, Evict, Replace, Requeue, Restart, Symptom
from slurm_robust.model.release import Requester
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.training import doing
from slurm_robust.wire.messages import Drill, DrillReply
from tests.unit.engine.stories import core_of, gets_on, opened, trained

REFUSED = DrillReply(ok=False, text="node n2 does not respond; nothing was done to rank 1")
ALICE = Requester(user="alice", uid=1000, host="login1")


def plants(sim: Sim, fault: str, rank: int = 1, **more: Any) -> DrillReply:
    """What the owner's command gets as an answer."""
    assert sim.controller is not None
    return sim.controller.drill(Drill(fault=fault, rank=rank, by=ALICE, **more))


def drills(sim: Sim) -> list[ev.DrillPlanted]:
    return sim.events(ev.DrillPlanted)


def decided(sim: Sim) -> ev.Decided:
    """The newest decision."""
    return sim.events(ev.Decided)[-1]


def is_answered(sim: Sim) -> None:
    sim.run_until(lambda: bool(sim.events(ev.Decided)), within_s=120.0)


def test_a_drill_kills_the_rank_on_its_node_and_the_decision_names_it() -> None:
    sim = trained(2)
    reply = plants(sim, "kill-rank")
    assert (reply.ok, reply.drill) == (True, 1)
    assert reply.text == "drill 1 by alice: kill-rank on rank 1 (n2, generation 1)"
    sim.run_until(lambda: bool(opened(sim)), within_s=5.0)
    (found,) = sim.events(ev.IncidentOpened)
    assert found.symptom is Symptom.WORKER_EXIT
    (planted,) = drills(sim)
    assert (planted.rank, planted.node, planted.by, planted.generation) == (1, "n2", ALICE, 1)
    gets_on(sim, 2)
    assert (decided(sim).drill, decided(sim).actions) == (1, (Restart(),))
    assert planted.promise is not None
    assert planted.promise.actions == decided(sim).actions
    assert (sim.state.world.attempts, sim.state.world.drills) == ((), ())


def test_a_drill_is_no_failure_in_any_figure() -> None:
    sim = trained(2)
    plants(sim, "kill-rank")
    gets_on(sim, 2)
    figures = summary_of(sim.journal, sim.journal[-1].t)
    assert (figures.drills, figures.mttf_s, figures.mttr_s) == (1, None, None)
    assert [(one.cause, one.nodes) for one in figures.incidents] == [("drill", ())]
    assert figures.ettr_undrilled is not None
    assert figures.ettr_undrilled > figures.ettr


@pytest.mark.parametrize(("spares", "answer"), [(1, (Evict, Replace, Restart)), (0, (Evict, Requeue))])
def test_a_stopped_rank_costs_its_node_as_was_said_before_and_leaves_no_word_for_root(
    spares: int, answer: tuple[type, ...]
) -> None:
    sim = trained(2, spares)
    plan = plants(sim, "stop-rank", plan=True)
    assert plan.promise is not None
    assert (plan.promise.is_costly, tuple(map(type, plan.promise.actions))) == (True, answer)
    assert (drills(sim), plan.promise.standbys) == ([], 0)
    plants(sim, "stop-rank")
    is_answered(sim)
    assert (decided(sim).drill, decided(sim).actions) == (1, plan.promise.actions)
    sim.run_until(lambda: bool(sim.events(ev.NodeEvicted)), within_s=5.0)
    assert [(e.node, e.drill) for e in sim.events(ev.NodeEvicted)] == [("n2", 1)]
    assert not [question for question in sim.asked if isinstance(question, SaveSuspect)]
    figures = summary_of(sim.journal, sim.journal[-1].t)
    assert [(one.cause, one.nodes) for one in figures.incidents] == [("drill", ())]


def test_a_rank_that_died_before_the_drill_is_a_real_fault() -> None:
    sim = trained(2)
    sim.kill_rank(0)
    assert plants(sim, "kill-rank").ok  # nobody has seen it yet
    is_answered(sim)
    assert decided(sim).drill == 0


def test_a_rank_that_dies_beside_the_drill_is_a_real_fault() -> None:
    sim = trained(2)
    plants(sim, "kill-rank")
    sim.kill_rank(0)
    is_answered(sim)
    assert decided(sim).drill == 0


def test_another_rank_that_stops_after_the_drill_is_a_real_fault() -> None:
    sim = trained(2, 1)
    sim.hang_rank(0, shows=lambda order: doing(0, "n1", "forward@/home/me/model.py", state="T"))
    assert plants(sim, "kill-rank").ok
    is_answered(sim)
    assert (decided(sim).drill, sim.events(ev.IncidentOpened)[0].symptom) == (1, Symptom.WORKER_EXIT)
    sim.run_until(lambda: sim.state.world.generation == 2 and sim.state.world.running, within_s=60.0)
    assert sim.state.world.drills == ()


def test_the_same_rank_that_stood_still_long_before_the_drill_is_a_real_fault() -> None:
    sim = trained(2, 1)
    sim.hang_rank(1, shows=lambda order: doing(1, "n2", "forward@/home/me/model.py", state="T"))
    sim.run(11.0)
    assert plants(sim, "stop-rank").ok
    is_answered(sim)
    verdict = decided(sim).verdict
    assert verdict is not None
    assert (decided(sim).drill, verdict.blame, verdict.suspects) == (0, Blame.NODE, ("n2",))
    assert [e.drill for e in sim.events(ev.NodeEvicted)] == [0]


def test_in_observe_mode_a_drill_says_before_that_nothing_ends_it_and_is_a_drill_all_the_same() -> None:
    sim = trained(2, 1, config=JobConfig(mode="observe"))
    plan = plants(sim, "kill-rank", plan=True)
    assert plan.promise is not None
    assert (plan.promise.observe, plan.promise.is_costly) == (True, True)
    plants(sim, "kill-rank")
    is_answered(sim)
    assert (decided(sim).drill, decided(sim).carried_out) == (1, False)


def test_a_hang_of_a_drill_does_not_make_later_hangs_wait_longer() -> None:
    sim = trained(2, 1)
    plants(sim, "stop-rank")
    is_answered(sim)
    gets_on(sim, 2)
    assert sim.state.world.pace.doubts == 0


def test_the_same_fault_after_the_recovery_is_a_real_one() -> None:
    sim = trained(2)
    plants(sim, "kill-rank")
    gets_on(sim, 2)
    sim.kill_rank(1)
    sim.run_until(lambda: len(sim.events(ev.Decided)) == 2, within_s=60.0)
    assert [e.drill for e in sim.events(ev.Decided)] == [1, 0]


def test_a_drill_that_is_not_over_or_an_open_incident_lets_no_other_begin() -> None:
    sim = trained(2)
    plants(sim, "kill-rank")
    assert plants(sim, "kill-rank").text == "drill 1 is not over; nothing was done to rank 1"
    sim.run_until(lambda: sim.state.world.incident is not None, within_s=5.0)
    assert "incident 1 is open" in plants(sim, "kill-rank").text
    assert len(drills(sim)) == 1


def test_a_drill_that_its_node_cannot_do_is_over_with_the_reason() -> None:
    sim = trained(2)
    plants(sim, "raise-error")
    sim.run_until(lambda: bool(sim.events(ev.DrillOver)), within_s=5.0)
    (over,) = sim.events(ev.DrillOver)
    assert (over.ok, over.drill) == (False, 1)
    assert plants(sim, "kill-rank").drill == 2


def test_a_drill_of_which_nothing_is_seen_is_over_after_a_while() -> None:
    sim = trained(2)
    plants(sim, "kill-controller", 0)
    sim.run_until(lambda: bool(sim.events(ev.DrillOver)), within_s=60.0)
    assert sim.events(ev.DrillOver)[0].reason == "no fault was seen"


def test_an_unknown_fault_is_refused_with_all_that_there_are() -> None:
    text = plants(trained(2), "burn").text
    assert "unknown fault 'burn'" in text
    assert all(fault.value in text for fault in DrillFault)


def test_a_drill_on_a_node_that_does_not_respond_is_refused_and_not_noted() -> None:
    """Else it would stand beside the real cause of what follows."""
    sim = trained(2)
    sim.agent_stalls("n2")
    sim.run(3.0)
    assert (sim.drill(1), drills(sim), opened(sim)) == (REFUSED, [], [])
    assert sim.drill(0).ok


def test_a_drill_on_a_node_that_has_just_been_found_dead_is_refused() -> None:
    sim = trained(2)
    core, now = core_of(sim)
    core.fleet.declare_dead("n2", "no probe is answered", now.mono)
    assert sim.drill(1) == REFUSED
