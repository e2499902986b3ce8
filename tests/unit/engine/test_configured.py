"""A release that brings a configuration gets a controller that has it."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import Release, Requester
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine import stories
from tests.unit.engine.stories import core_of, gets_on, notes

FIRST, SECOND = "a" * 12, "b" * 12
OWNER = Requester(user="ada", uid=1000)


def running(*, first: bool = False, second: bool = False) -> Sim:
    """A job of one release, which brings a configuration or not, and so does one that it may run later."""
    sim = stories.trained(2)
    takes(sim, FIRST, first, None)
    takes(sim, SECOND, second, OWNER)
    stories.next_controller(sim)
    return sim


def takes(sim: Sim, name: str, has_config: bool, by: Requester | None, config: str = "") -> None:
    release = Release(
        name=name, kind=CommandKind.SCRIPT, command=("train.py",), has_config=has_config, config=config
    )
    sim.journal.append(ev.ReleaseTaken(t=sim.journal[-1].t, release=release, by=by))


def applies(sim: Sim, name: str, before: str) -> None:
    core, now = core_of(sim)
    core.record(ev.UpdateApplied(t=now.wall, update=1, release=name, before=before, step=10))


def controllers(sim: Sim) -> int:
    return len(sim.events(ev.ControllerStarted))


def test_the_next_controller_goes_on_with_it_while_training_does() -> None:
    sim = running(second=True)
    known = controllers(sim)
    applies(sim, SECOND, FIRST)
    gets_on(sim, 1)
    assert controllers(sim) == known + 1
    assert f"the next controller goes on, with the configuration of release {SECOND}" in notes(sim)
    applies(sim, FIRST, SECOND)  # which has none: that of the job's start counts again
    gets_on(sim, 1)
    assert controllers(sim) == known + 2
    sim.run(60.0)
    assert controllers(sim) == known + 2


def test_releases_without_one_need_no_other_controller() -> None:
    sim = running(first=True)  # the job's own
    known = controllers(sim)
    applies(sim, SECOND, FIRST)
    gets_on(sim, 1)
    assert controllers(sim) == known


def test_releases_with_the_same_one_need_no_other_controller() -> None:
    sim, third = running(), "c" * 12
    takes(sim, SECOND, True, OWNER, "the hash of it")
    takes(sim, third, True, OWNER, "the hash of it")
    stories.next_controller(sim)
    applies(sim, SECOND, FIRST)
    gets_on(sim, 1)
    known = controllers(sim)
    applies(sim, third, SECOND)
    gets_on(sim, 1)
    assert controllers(sim) == known


def test_a_job_that_is_being_ended_is_not_handed_over() -> None:
    sim = running(second=True)
    known = controllers(sim)
    applies(sim, SECOND, FIRST)
    sim.order_to_end()
    sim.run_to_end()
    assert controllers(sim) == known
