"""Lives drawn from seeds: whatever happens to a job, what its two real halves promise holds."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from slurm_robust.config.job import JobConfig, UpdateConfig
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, GiveUp, RollBack
from slurm_robust.model.state import JobState, apply
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import LONGEST_S, TIMINGS, Life, begin

DIFFER_S = 15.0
"""Until an order that was lost is repeated, and carried out."""


UPDATED_LIVES = int(os.environ.get("SROBUST_UPDATED_LIVES", "50"))
"""How many of the 200 lives are played."""
UPDATED = JobConfig(timings=TIMINGS, updates=UpdateConfig(good_steps=20))


def live(seed: int, whole_s: float = 0.0, *, updates: bool = False) -> Life:
    """Play one life to its end. While all is well, its two halves differ for a moment only.

    ``whole_s``: seconds until a snapshot is whole, for which the next one waits.
    """
    life = begin(seed, config=UPDATED if updates else None, updates=updates)
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


def check(seed: int, whole_s: float = 0.0, *, updates: bool = False) -> Sim:
    life = live(seed, whole_s, updates=updates)
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


def check_updates(seed: int) -> None:
    """What else holds if the owner changes the code."""
    sim = check(seed, updates=True)
    void, back, state = set[int](), list[str](), JobState()
    for event in sim.journal:
        if isinstance(event, ev.GenerationLaunched):
            assert event.release == state.release, f"seed {seed}: {event}"
            assert event.restore is None or event.restore.generation not in void, f"seed {seed}: {event}"
        if isinstance(event, ev.Decided):
            for action in event.actions:
                if isinstance(action, RollBack):
                    assert state.candidate is not None
                    void.update(range(state.candidate.generation, state.world.generation + 1))
                    back.append(action.release)
                assert not (isinstance(action, GiveUp) and is_blamed(state, event)), f"seed {seed}: {event}"
        state = apply(event, state)
    assert len(back) == len(set(back)), f"seed {seed}: {back}"
    applied = [event.update for event in sim.events(ev.UpdateApplied)]
    ended = [event.update for event in sim.events(ev.UpdateEnded)]
    waits = [sim.state.update.update] if sim.state.update is not None else []
    asked = [event.update for event in sim.events(ev.UpdateRequested)]
    assert sorted([*applied, *ended, *waits]) == asked, f"seed {seed}"


def is_blamed(state: JobState, decided: ev.Decided) -> bool:
    """The job gives up for its code, although there is a release to go back to."""
    may = state.candidate is not None and state.candidate.before != ""
    return may and decided.verdict is not None and decided.verdict.blame is Blame.CODE


@pytest.mark.parametrize("seed", range(12))
def test_a_life_of_faults_and_updates_keeps_all_promises(seed: int) -> None:
    check_updates(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2000, 2200, 40))
def test_many_lives_of_faults_and_updates_keep_all_promises(first: int) -> None:
    for seed in range(first, first + UPDATED_LIVES // 5):
        check_updates(seed)


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


@pytest.mark.slow
def test_a_seed_is_the_same_life_in_every_process() -> None:
    script = (
        "from slurm_robust.testing.sim.lives import live\n"
        "print(*live(59).sim.journal, sep='\\n')"  # nodes answer together while their agents are silent
    )
    lives = {
        subprocess.check_output([sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("0", "1", "2")
    }
    assert len(lives) == 1
