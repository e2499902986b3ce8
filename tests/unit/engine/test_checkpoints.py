"""What is restored after which fault, driven through the core by scripted agents that keep copies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, DetectConfig, JobConfig, ParallelConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.questions import Prune
from slurm_robust.engine.transitions import ToGathering
from slurm_robust.engine.units.scheduler import StepPace
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, RestoreSource, Tier
from slurm_robust.model.errors import UNUSABLE_COPY, ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.journal import fold
from slurm_robust.policy.leaving import TERM_NEWS_S
from slurm_robust.wire.messages import Flush, Pace, Phase, Progress
from tests.builders.events import run_started
from tests.unit.engine.fake_job import Job, questions

FOUR = ("n1", "n2", "n3", "n4")
CORRUPT = WorkerError(type="slurm_robust.checkpoint.errors.CorruptPart", message="own-00001.0 is damaged")


def launched(job: Job) -> ev.GenerationLaunched:
    found = job.events(ev.GenerationLaunched)[-1]
    assert isinstance(found, ev.GenerationLaunched)
    return found


def where(job: Job) -> tuple[int, dict[str, int]]:
    """Step and tiers from which the newest generation began."""
    return launched(job).restore_step, launched(job).tiers


def source(job: Job, node: str, rank: int) -> RestoreSource:
    return next(s for s in job.orders[node].sources if s.rank == rank)


def fail_to_restore(job: Job, rank: int = 1) -> None:
    job.kill_rank(rank, signal=None, code=UNUSABLE_COPY, error=CORRUPT)


def drop(job: Job, node: str, rank: int, step: int) -> None:
    """A copy is gone: its reader found it damaged, or it was refilled."""
    left = tuple(c for c in job.heartbeats[node].copies if (c.rank, c.step) != (rank, step))
    job.change(node, copies=left)


def test_a_killed_rank_finds_all_in_memory_and_storage_is_not_touched() -> None:
    job = Job(memory=True)
    job.checkpoints[1] = 2
    for step in range(8):
        job.train_to(step)
    job.kill_rank(1)
    assert where(job) == (7, {"memory": 2})
    assert job.orders["n2"].sources == (RestoreSource(rank=1, tier=Tier.MEMORY),)
    assert job.orders["n2"].restore == CheckpointId(generation=1, step=7)
    assert any("resumes from step 7, from memory (2 parts)" in text for text in job.said)


def test_launch_orders_carry_peers_layout_and_stride() -> None:
    job = Job(slots=FOUR, spares=(), config=JobConfig(parallel=ParallelConfig(pp=2)))
    peers = {n: (job.orders[n].peers[0].rank, job.orders[n].peers[0].node) for n in FOUR}
    assert peers == {"n1": (0, "n4"), "n2": (1, "n3"), "n3": (2, "n2"), "n4": (3, "n1")}
    assert {(p.address, p.port) for p in job.orders["n1"].peers} == {("10.0.0.4", 5000)}
    assert job.orders["n1"].layout == launched(job).layout == "4x1:tp1-cp1-ep1-dp2-pp2"
    assert job.orders["n1"].stride == 1


def test_peers_are_behind_another_switch_if_slurm_shows_switches() -> None:
    job = Job(slots=FOUR, spares=())
    assert job.orders["n1"].peers[0].node == "n3"
    job.reply(qs.FindSwitches, {"n1": "a", "n2": "b", "n3": "a", "n4": "b"})
    job.train_to(1)
    job.kill_rank(0)
    assert {job.orders[n].peers[0].node for n in ("n1", "n3")} == {"n2", "n4"}
    job.reply(qs.FindSwitches, {"n1": "a", "n2": "b", "n3": "a"})  # told only in part: of no use
    job.train_to(2)
    job.kill_rank(0)
    assert job.orders["n1"].peers[0].node == "n3"


@pytest.mark.parametrize("checkpoint", [CheckpointConfig(memory=False), CheckpointConfig(peers=False)])
def test_without_memory_or_peers_no_order_names_one(checkpoint: CheckpointConfig) -> None:
    job = Job(config=JobConfig(checkpoint=checkpoint))
    assert all(order.peers == () for order in job.orders.values())


def test_while_the_journal_is_behind_nothing_is_decided() -> None:
    job = Job(memory=True)
    job.train_to(3)
    job.core.hold(True)
    job.kill_rank(0)
    job.pass_time(600)
    assert (job.stage, job.core.world.generation, job.core.world.incident) == ("Running", 1, None)
    job.core.hold(False)
    job.core.on_hold_over(600, job.now())
    job.pass_time(1)
    assert launched(job).generation == 2
    assert where(job) == (3, {"memory": 2})
    assert any("decided nothing for 600 s" in text for text in job.said)


def test_standing_still_with_the_storage_is_no_hang_but_standing_still_after_it_is() -> None:
    job = Job()
    job.ages = True
    for step in range(20):
        job.train_to(step)
        job.pass_time(1)
    job.core.hold(True)
    clock, wall = job.mono, job.wall
    job.pass_time(600)
    job.mono = clock  # which the core did not see go on
    job.core.hold(False)
    job.core.on_hold_over(job.wall - wall, job.now())
    job.pass_time(20)
    assert (job.core.world.incident, job.stage) == (None, "Running")
    job.until(lambda: job.core.world.incident is not None, limit=900)


def test_a_recovery_takes_as_long_as_people_wait_for_it() -> None:
    job = Job()
    job.train_to(3)
    job.kill_rank(0)
    assert job.core.world.generation == 2
    job.core.on_hold_over(100.0, job.now())
    job.train_to(4)
    job.pass_time(1)
    (closed,) = job.events(ev.IncidentClosed)
    assert closed.recover_s >= 100.0


def test_a_lost_node_comes_back_from_its_peer() -> None:
    job = Job(memory=True, shared=True)
    for step in range(5):
        job.train_to(step)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert launched(job).slots == ("n1", "n3")
    assert where(job) == (4, {"memory": 1, "peer": 1})
    assert source(job, "n3", 1) == RestoreSource(rank=1, tier=Tier.PEER, address="10.0.0.1", port=5000)
    assert source(job, "n3", SHARED) == RestoreSource(
        rank=SHARED, tier=Tier.MEMORY, address="10.0.0.1", port=5000
    )
    assert source(job, "n1", SHARED) == RestoreSource(rank=SHARED, tier=Tier.MEMORY)


def test_copies_go_and_come_by_the_address_that_is_for_them() -> None:
    job = Job(memory=True, shared=True)
    for node in job.heartbeats:
        job.change(node, data_address=f"10.20.0.{node[1:]}")
    for step in range(3):
        job.train_to(step)
    job.kill_rank(0)
    assert {p.address for n in ("n1", "n2") for p in job.orders[n].peers} == {"10.20.0.1", "10.20.0.2"}
    job.train_to(4)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 3)
    assert source(job, "n3", 1) == RestoreSource(rank=1, tier=Tier.PEER, address="10.20.0.1", port=5000)
    assert job.orders["n1"].master_addr == "10.0.0.1"


def test_when_both_copies_are_lost_storage_has_it() -> None:
    job = Job(slots=("n1", "n2", "n4"), spares=("n3", "n5"), memory=True)
    for step in range(5):
        job.train_to(step)
    job.storage = {CheckpointId(step=2, generation=1)}
    peer = job.orders["n2"].peers[0].node
    job.power_cut("n2")
    job.power_cut(peer)
    job.until(lambda: job.core.world.generation == 2)
    assert where(job) == (2, {"storage": 3})
    assert all(
        {s.tier for s in order.sources} == {Tier.STORAGE}
        for order in job.orders.values()
        if order.generation == 2
    )


def test_a_whole_pipeline_group_can_go() -> None:
    config = JobConfig(parallel=ParallelConfig(pp=2))
    job = Job(slots=FOUR, spares=("n5", "n6"), memory=True, config=config)
    for step in range(5):
        job.train_to(step)
    for node in ("n2", "n4"):  # ranks 1 and 3: dp changes before pp
        job.power_cut(node)
    job.until(lambda: job.core.world.generation == 2)
    assert where(job) == (4, {"memory": 2, "peer": 2})


def test_a_torn_copy_of_one_rank_means_the_step_before_for_all() -> None:
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    drop(job, "n2", 1, 4)
    drop(job, "n1", 1, 4)
    job.kill_rank(1)
    assert where(job) == (3, {"memory": 2})
    assert job.core.world.sealed == {1: 3}


def test_what_a_zombie_beyond_a_cut_network_goes_on_to_do_never_counts() -> None:
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    zombie = job.heartbeats["n2"]
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert where(job)[0] == 4
    # It heals, having gone further in generation 1, and has all parts of that step, from wherever.
    job.dead.clear()
    job.heartbeats["n2"] = zombie
    new = tuple(Copy(rank=r, generation=1, step=9, tier=Tier.MEMORY) for r in (0, 1))
    job.change("n2", copies=(*zombie.copies, *new))
    job.train_to(5)
    job.kill_rank(0)
    assert launched(job).restore == CheckpointId(generation=2, step=5)


def test_copies_of_a_lost_node_do_not_count_for_the_seal() -> None:
    """The peer had one step less than the node that is silent now."""
    job = Job(memory=True)
    for step in range(4):
        job.train_to(step)
    job.snapshot(4, peers=False)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert where(job) == (3, {"memory": 1, "peer": 1})


def train_three() -> Job:
    config = JobConfig(timings=Timings(checkpoint_s=15))
    job = Job(slots=("n1", "n2", "n4"), spares=(), memory=True, shared=True, config=config)
    for step in range(5):
        job.train_to(step)
    return job


def requeue_without_one_of_three(job: Job) -> tuple[ev.AnyEvent, ...]:
    """The history with which the next run begins, in which n5 has the slot of n2."""
    job.power_cut("n2")
    job.until(lambda: bool(job.requeued))
    job.act(job.core.on_leave("TERM", job.now()))
    job.pass_time(20)
    taken = ev.AllocationTaken(
        t=1.0, restart_count=1, nodes=("n1", "n4", "n5"), slots=("n1", "n5", "n4"), spares=()
    )
    return (*job.journal, taken)


def test_a_requeue_writes_to_storage_first_and_leaves_no_copies_behind() -> None:
    job = train_three()
    history = requeue_without_one_of_three(job)
    assert {node: order.ranks for node, order in job.saves.items()} == {"n1": (0,), "n4": (1, 2)}
    assert job.kept == {"n1": False, "n4": False}
    assert "gen-0001/step-00000004 was only in memory; it is on storage now (0.0 s)" in job.said
    later = Job(history=history, first=ToGathering(start=True), storage=job.storage)
    assert where(later) == (4, {"storage": 3})
    assert "generation 2 resumes from step 4, from storage (3 parts)" in later.said


def test_a_requeue_that_storage_does_not_take_goes_on_from_memory() -> None:
    job = train_three()
    job.writes = False
    left = {n: job.heartbeats[n].copies for n in ("n1", "n4")}
    history = requeue_without_one_of_three(job)
    assert job.kept == {"n1": True, "n4": True}
    assert any("lost unless the next run gets the same nodes: n[1,4] did not write" in t for t in job.said)
    later = Job(history=history, first=ToGathering(start=True), copies=left)
    assert where(later) == (4, {"memory": 2, "peer": 1})
    assert source(later, "n5", SHARED).address


def test_a_run_that_ended_without_a_word_is_sealed_when_its_nodes_are_heard() -> None:
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    left = {n: b.copies for n, b in job.heartbeats.items()}
    history = (
        *job.journal,
        ev.GenerationEnded(t=1.0, generation=1, reason="the run of the Slurm job ended", pending=True),
        ev.AllocationTaken(t=1.0, restart_count=1, nodes=FOUR, slots=("n1", "n2"), spares=("n3",)),
    )
    later = Job(history=history, first=ToGathering(start=True), copies=left, hears_storage=False)
    assert later.core.world.generation == 1  # storage has not answered yet
    later.tell_storage()
    assert where(later) == (4, {"memory": 2})
    (sealed,) = later.events(ev.GenerationSealed)
    assert (sealed.generation, sealed.sealed_step) == (1, 4)
    assert fold(later.journal) == later.core.state
    assert later.core.world.unsealed == ()


@pytest.mark.parametrize("storage", [True, False])
def test_all_agents_lost_at_once_loses_no_step(storage: bool) -> None:
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    job.copies = {n: b.copies for n, b in job.heartbeats.items()}
    job.hears_storage = storage
    for node in ("n1", "n2", "n3"):
        job.heartbeats.pop(node)
    job.until(lambda: job.core.world.generation == 2, limit=120)
    assert where(job) == (4, {"memory": 2})
    assert job.core.world.unsealed == (() if storage else (1,))


UNTESTED = JobConfig(detect=DetectConfig(diagnose=False))
SYNTAX = WorkerError(type="SyntaxError", message="invalid syntax", file="train.py", line=7)


def trained(to: int = 4, **changes: Any) -> Job:
    job = Job(memory=True, config=UNTESTED, **changes)
    for step in range(to + 1):
        job.train_to(step)
    return job


def test_a_state_with_which_training_ends_at_once_twice_is_left_for_an_older_one() -> None:
    job = trained()
    job.kill_rank(1)
    assert where(job)[0] == 4
    job.kill_rank(1, signal=11)
    assert where(job)[0] == 4
    job.kill_rank(1, signal=11)
    (banned,) = job.events(ev.CheckpointBanned)
    assert banned.checkpoint == CheckpointId(generation=1, step=4)
    assert where(job)[0] == 3
    (line,) = [line for line in job.said if "to take it again" in line]
    assert line == (
        "step 4 of generation 1 is passed over in this job: training failed with it twice before a new "
        "step was done; to take it again, submit a new job with: srobust run --from 7 --step 4"
    )
    assert fold(job.journal).world.banned == job.core.world.banned != {}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_later_step_on_storage_that_no_restore_takes_keeps_none_from_being_saved(is_lost: bool) -> None:
    """It is passed over, or storage has lost it; training was restored from an earlier one."""
    job = trained(spares=())
    job.checkpoints[1] = 4
    job.kill_rank(1)
    if is_lost:
        job.checkpoints.clear()
        for node in job.core.world.slots:
            job.change(node, copies=tuple(c for c in job.heartbeats[node].copies if c.step < 4))
        job.kill_rank(1)
    else:
        for _ in range(2):
            job.kill_rank(1, signal=11)
    assert where(job)[0] == 3
    job.snapshot(3)
    job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
    job.until(lambda: job.code is not None)
    assert not [text for text in job.said if "lost" in text]
    assert [(e.generation, e.step) for e in job.events(ev.StorageWritten)][-1:] == [
        (job.core.world.generation, 3)
    ]


@pytest.mark.parametrize("signal", [9, 15, 10])
def test_signals_from_outside_do_not_speak_against_the_checkpoint(signal: int) -> None:
    job = trained()
    for _ in range(3):
        job.kill_rank(1, signal=signal)
        job.pass_time(TERM_NEWS_S)  # Slurm may have ended it, and its agent is about to say so
        assert where(job)[0] == 4
    assert job.events(ev.CheckpointBanned) == []


@pytest.mark.parametrize(
    "exit",
    [{"signal": None, "code": 1, "error": SYNTAX}, {"signal": None, "code": 1}, {"signal": 11}],
)
def test_what_fails_before_the_state_is_restored_bans_nothing(exit: dict[str, object]) -> None:
    job = trained()
    job.restores = False  # from now on
    job.kill_rank(1)
    for _ in range(3):
        if job.stage == "Running":  # else the bounds have ended it
            assert where(job)[0] == 4
            job.kill_rank(1, **exit)
    assert job.events(ev.CheckpointBanned) == []


def test_one_rank_that_has_not_restored_is_enough() -> None:
    job = trained()
    job.kill_rank(1)
    for _ in range(2):
        progress = tuple(structs.replace(p, restored=False) for p in job.heartbeats["n1"].progress)
        job.tell("n1", progress=progress)
        job.kill_rank(1, signal=11)
    assert job.events(ev.CheckpointBanned) == []


def test_an_exception_at_a_place_in_the_code_bans_nothing() -> None:
    job = trained()
    job.kill_rank(1)
    for _ in range(2):
        job.kill_rank(1, signal=None, code=1, error=SYNTAX)
    job.pass_time(5)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert job.events(ev.CheckpointBanned) == []


def test_a_ban_holds_over_a_requeue_and_not_in_the_next_job() -> None:
    ban = ev.CheckpointBanned(t=1.0, checkpoint=CheckpointId(generation=1, step=4), reason="NaN")
    job = trained()
    job.kill_rank(1)
    requeued = fold(
        (
            *job.journal,
            ban,
            ev.AllocationTaken(t=2.0, restart_count=1, nodes=("n1",), slots=("n1",), spares=()),
        )
    )
    assert requeued.world.banned == {ban.checkpoint: "NaN"}
    goes_on = ev.Continued(
        t=3.0, from_job=7, from_folder="/x", generation=2, sealed={1: 4}, banned=(ban.checkpoint,)
    )
    assert fold((run_started(t=2.5, job_id=8, slots=2, spares=0), goes_on)).world.banned == {}


def test_the_last_one_that_is_left_is_never_banned_and_the_bounds_end_it() -> None:
    job = Job(spares=(), config=UNTESTED)
    job.train_to(5)
    job.storage = {CheckpointId(step=4, generation=1)}
    for generation in (2, 3):
        job.kill_rank(1, signal=11)
        assert job.core.world.generation == generation
        assert where(job) == (4, {"storage": 2})
    job.kill_rank(1, signal=11)
    job.pass_time(20)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert job.events(ev.CheckpointBanned) == []


def test_a_step_done_anew_clears_the_checkpoint() -> None:
    job = Job(memory=True)
    job.train_to(3)
    job.train_to(4)
    job.kill_rank(1)
    job.train_to(5)
    job.kill_rank(1)
    assert job.events(ev.CheckpointBanned) == []
    assert where(job)[0] == 5


def test_a_lost_node_does_not_speak_against_the_checkpoint() -> None:
    job = Job(memory=True)
    job.train_to(3)
    job.train_to(4)
    job.kill_rank(1)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 3)
    assert job.events(ev.CheckpointBanned) == []
    assert where(job)[0] == 4


def test_a_damaged_copy_is_gone_and_the_peer_has_the_same_step() -> None:
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    job.kill_rank(1)
    drop(job, "n2", 1, 4)
    fail_to_restore(job)
    assert job.core.world.generation == 3
    assert where(job) == (4, {"memory": 1, "peer": 1})
    assert source(job, "n2", 1).address == "10.0.0.1"
    decided = job.events(ev.Decided)[-1]
    assert decided.reason.startswith("restore failed: rank 1 on n2: CorruptPart: own-00001.0 is damaged")
    assert job.events(ev.CheckpointBanned) == []


def test_a_step_that_cannot_be_restored_twice_is_left_for_an_older_one() -> None:
    """A fetch that fails though the copy is still told of, say for a broken link between two nodes."""
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    job.kill_rank(1)
    fail_to_restore(job)
    assert where(job)[0] == 4
    fail_to_restore(job)
    assert where(job)[0] == 3
    job.train_to(5)
    assert job.core.world.incident is None


def test_a_damaged_checkpoint_on_storage_is_passed_over_at_once() -> None:
    job = Job(spares=())
    job.train_to(5)
    job.storage = {CheckpointId(step=4, generation=1), CheckpointId(step=2, generation=1)}
    job.kill_rank(1)
    fail_to_restore(job)
    assert where(job) == (2, {"storage": 2})


def test_copies_of_another_parallel_layout_do_not_count() -> None:
    job = Job(memory=True)
    job.train_to(3)
    left = {n: b.copies for n, b in job.heartbeats.items()}
    ended = ev.GenerationEnded(t=1.0, generation=1, reason="x", sealed_step=3)
    later = Job(
        history=(*job.journal, ended), first=ToGathering(start=True), copies=left,
        config=JobConfig(parallel=ParallelConfig(tp=2)),
    )  # fmt: skip
    later.until(lambda: later.code is not None)
    assert later.code == ExitCode.CONFIG, "it does not begin at step 0 either"
    assert any("is in the memory of these nodes, but it was taken with tp 1" in text for text in later.said)


def test_a_storage_that_hangs_does_not_hold_up_what_memory_can_do() -> None:
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    job.hears_storage = False
    job.kill_rank(1)
    assert job.stage == "Stopping"
    job.until(lambda: job.core.world.generation == 2, limit=30)
    assert where(job) == (4, {"memory": 2})
    assert job.core.world.unsealed == (1,)  # what lies on storage is found out later
    job.hears_storage = True
    job.storage = {CheckpointId(step=2, generation=1)}
    job.train_to(5)
    job.kill_rank(1)
    assert job.core.world.unsealed == ()
    assert where(job) == (5, {"memory": 2})


def test_a_storage_that_hangs_is_waited_for_where_only_it_can_help() -> None:
    job = Job()
    job.train_to(5)
    job.storage = {CheckpointId(step=4, generation=1)}
    job.hears_storage = False
    job.kill_rank(1)
    job.pass_time(300)
    assert job.stage == "Gathering"
    job.tell_storage()
    assert where(job) == (4, {"storage": 2})


def test_a_storage_that_refuses_is_taken_to_hold_what_was_sealed() -> None:
    job = Job()
    job.train_to(5)
    job.storage = {CheckpointId(step=4, generation=1)}
    job.kill_rank(1)
    job.train_to(6)
    job.storage_broken = True
    job.kill_rank(1)
    assert where(job) == (4, {"storage": 2})


def test_workers_that_were_out_of_sight_are_stopped_before_their_generation_is_sealed() -> None:
    job = Job(memory=True)
    for step in range(5):
        job.train_to(step)
    ended = ev.GenerationEnded(t=1.0, generation=1, reason="x", pending=True)
    later = Job(history=(*job.journal, ended), first=ToGathering(start=True, expected=True))
    later.stubborn = {"n2"}
    later.heartbeats = dict(job.heartbeats)
    for node in ("n1", "n2"):
        later.change(node)
    assert later.stage == "Gathering"
    assert later.heartbeats["n1"].phase is Phase.ENDED
    later.stubborn.clear()
    later.pass_time(1)
    assert where(later)[0] == 4


def test_a_run_that_is_over_leaves_no_copies() -> None:
    job = Job(memory=True)
    job.train_to(3)
    job.finish()
    job.pass_time(20)
    assert set(job.kept.values()) == {False}


def test_storage_that_never_answers_is_left_for_another_run() -> None:
    job = Job(spares=())
    job.train_to(5)
    job.checkpoints[1] = 4
    job.kill_rank(0)
    assert where(job)[0] == 4
    job.hears_storage = False
    job.kill_rank(1)
    job.pass_time(1000.0)
    assert (job.stage, job.requeued) == ("Gathering", [])
    job.until(lambda: bool(job.requeued), 1000.0)
    assert any("storage has not answered for 1800 s" in text for text in job.said)


# -- What is done about copies while training runs: its speed, the stride, and the way to storage --


def seen(*sightings: tuple[float, int, float]) -> StepPace:
    """Each: when, step, age of the step."""
    step_times = StepPace()
    for mono, step, age in sightings:
        slowest = Progress(rank=0, step=step, reported=True, age_s=age)
        step_times.see(slowest, Now(mono=mono, wall=0.0))
    return step_times


def test_unknown_before_the_second_step() -> None:
    assert seen().seconds_per_step == seen((10.0, 5, 0.0)).seconds_per_step == 0.0
    assert seen((10.0, 5, 0.0), (11.0, 5, 1.0)).fastest == 0.0


def test_the_times_of_completion_count_not_those_of_the_heartbeats() -> None:
    step_times = seen((10.0, 5, 0.9), (13.0, 7, 0.9))
    assert step_times.seconds_per_step == step_times.fastest == 1.5


def test_when_a_step_was_completed_that_no_heartbeat_reported() -> None:
    step_times = seen((10.0, 5, 0.0), (14.0, 9, 0.5))
    assert step_times.completed(9) == 13.5
    assert step_times.completed(7) == 13.5 - 2 * 3.5 / 4


def test_only_the_last_steps_count() -> None:
    slow = [(10.0 * i, i, 0.0) for i in range(20)]
    fast = [(190.0 + i, 19 + i, 0.0) for i in range(1, 9)]
    assert seen(*slow, *fast).seconds_per_step == 1.0


def test_a_slow_step_does_not_hide_how_fast_they_can_be() -> None:
    step_times = seen((0.0, 0, 0.0), (4.0, 1, 0.0), (6.0, 2, 0.0))
    assert (step_times.seconds_per_step, step_times.fastest) == (3.0, 2.0)
    assert seen((0.0, 0, 0.0), (4.0, 1, 0.0), (4.0, 2, 0.0)).fastest == 1.0


def train(job: Job, steps: int, step_s: float = 1.0) -> None:
    """Every rank does ``steps`` more steps of ``step_s`` seconds."""
    first = 1 + max(job.core.world.best_step, *(p.step for p in job.heartbeats["n1"].progress))
    for step in range(first, first + steps):
        job.pass_time(step_s)
        job.train_to(step)


def flushed(job: Job, step: int) -> None:
    for node in job.core.world.slots:
        job.change(node, flushed=step)


def lag(job: Job, seconds: float) -> None:
    job.change("n2", lag_s=seconds)


def test_the_stride_follows_the_lag_and_outlives_a_restart() -> None:
    job = Job(memory=True)
    train(job, 4)
    lag(job, 1.6)  # two steps of 1 s are not 2 * 1.6 s
    train(job, 30)
    assert job.core.world.stride == job.stride == 4
    assert [e.stride for e in job.events(ev.StrideChanged)] == [2, 4]
    job.kill_rank(1)
    assert job.orders["n1"].stride == 4
    lag(job, 0.1)
    train(job, 30)
    assert job.core.world.stride == 1
    assert fold(job.journal).world.stride == 1


def test_the_order_of_the_pace_is_repeated() -> None:
    job = Job(memory=True)
    train(job, 20)
    assert 8 < sum(isinstance(m, Pace) for _, m in job.sent) < 16  # two nodes, every three seconds


def test_without_memory_nothing_is_paced_or_flushed() -> None:
    job = Job(config=JobConfig(checkpoint=CheckpointConfig(memory=False, every_s=5)))
    train(job, 20)
    assert not any(isinstance(m, (Pace, Flush)) for _, m in job.sent)


def test_a_step_to_come_goes_to_storage_when_the_newest_is_old() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_s=30)))
    train(job, 28)
    assert job.flush_step == -1
    train(job, 4)
    step = job.flush_step
    assert step >= 30
    train(job, 4)
    job.pass_time(2)
    flushed(job, step)
    (written,) = job.events(ev.StorageWritten)
    assert (written.generation, written.step) == (1, step)
    assert 2 <= written.seconds <= 8
    assert job.pruned == 1
    train(job, 20)
    assert job.flush_step == step
    train(job, 15)
    assert job.flush_step > step + 25


def test_every_n_steps_one_goes_to_storage() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_steps=4)))
    for _ in range(3):
        train(job, 6, 0.3)
        step = job.flush_step
        assert (step + 1) % 4 == 0
        train(job, 8, 0.3)
        assert job.flush_step == step  # one at a time
        flushed(job, step)
    assert len({e.step for e in job.events(ev.StorageWritten)}) == 3


def test_a_multiple_that_is_far_away_can_wait() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_steps=100)))
    train(job, 50)
    assert job.flush_step == -1
    train(job, 48)
    assert job.flush_step == 99


def test_the_order_is_repeated_and_given_up_with_a_note() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_s=30)))
    train(job, 36)
    step = job.flush_step
    orders = sum(isinstance(m, Flush) for _, m in job.sent)
    train(job, 20)
    assert sum(isinstance(m, Flush) for _, m in job.sent) > orders
    job.change("n1", flushed=step)
    train(job, 50)
    assert job.events(ev.StorageWritten) == []
    (note,) = [e.text for e in job.events(ev.Noted) if "did not get onto storage" in e.text]
    assert note.endswith("in time: n2")
    assert sum("did not get onto storage in time: n2; training goes on" in line for line in job.said) == 1
    train(job, 40)
    assert job.flush_step > step


def test_storage_that_is_full_is_said_once_until_it_takes_a_checkpoint_again() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_s=30)))
    tried = []
    for _ in range(2):
        train(job, 36)
        tried.append(job.flush_step)
        train(job, 10)
        job.change("n2", unflushed=f"step {job.flush_step}: [Errno 28] No space left on device")
        train(job, 70)
    assert tried[0] + 60 < tried[1] < tried[0] + 130
    (line,) = [line for line in job.said if "could not be put on storage" in line]
    assert line == (
        f"could not be put on storage by n2: step {tried[0]}: [Errno 28] No space left on device; training "
        "goes on, only the nodes' memory has all steps"
    )
    flushed(job, job.flush_step)
    assert job.said[-1] == f"storage takes checkpoints again: step {job.flush_step} is there"


def test_restarts_do_not_put_off_what_goes_to_storage() -> None:
    job = Job(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_s=30)))
    for _ in range(4):
        train(job, 9)
        job.kill_rank(1)
    train(job, 4)
    assert job.flush_step >= 0


def test_a_new_controller_knows_how_old_the_newest_is() -> None:
    job = Job(memory=True)
    written = ev.StorageWritten(t=job.wall - 1000, generation=1, step=4, seconds=1.0)
    ended = ev.GenerationEnded(t=job.wall, generation=1, reason="x", sealed_step=4, stored=True)
    there = [CheckpointId(step=4, generation=1)]
    later = Job(memory=True, history=(*job.journal, written, ended), storage=there)
    train(later, 4)
    assert later.flush_step >= 0


def lost_by_storage(config: JobConfig) -> Job:
    """A requeued run that finds nothing of what storage had."""
    job = Job(memory=True)
    written = ev.StorageWritten(t=job.wall, generation=1, step=4, seconds=1.0)
    ended = ev.GenerationEnded(t=job.wall, generation=1, reason="x", pending=True)
    return Job(history=(*job.journal, written, ended), config=config)


def test_a_run_does_not_begin_anew_where_storage_has_lost_what_it_had() -> None:
    job = lost_by_storage(JobConfig())
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.CHECKPOINTS
    (ended,) = job.events(ev.RunEnded)
    assert not ended.final, "a run after the folder has come back goes on"
    assert any("gen-0001/step-00000004 was on storage and is not there any more" in t for t in job.said)
    assert len(job.events(ev.GenerationLaunched)) == 1, "the one of the run before"


def test_a_run_does_not_begin_anew_after_one_whose_ranks_wrote_by_themselves_and_died() -> None:
    job = Job()
    job.train_to(5)
    for node in job.core.world.slots:
        written = [structs.replace(p, checkpoint=4) for p in job.heartbeats[node].progress]
        job.change(node, progress=tuple(written))
    job.pass_time(5)
    ended = ev.GenerationEnded(t=job.wall, generation=1, reason="all nodes died", pending=True)
    later = Job(history=(*job.journal, ended))
    later.until(lambda: later.code is not None or later.stage == "Running")
    assert later.code == ExitCode.CHECKPOINTS
    assert any("gen-0001/step-00000004 was on storage and is not there any more" in t for t in later.said)


def test_a_run_may_wait_for_storage_to_find_again_what_it_had() -> None:
    job = lost_by_storage(JobConfig(checkpoint=CheckpointConfig(if_unusable="wait")))
    job.pass_time(100)
    assert job.stage == "Gathering"
    assert any("this run waits, asks storage every 30 s, and then goes on" in text for text in job.said)
    assert not any("requeue" in text for text in job.said), "it needs none"
    job.checkpoints[1] = 4
    job.until(lambda: job.stage == "Running")
    assert where(job) == (4, {"storage": 2})


def test_spoiled_steps_on_storage_are_nothing_to_go_on_from() -> None:
    job = Job(memory=True)
    written = ev.StorageWritten(t=job.wall, generation=1, step=4, seconds=1.0)
    ended = ev.GenerationEnded(t=job.wall, generation=1, reason="x", good_step=1)
    later = Job(history=(*job.journal, written, ended), storage=[CheckpointId(step=4, generation=1)])
    assert where(later) == (-1, {})


def test_pruning_protects_what_is_sealed() -> None:
    pruned: list[Prune] = []

    class Watched(Job):
        def act(self, effects: list) -> None:
            pruned.extend(q for q in questions(effects) if isinstance(q, Prune))
            super().act(effects)

    job = Watched(memory=True, config=JobConfig(checkpoint=CheckpointConfig(every_steps=4)))
    train(job, 3)
    job.kill_rank(1)
    train(job, 9)
    flushed(job, job.flush_step)
    assert [p.sealed for p in pruned] == [{1: 2}]


def test_old_checkpoints_are_removed_as_new_ones_are_published_by_all_ranks() -> None:
    job = Job()
    job.train_to(3)
    job.pass_time(5)
    assert job.pruned == 0
    for checkpoint in (3, 5):
        for node in ("n1", "n2"):
            progress = tuple(structs.replace(p, checkpoint=checkpoint) for p in job.heartbeats[node].progress)
            job.change(node, progress=progress)
        job.pass_time(3)
    assert job.pruned == 2
