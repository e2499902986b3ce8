"""What may happen to a job, drawn by hypothesis: nodes, ranks, storage, Slurm and tests in bad weather."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.config.job import CompanionConfig, DetectConfig, JobConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.testing.sim.environment import SimulatedPace, never
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.training import Rank
from tests.unit.engine.stories import writes

RANKS = 3
ALL = ("n1", "n2", "n3", "n4")
CONFIG = JobConfig(
    timings=Timings(
        agent_start_s=10.0,
        launch_s=20.0,
        checkpoint_s=10.0,
        unreachable_s=40.0,
        stop_grace_s=2.0,
        kill_wait_s=2.0,
    ),
    detect=DetectConfig(first_step_s=60.0, phase_s=60.0, diagnose_s=20.0),
)
BORROWS = structs.replace(CONFIG, companions=CompanionConfig(reservation="spares", wait_s=20.0))
PACE = SimulatedPace(step_s=2.0, turn_s=0.8, rest_s=0.25, kill_wait_s=5.0)


class Weather:
    """A job, and what may happen to it, each to a node or rank by its number."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim

    def crash(self, number: int) -> None:
        if number in self.sim.ranks:
            self.sim.kill_rank(number, signal=11)

    def power_cut(self, number: int) -> None:
        self.sim.node_dies(ALL[number])

    def cut(self, number: int) -> None:
        self.sim.partition(ALL[number])

    def cut_all_others(self, number: int) -> None:
        self.sim.partition(*ALL[1:], fabric=True)
        self.sim.slurm_is_silent()

    def agent_dies(self, number: int) -> None:
        self.sim.agent_dies(ALL[number])

    def controller_dies(self, number: int) -> None:
        self.sim.controller_dies()

    def hang(self, number: int) -> None:
        if number in self.sim.ranks:
            self.sim.hang_rank(number)

    def mute(self, number: int) -> None:
        self.sim.nodes[ALL[number]].is_mute = True

    def unkillable(self, number: int) -> None:
        for rank in self.sim.nodes[ALL[number]].workers.values():
            rank.unkillable = True

    def slow_to_die(self, number: int) -> None:
        self.sim.nodes[ALL[number]].dying_s = 20.0

    def stalled(self, number: int) -> None:
        self.sim.agent_stalls(ALL[number])

    def gpus_not_free(self, number: int) -> None:
        self.sim.nodes[ALL[number]].holds_gpus = True

    def storage_hangs(self, number: int) -> None:
        self.sim.storage_hangs()

    def storage_fails(self, number: int) -> None:
        self.sim.storage_fails()

    def nothing_is_written(self, number: int) -> None:
        writes(self.sim, anything=False)

    def tests_never_answer(self, number: int) -> None:
        self.sim.answer(qs.TestNodes, never)

    def tests_blame(self, number: int) -> None:
        self.sim.nodes[ALL[number]].is_broken = True

    def slurm_is_silent(self, number: int) -> None:
        self.sim.slurm_is_silent()

    def slurm_loses_requeues(self, number: int) -> None:
        self.sim.answer(qs.BeginRequeue, never)

    def slurm_refuses(self, number: int) -> None:
        self.sim.refuses_requeue = True

    def end_is_near(self, number: int) -> None:
        self.sim.warn()


EVENTS = [name for name in vars(Weather) if not name.startswith("_")]
PAUSES_S = (0.0, 0.7, 3.0, 7.6, 16.8, 29.5, 45.0, 57.0)
happenings = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from(range(len(ALL))), st.sampled_from(PAUSES_S)),
    min_size=1,
    max_size=6,
)


def begin(*, spares: int = 1, reports: bool = True, config: JobConfig = CONFIG, release: str = "") -> Sim:
    """A job of three nodes; ``reports``: its script uses our API."""
    sim = Sim(RANKS, spares, seed=1, steps=4000, others=2, pace=PACE, config=config, release=release)
    sim.training.reports = reports
    return sim


def live(sim: Sim, happenings: list[tuple[str, int, float]]) -> None:
    """What happens, one after the other; each is followed by a pause."""
    weather = Weather(sim)
    for name, number, pause_s in happenings:
        if sim.code is None:
            getattr(weather, name)(number)
            sim.run(pause_s)


def calm(sim: Sim, lasting: frozenset[str] = frozenset()) -> None:
    """All is well again, but for dead nodes, ranks that crashed, and what lasts."""
    nodes = list(sim.nodes.values())

    def mend(word: str, value: object) -> None:
        for node in nodes:
            setattr(node, word, value)

    mends: dict[str, Callable[[], object]] = {
        "cut": sim.heal,
        "stalled": lambda: sim.agent_stalls(*sim.nodes, stalls=False),
        "mute": partial(mend, "is_mute", False),
        "unkillable": lambda: [_let_die(sim, rank) for node in nodes for rank in [*node.workers.values()]],
        "slow to die": partial(mend, "dying_s", 0.0),
        "gpus not free": partial(mend, "holds_gpus", False),
        "hangs": lambda: [sim.resume_rank(number) for number in sim.ranks],
        "storage hangs": partial(sim.storage_hangs, False),
        "storage fails": partial(sim.storage_fails, False),
        "writes": partial(mend, "writes", True),
        "tests": partial(sim.answer, qs.TestNodes, None),
        "broken": partial(mend, "is_broken", False),
        "refusal": lambda: setattr(sim, "refuses_requeue", False),
    }
    assert lasting <= mends.keys()
    for name, act in mends.items():
        if name not in lasting:
            act()
    sim.answer(qs.BeginRequeue, None)  # a requeue without an answer is asked for during a day
    sim.slurm_is_silent(False)


def _let_die(sim: Sim, rank: Rank) -> None:
    """A worker dies if it was killed, which it could not."""
    rank.unkillable = False
    if rank.killed is not None:
        sim.nodes[rank.node].end_worker(rank, number=9)


LASTING = [
    "cut",
    "stalled",
    "mute",
    "unkillable",
    "slow to die",
    "gpus not free",
    "hangs",
    "storage hangs",
    "storage fails",
    "writes",
    "tests",
    "broken",
    "refusal",
]
"""What may last, by the names of :func:`calm`."""
