"""Nodes that somebody else drains: a standby gets no slot, a node that trains is left at the next restart."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import JobConfig, StandbyConfig
from slurm_robust.engine.units.drains import EVERY_S
from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from tests.unit.engine.fake_job import Job

WHY = "root: bad fan"
PLAIN = JobConfig(standby=StandbyConfig(rehearse=False, test_s=0.0))


def trained(slots: tuple[str, ...] = ("n1", "n2"), spares: tuple[str, ...] = ("n3", "n4")) -> Job:
    job = Job(slots, spares, memory=True, config=PLAIN)
    for step in range(5):
        job.train_to(step)
        job.pass_time(1.0)
    return job


def drain(job: Job, node: str) -> None:
    job.drained[node] = WHY
    job.pass_time(EVERY_S + 1.0)


def train(job: Job) -> None:
    job.train_to(job.core.world.best_step + 1)
    job.pass_time(1.0)


def test_a_drain_is_seen_within_half_a_minute_and_told_once() -> None:
    job = trained()
    drain(job, "n2")
    assert job.core.state.drained == {"n2": WHY}
    assert (job.stage, job.core.world.generation, job.core.world.incident) == ("Running", 1, None)
    job.pass_time(120.0)
    assert len(job.events(ev.NodeDrained)) == 1
    (line,) = [text for text in job.said if "drained" in text]
    assert line == (
        "n2 is drained by root: bad fan: training goes on there, and the next restart leaves it if there is "
        "a standby"
    )


def test_the_next_restart_leaves_a_drained_node_and_evicts_nobody() -> None:
    job = trained()
    drain(job, "n2")
    train(job)
    job.kill_rank(0)
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n3")
    assert job.core.state.evicted == {}
    assert job.events(ev.Decided)[-1].reason.endswith(
        "n3 takes the slot of n2, which is drained by root: bad fan"
    )
    assert job.events(ev.GenerationLaunched)[-1].restore_step == job.core.world.best_step
    train(job)
    job.power_cut("n3")
    job.until(lambda: job.core.world.generation == 3)
    assert job.core.world.slots == ("n1", "n4")


def test_a_drained_standby_gets_no_slot() -> None:
    job = trained()
    drain(job, "n3")
    assert not job.core.state.aside["n3"].usable
    assert any(text == f"n3 is drained by {WHY}: it gets no slot as long as it is" for text in job.said)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n4")


@pytest.mark.parametrize(
    "why",
    [
        "slurm: k8s: cordon: node condition GpuXidError",
        "slurm: k8s: pod terminated: cordon: rolling upgrade",
        "root: NHC: check_hw_gpu: 7 of 8 GPUs",
        "slurm: Kill task failed",
        "root: reboot ASAP : fw update",
        "root: Epilog error; srobust: gpu.leftovers 0000:1b:00",
        "root: srobust: gpu3 XID 79, fell off the bus",
    ],
)
def test_whoever_drains_a_standby_for_whatever_reason_it_gets_no_slot_and_no_blame(why: str) -> None:
    job = trained()
    job.drained["n3"] = why
    job.pass_time(EVERY_S + 1.0)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n4")
    assert list(job.core.state.evicted) == ["n2"]


def test_without_a_standby_a_drained_node_keeps_its_slot() -> None:
    job = trained(spares=())
    drain(job, "n2")
    train(job)
    job.kill_rank(0)
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n2")


def test_where_all_standbys_are_drained_too_nothing_moves() -> None:
    job = trained(spares=("n3",))
    drain(job, "n3")
    drain(job, "n2")
    train(job)
    job.kill_rank(0)
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n2")


def test_a_standby_that_is_resumed_counts_again() -> None:
    job = trained()
    drain(job, "n3")
    job.drained.clear()
    job.pass_time(EVERY_S + 1.0)
    assert (job.core.state.drained, job.core.state.aside) == ({}, {})
    assert "n3 is drained no more" in job.said
    assert fold(job.journal) == job.core.state


def test_a_slurm_that_does_not_answer_changes_nothing() -> None:
    job = trained()
    drain(job, "n3")
    job.slurm_answers = False
    job.drained.clear()
    job.pass_time(300.0)
    assert job.core.state.drained == {"n3": WHY}


def test_a_later_run_asks_anew() -> None:
    job = trained()
    drain(job, "n2")
    taken = ev.AllocationTaken(t=job.wall, restart_count=1, nodes=("n1", "n3"), slots=("n1", "n3"), spares=())
    assert fold((*job.journal, taken)).drained == {}
