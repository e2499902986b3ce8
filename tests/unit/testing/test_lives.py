"""Lives drawn from seeds: whatever happens to a job, what its two real halves promise holds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slurm_robust.model import events as ev
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import LONGEST_S, Life, begin

DIFFER_S = 15.0
"""Until an order that was lost is repeated, and carried out."""


def live(seed: int, whole_s: float = 0.0) -> Life:
    """Play one life to its end. While all is well, its two halves differ for a moment only.

    ``whole_s``: seconds until a snapshot is whole, for which the next one waits.
    """
    life = begin(seed)
    sim = life.sim
    sim.training.whole_s = whole_s
    agreed = [0.0]  # when they last did, or something was wrong

    def is_over() -> bool:
        if not sim.has_been_well(0.0) or not (why := sim.disagreement()):
            agreed[0], why = sim.now, ""
        assert sim.now - agreed[0] < DIFFER_S, f"seed {seed}, {life.faults}: {why}; {sim.describe()}"
        return sim.code is not None or sim.waits_for_nodes

    sim.run_until(is_over, LONGEST_S)  # so every stage has ended
    life.code = sim.code
    return life


def check(seed: int, whole_s: float = 0.0) -> Sim:
    life = live(seed, whole_s)
    sim = life.sim
    what = f"seed {seed}, {life.faults}: {sim.describe()}"
    innocent = {event.node for event in sim.events(ev.NodeEvicted)} - life.named - sim.refused
    assert innocent == set(), what
    for event, word in ((ev.ControllerStarted, "epoch"), (ev.GenerationLaunched, "generation")):
        numbers = [getattr(e, word) for e in sim.events(event)]
        assert all(before < after for before, after in pairwise(numbers)), what
    for launch in sim.events(ev.GenerationLaunched)[1:]:
        step = "step 0" if launch.restore is None else f"step {launch.restore.step},"
        said = [line for line in sim.said if line.startswith(f"generation {launch.generation} ")]
        assert any(step in line for line in said), what
    if life.code == 0:
        assert sim.training.newest == sim.training.steps - 1, what
    if not life.faults:
        assert life.code == 0, what
    return sim


@pytest.mark.parametrize("seed", range(25))
def test_a_life_of_random_faults_keeps_all_promises(seed: int) -> None:
    check(seed)


def test_lives_with_steps_that_are_shorter_than_snapshots_keep_all_promises() -> None:
    sims = [check(seed, whole_s=5.0) for seed in range(12)]
    strides = [max(e.local_stride for e in sim.events(ev.StrideChanged)) for sim in sims]
    assert strides.count(4) > 6, strides


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 40))
def test_many_lives_of_random_faults_keep_all_promises(first: int) -> None:
    for seed in range(first, first + 40):
        check(seed)
