"""Whole lives of simulated jobs: drawn from a seed, with faults, from the first launch to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from msgspec import structs

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.model.findings import Alert, Party, Suggestion
from slurm_robust.model.release import When
from slurm_robust.testing.sim.environment import SimulatedPace, SimulatedRelease
from slurm_robust.testing.sim.job import Sim

BAD_GPU = Alert(
    number=1,
    check="gpu.lost",
    subject="gpu3",
    text="XID 79, fell off the bus",
    blame=Party.NODE,
    suggestion=Suggestion.REPLACE,
    age_s=0.5,
)
"""A finding for which a node is left."""

STEPS = 80
PACE = SimulatedPace(step_s=2.0, turn_s=0.5, rest_s=0.25, kill_wait_s=5.0)
TIMINGS = Timings(verdict_s=0.0, unreachable_s=60.0, stop_grace_s=2.0, kill_wait_s=10.0)
LONGEST_S = 4 * 3600.0
"""Every life is over by then, whatever happens: storage and Slurm may be silent for half an hour each."""


@dataclass
class Life:
    """What happened in one simulated job."""

    sim: Sim
    faults: list[str] = field(default_factory=list)
    """What was done to it, in words."""
    named: set[str] = field(default_factory=set)
    """Nodes to which a fault points: only these may be evicted."""
    code: int | None = None
    """None if the job is queued, and its cluster has too few nodes left."""


Fault = Callable[[Life, Random], str]


def _living(life: Life, chance: Random) -> int | None:
    """Return a rank that lives, if any does."""
    ranks = sorted(life.sim.ranks)
    return chance.choice(ranks) if ranks else None


def _slot(life: Life, chance: Random) -> str:
    state = life.sim.state
    return chance.choice([*state.world.slots, *state.spares])


def _kill_rank(life: Life, chance: Random) -> str:
    number = _living(life, chance)
    if number is None:
        return ""
    life.sim.kill_rank(number, signal=chance.choice((6, 9, 11)))
    return f"rank {number} ends by a signal"


def _hang_rank(life: Life, chance: Random) -> str:
    number = _living(life, chance)
    if number is None:
        return ""
    unkillable = chance.random() < 0.3
    life.named.add(life.sim.rank(number).node)
    life.sim.hang_rank(number, unkillable=unkillable)
    return f"rank {number} hangs" + (", and no signal ends it" if unkillable else "")


def _spoil_rank(life: Life, chance: Random) -> str:
    number = _living(life, chance)
    if number is None:
        return ""
    node = life.sim.nodes[life.sim.rank(number).node]
    life.sim.spoil_rank(number)
    if chance.random() < 0.5:
        node.is_broken = node.spoils = True
        life.named.add(node.name)
    return f"the loss of rank {number} is NaN" + (f", since {node.name} is broken" if node.spoils else "")


def _node_dies(life: Life, chance: Random) -> str:
    name = _slot(life, chance)
    life.named.add(name)
    life.sim.node_dies(name)
    if chance.random() < 0.4:
        life.sim.env.timeline.after(chance.uniform(60.0, 400.0), partial(life.sim.node_returns, name))
    return f"{name} dies"


def _agent_dies(life: Life, chance: Random) -> str:
    name = _slot(life, chance)
    life.sim.agent_dies(name)
    return f"the agent of {name} dies"


def _partition(life: Life, chance: Random) -> str:
    name, seconds = _slot(life, chance), chance.choice((2.0, 8.0, 30.0, 120.0))
    if seconds > 2.0:  # as silent as a dead node
        life.named.add(name)
    life.sim.partition(name, fabric=chance.random() < 0.5)
    life.sim.env.timeline.after(seconds, partial(life.sim.heal, name))
    return f"{name} is cut off for {seconds:g} s"


def _storm(life: Life, chance: Random) -> str:
    network = life.sim.network
    network.loss, network.duplicates = chance.choice((0.0, 0.1, 0.3)), 0.2
    network.delay_s = (0.001, chance.choice((0.1, 0.5)))

    def calm() -> None:
        network.loss, network.duplicates, network.delay_s = 0.0, 0.0, (0.0005, 0.01)

    life.sim.env.timeline.after(30.0, calm)
    return f"the network loses {network.loss:.0%} of messages, and repeats some"


def _controller_dies(life: Life, chance: Random) -> str:
    life.sim.controller_dies()
    return "the controller dies"


def _controller_stalls(life: Life, chance: Random) -> str:
    seconds = chance.choice((3.0, 15.0, 60.0))
    life.sim.controller_stalls(seconds)
    return f"the controller stands still for {seconds:g} s"


def _slurm_silent(life: Life, chance: Random) -> str:
    life.sim.slurm_is_silent()
    seconds = chance.choice((10.0, 60.0, 300.0))
    life.sim.env.timeline.after(seconds, partial(life.sim.slurm_is_silent, False))
    return f"slurmctld is silent for {seconds:g} s"


def _storage_hangs(life: Life, chance: Random) -> str:
    life.sim.storage_hangs()
    seconds = chance.choice((5.0, 40.0, 200.0))
    life.sim.env.timeline.after(seconds, partial(life.sim.storage_hangs, False))
    return f"storage hangs for {seconds:g} s"


def _storage_fails(life: Life, chance: Random) -> str:
    life.sim.storage_fails()
    life.sim.env.timeline.after(chance.choice((5.0, 100.0)), partial(life.sim.storage_fails, False))
    return "storage refuses for a while"


def _alert(life: Life, chance: Random) -> str:
    name = _slot(life, chance)
    life.named.add(name)
    life.sim.nodes[name].is_broken = True
    life.sim.alert(name, BAD_GPU)
    return f"{name} has a GPU that fell off the bus"


def _warn(life: Life, chance: Random) -> str:
    life.sim.warn()
    return "Slurm warns of the end of the run"


def _end(life: Life, chance: Random) -> str:
    life.sim.order_to_end()
    return "the owner orders the end"


def _update(life: Life, chance: Random) -> str:
    """Ask for one more release, in which something may be wrong."""
    sim = life.sim
    name, at = f"{len(sim.env.releases):012x}", sim.step + chance.randint(1, 20)
    what, release = chance.choice(
        (
            ("is fine", SimulatedRelease()),
            ("is fine", SimulatedRelease()),
            ("raises an exception", SimulatedRelease(fails_at=at)),
            ("makes NaN", SimulatedRelease(spoils_at=at)),
            ("hangs", SimulatedRelease(hangs_at=at)),
            ("is slow", SimulatedRelease(factor=3.0)),
            ("does not fit the checkpoint", SimulatedRelease(fits=False)),
            ("does not import on n1", SimulatedRelease(imports={"n1": "no module"})),
            ("fails its rehearsal", SimulatedRelease(rehearsal="ValueError: no")),
        )
    )
    if release.hangs_at >= 0 or release.spoils_at >= 0:
        life.named.update(sim.nodes)  # without a release to go back to it looks as if nodes were
    sim.has_release(name, release)
    when = chance.choice(tuple(When))
    sim.update(name, when, deadline_s=chance.choice((30.0, 1000.0)), rollback=False)
    return f"the owner asks for release {name} ({when.value}), which {what}"


def _go_back(life: Life, chance: Random) -> str:
    """Ask for a release that was there before."""
    name = chance.choice(list(life.sim.env.releases))
    life.sim.update(name, rollback=True)
    return f"the owner asks for release {name} again"


UPDATES: tuple[tuple[Fault, int], ...] = ((_update, 12), (_go_back, 4))
"""What owners do to lives with updates, beside the faults."""

FAULTS: tuple[tuple[Fault, int], ...] = (
    (_kill_rank, 4),
    (_hang_rank, 2),
    (_spoil_rank, 2),
    (_node_dies, 4),
    (_agent_dies, 2),
    (_partition, 3),
    (_storm, 2),
    (_controller_dies, 2),
    (_controller_stalls, 2),
    (_slurm_silent, 2),
    (_storage_hangs, 2),
    (_storage_fails, 1),
    (_alert, 2),
    (_warn, 1),
    (_end, 1),
)
"""The faults, with how often each is drawn."""


def begin(seed: int, *, config: JobConfig | None = None, leap_s: float = 60.0, updates: bool = False) -> Life:
    """Draw a job from ``seed``, with its cluster and its faults; nothing has happened yet.

    ``updates``: its owner changes the code, too.
    """
    chance = Random(f"life {seed}")
    spares = chance.choice((0, 1, 1, 2))
    notice_s = chance.choice((None, (0.05, 3.0)))
    sim = Sim(
        nodes=chance.choice((1, 2, 3, 4)),
        spares=spares,
        seed=seed,
        ranks_per_node=chance.choice((1, 1, 2)),
        steps=STEPS,
        others=chance.choice((1, 3)),
        config=config or JobConfig(timings=TIMINGS),
        pace=structs.replace(PACE, peers_notice_s=notice_s),
        leap_s=leap_s,
        release=f"{0:012x}" if updates else "",
    )
    life = Life(sim)
    faults, weights = zip(*FAULTS, *(UPDATES if updates else ()), strict=True)
    at = 0.0
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4)) + (2 if updates else 0)):
        at += chance.choice((0.5, 5.0, 20.0, 60.0, 120.0)) * chance.uniform(0.5, 1.5)
        (fault,) = chance.choices(faults, weights)
        sim.at(at, partial(_strike, life, fault, Random(f"{seed} {at}")))
    return life


def _strike(life: Life, fault: Fault, chance: Random) -> None:
    if life.sim.controller is None or life.sim.code is not None:
        return
    text = fault(life, chance)
    if text:
        life.faults.append(f"{life.sim.now:.1f} s: {text}")


def live(seed: int, *, config: JobConfig | None = None, leap_s: float = 60.0) -> Life:
    """Play the life of :func:`begin` to its end. Raises :class:`~.job.NotWithin` if it has none."""
    life = begin(seed, config=config, leap_s=leap_s)
    sim = life.sim
    sim.run_until(lambda: sim.code is not None or sim.waits_for_nodes, LONGEST_S)
    life.code = sim.code
    return life
