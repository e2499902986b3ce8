"""The checkpoint to which an update would be rolled back gets to storage while its release trains."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Save
from tests.there import there
from tests.unit.engine import stories
from tests.unit.engine.stories import begins, core_of, gets_on, next_controller, notes, sent


def updated(spares: int = 0, **more: object) -> Sim:
    """Two nodes that have just begun with another release, at a step that only their memory has."""
    sim = stories.trained(2, spares, **more)
    sim.kill_rank(1)
    begins(sim, 2)
    core, now = core_of(sim)
    update = ev.UpdateApplied(
        t=now.wall, update=1, release="b" * 12, before="a" * 12, step=10, checkpoint=core.world.restored
    )
    core.record(update)
    return sim


def back(sim: Sim) -> CheckpointId:
    return there(there(sim.state.candidate).checkpoint)


def updated_while_storage_hangs() -> Sim:
    """The same; the nodes have got their orders."""
    sim = updated()
    sim.run_until(lambda: len(sent(sim, Save)) == 2, within_s=5.0)
    sim.storage_hangs()
    return sim


def is_stored(sim: Sim) -> bool:
    return back(sim) in sim.storage.complete()


def test_it_goes_to_storage_beside_training_and_once() -> None:
    sim = updated()
    sim.run_until(lambda: is_stored(sim), within_s=30.0)
    gets_on(sim, 2)
    assert there(sim.state.candidate).stored
    orders = sent(sim, Save)
    assert {order.checkpoint for _, order in orders} == {back(sim)}
    (written,) = [event for event in sim.events(ev.StorageWritten) if event.generation == 1]
    assert written.step == back(sim).step
    sim.run(120.0)
    assert sent(sim, Save) == orders


def test_what_is_written_of_the_new_generation_stays_the_newest() -> None:
    sim = updated_while_storage_hangs()
    sim.run_until(lambda: sim.step >= 15, within_s=60.0)
    core, now = core_of(sim)
    core.record(ev.StorageWritten(t=now.wall, generation=2, step=15, seconds=1.0))
    sim.storage_hangs(False)
    sim.run_until(lambda: there(sim.state.candidate).stored, within_s=60.0)
    assert there(sim.state.world.stored).step == 15


def test_another_holder_writes_what_a_node_refuses() -> None:
    sim = updated()
    sim.nodes["n2"].refuses = "No space left on device"
    sim.run_until(lambda: is_stored(sim), within_s=30.0)
    gets_on(sim, 2)
    assert any("goes to storage from n1" in text for text in notes(sim))


def test_a_way_back_that_cannot_be_stored_is_told_once_and_training_goes_on() -> None:
    sim = updated()
    for node in ("n1", "n2"):
        sim.nodes[node].refuses = "No space left on device"
    gets_on(sim, 2)
    told = [text for text in notes(sim) if "at which the update was applied" in text]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert not is_stored(sim)


def test_the_next_controller_goes_on_with_it() -> None:
    sim = updated_while_storage_hangs()
    sim.run(20.0)
    sim.storage_hangs(False)
    next_controller(sim)
    sim.run_until(lambda: is_stored(sim), within_s=30.0)
    gets_on(sim, 2)
    assert not [text for text in notes(sim) if "at which the update was applied" in text]


def test_the_next_controller_stores_nothing_that_storage_has() -> None:
    sim = updated()
    sim.run_until(lambda: is_stored(sim), within_s=30.0)
    orders = len(sent(sim, Save))
    next_controller(sim)
    gets_on(sim, 2)
    assert len(sent(sim, Save)) == orders


def test_the_next_generation_of_the_candidate_goes_on_with_it() -> None:
    sim = updated_while_storage_hangs()
    sim.run(1.0)
    sim.kill_rank(0)
    sim.storage_hangs(False)
    gets_on(sim, 3)
    sim.run_until(lambda: is_stored(sim), within_s=60.0)


def test_an_order_to_end_saves_the_newest_step_in_its_place() -> None:
    sim = updated_while_storage_hangs()
    sim.run_until(lambda: sim.step >= 15, within_s=60.0)
    sim.order_to_end()
    sim.storage_hangs(False)
    sim.run_to_end()
    assert max(ref.step for ref in sim.storage.listed()) >= 15
