"""What `srobust drill` is answered, and what it does."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import DrillReply
from tests.unit.engine.stories import core_of, gets_on, notes, opened, trained

REFUSED = DrillReply(ok=False, text="node n2 does not respond; nothing was done to rank 1")


def drills(sim: Sim) -> list[str]:
    """The notes of drills."""
    return [text for text in notes(sim) if text.startswith("drill")]


def test_a_drill_kills_the_rank_on_its_node_and_is_noted() -> None:
    sim = trained(2)
    reply = sim.drill(1)
    assert reply == DrillReply(ok=True, text="drill: kill-rank on rank 1 (n2, generation 1)")
    sim.run_until(lambda: bool(opened(sim)), within_s=5.0)
    (found,) = sim.events(ev.IncidentOpened)
    assert (found.symptom, drills(sim)) == (Symptom.WORKER_EXIT, [reply.text])
    assert "rank 1" in found.detail
    gets_on(sim, 2)


def test_a_drill_on_a_node_that_does_not_respond_is_refused_and_not_noted() -> None:
    """Else the note would stand beside the real cause of what follows."""
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
