"""Ten days on which everything goes wrong: each ends well, within its bounds, and costs what it must."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_robust.config.job import CheckpointConfig, JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.simulator.figures import LifeFigures, figures_of
from slurm_robust.simulator.life import PolicyLife
from slurm_robust.simulator.shipped import located, names
from slurm_robust.simulator.spec import read
from slurm_robust.testing.policy_lives.promises import broken_promises
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim


class Expected(NamedTuple):
    """What one day may cost."""

    ettr: float
    """At least."""
    runs: int = 1
    """Runs of the Slurm job, at most."""
    evicted: int = 0
    """Nodes, at most …"""
    wrongly: int = 0
    """… and of these that were not broken."""


DAYS = {
    "leaf-switch": Expected(0.97, runs=2),
    "file-server": Expected(0.96),
    "poisoned-release": Expected(0.985),
    "all-standbys-bad": Expected(0.975, runs=2, evicted=5),
    "xids-on-healthy-nodes": Expected(0.965, runs=3, evicted=10, wrongly=10),
    "lemon-rack": Expected(0.93, runs=5, evicted=24),
}


@cache
def figures(name: str, seed: int) -> LifeFigures:
    return figures_of(PolicyLife(read(located(Path(f"catastrophe-{name}"))), seed).play())


def test_each_shipped_catastrophe_has_its_expectations() -> None:
    assert {f"catastrophe-{name}" for name in DAYS} == {
        one for one in names() if one.startswith("catastrophe-")
    }


@pytest.mark.parametrize("name", list(DAYS))
@pytest.mark.parametrize("seed", range(3))
def test_a_catastrophe_costs_no_more_than_it_must(name: str, seed: int) -> None:
    spec, expected = read(located(Path(f"catastrophe-{name}"))), DAYS[name]
    assert broken_promises(spec, seed) == []
    found = figures(name, seed)
    assert found.ettr >= expected.ettr
    assert found.jobs == 1
    assert found.runs <= expected.runs
    assert found.evicted_wrong <= expected.wrongly
    assert found.evicted_right + found.evicted_wrong <= expected.evicted


def test_the_page_says_what_each_day_costs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    said = dict(re.findall(r"\| `catastrophe-([a-z-]+)` \|.*\| ([0-9.]+) % \|", page))
    assert said.keys() == DAYS.keys()
    for name, percent in said.items():
        found = [figures(name, seed).ettr for seed in range(5)]
        assert 100 * sum(found) / len(found) == pytest.approx(float(percent), abs=0.3)


# -- what the policy alone cannot play: by the core itself ---------------------------------------------------

PACE = SimulatedPace(step_s=10.0, turn_s=0.5, rest_s=0.25)
HOUR_S = 3600.0


def job(
    spares: int = 1,
    *,
    steps: int = 400,
    leap_s: float = 60.0,
    pace: SimulatedPace = PACE,
    config: JobConfig | None = None,
) -> Sim:
    """A job of three nodes that has made 60 steps."""
    sim = Sim(nodes=3, spares=spares, others=1, seed=1, steps=steps, pace=pace, leap_s=leap_s, config=config)
    sim.run_until(lambda: sim.step >= 60, within_s=HOUR_S)
    return sim


def ettr(sim: Sim) -> float:
    """The share of the time in which new steps were made, by no clock of the job."""
    return sim.training.steps * sim.env.pace.step_s / sim.now


def slurmctld_is_away(sim: Sim, seconds: float) -> None:
    sim.slurm_is_silent()
    sim.at(sim.now + seconds, partial(sim.slurm_is_silent, False))


@pytest.mark.soak
def test_an_hour_without_slurmctld_costs_nothing_as_long_as_a_standby_is_there() -> None:
    sim = job(steps=500, leap_s=0.0)
    slurmctld_is_away(sim, HOUR_S)
    sim.run(600.0)
    sim.node_dies("n2")
    sim.run(900.0)
    sim.kill_rank(0)
    assert sim.run_to_end(3 * HOUR_S) == ExitCode.SUCCESS
    assert (sim.runs, list(sim.state.evicted)) == (1, ["n2"])
    assert ettr(sim) > 0.98


@pytest.mark.slow
def test_without_a_standby_the_job_waits_for_slurmctld_and_goes_on() -> None:
    sim = job(spares=0, steps=200, leap_s=0.0)
    slurmctld_is_away(sim, HOUR_S)
    sim.run(600.0)
    died = sim.now
    sim.node_dies("n2")
    sim.run_until(lambda: sim.runs == 2, within_s=2 * HOUR_S)
    assert sim.now - died < HOUR_S  # as soon as it answers
    assert sim.run_to_end(HOUR_S) == ExitCode.SUCCESS
    assert list(sim.state.evicted) == ["n2"]


@pytest.mark.parametrize("jump_s", [HOUR_S, -2 * HOUR_S])
def test_clocks_that_jump_cost_nothing(jump_s: float) -> None:
    sim = job()
    sim.nodes["n1"].ahead_s = jump_s
    sim.run(300.0)
    sim.node_dies("n3")
    sim.run(600.0)
    sim.nodes["n2"].ahead_s = -jump_s
    assert sim.run_to_end(2 * HOUR_S) == ExitCode.SUCCESS
    assert (sim.runs, list(sim.state.evicted)) == (1, ["n3"])
    assert ettr(sim) > 0.97


@pytest.mark.slow
@pytest.mark.parametrize("up_s", [3.0, 20.0])
def test_a_flapping_link_costs_its_node_alone(up_s: float) -> None:
    sim = job()
    for _ in range(20):
        sim.partition("n3", fabric=True)
        sim.run(8.0)
        sim.heal("n3")
        sim.run(up_s)
    assert sim.run_to_end(2 * HOUR_S) == ExitCode.SUCCESS
    assert (sim.runs, list(sim.state.evicted)) == (1, ["n3"])
    assert len(sim.events(ev.IncidentOpened)) <= 2
    assert ettr(sim) > 0.97


@pytest.mark.slow
def test_full_storage_loses_no_step_as_long_as_memory_has_it() -> None:
    often = JobConfig(checkpoint=CheckpointConfig(every_s=60.0))
    sim = job(steps=160, leap_s=0.0, pace=SimulatedPace(step_s=2.0), config=often)
    for node in sim.nodes.values():
        node.unwritable = set(range(61, 150))
    sim.run_until(lambda: sim.step >= 130, within_s=HOUR_S)
    at = sim.step
    sim.node_dies("n3")
    assert sim.run_to_end(2 * HOUR_S) == ExitCode.SUCCESS
    again = sim.events(ev.GenerationLaunched)[1]
    assert again.restore_step >= at - 1
    assert set(again.tiers) == {"memory", "peer"}
    assert any("No space left on device" in line for line in sim.said)
    assert (sim.runs, list(sim.state.evicted)) == (1, ["n3"])
    assert ettr(sim) > 0.9  # of five minutes
