"""What is restored after which fault, by a simulated job whose ranks keep snapshots."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, DetectConfig, JobConfig, ParallelConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.units.scheduler import StepPace
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, RestoreSource, Tier
from slurm_robust.model.errors import UNUSABLE_COPY, ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.journal import fold
from slurm_robust.testing.sim.environment import SimulatedPace, Tell, always, never
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Flush, Launch, Pace, Progress, Save, Shutdown
from tests.builders.events import run_started
from tests.unit.engine import stories
from tests.unit.engine.stories import (
    PACE,
    begins,
    gets_on,
    launched,
    notes,
    opened,
    orders,
    questions,
    requeues,
    restored,
    sent,
)

CORRUPT = WorkerError(type="slurm_robust.checkpoint.errors.CorruptPart", message="own-00001.0 is damaged")
NO_MEMORY = JobConfig(checkpoint=CheckpointConfig(memory=False))


def trained(nodes: int = 2, spares: int = 0, **more: Any) -> Sim:
    """A job that has made step 10, which peers have, too."""
    sim = stories.trained(nodes, spares, **more)
    sim.run(sim.env.pace.copy_s[1] + 0.1)
    assert sim.step == 10
    return sim


def stored(sim: Sim, *steps: int) -> Sim:
    """These steps of generation 1 are on storage."""
    ranks = range(sim.state.world.placement.world_size)
    for step in steps:
        sim.storage.write(CheckpointId(step=step, generation=1), ranks, len(ranks))
    return sim


def written(sim: Sim) -> list[tuple[int, int]]:
    return [(event.generation, event.step) for event in sim.events(ev.StorageWritten)]


def publishes(sim: Sim, step: int) -> None:
    """All ranks have put that step on storage by themselves."""
    for rank in sim.ranks.values():
        rank.published = step
    stored(sim, step)


def source(sim: Sim, node: str, rank: int) -> RestoreSource:
    return next(s for s in orders(sim, Launch)[node].sources if s.rank == rank)


def restores(sim: Sim, generation: int) -> None:
    """The ranks of that generation live, and none of them has restored yet."""
    sim.run_until(
        lambda: sim.state.world.generation == generation and len(sim.ranks) == len(sim.state.world.slots),
        within_s=120.0,
    )
    assert not any(rank.restored for rank in sim.ranks.values())


def fails_to_restore(sim: Sim, generation: int, rank: int = 1) -> None:
    restores(sim, generation)
    sim.exit_rank(rank, UNUSABLE_COPY, CORRUPT)


def banned(sim: Sim) -> list[CheckpointId]:
    return [event.checkpoint for event in sim.events(ev.CheckpointBanned)]


def unanswered(sim: Sim) -> list[Tell]:
    """Storage does not say from now on what it has; the test may do that."""
    waiting: list[Tell] = []
    sim.answer(qs.FindCheckpoint, lambda asked, tell: waiting.append(tell))
    return waiting


def test_a_killed_rank_finds_all_in_memory_and_storage_is_not_touched() -> None:
    sim = stored(trained(), 5)
    sim.kill_rank(1)
    begins(sim, 2)
    assert restored(sim) == (10, {"memory": 2})
    assert orders(sim, Launch)["n2"].sources == (RestoreSource(rank=1, tier=Tier.MEMORY),)
    assert orders(sim, Launch)["n2"].restore == CheckpointId(generation=1, step=10)
    assert any("resumes from step 10, from memory (2 parts)" in text for text in sim.said)


def begun(nodes: int = 2, **more: Any) -> Sim:
    """A job whose first generation begins."""
    sim = Sim(nodes, **{"seed": 1, "pace": PACE} | more)
    begins(sim, 1)
    return sim


def test_launch_orders_carry_peers_layout_and_stride() -> None:
    sim = begun(4, config=JobConfig(parallel=ParallelConfig(pp=2)))
    launches = orders(sim, Launch)
    peers = {node: (order.peers[0].rank, order.peers[0].node) for node, order in launches.items()}
    assert peers == {"n1": (0, "n4"), "n2": (1, "n3"), "n3": (2, "n2"), "n4": (3, "n1")}
    assert {(p.address, p.port) for p in launches["n1"].peers} == {("10.0.0.4", 5000)}
    assert launches["n1"].layout == launched(sim).layout == "4x1:tp1-cp1-ep1-dp2-pp2"
    assert launches["n1"].stride == 1


@pytest.mark.parametrize(
    ("switches", "peers"),
    [
        ({}, {"n1", "n3"}),
        ({"n1": "a", "n2": "b", "n3": "a", "n4": "b"}, {"n2", "n4"}),
        ({"n1": "a", "n2": "b", "n3": "a"}, {"n1", "n3"}),
    ],
    ids=["not shown", "shown", "shown only in part"],
)
def test_peers_are_behind_another_switch_if_slurm_shows_switches(
    switches: dict[str, str], peers: set[str]
) -> None:
    sim = begun(4, replies={qs.FindSwitches: always(switches)})
    sim.kill_rank(0)
    begins(sim, 2)
    assert {orders(sim, Launch)[node].peers[0].node for node in ("n1", "n3")} == peers


@pytest.mark.parametrize("checkpoint", [CheckpointConfig(memory=False), CheckpointConfig(peers=False)])
def test_without_memory_or_peers_no_launch_order_names_a_peer(checkpoint: CheckpointConfig) -> None:
    sim = begun(config=JobConfig(checkpoint=checkpoint))
    assert [order.peers for order in orders(sim, Launch).values()] == [(), ()]


def test_while_the_journal_is_behind_nothing_is_decided() -> None:
    sim = trained()
    sim.storage_hangs()
    sim.kill_rank(0)
    sim.run(200.0)
    assert (sim.state.world.generation, sim.events(ev.IncidentOpened)) == (1, [])
    sim.storage_hangs(False)
    begins(sim, 2)
    assert restored(sim) == (10, {"memory": 2})
    assert any("decided nothing for 200 s" in text for text in sim.said)


def test_a_training_that_stands_still_hangs_only_after_storage_has_come_back() -> None:
    sim = trained()
    sim.storage_hangs()
    sim.run(30.0)  # the journal takes no progress any more
    sim.hang_rank(1)
    sim.run(170.0)
    sim.storage_hangs(False)
    sim.run(20.0)
    assert (opened(sim), sim.stage) == ([], "Running")
    sim.run_until(lambda: bool(opened(sim)), within_s=900.0)


def test_the_time_of_a_recovery_includes_the_wait_for_storage() -> None:
    sim = trained()
    sim.kill_rank(0)
    restores(sim, 2)
    sim.storage_hangs()
    sim.exit_rank(0)
    sim.run(100.0)
    sim.storage_hangs(False)
    gets_on(sim, 3)
    (closed,) = sim.events(ev.IncidentClosed)
    assert closed.recover_s >= 100.0


def test_a_lost_node_comes_back_from_its_peer() -> None:
    sim = trained(spares=1, shared=True)
    sim.node_dies("n2")
    begins(sim, 2)
    assert launched(sim).slots == ("n1", "n3")
    assert restored(sim) == (10, {"memory": 1, "peer": 1})
    assert source(sim, "n3", 1) == RestoreSource(rank=1, tier=Tier.PEER, address="10.0.0.1", port=5000)
    shared = RestoreSource(rank=SHARED, tier=Tier.MEMORY)
    assert source(sim, "n3", SHARED) == structs.replace(shared, address="10.0.0.1", port=5000)
    assert source(sim, "n1", SHARED) == shared


def test_copies_are_sent_and_fetched_by_the_address_for_data() -> None:
    sim = Sim(2, 1, seed=1, pace=PACE, shared=True)
    for number, node in enumerate(sim.nodes.values(), start=1):
        node.data_address = f"10.20.0.{number}"
    sim.run_until(lambda: sim.step >= 5, within_s=60.0)
    peers = {peer.address for node in ("n1", "n2") for peer in orders(sim, Launch)[node].peers}
    assert peers == {"10.20.0.1", "10.20.0.2"}
    sim.node_dies("n2")
    begins(sim, 2)
    assert source(sim, "n3", 1) == RestoreSource(rank=1, tier=Tier.PEER, address="10.20.0.1", port=5000)
    assert orders(sim, Launch)["n1"].master_addr == "10.0.0.1"


def test_storage_is_restored_when_both_copies_of_a_part_are_lost() -> None:
    sim = stored(trained(3, 2), 5)
    peer = orders(sim, Launch)["n2"].peers[0].node
    for node in ("n2", peer):
        sim.node_dies(node)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=400.0)
    assert restored(sim) == (5, {"storage": 3})
    sources = {node: {s.tier for s in orders(sim, Launch)[node].sources} for node in launched(sim).slots}
    assert sources == {node: {Tier.STORAGE} for node in ("n1", "n4", "n5")}


def test_no_step_is_lost_with_a_whole_pipeline_group() -> None:
    sim = trained(4, 2, config=JobConfig(parallel=ParallelConfig(pp=2)))
    for node in ("n2", "n4"):  # ranks 1 and 3: dp changes before pp
        sim.node_dies(node)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=400.0)
    assert restored(sim) == (10, {"memory": 2, "peer": 2})


def test_a_torn_copy_of_one_rank_means_the_step_before_for_all() -> None:
    sim = trained()
    for node in ("n1", "n2"):
        sim.nodes[node].lose(1, 10)
    sim.kill_rank(1)
    begins(sim, 2)
    assert restored(sim) == (9, {"memory": 2})
    assert sim.state.world.sealed == {1: 9}


def test_what_a_zombie_beyond_a_cut_network_goes_on_to_do_never_counts() -> None:
    sim = trained(spares=1)
    sim.partition("n2")
    begins(sim, 2)
    assert restored(sim)[0] == 10
    # It went further in generation 1, and has all parts of that step, from wherever.
    for rank in (0, 1):
        sim.nodes["n2"].keep(rank, Tier.MEMORY, CheckpointId(step=20, generation=1))
    sim.heal("n2")
    sim.run_until(lambda: sim.step >= 15, within_s=60.0)
    assert sim.state.world.generation == 2
    sim.kill_rank(0)
    begins(sim, 3)
    assert launched(sim).restore == CheckpointId(generation=2, step=15)


def test_copies_of_a_lost_node_do_not_count_for_the_seal() -> None:
    """The peer had one step less than the node that is silent now."""
    sim = stories.trained(2, 1)
    sim.node_dies("n2")
    begins(sim, 2)
    assert restored(sim) == (9, {"memory": 1, "peer": 1})


def loses_one_of_three(*, writes: bool) -> Sim:
    """The next run of a job without standbys, one of whose nodes has died."""
    sim = trained(3, shared=True, config=JobConfig(timings=Timings(checkpoint_s=15)))
    stories.writes(sim, anything=writes)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.runs == 2, within_s=200.0)
    return sim


def copies_kept(sim: Sim) -> dict[str, bool]:
    kept = {node: order.keep_copies for node, order in orders(sim, Shutdown).items()}
    return {node: kept[node] for node in ("n1", "n3")}


def test_a_requeue_writes_to_storage_first_and_leaves_no_copies_behind() -> None:
    sim = loses_one_of_three(writes=True)
    assert {node: order.ranks for node, order in orders(sim, Save).items()} == {"n1": (0,), "n3": (1, 2)}
    assert copies_kept(sim) == {"n1": False, "n3": False}
    assert not any(node.copies for node in sim.nodes.values())
    assert any("gen-0001/step-00000010 was only in memory; it is on storage now" in t for t in sim.said)
    begins(sim, 2)
    assert restored(sim) == (10, {"storage": 3})
    assert "generation 2 resumes from step 10, from storage (3 parts)" in sim.said


def test_a_requeue_that_storage_does_not_take_goes_on_from_memory() -> None:
    sim = loses_one_of_three(writes=False)
    assert copies_kept(sim) == {"n1": True, "n3": True}
    assert any("lost unless the next run gets the same nodes: n[1,3] did not write" in t for t in sim.said)
    begins(sim, 2)
    assert set(sim.state.world.slots) == {"n1", "n3", "n4"}
    assert restored(sim) == (10, {"memory": 2, "peer": 1})
    assert source(sim, "n4", SHARED).address


def test_a_run_that_ended_without_a_word_is_sealed_when_its_nodes_are_heard() -> None:
    sim = trained()
    waiting = unanswered(sim)
    sim.run_dies()
    sim.run_until(lambda: sim.runs == 2 and sim.stage == "Gathering" and bool(waiting), within_s=60.0)
    sim.run(5.0)
    assert sim.state.world.generation == 1
    waiting[-1](sim.storage.listed())
    begins(sim, 2)
    assert restored(sim) == (10, {"memory": 2})
    (sealed,) = sim.events(ev.GenerationSealed)
    assert (sealed.generation, sealed.sealed_step) == (1, 10)
    assert (fold(sim.journal), sim.state.world.unsealed) == (sim.state, ())


@pytest.mark.parametrize("storage", [True, False])
def test_the_loss_of_all_agents_loses_no_step(storage: bool) -> None:
    sim = trained(spares=1)
    if not storage:
        sim.answer(qs.FindCheckpoint, never)
    for node in ("n1", "n2", "n3"):
        sim.agent_dies(node, told=False)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=120.0)
    assert restored(sim) == (10, {"memory": 2})
    assert sim.state.world.unsealed == (() if storage else (1,))


UNTESTED = JobConfig(detect=DetectConfig(diagnose=False))
SYNTAX = WorkerError(type="SyntaxError", message="invalid syntax", file="train.py", line=7)


def fails_at_once(sim: Sim, generations: Collection[int], signal: int = 11) -> None:
    """In each of these generations rank 1 ends when all have restored."""
    for generation in generations:
        begins(sim, generation)
        sim.kill_rank(1, signal)


def test_a_step_with_which_training_fails_immediately_twice_is_passed_over_in_all_runs() -> None:
    sim = trained(config=UNTESTED)
    sim.kill_rank(1)
    fails_at_once(sim, (2, 3))
    begins(sim, 4)
    assert [event.restore_step for event in sim.events(ev.GenerationLaunched)] == [-1, 10, 10, 9]
    assert banned(sim) == [CheckpointId(generation=1, step=10)]
    (line,) = [line for line in sim.said if "to take it again" in line]
    assert line == (
        "step 10 of generation 1 is passed over in this job: training failed with it twice before a new step "
        f"was done; to take it again, submit a new job with: srobust run --from {sim.job_id} --step 10"
    )
    sim.run_dies()
    begins(sim, 5)
    assert (sim.runs, restored(sim)[0]) == (2, 9)
    assert fold(sim.journal).world.banned == sim.state.world.banned != {}


def test_a_banned_checkpoint_may_be_restored_in_the_next_job() -> None:
    ref = CheckpointId(generation=1, step=4)
    goes_on = ev.Continued(t=3.0, from_job=7, from_folder="/x", generation=2, sealed={1: 4}, banned=(ref,))
    assert fold((run_started(t=2.5, job_id=8, slots=2, spares=0), goes_on)).world.banned == {}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_step_is_saved_although_storage_had_a_later_one_that_is_not_restored(is_lost: bool) -> None:
    """It is passed over, or storage has lost it; training was restored from an earlier one."""
    sim = trained(config=UNTESTED)
    publishes(sim, 10)
    sim.run(1.1)
    sim.kill_rank(1)
    if is_lost:
        begins(sim, 2)
        sim.storage.parts.clear()
        for node in sim.nodes.values():
            for rank in (0, 1):
                node.lose(rank, 10)
        sim.kill_rank(1)
    else:
        fails_at_once(sim, (2, 3))
    newest = 3 if is_lost else 4
    begins(sim, newest)
    assert (written(sim), restored(sim)[0]) == ([(1, 10)], 9)
    sim.run_until(lambda: sim.step == 10, within_s=30.0)
    sim.term()
    sim.run_to_end(within_s=120.0)
    assert not [text for text in sim.said if "lost" in text]
    assert written(sim) == [(1, 10), (newest, 10)]


@pytest.mark.parametrize("signal", [9, 15, 10])
def test_signals_from_outside_do_not_speak_against_the_checkpoint(signal: int) -> None:
    sim = trained(config=UNTESTED)
    sim.kill_rank(1, signal)
    fails_at_once(sim, (2, 3), signal)
    assert sim.run_to_end(within_s=120.0) == ExitCode.DO_NOT_REQUEUE
    assert [event.restore_step for event in sim.events(ev.GenerationLaunched)] == [-1, 10, 10]
    assert banned(sim) == []


@pytest.mark.parametrize(
    ("code", "number", "error"),
    [(1, None, SYNTAX), (1, None, None), (None, 11, None)],
    ids=["with an exception", "by itself", "by a signal"],
)
def test_a_failure_before_the_state_is_restored_bans_no_checkpoint(
    code: int | None, number: int | None, error: WorkerError | None
) -> None:
    sim = trained(config=UNTESTED)
    sim.kill_rank(1)
    for generation in (2, 3):
        restores(sim, generation)
        assert restored(sim)[0] == 10
        sim.nodes["n2"].end_worker(sim.rank(1), code=code, number=number, error=error)
    sim.run(10.0)
    assert banned(sim) == []


def test_no_checkpoint_is_banned_if_one_rank_has_not_restored_it() -> None:
    sim = trained(config=UNTESTED, pace=structs.replace(PACE, restore_s=(1.0, 30.0), term_s=(0.05, 0.2)))
    sim.kill_rank(1)
    for generation in (2, 3):
        restores(sim, generation)
        sim.run_until(lambda: any(rank.restored for rank in sim.ranks.values()), within_s=40.0)
        (first,) = (number for number, rank in sim.ranks.items() if rank.restored)
        sim.kill_rank(first, 11)
    begins(sim, 4)
    assert (banned(sim), restored(sim)[0]) == ([], 10)


def test_an_exception_at_a_place_in_the_code_bans_no_checkpoint() -> None:
    sim = trained(config=UNTESTED)
    sim.kill_rank(1)
    for generation in (2, 3):
        begins(sim, generation)
        sim.exit_rank(1, error=SYNTAX)
    assert sim.run_to_end(within_s=120.0) == ExitCode.DO_NOT_REQUEUE
    assert banned(sim) == []


def test_the_last_checkpoint_that_is_left_is_never_banned_and_bounds_end_the_job() -> None:
    sim = stored(trained(config=structs.replace(UNTESTED, checkpoint=NO_MEMORY.checkpoint)), 5)
    sim.kill_rank(1, 11)
    fails_at_once(sim, (2, 3))
    assert sim.run_to_end(within_s=120.0) == ExitCode.DO_NOT_REQUEUE
    assert [event.restore_step for event in sim.events(ev.GenerationLaunched)] == [-1, 5, 5]
    assert banned(sim) == []


def test_a_step_done_anew_clears_the_checkpoint() -> None:
    sim = trained(config=UNTESTED)
    sim.kill_rank(1)
    fails_at_once(sim, (2,))
    begins(sim, 3)
    sim.run_until(lambda: sim.step == 11, within_s=30.0)
    sim.kill_rank(1, 11)
    begins(sim, 4)
    assert (banned(sim), restored(sim)[0]) == ([], 11)


def test_lost_nodes_do_not_speak_against_the_checkpoint() -> None:
    sim = trained(spares=2)
    sim.kill_rank(1)
    for generation, node in ((2, "n2"), (3, "n3")):
        begins(sim, generation)
        assert sim.state.world.placement.node_of(1) == node
        sim.node_dies(node)
    begins(sim, 4)
    assert (banned(sim), restored(sim)[0]) == ([], 10)


def test_a_damaged_copy_is_gone_and_the_peer_has_the_same_step() -> None:
    sim = trained()
    sim.kill_rank(1)
    restores(sim, 2)
    sim.nodes["n2"].lose(1, 10)
    fails_to_restore(sim, 2)
    begins(sim, 3)
    assert restored(sim) == (10, {"memory": 1, "peer": 1})
    assert source(sim, "n2", 1).address == "10.0.0.1"
    reason = sim.events(ev.Decided)[-1].reason
    assert reason.startswith("restore failed: rank 1 on n2: CorruptPart: own-00001.0 is damaged")
    assert banned(sim) == []


def test_a_step_that_cannot_be_restored_twice_is_left_for_an_older_one() -> None:
    """A fetch that fails though the copy is still told of, say for a broken link between two nodes."""
    sim = trained()
    sim.kill_rank(1)
    fails_to_restore(sim, 2)
    fails_to_restore(sim, 3)
    gets_on(sim, 4)
    assert [event.restore_step for event in sim.events(ev.GenerationLaunched)] == [-1, 10, 10, 9]


def test_a_damaged_checkpoint_on_storage_is_passed_over_immediately() -> None:
    sim = stored(trained(config=NO_MEMORY), 5, 8)
    sim.kill_rank(1)
    fails_to_restore(sim, 2)
    begins(sim, 3)
    assert [event.restore_step for event in sim.events(ev.GenerationLaunched)] == [-1, 8, 5]


def test_copies_of_another_parallel_layout_do_not_count() -> None:
    sim = trained()
    sim.config = JobConfig(parallel=ParallelConfig(tp=2))  # of the next run
    sim.run_dies()
    assert sim.run_to_end(within_s=200.0) == ExitCode.CONFIG, "it does not begin at step 0 either"
    assert any("is in the memory of these nodes, but it was taken with tp 1" in text for text in sim.said)


def test_storage_that_hangs_does_not_delay_a_restore_from_memory() -> None:
    sim = trained()
    sim.answer(qs.FindCheckpoint, never)
    sim.kill_rank(1)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=30.0)
    assert restored(sim) == (10, {"memory": 2})
    assert sim.state.world.unsealed == (1,)  # what lies on storage is found out later
    stored(sim, 5).answer(qs.FindCheckpoint, None)
    sim.run_until(lambda: sim.step >= 12, within_s=30.0)
    sim.kill_rank(1)
    begins(sim, 3)
    assert (sim.state.world.unsealed, restored(sim)) == ((), (12, {"memory": 2}))


def test_storage_that_hangs_is_waited_for_if_memory_has_nothing() -> None:
    sim = stored(trained(config=NO_MEMORY), 5)
    waiting = unanswered(sim)
    sim.kill_rank(1)
    sim.run(300.0)
    assert (sim.stage, sim.state.world.generation) == ("Gathering", 1)
    waiting[-1](sim.storage.listed())
    begins(sim, 2)
    assert restored(sim) == (5, {"storage": 2})


def test_storage_that_refuses_is_asked_again_if_memory_has_nothing() -> None:
    sim = stored(trained(config=NO_MEMORY), 5)
    sim.answer(qs.FindCheckpoint, always(qs.NoAnswer(reason="it is broken")))
    sim.kill_rank(1)
    sim.run(100.0)
    assert (sim.stage, sim.state.world.generation) == ("Gathering", 1)
    assert len(questions(sim, qs.FindCheckpoint)) == 4
    sim.answer(qs.FindCheckpoint, None)
    begins(sim, 2)
    assert restored(sim) == (5, {"storage": 2})


def test_workers_that_were_out_of_sight_are_stopped_before_their_generation_is_sealed() -> None:
    sim = trained()
    sim.nodes["n2"].dying_s = 20.0
    sim.controller_dies()
    sim.journal.append(ev.GenerationEnded(t=sim.clock.now, generation=1, reason="x", pending=True))
    sim.run_until(lambda: not sim.nodes["n1"].workers, within_s=20.0)
    sim.run(5.0)
    assert (sim.stage, sim.events(ev.GenerationSealed), len(sim.ranks)) == ("Gathering", [], 1)
    step = sim.rank(1).step
    begins(sim, 2)
    assert restored(sim)[0] == step >= 10


def test_a_run_that_is_over_leaves_no_copies() -> None:
    sim = Sim(2, seed=1, pace=PACE, steps=4)
    assert sim.run_to_end(within_s=120.0) == 0
    assert [order.keep_copies for order in orders(sim, Shutdown).values()] == [False, False]
    assert not any(node.copies for node in sim.nodes.values())


def test_storage_that_never_answers_is_left_for_another_run() -> None:
    rare = Timings(heartbeat_s=10.0, node_dead_s=30.0, verdict_s=0.0, takeover_s=0.0)
    pace = structs.replace(PACE, turn_s=5.0)
    sim = stored(trained(config=structs.replace(NO_MEMORY, timings=rare), pace=pace), 5)
    sim.kill_rank(0)
    begins(sim, 2)
    assert restored(sim)[0] == 5
    sim.answer(qs.FindCheckpoint, never)
    sim.kill_rank(1)
    sim.run(1000.0)
    assert (sim.stage, requeues(sim)) == ("Gathering", [])
    sim.run_until(lambda: bool(requeues(sim)), within_s=1000.0)
    assert any("storage has not answered for 1800 s" in text for text in sim.said)


# -- What is done about copies while training runs: its speed, the stride, and the way to storage --


def seen(*sightings: tuple[float, int, float]) -> StepPace:
    """Each: when, step, age of the step."""
    step_times = StepPace()
    for mono, step, age in sightings:
        slowest = Progress(rank=0, step=step, reported=True, age_s=age)
        step_times.see(slowest, Now(mono=mono, wall=0.0))
    return step_times


def test_the_step_pace_is_unknown_before_the_second_step() -> None:
    assert seen().seconds_per_step == seen((10.0, 5, 0.0)).seconds_per_step == 0.0
    assert seen((10.0, 5, 0.0), (11.0, 5, 1.0)).fastest == 0.0


def test_the_step_pace_is_by_the_times_of_completion_and_not_of_heartbeats() -> None:
    step_times = seen((10.0, 5, 0.9), (13.0, 7, 0.9))
    assert step_times.seconds_per_step == step_times.fastest == 1.5


def test_the_step_pace_tells_when_an_unreported_step_was_completed() -> None:
    step_times = seen((10.0, 5, 0.0), (14.0, 9, 0.5))
    assert step_times.completed(9) == 13.5
    assert step_times.completed(7) == 13.5 - 2 * 3.5 / 4


def test_only_the_last_steps_count_for_the_step_pace() -> None:
    slow = [(10.0 * i, i, 0.0) for i in range(20)]
    fast = [(190.0 + i, 19 + i, 0.0) for i in range(1, 9)]
    assert seen(*slow, *fast).seconds_per_step == 1.0


def test_the_step_pace_knows_the_fastest_step_beside_a_slow_one() -> None:
    step_times = seen((0.0, 0, 0.0), (4.0, 1, 0.0), (6.0, 2, 0.0))
    assert (step_times.seconds_per_step, step_times.fastest) == (3.0, 2.0)
    assert seen((0.0, 0, 0.0), (4.0, 1, 0.0), (4.0, 2, 0.0)).fastest == 1.0


SECONDS = structs.replace(PACE, step_s=1.0)
OFTEN = JobConfig(checkpoint=CheckpointConfig(every_s=30))


def trains(config: JobConfig | None = None, pace: SimulatedPace = SECONDS) -> Sim:
    """A job on two nodes begins."""
    return begun(config=config, pace=pace, steps=1000)


def flushes(sim: Sim) -> list[int]:
    """The steps that were ordered to storage, one after the other."""
    return list(dict.fromkeys(message.step for _, message in sent(sim, Flush)))


def ordered(sim: Sim, within_s: float) -> float:
    """The next step is ordered to storage, which no rank has reached yet; after how many seconds."""
    known = len(flushes(sim))
    took_s = stories.seconds_until(sim, lambda: len(flushes(sim)) > known, within_s)
    assert flushes(sim)[-1] > max(rank.step for rank in sim.ranks.values())
    return took_s


def test_the_stride_follows_the_lag_and_outlives_a_restart() -> None:
    sim = trains()
    sim.nodes["n2"].lag_s = 1.6  # two steps of 1 s are not 2 * 1.6 s
    sim.run(30.0)
    assert sim.state.world.stride == orders(sim, Pace)["n1"].stride == 4
    assert [event.stride for event in sim.events(ev.StrideChanged)] == [2, 4]
    sim.kill_rank(1)
    begins(sim, 2)
    assert orders(sim, Launch)["n1"].stride == 4
    for node in sim.nodes.values():
        node.lag_s = 0.1
    sim.run_until(lambda: sim.state.world.stride == 1, within_s=30.0)
    assert fold(sim.journal).world.stride == 1


def test_the_order_with_the_stride_is_repeated() -> None:
    sim = trains()
    sim.run(20.0)
    assert 8 < len(sent(sim, Pace)) < 16  # two nodes, every three seconds


def test_without_memory_nothing_is_paced_or_flushed() -> None:
    sim = trains(JobConfig(checkpoint=CheckpointConfig(memory=False, every_s=5)))
    sim.run(20.0)
    assert sent(sim, Pace) == sent(sim, Flush) == []


def test_a_step_to_come_goes_to_storage_when_the_newest_is_old() -> None:
    sim = trains(OFTEN)
    assert 20 < ordered(sim, within_s=40.0) < 35
    sim.run_until(lambda: bool(written(sim)), within_s=10.0)
    assert written(sim) == [(1, flushes(sim)[0])]
    assert CheckpointId(step=flushes(sim)[0], generation=1) in sim.storage.complete()
    assert sim.env.pace.write_s[0] <= sim.events(ev.StorageWritten)[0].seconds <= 4
    assert len(questions(sim, qs.Prune)) == 1
    assert 29 < ordered(sim, within_s=40.0) < 35


def test_every_n_steps_a_checkpoint_goes_to_storage() -> None:
    sim = trains(JobConfig(checkpoint=CheckpointConfig(every_steps=4)), structs.replace(PACE, step_s=0.5))
    for number in range(1, 4):
        ordered(sim, within_s=20.0)
        sim.run_until(lambda number=number: len(written(sim)) == number, within_s=20.0)
        assert flushes(sim) == [step for _, step in written(sim)], "one at a time"
    assert len(set(written(sim))) == 3
    assert all((step + 1) % 4 == 0 for _, step in written(sim))


def test_the_next_step_for_storage_is_not_ordered_long_before_it_is_due() -> None:
    sim = trains(JobConfig(checkpoint=CheckpointConfig(every_steps=30)))
    sim.run_until(lambda: sim.step >= 20, within_s=40.0)
    assert flushes(sim) == []
    ordered(sim, within_s=10.0)
    assert flushes(sim) == [29]


def test_an_order_to_write_to_storage_is_repeated_and_given_up_with_a_note() -> None:
    sim = trains(OFTEN)
    sim.nodes["n2"].writes = False
    ordered(sim, within_s=40.0)
    (step,) = flushes(sim)
    sim.run(20.0)
    assert 2 * 5 < len(sent(sim, Flush)) < 2 * 10
    ordered(sim, within_s=100.0)
    assert written(sim) == []
    (note,) = [text for text in notes(sim) if "did not get onto storage" in text]
    assert note.endswith("in time: n2")
    assert sum("did not get onto storage in time: n2; training goes on" in line for line in sim.said) == 1
    assert flushes(sim)[1] > step + 60


def test_full_storage_is_reported_once_until_it_takes_a_checkpoint_again() -> None:
    sim = trains(OFTEN)
    sim.nodes["n2"].refuses = "[Errno 28] No space left on device"
    ordered(sim, within_s=40.0)
    assert 60 < ordered(sim, within_s=130.0) < 130
    sim.run(10.0)
    tried = flushes(sim)
    (line,) = [line for line in sim.said if "could not be put on storage" in line]
    assert line == (
        f"could not be put on storage by n2: step {tried[0]}: [Errno 28] No space left on device; training "
        "goes on, only the nodes' memory has all steps"
    )
    assert [text for text in notes(sim) if f"step {tried[1]}: [Errno 28]" in text]
    sim.nodes["n2"].refuses = ""
    sim.run_until(lambda: bool(written(sim)), within_s=150.0)
    assert sim.said[-1] == f"storage takes checkpoints again: step {flushes(sim)[-1]} is there"


# -- a node without room in memory ------------------------------------------------------------------

FULL = "the file system of /dev/shm has 3.1 MB free of 2.1 GB"


def test_while_a_node_keeps_nothing_in_memory_all_ranks_put_the_same_step_on_storage_often() -> None:
    sim = trains(OFTEN)
    sim.nodes["n2"].unkept = FULL
    first = stories.seconds_until(sim, lambda: len(written(sim)) == 1, within_s=30.0)
    assert first < 20
    again = stories.seconds_until(sim, lambda: len(written(sim)) == 2, within_s=30.0)
    assert 10 <= again < 20
    step = written(sim)[-1][1]
    sim.kill_rank(1)
    begins(sim, 2)
    assert launched(sim).restore == CheckpointId(step=step, generation=1)
    assert launched(sim).tiers == {"storage": 2}


def test_a_rank_that_has_room_neither_in_memory_nor_on_storage_is_tried_again_and_what_it_costs_is_said() -> (
    None
):
    sim = trains(JobConfig())
    sim.nodes["n2"].unkept, sim.nodes["n2"].writes = FULL, False
    ordered(sim, within_s=30.0)
    assert 60 < ordered(sim, within_s=100.0) < 80
    (line,) = [line for line in sim.said if "did not get onto storage in time: n2" in line]
    assert line.endswith("a fault repeats all steps: n2 has no room in memory for snapshots")


def test_with_room_again_storage_gets_checkpoints_as_configured() -> None:
    sim = trains(OFTEN)
    sim.nodes["n2"].unkept = FULL
    sim.run_until(lambda: len(written(sim)) == 1, within_s=30.0)
    sim.nodes["n2"].unkept = ""
    assert stories.seconds_until(sim, lambda: len(written(sim)) == 2, within_s=60.0) >= 30


def test_what_a_cancelled_job_loses_without_room_in_memory_names_the_node_and_the_fix() -> None:
    sim = trains(JobConfig())
    sim.nodes["n2"].unkept = FULL
    sim.run_until(lambda: sim.step >= 5, within_s=30.0)
    sim.cancel()
    sim.run_to_end(within_s=60.0)
    (line,) = [line for line in sim.said if line.startswith("nothing more is saved")]
    assert f"n2 had no room in memory for snapshots ({FULL}); fix: make room there" in line


def test_restarts_do_not_put_off_what_goes_to_storage() -> None:
    sim = trains(OFTEN)
    for generation in range(1, 4):
        begins(sim, generation)
        sim.run(6.0)
        sim.kill_rank(1)
    begins(sim, 4)
    began = sim.clock.now
    sim.run_until(lambda: bool(flushes(sim)), within_s=20.0)
    assert began - sim.events(ev.GenerationLaunched)[-2].t < 25, "no generation alone is old enough"


def test_a_new_controller_knows_how_old_the_newest_checkpoint_on_storage_is() -> None:
    sim = trains(OFTEN)
    sim.run_until(lambda: bool(written(sim)), within_s=60.0)
    sim.run(20.0)
    sim.controller_dies()
    assert ordered(sim, within_s=40.0) < 15


def lost_by_storage(checkpoint: CheckpointConfig) -> Sim:
    """A job of which storage loses what it had, and all nodes their copies, is requeued."""
    sim = trains(JobConfig(checkpoint=structs.replace(checkpoint, every_s=10)))
    sim.run_until(lambda: bool(written(sim)), within_s=60.0)
    sim.run_dies()
    sim.storage.parts.clear()
    for node in sim.nodes.values():
        node.forget_copies()
    return sim


def test_a_run_does_not_begin_anew_if_storage_has_lost_what_it_had() -> None:
    sim = lost_by_storage(CheckpointConfig())
    assert sim.run_to_end(within_s=200.0) == ExitCode.CHECKPOINTS
    (ended,) = sim.events(ev.RunEnded)
    assert not ended.final, "a run after the folder has come back goes on"
    ((_, step),) = written(sim)
    assert any(f"gen-0001/step-{step:08} was on storage and is not there any more" in t for t in sim.said)
    assert len(sim.events(ev.GenerationLaunched)) == 1, "the one of the run before"


def test_a_run_does_not_begin_anew_after_one_whose_ranks_wrote_by_themselves_and_died() -> None:
    sim = trained(config=NO_MEMORY)
    publishes(sim, 10)
    sim.run(5.0)
    sim.run_dies()
    sim.storage.parts.clear()
    assert sim.run_to_end(within_s=200.0) == ExitCode.CHECKPOINTS
    assert any("gen-0001/step-00000010 was on storage and is not there any more" in t for t in sim.said)


def test_a_run_may_wait_for_storage_to_find_again_what_it_had() -> None:
    sim = lost_by_storage(CheckpointConfig(if_unusable="wait"))
    sim.run(150.0)
    assert (sim.runs, sim.stage) == (2, "Gathering")
    assert any("this run waits, asks storage every 30 s, and then goes on" in text for text in sim.said)
    assert not any("requeue" in text for text in sim.said), "it needs none"
    ((_, step),) = written(sim)
    stored(sim, step)
    begins(sim, 2)
    assert restored(sim) == (step, {"storage": 2})


def test_spoiled_steps_on_storage_are_nothing_to_go_on_from() -> None:
    sim = trained(config=structs.replace(NO_MEMORY, detect=UNTESTED.detect))
    sim.spoil_rank(1)
    sim.run_until(lambda: sim.step == 11, within_s=10.0)
    publishes(sim, 11)
    begins(sim, 2)
    assert written(sim) == [(1, 11)]
    assert restored(sim) == (-1, {})


def test_pruning_protects_what_is_sealed() -> None:
    sim = trains(JobConfig(checkpoint=CheckpointConfig(every_steps=20)))
    sim.run_until(lambda: sim.step == 3, within_s=20.0)
    sim.kill_rank(1)
    begins(sim, 2)
    sim.run_until(lambda: bool(written(sim)), within_s=100.0)
    assert [asked.sealed for asked in questions(sim, qs.Prune)] == [{1: 3}]


def test_old_checkpoints_are_removed_as_new_ones_are_published_by_all_ranks() -> None:
    sim = trained(config=NO_MEMORY)
    sim.run(5.0)
    assert questions(sim, qs.Prune) == []
    for number, step in enumerate((10, 12), start=1):
        sim.rank(0).published = step
        sim.run(3.0)
        assert len(questions(sim, qs.Prune)) == number - 1, "rank 1 has not"
        publishes(sim, step)
        sim.run(3.0)
        assert len(questions(sim, qs.Prune)) == number


# -- a step that the owner of an update chose ----------------------------------------------------


def test_an_update_goes_on_from_a_chosen_step_and_not_from_a_later_one() -> None:
    sim = stored(trained(), 4, 8)
    begins(sim, 1)
    core, now = stories.core_of(sim)
    answers: list[CheckpointId | str] = []
    core.checkpoints.find(7, now, lambda found, _: answers.append(found))
    core.checkpoints.find(3, now, lambda found, _: answers.append(found))
    sim.run(2.0)
    assert answers == [
        CheckpointId(step=4, generation=1),
        "no checkpoint of step 3 or before is on storage: there are steps 8 and 4",
    ]


def test_between_generations_the_chosen_step_is_the_newest_up_to_it_or_none() -> None:
    sim = stored(trained(), 4, 8)
    sim.kill_rank(0)
    begins(sim, 2)
    core, now = stories.core_of(sim)
    for step, expected in ((10, 10), (8, 8), (7, 4), (3, 10)):
        point = core.checkpoints.restore_point(now, until=step)
        assert point is not None
        assert (point.step, point.goes_first) == (expected, None)
    assert core.checkpoints.to_fit() == CheckpointId(step=8, generation=1)
    assert core.checkpoints.to_fit(until=7) == CheckpointId(step=4, generation=1)
