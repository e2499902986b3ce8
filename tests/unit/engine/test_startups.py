"""What a generation's start waited for is in the journal: by phase and node, and by stage of the recovery."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.model.startup import PhaseTimes
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import PACE, gets_on, trained

STEP_S = PACE.step_s


def phases(sim: Sim, generation: int) -> list[str]:
    (measured,) = (m for m in sim.events(ev.StartMeasured) if m.generation == generation)
    return [times.phase for times in measured.phases]


def is_within(times: PhaseTimes, bounds: tuple[float, float], *nodes: str) -> bool:
    """Whether it tells of these nodes, the slowest first, and each took as long as it should."""
    least, most = bounds
    fits = all(least <= seconds <= most + 0.5 for seconds in times.nodes.values())
    slowest = sorted(times.nodes.values(), reverse=True)
    return fits and set(times.nodes) == set(nodes) and list(times.nodes.values()) == slowest


def test_a_first_start_has_agents_and_zygotes_a_restart_in_place_has_none() -> None:
    sim = trained(2, 1)
    (measured,) = sim.events(ev.StartMeasured)
    assert phases(sim, 1) == ["agent", "zygote", "launch", "restore"]
    agent, zygote, _, restore = measured.phases
    assert is_within(agent, PACE.agent_s, "n1", "n2")
    assert is_within(zygote, PACE.zygote_s, "n1", "n2")
    assert is_within(restore, PACE.restore_s, "n1", "n2")
    assert measured.took_s == pytest.approx(max(restore.nodes.values()) + STEP_S, abs=0.6)
    sim.kill_rank(1)
    gets_on(sim, 2)
    assert phases(sim, 2) == ["stop", "launch", "restore"]


def test_a_standby_that_was_there_costs_no_zygote_and_one_that_is_started_does() -> None:
    sim = trained(2, 1)
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert phases(sim, 2) == ["stop", "launch", "restore"]
    sim.srun_ends("n1", "n3", says="srun: error: Connection refused")
    gets_on(sim, 3)
    assert {"agent", "zygote"} <= set(phases(sim, 3))


def test_a_generation_that_makes_no_step_shows_how_far_its_start_was() -> None:
    sim = Sim(2, seed=1, pace=PACE)
    sim.run_until(lambda: any(rank.restored for rank in sim.ranks.values()), within_s=30.0)
    (fast,), (slow,) = ([r for r in sim.ranks.values() if r.restored is done] for done in (True, False))
    sim.kill_rank(slow.rank)
    gets_on(sim, 2)
    first, _ = sim.events(ev.StartMeasured)
    assert (first.generation, first.took_s) == (1, None)
    assert (first.phases[-1].phase, set(first.phases[-1].nodes)) == ("restore", {fast.node})


def test_the_stages_of_a_recovery_add_up_to_the_time_from_fault_to_new_step() -> None:
    sim = Sim(3, 1, seed=1, steps=400, pace=structs.replace(PACE, copy_s=(3.2, 3.5)))
    sim.run_until(lambda: sim.step >= 10, within_s=120.0)
    sim.run(1.0)
    died = sim.clock.now
    sim.node_dies("n2")
    gets_on(sim, 2)
    (closed,), (opened,) = sim.events(ev.IncidentClosed), sim.events(ev.IncidentOpened)
    assert (opened.symptom, opened.best_step) == (Symptom.NODE_LOST, 10)
    assert opened.t - opened.detect_s == pytest.approx(died, abs=1.0)
    assert closed.stages["detecting"] >= opened.detect_s
    first = sim.events(ev.StartMeasured)[-1]
    assert closed.stages["running"] == pytest.approx(first.took_s, abs=0.6)
    repeated = opened.best_step - sim.state.world.restored_step
    assert repeated >= 2
    assert closed.stages["repeating"] == pytest.approx(repeated * STEP_S, abs=0.6)
    assert sum(closed.stages.values()) == pytest.approx(opened.detect_s + closed.t - opened.t, abs=0.01)
