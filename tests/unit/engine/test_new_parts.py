"""Parts that are lost with their nodes are made anew where the owner wants that, on paper."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import CheckpointConfig, JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from slurm_robust.model.progress import PaceHistory
from tests.builders.state import changed
from tests.unit.engine.fake_job import Job

RESEED = JobConfig(checkpoint=CheckpointConfig(if_parts_are_missing="reseed"))
NEWEST = CheckpointId(step=24, generation=1)


def trained(
    *spares: str, config: JobConfig = RESEED, shared: bool = True, refuses: bool = False, stored: int = 10
) -> Job:
    """Three nodes after step 24; n1 has also a copy of rank 2's part, and n3 one of rank 1's."""
    job = Job(("n1", "n2", "n3"), spares, memory=True, shared=shared, config=config)
    for step in range(25):
        job.train_to(step)
        job.pass_time(0.1)
        if step == stored:
            job.storage.add(CheckpointId(step=step, generation=1))
    if refuses:
        job.refuses = {("n1", CheckpointId(step=step, generation=1)) for step in range(25)}
    return job


def lose(job: Job, *nodes: str) -> None:
    for node in nodes:
        job.power_cut(node)


def restored(job: Job) -> tuple[int, dict[str, int]]:
    last = job.events(ev.GenerationLaunched)[-1]
    return last.restore_step, last.tiers


def anew(job: Job) -> list[str]:
    return [text for text in job.said if "with new random generators" in text]


def test_new_parts_go_to_storage_before_a_requeue_and_the_next_run_goes_on_from_there() -> None:
    job = trained()
    lose(job, "n2", "n3")
    job.until(lambda: bool(job.requeued), 400)
    (order,) = job.saves.values()
    assert (order.checkpoint, sorted(order.ranks), order.anew) == (NEWEST, [0, 1, 2], {1: 0})
    (line,) = anew(job)
    assert line.startswith("rank 1 goes on from step 24 with new random generators, since its part is lost")
    assert line in [event.text for event in job.events(ev.Noted)]
    assert (job.core.world.sealed, job.core.world.unsealed) == ({1: 24}, ())
    taken = ev.AllocationTaken(
        t=3.0, restart_count=1, nodes=("n4", "n5", "n6"), slots=("n4", "n5", "n6"), spares=()
    )
    later = Job(
        ("n4", "n5", "n6"), (), history=(*job.journal, taken), memory=True, shared=True, storage=job.storage
    )
    assert restored(later) == (24, {"storage": 3})


def test_new_parts_go_to_storage_before_a_restart_on_standbys() -> None:
    job = trained("n4", "n5")
    lose(job, "n2", "n3")
    job.until(lambda: job.core.world.generation == 2, 400)
    assert restored(job) == (24, {"storage": 3})
    assert len(anew(job)) == 1
    assert job.requeued == []
    job.until(lambda: job.stage == "Running")
    job.train_to(25)
    job.kill_rank(1)
    job.until(lambda: job.core.world.generation == 3)
    assert restored(job)[0] == 25
    assert len(anew(job)) == 1


def test_a_listing_that_is_behind_has_nothing_written_again() -> None:
    """Caches of NFS show a folder late."""
    job = trained("n4", "n5")
    job.shows = False
    lose(job, "n2", "n3")
    job.until(lambda: job.core.world.generation == 2, 400)
    assert restored(job) == (24, {"storage": 3})
    assert len(anew(job)) == len(job.events(ev.StorageWritten)) == 1


def test_by_default_an_older_step_is_restored_and_the_log_names_the_setting() -> None:
    job = trained("n4", "n5", config=JobConfig())
    lose(job, "n2", "n3")
    job.until(lambda: job.core.world.generation == 2, 400)
    assert restored(job) == (10, {"storage": 3})
    assert not anew(job)
    (line,) = {text for text in job.said if "is not whole" in text and "without them" in text}
    assert line.endswith(
        "goes on from step 10 from storage (checkpoint.if_parts_are_missing: reseed may take step 24)"
    )


def test_a_sharded_model_is_never_made_anew() -> None:
    job = trained("n4", "n5", shared=False)
    lose(job, "n2", "n3")
    job.until(lambda: job.core.world.generation == 2, 400)
    assert restored(job)[0] == 10
    assert not any("generators" in text for text in job.said)


@pytest.mark.parametrize("spares", [("n4", "n5"), ()])
def test_parts_that_held_more_than_generators_leave_the_older_step(spares: tuple[str, ...]) -> None:
    """The storage writer says so, since only there the parts are read."""
    job = trained(*spares, refuses=True)
    lose(job, "n2", "n3")
    if spares:
        job.until(lambda: job.core.world.generation == 2, 400)
        assert restored(job) == (10, {"storage": 3})
        assert any("step-00000024 could not be put on storage: n1: " in text for text in job.said)
    else:
        job.until(lambda: bool(job.requeued), 400)
        assert job.core.world.sealed == {1: 10}
        assert any("gen-0001/step-00000024 was only in memory: storage has step 10" in t for t in job.said)
    assert not anew(job)


def test_what_memory_has_whole_is_restored_bit_by_bit_unless_it_is_long_ago() -> None:
    """n2's newest part has not reached its peer yet."""
    job = trained("n4")
    job.snapshot(25, peers=False)
    lose(job, "n2")
    job.until(lambda: job.core.world.generation == 2, 60)
    assert restored(job)[0] == 24
    slow = trained("n4")
    slow.snapshot(25, peers=False)
    slow.core._state = changed(slow.core.state, pace=PaceHistory(p50_s=90.0))
    lose(slow, "n2")
    slow.until(lambda: slow.core.world.generation == 2, 60)
    assert restored(slow) == (25, {"storage": 3})
    assert len(anew(slow)) == 1


@pytest.mark.parametrize(
    ("nodes", "held", "step", "made"),
    [
        (("n1", "n2", "n4"), ("n1", "n2"), 24, 0),
        (("n1", "n4", "n5"), ("n1",), 24, 1),
        (("n1", "n2", "n4"), ("n1",), 10, 0),
    ],
    ids=["two come back", "one comes back", "one has lost what it held"],
)
def test_after_a_requeue_that_nobody_could_prepare_what_the_nodes_hold_decides(
    nodes: tuple[str, ...], held: tuple[str, ...], step: int, made: int
) -> None:
    """A node that is there, but has nothing, may never have had snapshots: its rank's part is not made up."""
    job = trained()
    ended = ev.GenerationEnded(t=2.0, generation=1, reason="x", pending=True)
    taken = ev.AllocationTaken(t=3.0, restart_count=1, nodes=nodes, slots=nodes, spares=())
    later = Job(
        nodes,
        (),
        history=(*job.journal, ended, taken),
        memory=True,
        shared=True,
        copies={node: job.heartbeats[node].copies for node in held},
        storage=job.storage,
        config=RESEED,
    )
    later.until(lambda: bool(later.events(ev.GenerationLaunched)[1:]))
    assert (restored(later)[0], len(anew(later))) == (step, made)


def test_the_shared_part_alone_is_not_enough() -> None:
    job = trained("n4", "n5")
    for node in ("n1",):
        shared = tuple(c for c in job.heartbeats[node].copies if c.rank == SHARED or c.tier is Tier.PEER)
        job.change(node, copies=shared)
    lose(job, "n2", "n3")
    job.until(lambda: job.core.world.generation == 2, 400)
    assert restored(job)[0] == 10
