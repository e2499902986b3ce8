"""The words of stories: short lives of a simulated job, told by what its journal and its output hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import structs

from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Symptom
from slurm_robust.model.stacks import RankStacks
from slurm_robust.slurm.records import Reservation
from slurm_robust.testing.sim.controller import SimController
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.training import doing, waiting

T = TypeVar("T")
Q = TypeVar("Q", bound=qs.Question[Any])

PACE = SimulatedPace(step_s=2.0, turn_s=0.5)


def trained(nodes: int, spares: int = 0, *, to: int = 10, seed: int = 1, **more: Any) -> Sim:
    """A job that has just made this step; ``more``: see :class:`Sim`."""
    sim = Sim(nodes, spares, **{"seed": seed, "steps": 400, "others": 1, "pace": PACE} | more)
    sim.run_until(lambda: sim.step >= to, within_s=400.0)
    return sim


def begins(sim: Sim, generation: int) -> None:
    """All ranks of that generation have restored, and made no step yet."""
    sim.run_until(
        lambda: (
            sim.state.world.generation == generation
            and len(sim.ranks) == sim.state.world.placement.world_size
            and all(rank.restored for rank in sim.ranks.values())
        ),
        within_s=120.0,
    )
    sim.run_until(lambda: sim.stage == "Running", within_s=1.0)


def launched(sim: Sim) -> ev.GenerationLaunched:
    """The launch of the newest generation."""
    return sim.events(ev.GenerationLaunched)[-1]


def restored(sim: Sim) -> tuple[int, dict[str, int]]:
    """The step from which the newest generation began, and how many parts of it came from where."""
    return launched(sim).restore_step, launched(sim).tiers


def orders(sim: Sim, kind: type[T]) -> dict[str, T]:
    """The newest order of this kind to each node that got one."""
    return dict(sent(sim, kind))


def sent(sim: Sim, kind: type[T]) -> list[tuple[str, T]]:
    """All messages of this kind to agents, with their nodes."""
    return [(node, message) for node, message in sim.sent if isinstance(message, kind)]


def notes(sim: Sim) -> list[str]:
    """What the journal notes."""
    return [event.text for event in sim.events(ev.Noted)]


def comes_to(sim: Sim, step: int) -> None:
    """All ranks have begun, and made that step or restored it."""
    size = sim.state.world.placement.world_size
    sim.run_until(lambda: sim.stage == "Running" and len(sim.ranks) == size, 120.0)
    if sim.state.world.restored_step < step:
        sim.run_until(lambda: sim.step >= step, 600.0)


def gets_on(sim: Sim, generation: int) -> None:
    """Training makes ten steps in that generation, and nothing is wrong any more."""
    sim.run_until(lambda: sim.state.world.generation == generation and sim.stage == "Running", 120.0)
    step = sim.step
    sim.run_until(lambda: sim.step >= max(step, sim.state.world.restored_step) + 10, within_s=120.0)
    assert (sim.state.world.generation, sim.state.world.incident) == (generation, None), sim.describe()


def next_controller(sim: Sim) -> None:
    """The controller dies, and the next one has found the job as it was."""
    epoch = sim.state.epoch + 1
    sim.controller_dies()
    sim.run_until(lambda: (sim.stage, sim.state.epoch) == ("Running", epoch), within_s=20.0)


def controller_of(sim: Sim) -> SimController:
    """The controller, which lives."""
    assert sim.controller is not None
    return sim.controller


def core_of(sim: Sim) -> tuple[Core, Now]:
    """The core of the controller, and what its clocks say."""
    return controller_of(sim).core, controller_of(sim).now()


def seconds_until(sim: Sim, condition: Callable[[], bool], within_s: float = 120.0) -> float:
    """Time passes until that holds; how many seconds."""
    begun = sim.now
    sim.run_until(condition, within_s)
    return sim.now - begun


def opened(sim: Sim) -> list[Symptom]:
    return [event.symptom for event in sim.events(ev.IncidentOpened)]


def evicted(sim: Sim) -> set[str]:
    return {event.node for event in sim.events(ev.NodeEvicted)}


def questions(sim: Sim, kind: type[Q]) -> list[Q]:
    """All questions of this kind to the world outside."""
    return [asked for asked in sim.asked if isinstance(asked, kind)]


def requeues(sim: Sim) -> list[tuple[str, ...]]:
    """What each requeue that was asked for excludes."""
    return [asked.exclude for asked in questions(sim, qs.BeginRequeue)]


def starts(sim: Sim) -> list[tuple[str, ...]]:
    """On which nodes agents were started, time after time."""
    return [asked.nodes for asked in questions(sim, qs.StartAgents)]


def borrowed(sim: Sim) -> list[qs.BorrowNodes]:
    """The requests for nodes of companions."""
    return questions(sim, qs.BorrowNodes)


def reserve(sim: Sim, *nodes: str) -> None:
    """Companions get these nodes, by the reservation ``spares``."""
    end = sim.clock.now + 1e6
    made = Reservation(name="spares", nodes=nodes, node_count=len(nodes), end_time=end)
    sim.cluster.reservations["spares"] = made


def gives_up(sim: Sim, *nodes: str) -> None:
    """Slurm calls these nodes DOWN, and has taken none of them from the job yet."""
    for node in nodes:
        sim.cluster.set_node(node, states=frozenset({"DOWN", "NOT_RESPONDING"}), reason="Not responding")


def mute(sim: Sim, *nodes: str, is_mute: bool = True) -> None:
    """The agents of these nodes (all, without any) answer no question any more, or answer again."""
    for node in nodes or sim.nodes:
        sim.nodes[node].is_mute = is_mute


def writes(sim: Sim, *nodes: str, anything: bool) -> None:
    """These nodes (all, without any) put what they are told to on storage, or nothing, and do not say so."""
    for node in nodes or sim.nodes:
        sim.nodes[node].writes = anything


def blames_no_node(sim: Sim) -> bool:
    """Whether no node was evicted, no requeue asked for, and no verdict blames anything."""
    verdicts = [decided.verdict for decided in sim.events(ev.Decided)]
    blamed = [v for v in verdicts if v is not None and v.blame is not Blame.NOBODY]
    return not (evicted(sim) or requeues(sim) or blamed)


def with_cpu(stacks: RankStacks, cpu_s: float) -> RankStacks:
    """The same, of a process that has used so much processor time."""
    (worker,) = stacks.processes
    return structs.replace(stacks, processes=(structs.replace(worker, cpu_s=cpu_s),))


def stuck(sim: Sim, rank: int, *calls: str, state: str = "S") -> None:
    """A rank does nothing, always in the same call of its own, while the others wait for it."""
    calls = calls or ("wait@train.py", "main@train.py")
    stacks = with_cpu(doing(rank, sim.rank(rank).node, *calls, state=state), 5.0)
    sim.hang_rank(rank, shows=lambda _: stacks)


def all_wait(sim: Sim) -> None:
    """Training stands, and stacks show that all ranks wait for each other."""
    node = sim.rank(0).node
    sim.hang_rank(0, shows=lambda _: waiting(0, node))


def starts_again(sim: Sim, within_s: float = 300.0) -> None:
    """A next generation is launched, or the job ends."""
    generation = sim.state.world.generation
    sim.run_until(lambda: sim.code is not None or sim.state.world.generation > generation, within_s)


def node_tests(sim: Sim) -> list[qs.TestNodes]:
    """The tests of nodes that were asked for, without those of standbys."""
    return [asked for asked in questions(sim, qs.TestNodes) if not asked.standby]


def says(sim: Sim, node: str, **fields: Any) -> None:
    """The controller hears of an agent what none of this release says, and decides."""
    core, now = core_of(sim)
    heartbeat = core.fleet.heartbeat(node)
    assert heartbeat is not None
    core.on_heartbeat(structs.replace(heartbeat, **fields), now)
    controller_of(sim).turn()
