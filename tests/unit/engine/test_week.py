"""A week of a job, played within seconds by the code that decides in the controller and in the agents."""

from __future__ import annotations

import random

import pytest

from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import BAD_GPU

DAY_S = 86400.0
STEP_S = 12.0
EVERY_S = 8 * 3600.0
PACE = SimulatedPace(step_s=STEP_S, turn_s=1.0, rest_s=0.25, restore_s=(20.0, 30.0))
SEEN_AS = {
    "crash": Symptom.WORKER_EXIT,
    "power": Symptom.NODE_LOST,
    "gpu": Symptom.NODE_FAULT,
    "hang": Symptom.HANG,
}


class Days:
    """A job of so many days on four nodes with two spares, and faults about ``every_s``, each on its own."""

    def __init__(self, days: float, seed: int | None, every_s: float = EVERY_S) -> None:
        """``seed``: None for no faults."""
        steps = int(days * DAY_S / STEP_S * 0.97)
        self.sim = Sim(4, 2, others=34, seed=seed or 0, steps=steps, pace=PACE, leap_s=1800.0)
        self.struck: list[tuple[str, str]] = []
        """Nodes with what happened to them."""
        self._chance, t = random.Random(seed), 0.0
        while seed is not None:
            t += 3600.0 + self._chance.expovariate(1 / every_s)
            if t > days * DAY_S - 3600.0:
                break
            self.sim.at(t, self._strike)

    def _strike(self) -> None:
        sim = self.sim
        if not sim.has_been_well(60.0):
            sim.at(sim.now + 60.0, self._strike)
            return
        node = self._chance.choice(sim.state.world.slots)
        rank = sim.state.world.placement.ranks_of(node)[0]
        kind = self._chance.choice(list(SEEN_AS))
        self.struck.append((node, kind))
        match kind:
            case "crash":
                sim.kill_rank(rank, signal=11)
            case "power":
                sim.node_dies(node)
            case "gpu":
                sim.alert(node, BAD_GPU)
            case "hang":
                sim.hang_rank(rank)


def live(days: float, seed: int, every_s: float = EVERY_S) -> None:
    week = Days(days, seed, every_s)
    sim = week.sim
    assert sim.run_to_end(2 * days * DAY_S) == 0
    assert sim.now > 0.97 * days * DAY_S
    assert sim.state.world.best_step == sim.training.steps - 1
    # Each fault is one incident, seen for what it is, and no node but a broken one is given up.
    broken = [node for node, kind in week.struck if kind != "crash"]
    assert [event.symptom for event in sim.events(ev.IncidentOpened)] == [SEEN_AS[k] for _, k in week.struck]
    assert [event.node for event in sim.events(ev.NodeEvicted)] == broken  # some serve again days later
    # Each generation goes on where the one before it was; standbys are used up before a requeue.
    found = summary_of(sim.journal, sim.clock.now)
    assert found.repeated is not None
    assert found.repeated * STEP_S < 60.0 * len(week.struck)
    assert found.ettr > 0.99
    assert sim.runs - 1 == len(broken) // 3


def test_half_a_day_of_faults() -> None:
    live(0.5, seed=0, every_s=3600.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_week_of_faults(seed: int) -> None:
    live(7.0, seed)


def test_the_same_hours_again_is_decided_alike() -> None:
    first, second = (Days(0.3, seed=1, every_s=3600.0).sim for _ in range(2))
    assert first.run_to_end(DAY_S) == second.run_to_end(DAY_S)
    assert first.journal == second.journal
    assert first.said == second.said


def test_hours_without_faults_are_left_alone() -> None:
    sim = Days(0.5, seed=None).sim
    assert sim.run_to_end(DAY_S) == 0
    kinds = {type(event) for event in sim.journal}
    assert not kinds & {ev.IncidentOpened, ev.Decided, ev.NodeEvicted, ev.CheckpointBanned}
    # A checkpoint goes to storage when the newest there is ten minutes old; time jumps by half an hour or so.
    assert len(sim.events(ev.StorageWritten)) >= 12
