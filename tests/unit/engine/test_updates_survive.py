"""An update is applied once, or undone, whatever happens in the middle of it.

A release is fine, fails its trial, or fails after it was applied. Meanwhile the controller is killed at an
event of its journal, once or twice, messages are lost or late, a node dies, or the time of the run is over.

The first point of each kind is tried, or as many of each as SROBUST_UPDATES says.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.config.job import JobConfig, StandbyConfig, Timings, UpdateConfig
from slurm_robust.model import events as ev
from slurm_robust.model.incident import RollBack
from slurm_robust.model.release import ReleaseState, Requester, UpdateEnd, When
from slurm_robust.testing.sim.environment import SimulatedRelease
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import UpdateJob
from tests.unit.engine.stories import PACE, launched, opened, trained

pytestmark = pytest.mark.slow

FIRST, SECOND = "a" * 12, "b" * 12
WITHIN_S = 3600.0
STEPS = 100
OF_A_KIND = int(os.environ.get("SROBUST_UPDATES", "1"))
QUICK = structs.replace(PACE, kill_wait_s=10.0, term_s=(0.05, 0.5), write_s=(0.2, 0.5))
CONFIG = JobConfig(
    timings=Timings(agent_start_s=20.0),
    updates=UpdateConfig(good_steps=25),
    standby=StandbyConfig(test_s=0, rehearse=False),
)


def insists(sim: Sim, when: When = When.NOW) -> None:
    """The owner's command asks for the second release again and again, until it is answered."""
    wish = UpdateJob(release=SECOND, when=when, by=Requester(user="ada", uid=1000), token="request")

    def ask() -> None:
        if wish.token not in sim.env.answers and sim.code is None:
            sim.ask_update(wish)
            sim.env.timeline.after(3.0, ask)

    ask()


def once(sim: Sim, holds: Callable[[], bool], act: Callable[[], None]) -> None:
    """``act`` when that holds for the first time."""
    if holds():
        act()
    elif sim.code is None:
        sim.env.timeline.after(0.05, lambda: once(sim, holds, act))


def fine(sim: Sim) -> None:
    insists(sim)


def lazy(sim: Sim) -> None:
    """A recovery takes it along."""
    insists(sim, When.LAZY)
    once(sim, lambda: sim.state.tried is not None and 0 in sim.ranks, lambda: sim.kill_rank(0))


def does_not_import(sim: Sim) -> None:
    sim.has_release(SECOND, SimulatedRelease(imports={"n2": "no module named flash_attn"}))
    insists(sim)


def raises(sim: Sim) -> None:
    sim.has_release(SECOND, SimulatedRelease(fails_at=55))
    insists(sim)


def makes_nan(sim: Sim) -> None:
    sim.has_release(SECOND, SimulatedRelease(spoils_at=55))
    insists(sim)


UPDATES: dict[str, tuple[Callable[[Sim], None], ReleaseState]] = {
    "fine": (fine, ReleaseState.GOOD),
    "lazy": (lazy, ReleaseState.GOOD),
    "does not import": (does_not_import, ReleaseState.REFUSED),
    "raises": (raises, ReleaseState.BAD),
    "makes NaN": (makes_nan, ReleaseState.BAD),
}
"""What the owner asks for, and what is known of the release in the end."""


class Message(msgspec.Struct):
    kind: str


KIND = msgspec.msgpack.Decoder(Message)


class Played(NamedTuple):
    """What came of it, and at which points it may be disturbed."""

    sim: Sim
    events: list[int]
    messages: list[int]


def told(events: Iterable[ev.AnyEvent]) -> Iterator[Hashable]:
    """What each event is, and in which generation."""
    generation = 0
    for event in events:
        generation += isinstance(event, ev.GenerationLaunched)
        yield type(event), generation


def points(kinds: Iterable[Hashable]) -> list[int]:
    """Which of these to try, the first is 1: some of each kind."""
    seen, found = Counter[Hashable](), list[int]()
    for number, kind in enumerate(kinds, start=1):
        seen[kind] += 1
        if seen[kind] <= OF_A_KIND:
            found.append(number)
    return found


def play(
    update: str,
    deaths: Collection[int] = (),
    lost: Collection[int] = (),
    late: Mapping[int, float] | None = None,
    then: Callable[[Sim], None] | None = None,
) -> Played:
    """A job of two nodes and a standby is updated and trains to its end.

    ``deaths``: after how many events each controller dies; the others are numbers of messages. ``then``: what
    else happens to it.
    """
    sim = trained(2, 1, to=35, others=0, pace=QUICK, config=CONFIG, release=FIRST, steps=STEPS)
    sim.has_release(SECOND)
    first, begun, messages = sim.network.sent, len(sim.journal), list[Hashable]()
    sim.network.on_sent = lambda data: messages.append((KIND.decode(data).kind, sim.stage))
    sim.deaths = list(deaths)
    sim.network.lost = {first + number for number in lost}
    sim.network.late = {first + number: late_s for number, late_s in (late or {}).items()}
    UPDATES[update][0](sim)
    if then is not None:
        then(sim)
    sim.run_until(lambda: sim.code is not None, WITHIN_S)
    assert (sim.code, sim.training.newest) == (0, STEPS - 1), sim.describe()
    # A controller that dies right behind a launch has not sent it.
    check(sim, UPDATES[update][1], faults=bool(then or deaths or lost) or update == "lazy")
    return Played(sim, points(told(sim.journal[begun:])), points(messages))


def check(sim: Sim, expected: ReleaseState, *, faults: bool) -> None:
    """What holds for each."""
    state = sim.state
    assert state.releases[SECOND] is expected, sim.describe()
    assert (state.update, state.candidate, len(sim.events(ev.UpdateRequested))) == (None, None, 1)
    applied = sim.events(ev.UpdateApplied)
    back = [a for e in sim.events(ev.Decided) for a in e.actions if isinstance(a, RollBack)]
    assert len(applied) == (expected is not ReleaseState.REFUSED)
    assert len(back) == (expected is ReleaseState.BAD)
    ends = [event.how for event in sim.events(ev.UpdateEnded)]
    assert ends == ([UpdateEnd.REFUSED] if expected is ReleaseState.REFUSED else [])
    assert launched(sim).release == (SECOND if expected is ReleaseState.GOOD else FIRST)
    if not faults:
        assert len(opened(sim)) == len(back), sim.describe()
    for event in applied:
        if not event.recovery and not is_dead(sim):
            assert event.checkpoint is not None
            assert event.checkpoint.step == event.step, sim.describe()  # no step was lost
    of = {launch.generation: launch.release for launch in sim.events(ev.GenerationLaunched)}
    for launch in sim.events(ev.GenerationLaunched):
        if back and launch.release == FIRST and launch.restore is not None:
            assert of.get(launch.restore.generation, FIRST) == FIRST, sim.describe()


def is_dead(sim: Sim) -> bool:
    """A node died, and with it what it had not sent to its peer."""
    return not all(node.is_up for node in sim.nodes.values())


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_is_applied_once_or_undone_wherever_its_controller_dies(update: str) -> None:
    for number in play(update).events[:-1]:
        assert play(update, deaths=(number,)).sim.deaths == []


LATE_S = (0.4, 1.1, 2.6)


@pytest.mark.parametrize("update", ["fine", "raises"])
def test_an_update_is_applied_once_or_undone_whichever_message_is_lost_or_late(update: str) -> None:
    for number in play(update).messages:
        play(update, lost={number})
        play(update, late={number: LATE_S[number % len(LATE_S)]})


@pytest.mark.parametrize("update", UPDATES)
@settings(max_examples=7 + OF_A_KIND, derandomize=True, deadline=None)
@given(
    deaths=st.lists(st.integers(1, 14), max_size=3),
    lost=st.frozensets(st.integers(1, 200), max_size=4),
    late=st.dictionaries(st.integers(1, 200), st.sampled_from(LATE_S), max_size=4),
)
def test_an_update_is_applied_once_or_undone_whatever_comes_together(
    update: str, deaths: list[int], lost: frozenset[int], late: dict[int, float]
) -> None:
    play(update, deaths, lost, late)


def at_each(stage: str, act: Callable[[Sim], None]) -> Callable[[Sim], None]:
    """``act`` when the job comes to ``stage`` for the first time."""
    return lambda sim: once(sim, lambda: sim.stage == stage, lambda: act(sim))


@pytest.mark.parametrize("stage", ["Updating", "Stopping", "Launching"])
@pytest.mark.parametrize("update", ["fine", "raises"])
def test_a_node_that_dies_in_the_middle_of_an_update_is_replaced(update: str, stage: str) -> None:
    sim = play(update, then=at_each(stage, lambda sim: sim.node_dies("n2"))).sim
    assert "n2" in sim.state.evicted


@pytest.mark.parametrize("stage", ["Updating", "Stopping", "Launching"])
@pytest.mark.parametrize("update", ["fine", "raises"])
def test_the_end_of_the_run_in_the_middle_of_an_update_leaves_it_to_the_next_run(
    update: str, stage: str
) -> None:
    sim = play(update, then=at_each(stage, Sim.warn)).sim
    assert sim.runs == 2


@pytest.mark.parametrize("stage", ["Updating", "Stopping", "Launching"])
@pytest.mark.parametrize("update", ["fine", "raises"])
def test_a_host_that_dies_in_the_middle_of_an_update_is_taken_over(update: str, stage: str) -> None:
    sim = play(update, then=at_each(stage, lambda sim: sim.node_dies("n1"))).sim
    assert any(event.taken_from == "n1" for event in sim.events(ev.ControllerStarted))
