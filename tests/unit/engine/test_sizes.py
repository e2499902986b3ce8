"""The job comes back with another number of nodes, and goes on with what the earlier number has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import JobConfig, ParallelConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Launch, Save
from tests.builders.checkpoints import ref
from tests.builders.events import run_started
from tests.unit.engine.stories import PACE, launched, orders, questions, sent, trained, writes

STEP = 6
LAYOUT = "4x1:tp1-cp1-ep1-dp4-pp1"


def stopped(*stored: int, **more: Any) -> Sim:
    """A job of four ranks whose run has ended after step 6; storage has the steps ``stored``."""
    sim = trained(4, 0, to=STEP, others=1, **more)
    sim.run(0.9)  # peers have their copies
    assert sim.step == STEP
    sim.run_dies()
    for step in stored:
        sim.storage.write(ref(1, step), range(4), 4)
    return sim


def starts(sim: Sim, nodes: int) -> Sim:
    """The next run gets this many nodes and launches."""
    sim.resize(nodes)
    sim.run_until(lambda: sim.runs == 2 and sim.stage == "Running", within_s=300.0)
    return sim


def ends(sim: Sim, nodes: int) -> str:
    """The next run gets this many nodes and ends without a launch; returns why."""
    sim.resize(nodes)
    sim.run_until(lambda: sim.code is not None, within_s=600.0)
    (ended,) = sim.events(ev.RunEnded)
    assert not ended.final, "the same job may be started again with other sizes"
    return ended.reason


@pytest.mark.parametrize("nodes", [3, 5])
def test_storage_is_cut_up_for_another_number_of_ranks(nodes: int) -> None:
    sim = stopped(4, 2)
    for node in sim.nodes.values():
        node.forget_copies()
    starts(sim, nodes)
    assert (launched(sim).restore_step, launched(sim).tiers) == (4, {"storage": nodes})
    told = [order for _, order in sent(sim, Launch) if order.generation == 2]
    assert {order.restore_layout for order in told} == {LAYOUT}
    assert {order.layout for order in told} == {f"{nodes}x1:tp1-cp1-ep1-dp{nodes}-pp1"}
    assert any(f"4 ranks took it and {nodes} go on" in text for text in sim.said)
    sim.run_until(lambda: sim.step >= 8, within_s=60.0)
    sim.kill_rank(1)
    sim.run_until(lambda: sim.state.world.generation == 3, within_s=60.0)
    assert launched(sim).restore_step >= 7
    assert orders(sim, Launch)["n1"].restore_layout == "", "its own checkpoints it takes as they are"


def test_what_only_memory_has_goes_to_storage_before_another_number_of_ranks_begins() -> None:
    sim = starts(stopped(2), 3)
    written = list(orders(sim, Save).values())
    assert sorted(rank for order in written for rank in order.ranks) == [0, 1, 2, 3]
    assert {(order.world_size, order.layout) for order in written} == {(4, LAYOUT)}
    assert launched(sim).restore_step == STEP
    assert any("gen-0001/step-00000006, of 4 ranks, is only in memory" in text for text in sim.said)
    assert any("gen-0001/step-00000006 is on storage now" in text for text in sim.said)


def test_the_shared_part_is_written_by_a_node_that_has_it() -> None:
    """Rank 0's own node has lost the shared part of the newest step; its peer has both."""
    sim = stopped(2, shared=True)
    sim.nodes["n1"].lose(SHARED, STEP)
    starts(sim, 3)
    (peer,) = (node for node, order in orders(sim, Save).items() if 0 in order.ranks)
    assert peer != "n1"
    assert {order.checkpoint for order in orders(sim, Save).values()} == {ref(1, STEP)}
    assert launched(sim).restore_step == STEP


def test_without_a_node_that_has_the_shared_part_and_that_of_rank_0_the_step_before_is_written() -> None:
    sim = stopped(2, shared=True)
    for name, node in sim.nodes.items():
        node.lose(SHARED if name == "n1" else 0, STEP)
    starts(sim, 3)
    assert {order.checkpoint for order in orders(sim, Save).values()} == {ref(1, STEP - 1)}
    assert launched(sim).restore_step == STEP - 1


def test_nodes_that_say_why_they_cannot_write_make_way_for_the_step_before() -> None:
    sim = stopped()
    for node in sim.nodes.values():
        node.unwritable.add(STEP)
    starts(sim, 3)
    assert launched(sim).restore_step == STEP - 1
    (text,) = [text for text in sim.said if "gen-0001/step-00000005 goes there instead" in text]
    assert "gen-0001/step-00000006 could not be put on storage: n" in text
    assert "n1: gen-0001/step-00000006: No space left on device" in text


def test_parts_that_one_node_cannot_write_are_written_by_another_that_has_them() -> None:
    sim = stopped()
    sim.nodes["n1"].refuses = "No space left on device"
    starts(sim, 3)
    assert launched(sim).restore_step == STEP


def test_an_order_to_end_saves_what_ranks_of_another_number_have_in_memory() -> None:
    """The run has launched nothing yet: its zygotes never get ready."""
    sim = stopped(2)
    sim.env.pace = structs.replace(sim.env.pace, zygote_s=(1e6, 1e6))
    sim.resize(3)
    sim.run_until(lambda: sim.runs == 2, within_s=300.0)
    sim.run(4.0)
    assert (sim.stage, launched(sim).generation) == ("Gathering", 1)
    sim.cancel()
    sim.run_to_end(within_s=60.0)
    saved = orders(sim, Save).values()
    assert {(order.checkpoint, order.world_size) for order in saved} == {(ref(1, STEP), 4)}
    assert any("gen-0001/step-00000006 was only in memory; it is on storage now" in t for t in sim.said)


def test_parts_that_are_missing_leave_what_storage_has() -> None:
    sim = stopped(2)
    for node in ("n1", "n2"):
        sim.nodes[node].forget_copies()
    starts(sim, 3)
    assert orders(sim, Save) == {}
    assert launched(sim).restore_step == 2


def test_nodes_that_cannot_write_do_not_hold_up_what_storage_has() -> None:
    sim = stopped(2, config=JobConfig(timings=Timings(checkpoint_s=5)))
    writes(sim, anything=False)
    assert launched(starts(sim, 3)).restore_step == 2


def test_nodes_that_cannot_write_what_only_they_have_end_the_run_and_keep_it() -> None:
    sim = stopped(config=JobConfig(timings=Timings(checkpoint_s=5)))
    writes(sim, anything=False)
    ends(sim, 3)
    assert sim.code == ExitCode.CHECKPOINTS
    assert any("could not be put on storage: n" in text for text in sim.said)
    assert sim.nodes["n2"].copies


def test_storage_that_refuses_one_listing_is_asked_again_before_training_begins_anew() -> None:
    """The batch host died before the generation was sealed, and memory has nothing."""
    sim = stopped(4)
    for node in sim.nodes.values():
        node.forget_copies()
    before = len(questions(sim, qs.FindCheckpoint))

    def refuses(asked: qs.FindCheckpoint, tell: Callable[[object], None]) -> None:
        sim.answer(qs.FindCheckpoint, None)
        tell(qs.NoAnswer(reason="it is broken"))

    sim.answer(qs.FindCheckpoint, refuses)
    starts(sim, 4)
    assert launched(sim).restore_step == 4
    assert len(questions(sim, qs.FindCheckpoint)) >= before + 2


def test_other_parallel_sizes_are_refused_with_the_fix() -> None:
    sim = stopped(4)
    sim.config = structs.replace(sim.config, parallel=ParallelConfig(tp=2))
    reason = ends(sim, 4)
    assert sim.code == ExitCode.CONFIG
    assert "it was taken with tp 1, and this run has tp 2; fix: set parallel.tp: 1" in reason
    assert len(sim.events(ev.GenerationLaunched)) == 1, "the one of the run before"


def test_a_state_that_cannot_be_cut_up_ends_the_run_with_the_fix() -> None:
    sim = starts(stopped(4), 3)
    error = WorkerError(
        type="slurm_robust.checkpoint.errors.CannotReshard", message="entry 'engine': train on 4 ranks"
    )
    sim.exit_rank(1, error=error)
    sim.run_until(lambda: sim.code is not None, within_s=60.0)
    (ended,) = sim.events(ev.RunEnded)
    assert (sim.code, ended.final) == (ExitCode.CONFIG, False)
    assert "entry 'engine': train on 4 ranks" in ended.reason
    begun = sim.state.end_started
    assert begun is not None
    assert not begun.final, "the same job may be started again with other sizes"


def test_copies_on_disk_count_too() -> None:
    sim = stopped()
    for node in sim.nodes.values():
        held = {copy.rank for copy in node.copies if copy.step == STEP}
        node.forget_copies()
        for rank in held:
            node.keep(rank, Tier.LOCAL, ref(1, STEP))
    assert launched(starts(sim, 3)).restore_step == STEP


EARLIER = ev.Continued(
    t=2.0,
    from_job=7,
    from_folder="7",
    generation=4,
    sealed={4: 20},
    layouts={4: LAYOUT},
    best_step=20,
    reports=True,
)


def next_job(earlier: ev.Continued, *stored: CheckpointId) -> Sim:
    """A job of three nodes that goes on from an earlier one."""
    sim = Sim(3, seed=1, steps=400, pace=PACE, history=(run_started(t=1.0, job_id=1, slots=3), earlier))
    for found in stored:
        sim.storage.write(found, range(4), 4)
    return sim


def test_the_next_job_of_a_training_cuts_up_what_the_earlier_one_left() -> None:
    sim = next_job(structs.replace(EARLIER, stored=ref(4, 20)), ref(4, 20))
    sim.run_until(lambda: sim.stage == "Running", within_s=60.0)
    assert (launched(sim).restore, launched(sim).generation) == (ref(4, 20), 5)
    assert {order.restore_layout for order in orders(sim, Launch).values()} == {LAYOUT}


def test_the_next_job_of_a_training_ends_if_storage_has_lost_all() -> None:
    sim = next_job(structs.replace(EARLIER, stored=ref(4, 20)))
    assert sim.run_to_end(within_s=600.0) == ExitCode.CHECKPOINTS
    assert sim.events(ev.GenerationLaunched) == []


def test_what_only_memory_of_the_earlier_job_had_is_named_and_gone() -> None:
    sim = next_job(EARLIER)
    sim.run_until(lambda: sim.stage == "Running", within_s=60.0)
    assert launched(sim).restore is None
    assert any("gen-0004/step-00000020 is in no memory of these nodes" in text for text in sim.said)
