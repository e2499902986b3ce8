"""Whatever answers are lost, late or errors: a job always gets on or ends, within a stated time.

A simulated job, with the real core, stages and policy, lives through weather that is drawn: nodes die or are
cut off, ranks crash or hang, agents send no stacks, do not stop, write nothing or come back anew; storage,
Slurm and tests answer late, with an error, or never. Then the weather calms down, but for what is drawn to
stay.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.config.job import UpdateConfig
from slurm_robust.model.release import When
from slurm_robust.testing.sim.environment import SimulatedRelease
from slurm_robust.testing.sim.job import SLURMCTLD, Sim
from tests.unit.engine import weather
from tests.unit.engine.stories import reserve
from tests.unit.engine.weather import BORROWS, CONFIG, LASTING, happenings

pytestmark = pytest.mark.slow

WITHIN_S = 3600.0
"""With the times of CONFIG; storage may be away for 1800 s of it, slurmctld or all agents for 900 s."""


def is_settled(sim: Sim) -> bool:
    """The job has ended, waits in the queue for nodes that are not there, or makes steps.

    A requeue is asked for during a day while slurmctld is out of reach.
    """
    step = sim.step
    sim.run(20.0)
    gets_on = sim.stage == "Running" and sim.step > step + 4
    controller = sim.controller
    is_apart = controller is not None and not sim.network.passes(controller.host, SLURMCTLD)
    asks = sim.stage == "Requeueing" and is_apart
    return sim.code is not None or sim.waits_for_nodes or gets_on or asks


def live_through(sim: Sim, happenings: list[tuple[str, int, float]], lasting: frozenset[str]) -> None:
    """What happens, then calm, until the job gets on or has ended."""
    sim.run(20.0)
    weather.live(sim, happenings)
    weather.calm(sim, lasting)
    until = sim.now + WITHIN_S
    while not is_settled(sim):
        assert sim.now < until, sim.describe()
        sim.run(30.0)


@example(
    happenings=[
        ("end_is_near", 0, 0.7),
        ("cut_all_others", 0, 7.6),
        ("nothing_is_written", 0, 57.0),
        ("mute", 2, 0.0),
        ("hang", 1, 7.6),
        ("slurm_loses_requeues", 1, 0.0),
    ],
    lasting=frozenset(["writes"]),
    reports=True,
    spares=1,
)  # the end was near, and Unreachable and Stopping led to each other
@example(
    happenings=[("cut", 1, 0.0), ("cut", 2, 57.0)], lasting=frozenset(["cut"]), reports=True, spares=0
)  # only the bound of Unreachable ends the wait
@example(
    happenings=[("tests_never_answer", 0, 0.0), *(("mute", n, 0.0) for n in range(3)), ("hang", 1, 57.0)],
    lasting=frozenset(["tests"]),
    reports=True,
    spares=0,
)  # only the bound of the question does
@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    happenings=happenings,
    lasting=st.frozensets(st.sampled_from(LASTING), max_size=2),
    reports=st.booleans(),
    spares=st.sampled_from([0, 1]),
)
def test_a_job_always_gets_on_or_ends(
    happenings: list[tuple[str, int, float]], lasting: frozenset[str], reports: bool, spares: int
) -> None:
    live_through(weather.begin(spares=spares, reports=reports), happenings, lasting)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    happenings=happenings,
    lasting=st.frozensets(st.sampled_from(LASTING), max_size=2),
    lendable=st.sampled_from([(), ("n5",), ("n4", "n5")]),
)
def test_a_job_that_borrows_nodes_gets_on_or_ends(
    happenings: list[tuple[str, int, float]], lasting: frozenset[str], lendable: tuple[str, ...]
) -> None:
    sim = weather.begin(spares=0, config=BORROWS)
    reserve(sim, *lendable)
    live_through(sim, happenings, lasting)
    if sim.code is not None:
        assert sim.state.companions == {}


RELEASES = {
    "fine": SimulatedRelease(),
    "raises": SimulatedRelease(fails_at=20),
    "hangs": SimulatedRelease(hangs_at=20),
    "does not fit": SimulatedRelease(fits=False),
}


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    happenings=happenings,
    lasting=st.frozensets(st.sampled_from(LASTING), max_size=1),
    reports=st.booleans(),
    release=st.sampled_from(list(RELEASES)),
    when=st.sampled_from(When),
    asked_s=st.sampled_from([0.0, 10.0, 20.5, 35.0, 60.0]),
)
def test_a_job_whose_code_is_updated_gets_on_or_ends(
    happenings: list[tuple[str, int, float]],
    lasting: frozenset[str],
    reports: bool,
    release: str,
    when: When,
    asked_s: float,
) -> None:
    config = structs.replace(CONFIG, updates=UpdateConfig(good_steps=10, trial_s=30.0))
    sim = weather.begin(reports=reports, config=config, release="a" * 12)
    sim.has_release("b" * 12, RELEASES[release])

    def ask() -> None:
        sim.update("b" * 12, when, deadline_s=60.0)

    sim.at(asked_s, ask)
    live_through(sim, happenings, lasting)
