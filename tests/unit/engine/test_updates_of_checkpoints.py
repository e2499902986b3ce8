"""Updates that go on from an older step, or without the optimizer: what is restored, also after faults."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.config.job import CheckpointConfig
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.release import Requester, UpdateEnd, When
from slurm_robust.testing.sim.environment import SimulatedRelease
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Launch, Rehearse, UpdateJob
from tests.unit.engine.stories import begins, gets_on, launched, orders
from tests.unit.engine.test_updates import FIRST, NO_TRIAL, QUICK, SECOND, THIRD, ends, is_applied, job

OLD = CheckpointId(step=20, generation=1)


def stored(sim: Sim, checkpoint: CheckpointId = OLD) -> Sim:
    """It is on storage."""
    ranks = range(sim.state.world.placement.world_size)
    sim.storage.write(checkpoint, ranks, len(ranks))
    return sim


def newest(sim: Sim) -> tuple[int, str, int]:
    """The newest generation, its release, and the step from which it began."""
    return launched(sim).generation, launched(sim).release, launched(sim).restore_step


# -- from an older step --------------------------------------------------------------------------------


def test_an_update_goes_on_from_the_newest_step_up_to_the_one_that_was_asked_for() -> None:
    sim = stored(job(config=NO_TRIAL))
    sim.update(SECOND, from_step=25)
    is_applied(sim)
    assert newest(sim) == (2, SECOND, 20)
    assert sim.run_to_end() == 0


def test_later_steps_of_before_do_not_come_back_after_a_fault() -> None:
    sim = stored(job(config=NO_TRIAL))
    sim.update(SECOND, from_step=20)
    begins(sim, 2)
    sim.kill_rank(1)
    gets_on(sim, 3)
    assert newest(sim) == (3, SECOND, 20)
    sim.run_until(lambda: sim.state.candidate is None, within_s=300.0)
    sim.kill_rank(0)
    gets_on(sim, 4)
    restored = launched(sim).restore
    assert restored is not None
    assert (restored.generation, restored.step >= 60) == (3, True)


def test_a_rollback_goes_to_that_step_too() -> None:
    sim = stored(job(config=NO_TRIAL))
    sim.has_release(SECOND, SimulatedRelease(fails_at=24))
    sim.update(SECOND, from_step=20)
    sim.run_until(lambda: newest(sim) == (3, FIRST, 20), within_s=300.0)
    assert sim.run_to_end() == 0


def test_a_step_that_is_not_there_is_refused_with_those_that_are() -> None:
    sim = stored(job(config=NO_TRIAL))
    reply = sim.reply(sim.update(SECOND, from_step=19))
    assert not reply.ok
    assert reply.text.startswith("no checkpoint of step 19 or before is on storage: there are step")
    assert "20" in reply.text
    assert reply.fix
    assert sim.events(ev.UpdateRequested) == []


def test_a_step_that_has_gone_before_the_update_is_applied_refuses_it_and_training_goes_on() -> None:
    sim = stored(job(config=NO_TRIAL))
    sim.update(SECOND, When.LAZY, from_step=20)
    sim.run_until(lambda: sim.state.tried is not None, within_s=60.0)
    del sim.storage.parts[OLD]
    sim.kill_rank(0)
    gets_on(sim, 2)
    assert ends(sim) == [(1, UpdateEnd.REFUSED)]
    generation, release, step = newest(sim)
    assert (generation, release, step > 40) == (2, FIRST, True)


def test_the_step_that_an_update_waits_for_is_not_pruned() -> None:
    config = structs.replace(NO_TRIAL, checkpoint=CheckpointConfig(every_s=20.0))
    sim = stored(job(config=config))
    sim.update(SECOND, When.LAZY, from_step=25)
    sim.run(200.0)
    assert {ref for ref in sim.storage.complete() if ref.step <= 25} == {OLD}
    sim.update(THIRD, When.LAZY)  # takes its place
    sim.run(60.0)
    assert OLD not in sim.storage.complete()


def test_the_trial_compares_with_the_checkpoint_that_the_update_goes_on_from() -> None:
    sim = stored(stored(job(config=QUICK)), CheckpointId(step=40, generation=1))
    sim.kill_rank(0)  # storage is listed
    gets_on(sim, 2)
    sim.update(SECOND, When.LAZY, from_step=20)
    sim.run_until(lambda: sim.state.tried is not None, within_s=120.0)
    assert orders(sim, Rehearse)[sim.state.own_node].checkpoint == OLD


# -- without the optimizer -----------------------------------------------------------------------------


def without_optimizer(sim: Sim) -> None:
    """The owner asks for the second release without the optimizer's state."""
    by = Requester(user="ada", uid=1000)
    sim.ask_update(UpdateJob(release=SECOND, when=When.NOW, by=by, discard_optimizer=True, token="t"))


def left_out(sim: Sim) -> set[bool]:
    """Whether the newest orders to launch have the optimizer left out."""
    return {order.discard_optimizer for order in orders(sim, Launch).values()}


def test_the_optimizer_is_left_out_until_the_new_release_has_a_checkpoint_of_its_own() -> None:
    sim = job(config=NO_TRIAL)
    assert left_out(sim) == {False}
    without_optimizer(sim)
    begins(sim, 2)
    assert left_out(sim) == {True}
    assert any(line.endswith("as its owner asked (--discard-optimizer)") for line in sim.said)
    sim.kill_rank(1)
    begins(sim, 3)
    assert left_out(sim) == {True}
    gets_on(sim, 3)
    sim.run_until(lambda: sim.step >= 60, within_s=120.0)
    sim.kill_rank(0)
    gets_on(sim, 4)
    assert left_out(sim) == {False}


def test_the_release_before_has_its_optimizer_back() -> None:
    sim = job(config=NO_TRIAL)
    sim.has_release(SECOND, SimulatedRelease(fails_at=60))
    without_optimizer(sim)
    sim.run_until(lambda: launched(sim).release == SECOND, within_s=60.0)
    assert left_out(sim) == {True}
    sim.run_until(lambda: launched(sim).release == FIRST, within_s=300.0)
    assert left_out(sim) == {False}
    assert sim.run_to_end() == 0


def test_the_answer_says_from_which_step_a_release_goes_on() -> None:
    sim = stored(job(config=NO_TRIAL))
    named = sim.reply(sim.update(SECOND, When.LAZY, from_step=20))
    assert "and goes on from step 20" in named.text
    assert "newest checkpoint" not in named.text
    later = sim.reply(sim.update(SECOND, When.LAZY, from_step=10**8))
    assert ", the newest checkpoint on storage up to step 100000000" in later.text
