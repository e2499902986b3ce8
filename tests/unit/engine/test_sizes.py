"""The job comes back with another number of nodes, driven through the core by scripted agents."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import JobConfig, ParallelConfig, Timings
from slurm_robust.engine.transitions import ToGathering
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.wire.messages import Save
from tests.builders.events import run_started
from tests.unit.engine.fake_job import Job

FOUR = ("n1", "n2", "n3", "n4")
Copies = dict[str, tuple[Copy, ...]]


def ref(step: int, generation: int = 1) -> CheckpointId:
    return CheckpointId(step=step, generation=generation)


def launched(job: Job) -> ev.GenerationLaunched:
    found = job.events(ev.GenerationLaunched)[-1]
    assert isinstance(found, ev.GenerationLaunched)
    return found


def trained(*, shared: bool = False) -> tuple[Job, Copies]:
    """A job of four ranks after step 6, and what the nodes have in memory."""
    job = Job(slots=FOUR, spares=(), memory=True, shared=shared)
    for step in range(7):
        job.train_to(step)
    return job, {node: heartbeat.copies for node, heartbeat in job.heartbeats.items()}


def requeued(
    before: Job,
    nodes: tuple[str, ...],
    *,
    copies: Copies | None = None,
    storage: tuple[CheckpointId, ...] = (),
    config: JobConfig | None = None,
    kind: type[Job] = Job,
) -> Job:
    """The next run, whose allocation is ``nodes``."""
    ended = ev.GenerationEnded(t=2.0, generation=1, reason="x", pending=True)
    taken = ev.AllocationTaken(t=3.0, restart_count=1, nodes=nodes, slots=nodes, spares=())
    return kind(
        slots=nodes,
        history=(*before.journal, ended, taken),
        first=ToGathering(start=True),
        memory=True,
        copies={node: held for node, held in (copies or {}).items() if node in nodes},
        storage=storage,
        config=config,
    )


class Unready(Job):
    """Its zygotes never get ready."""

    def join(self, node: str, agent: str = "", **changes: object) -> None:
        super().join(node, agent, ready=False, **changes)


@pytest.mark.parametrize("nodes", [FOUR[:3], (*FOUR, "n5")])
def test_storage_is_cut_up_for_another_number_of_ranks(nodes: tuple[str, ...]) -> None:
    before, _ = trained()
    job = requeued(before, nodes, storage=(ref(4), ref(2)))
    assert (launched(job).restore_step, launched(job).tiers) == (4, {"storage": len(nodes)})
    orders = [job.orders[node] for node in nodes]
    assert {order.restore_layout for order in orders} == {"4x1:tp1-cp1-ep1-dp4-pp1"}
    assert {order.layout for order in orders} == {f"{len(nodes)}x1:tp1-cp1-ep1-dp{len(nodes)}-pp1"}
    assert any(f"4 ranks took it and {len(nodes)} go on" in text for text in job.said)
    job.train_to(7)
    job.kill_rank(1)
    assert launched(job).restore_step == 7
    assert job.orders["n1"].restore_layout == "", "its own checkpoints it takes as they are"


def test_what_only_memory_has_goes_to_storage_first() -> None:
    before, copies = trained()
    job = requeued(before, FOUR[:3], copies=copies, storage=(ref(2),))
    job.until(lambda: job.stage == "Running")
    written = {node: (order.ranks, order.world_size, order.layout) for node, order in job.saves.items()}
    assert sorted(rank for ranks, _, _ in written.values() for rank in ranks) == [0, 1, 2, 3]
    assert {(world, layout) for _, world, layout in written.values()} == {(4, "4x1:tp1-cp1-ep1-dp4-pp1")}
    assert launched(job).restore_step == 6
    assert any("gen-0001/step-00000006, of 4 ranks, is only in memory" in text for text in job.said)
    assert any("gen-0001/step-00000006 is on storage now" in text for text in job.said)


def test_the_shared_part_is_written_by_a_node_that_has_it() -> None:
    """Rank 0's own node has lost the shared part of the newest step; its peer has both."""
    before, copies = trained(shared=True)
    copies["n1"] = tuple(c for c in copies["n1"] if not (c.rank == SHARED and c.step == 6))
    job = requeued(before, FOUR[:3], copies=copies, storage=(ref(2),))
    job.until(lambda: job.stage == "Running")
    (peer,) = (node for node, order in job.saves.items() if 0 in order.ranks)
    assert peer != "n1"
    assert {order.checkpoint for order in job.saves.values()} == {ref(6)}
    assert launched(job).restore_step == 6


def test_without_such_a_node_the_step_before_is_written() -> None:
    before, copies = trained(shared=True)
    left = {
        node: tuple(c for c in held if c.step < 6 or (c.rank != SHARED if node == "n1" else c.rank))
        for node, held in copies.items()
    }
    job = requeued(before, FOUR[:3], copies=left, storage=(ref(2),))
    job.until(lambda: job.stage == "Running")
    assert {order.checkpoint for order in job.saves.values()} == {ref(5)}
    assert launched(job).restore_step == 5


def test_nodes_that_say_why_they_cannot_write_make_way_for_the_step_before() -> None:
    before, copies = trained()

    class Full(Job):
        def obey(self, node: str, message: object) -> None:
            self.refuses = {(node, ref(6)) for node in FOUR}
            super().obey(node, message)

    job = requeued(before, FOUR[:3], copies=copies, kind=Full)
    job.until(lambda: job.stage == "Running")
    assert launched(job).restore_step == 5
    (text,) = [text for text in job.said if "gen-0001/step-00000005 goes there instead" in text]
    assert "gen-0001/step-00000006 could not be put on storage: n" in text
    assert "n1: gen-0001/step-00000006: No space left on device" in text


def test_what_one_node_refuses_another_one_writes_that_has_the_same_parts() -> None:
    before, copies = trained()

    class Full(Job):
        def obey(self, node: str, message: object) -> None:
            self.refuses = {("n1", ref(6))}
            super().obey(node, message)

    job = requeued(before, FOUR[:3], copies=copies, kind=Full)
    job.until(lambda: job.stage == "Running")
    assert launched(job).restore_step == 6


def test_an_order_to_end_saves_what_ranks_of_another_number_have_in_memory() -> None:
    """The run has launched nothing yet."""
    before, copies = trained()
    job = requeued(before, FOUR[:3], copies=copies, storage=(ref(2),), kind=Unready)
    job.pass_time(2.0)
    job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
    job.until(lambda: job.code is not None)
    assert {order.checkpoint for order in job.saves.values()} == {ref(6)}
    assert {order.world_size for order in job.saves.values()} == {4}
    assert "gen-0001/step-00000006 was only in memory; it is on storage now (0.0 s)" in job.said


def test_parts_that_are_missing_leave_what_storage_has() -> None:
    before, copies = trained()
    del copies["n1"], copies["n2"]
    job = requeued(before, FOUR[:3], copies=copies, storage=(ref(2),))
    job.until(lambda: job.stage == "Running")
    assert job.saves == {}
    assert launched(job).restore_step == 2


def test_nodes_that_cannot_write_do_not_hold_up_what_storage_has() -> None:
    before, copies = trained()
    config = JobConfig(timings=Timings(checkpoint_s=5))

    class Mute(Job):
        def obey(self, node: str, message: object) -> None:
            if not isinstance(message, Save):
                super().obey(node, message)

    job = requeued(before, FOUR[:3], copies=copies, storage=(ref(2),), config=config, kind=Mute)
    job.until(lambda: job.stage == "Running")
    assert launched(job).restore_step == 2
    job = requeued(before, FOUR[:3], copies=copies, config=config, kind=Mute)
    job.until(lambda: job.code is not None, limit=120)
    assert job.code == ExitCode.CHECKPOINTS, "the memory of the nodes still has it"
    assert any("could not be put on storage: n" in text for text in job.said)


def test_storage_that_refuses_one_listing_is_asked_again_before_training_begins_anew() -> None:
    """The batch host died before the generation was sealed, and memory has nothing."""

    class Refuses(Job):
        questions = 0

        def tell_storage(self) -> None:
            self.questions += 1
            self.storage_broken = self.questions == 1
            super().tell_storage()

    before, _ = trained()
    job = requeued(before, FOUR, storage=(ref(4),), kind=Refuses)
    job.until(lambda: job.stage == "Running", limit=120)
    assert (launched(job).restore_step, job.questions) == (4, 2)


def test_other_parallel_sizes_are_refused_with_the_fix() -> None:
    before, _ = trained()
    config = JobConfig(parallel=ParallelConfig(tp=2))
    job = requeued(before, FOUR, storage=(ref(4),), config=config)
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.CONFIG
    (ended,) = job.events(ev.RunEnded)
    assert "it was taken with tp 1, and this run has tp 2; fix: set parallel.tp: 1" in ended.reason
    assert not ended.final
    assert len(job.events(ev.GenerationLaunched)) == 1, "the one of the run before"


def test_a_state_that_nobody_can_cut_up_ends_the_run_with_the_fix() -> None:
    before, _ = trained()
    job = requeued(before, FOUR[:3], storage=(ref(4),))
    error = WorkerError(
        type="slurm_robust.checkpoint.errors.CannotReshard", message="entry 'engine': train on 4 ranks"
    )
    job.kill_rank(1, signal=None, code=1, error=error)
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.CONFIG
    (ended,) = job.events(ev.RunEnded)
    assert "entry 'engine': train on 4 ranks" in ended.reason
    assert not ended.final
    begun = job.core.state.end_started
    assert begun is not None
    assert not begun.final, "the same job may be started again with other sizes"


def test_copies_on_disk_count_too() -> None:
    before, copies = trained()
    on_disk = {
        node: tuple(Copy(rank=c.rank, generation=1, step=6, tier=Tier.LOCAL) for c in held if c.step == 6)
        for node, held in copies.items()
    }
    job = requeued(before, FOUR[:3], copies=on_disk)
    job.until(lambda: job.stage == "Running")
    assert launched(job).restore_step == 6


def next_job(earlier: ev.Continued, storage: tuple[CheckpointId, ...]) -> Job:
    """A job of three nodes that goes on from an earlier one."""
    started = run_started(t=1.0, job_id=8, slots=3, spares=0)
    nodes = FOUR[:3]
    taken = ev.AllocationTaken(t=3.0, restart_count=0, nodes=nodes, slots=nodes, spares=())
    return Job(slots=nodes, history=(started, earlier, taken), first=ToGathering(start=True), storage=storage)


EARLIER = ev.Continued(
    t=2.0,
    from_job=7,
    from_folder="7",
    generation=4,
    sealed={4: 20},
    layouts={4: "4x1:tp1-cp1-ep1-dp4-pp1"},
    best_step=20,
    reports=True,
)


def test_the_next_job_of_a_training_cuts_up_what_the_earlier_one_left() -> None:
    job = next_job(structs.replace(EARLIER, stored=ref(20, 4)), (ref(20, 4),))
    assert launched(job).restore == ref(20, 4)
    assert launched(job).generation == 5
    assert {order.restore_layout for order in job.orders.values()} == {"4x1:tp1-cp1-ep1-dp4-pp1"}


def test_the_next_job_of_a_training_ends_where_storage_has_lost_all() -> None:
    job = next_job(structs.replace(EARLIER, stored=ref(20, 4)), ())
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.CHECKPOINTS
    assert job.events(ev.GenerationLaunched) == []


def test_what_only_memory_of_the_earlier_job_had_is_named_and_gone() -> None:
    job = next_job(EARLIER, ())
    assert launched(job).restore is None
    assert any("gen-0004/step-00000020 is in no memory of these nodes" in text for text in job.said)
