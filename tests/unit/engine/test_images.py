"""A release with another container image: agents end behind the ranks, and start again in it."""

from __future__ import annotations

from typing import Any

from slurm_robust.model import events as ev
from slurm_robust.model.release import When
from slurm_robust.testing.sim.environment import SimulatedRelease
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Shutdown
from tests.unit.engine.stories import gets_on, launched, next_controller, restored, sent
from tests.unit.engine.test_updates import FIRST, NO_TRIAL, SECOND, ends, is_applied, job

IMAGE = "/shared/new.sqsh"


def contained(image: str = IMAGE, *, spares: int = 1, **release: Any) -> Sim:
    """A job of two nodes and standbys, and a release in that image."""
    sim = job(2, spares, config=NO_TRIAL)
    sim.has_release(SECOND, SimulatedRelease(image=image, **release))
    return sim


def images(sim: Sim) -> set[str]:
    """In which agents run."""
    used = (*sim.state.world.slots, *sim.state.spares)
    return {agent.image for node in used for agent in sim.nodes[node].agents.values()}


def test_all_agents_start_again_in_the_new_image_and_no_copy_is_lost() -> None:
    sim = contained()
    sim.update(SECOND)
    is_applied(sim)
    assert images(sim) == {IMAGE}
    step, tiers = restored(sim)
    assert tiers == {"memory": 2}
    assert step >= 45
    ended = sent(sim, Shutdown)
    assert {node for node, _ in ended} == {"n1", "n2", "n3"}
    assert all(order.keep_copies for _, order in ended)
    told = [text for text in sim.said if "end and start again" in text]
    assert told == [f"the agents on n[1-3] end and start again in image {IMAGE}"]
    assert not sim.events(ev.IncidentOpened)


def test_a_rollback_brings_the_image_of_before_back() -> None:
    sim = contained(fails_at=60)
    sim.update(SECOND)
    is_applied(sim)
    sim.run_until(lambda: launched(sim).generation == 3, within_s=300.0)
    gets_on(sim, 3)
    assert images(sim) == {""}


def test_an_update_whose_image_starts_no_agent_is_refused_and_the_old_release_goes_on() -> None:
    sim = contained()
    sim.bad_images.add(IMAGE)
    sim.update(SECOND)
    sim.run_until(lambda: bool(ends(sim)), within_s=600.0)
    (end,) = sim.events(ev.UpdateEnded)
    assert end.reason.startswith(f"agents cannot start in image {IMAGE}: ")
    gets_on(sim, 2)
    assert (sim.state.release, images(sim)) == (FIRST, {""})
    assert not sim.events(ev.IncidentOpened)


def test_the_next_controller_goes_on_with_an_exchange() -> None:
    sim = contained()
    sim.update(SECOND)
    sim.run_until(lambda: bool(sent(sim, Shutdown)), within_s=60.0)
    sim.controller_dies()
    is_applied(sim)
    assert images(sim) == {IMAGE}


def test_a_controller_after_the_update_changes_nothing() -> None:
    sim = contained()
    sim.update(SECOND)
    is_applied(sim)
    ended = len(sent(sim, Shutdown))
    next_controller(sim)
    sim.kill_rank(1)
    gets_on(sim, 3)
    assert (images(sim), len(sent(sim, Shutdown))) == ({IMAGE}, ended)


def test_agents_of_a_waiting_update_run_in_the_image_of_the_running_release() -> None:
    sim = contained()
    sim.update(SECOND, When.LAZY)
    sim.run(60.0)
    sim.agent_dies("n3")
    sim.run(120.0)
    assert images(sim) == {""}
    sim.kill_rank(0)  # the recovery takes the update along
    is_applied(sim)
    assert images(sim) == {IMAGE}
