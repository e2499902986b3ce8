"""The words of stories: short lives of a simulated job, told by what its journal and its output hold."""

from __future__ import annotations

from typing import Any

from slurm_robust.config.job import JobConfig
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Symptom
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim

PACE = SimulatedPace(step_s=2.0, turn_s=0.5)


def trained(
    nodes: int, spares: int = 0, *, seed: int = 1, config: JobConfig | None = None, **more: Any
) -> Sim:
    """A job that has made its first ten steps; ``more``: see :class:`Sim`."""
    sim = Sim(nodes, spares, seed=seed, config=config, **{"steps": 400, "others": 1, "pace": PACE} | more)
    sim.run_until(lambda: sim.step >= 10, within_s=120.0)
    return sim


def gets_on(sim: Sim, generation: int) -> None:
    """Training makes ten steps in that generation, and nothing is wrong any more."""
    sim.run_until(lambda: sim.state.world.generation == generation and sim.stage == "Running", 120.0)
    step = sim.step
    sim.run_until(lambda: sim.step >= max(step, sim.state.world.restored_step) + 10, within_s=120.0)
    assert (sim.state.world.generation, sim.state.world.incident) == (generation, None), sim.describe()


def opened(sim: Sim) -> list[Symptom]:
    return [event.symptom for event in sim.events(ev.IncidentOpened)]


def evicted(sim: Sim) -> set[str]:
    return {event.node for event in sim.events(ev.NodeEvicted)}


def requeues(sim: Sim) -> list[tuple[str, ...]]:
    """What each requeue that was asked for excludes."""
    return [asked.exclude for asked in sim.asked if isinstance(asked, qs.BeginRequeue)]


def starts(sim: Sim) -> list[tuple[str, ...]]:
    """On which nodes agents were started, time after time."""
    return [asked.nodes for asked in sim.asked if isinstance(asked, qs.StartAgents)]


def blames_nobody(sim: Sim) -> bool:
    """Whether no node was evicted, no run given up, and no verdict names somebody."""
    verdicts = [decided.verdict for decided in sim.events(ev.Decided)]
    blamed = [v for v in verdicts if v is not None and v.blame is not Blame.NOBODY]
    return not (evicted(sim) or requeues(sim) or blamed)
