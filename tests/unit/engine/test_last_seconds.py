"""The end is the end, whatever happens in its last seconds.

A job ends: its training is done, its code fails again, Slurm or the owner orders it, its time is over or a
node is lost. Meanwhile the controller is killed at an event of its journal, once or twice, and messages from
and to agents are lost or late. Agents live on, as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.engine.over import code_of
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import GiveUp, Requeue
from slurm_robust.model.journal import fold
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Launch
from tests.unit.engine.stories import PACE, opened, trained

pytestmark = pytest.mark.slow

WITHIN_S = 240.0
"""A job of this fleet has ended by then, also where its controller dies twice."""

QUICK = structs.replace(PACE, kill_wait_s=10.0, term_s=(0.05, 0.5), write_s=(0.2, 0.5))
CONFIG = JobConfig(timings=Timings(agent_start_s=20.0))
ERROR = WorkerError(type="ValueError", message="no", file="/home/u/train.py", line=12)


# -- how a job ends --------------------------------------------------------------------------------------


def is_done(sim: Sim) -> None:
    for rank in sorted(sim.ranks):
        sim.exit_rank(rank, code=0)


def is_done_and_then_ordered_to_end(sim: Sim) -> None:
    is_done(sim)
    sim.run(0.5)
    if sim.code is None:
        sim.term()


def fails(sim: Sim) -> None:
    """The code of rank 0 fails, in each generation."""
    if 0 in sim.ranks:
        sim.exit_rank(0, code=1, error=ERROR)
    sim.env.timeline.after(0.5, lambda: fails(sim))


ENDS: dict[str, tuple[Callable[[Sim], None], int | None]] = {
    "done": (is_done, 0),
    "done, then ordered": (is_done_and_then_ordered_to_end, 0),
    "fails": (fails, ExitCode.DO_NOT_REQUEUE),
    "ordered": (Sim.term, ExitCode.TERMINATED),
    "time": (Sim.warn, None),
    "node lost": (lambda sim: sim.node_dies("n2"), None),
}
"""What ends a job, and its exit code; None: it is requeued."""


def play(
    end: str,
    deaths: Collection[int] = (),
    lost: Collection[int] = (),
    late: Mapping[int, float] | None = None,
) -> tuple[Sim, int]:
    """A job of two nodes has trained for a while, and ends; how many messages were sent meanwhile.

    ``deaths``: after how many events each controller dies; the others are numbers of messages.
    """
    sim = trained(2, others=0, pace=QUICK, config=CONFIG)
    first, sent = sim.network.sent, len(sim.sent)
    sim.deaths = list(deaths)
    sim.network.lost = {first + number for number in lost}
    sim.network.late = {first + number: late_s for number, late_s in (late or {}).items()}
    ENDS[end][0](sim)
    sim.run_until(lambda: sim.code is not None or sim.runs == 2 or sim.waits_for_nodes, WITHIN_S)
    codes = {ENDS[end][1]}
    if end == "done, then ordered" and late:
        codes.add(ExitCode.TERMINATED)  # exits of which a late message tells look like answers to the order
    assert sim.code in codes, sim.describe()
    check(sim, end, [message for _, message in sim.sent[sent:] if isinstance(message, Launch)])
    return sim, sim.network.sent - first


def check(sim: Sim, end: str, launches: list[Launch]) -> None:
    """What holds for each end."""
    allocations = [n for n, event in enumerate(sim.journal) if isinstance(event, ev.AllocationTaken)]
    journal = sim.journal[: allocations[1]] if len(allocations) > 1 else sim.journal
    codes = [event.code for event in journal if isinstance(event, ev.RunEnded)]
    if sim.code is not None:
        assert codes == [sim.code]
        assert code_of(fold(journal), "start 0") == sim.code
    else:
        assert codes in ([], [ExitCode.TERMINATED])  # Slurm ends the run that it has requeued
    binds = next(n for n, event in enumerate(journal) if is_binding(event))
    later = [type(event).__name__ for event in journal[binds + 1 :]]
    assert not {"GenerationLaunched", "IncidentOpened"} & set(later), later
    if end.startswith("done") or end == "ordered":
        assert [launch for launch in launches if launch.generation > 1] == []
        assert opened(sim) == []


def is_binding(event: ev.AnyEvent) -> bool:
    if isinstance(event, ev.Decided):
        return any(isinstance(action, GiveUp | Requeue) for action in event.actions)
    return isinstance(event, ev.StopOrdered | ev.EndStarted | ev.RunEnded)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_end_wherever_its_controller_dies(end: str) -> None:
    number = 1
    while not play(end, deaths=(number,))[0].deaths:  # else this controller has written all
        number += 1
    assert number > 2


LATE_S = (0.4, 1.1, 2.6)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_end_whichever_message_is_lost_or_late(end: str) -> None:
    number, messages = 1, 2
    while number <= messages:
        _, messages = play(end, lost={number})
        play(end, late={number: LATE_S[number % len(LATE_S)]})
        number += 1
    assert number > 5


@pytest.mark.parametrize("end", ENDS)
@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    deaths=st.lists(st.integers(1, 14), max_size=3),
    lost=st.frozensets(st.integers(1, 60), max_size=4),
    late=st.dictionaries(st.integers(1, 60), st.sampled_from(LATE_S), max_size=4),
)
def test_an_end_is_the_end_whatever_comes_together(
    end: str, deaths: list[int], lost: frozenset[int], late: dict[int, float]
) -> None:
    play(end, deaths, lost, late)
