"""A rank that aborts after its work costs the job nothing; the note says so."""

from __future__ import annotations

import signal
from typing import Any

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.progress import RETURNED
from slurm_robust.wire.messages import Phase
from tests.unit.engine.fake_job import Job


def end(job: Job, rank: int, **exit: Any) -> None:
    """The one rank on its node ends."""
    node = job.core.world.placement.node_of(rank)
    exits = (WorkerExit(rank=rank, **exit),)
    job.change(node, exits=exits, phase=Phase.ENDED)


def returned(job: Job, rank: int) -> None:
    node = job.core.world.placement.node_of(rank)
    progress = tuple(structs.replace(p, phase=RETURNED) for p in job.heartbeats[node].progress)
    job.change(node, progress=progress)


def test_a_rank_that_aborts_after_its_script_ends_the_job_well() -> None:
    job = Job(("n1", "n2", "n3"), ())
    job.train_to(7)
    returned(job, 1)
    end(job, 1, signal=signal.SIGABRT)
    job.pass_time(60.0)  # the others have something left to do
    assert job.stage == "Running"
    end(job, 0, code=0)
    end(job, 2, code=0)
    job.until(lambda: job.code is not None)
    assert (job.code, job.events(ev.IncidentOpened)) == (0, [])
    (ended,) = job.events(ev.RunEnded)
    assert "SIGABRT ended rank 1 on n2 after its work" in ended.reason
    assert any(ended.reason in text for text in job.said)


def test_an_abort_in_the_script_is_waited_with_only_where_others_end() -> None:
    job = Job(("n1", "n2", "n3"), ())
    job.train_to(7)
    end(job, 0, code=0)
    end(job, 2, signal=signal.SIGABRT)
    job.pass_time(1.0)
    assert job.events(ev.IncidentOpened) == []
    end(job, 1, code=0)
    job.until(lambda: job.code is not None)
    assert (job.code, job.events(ev.IncidentOpened)) == (0, [])


def test_an_abort_while_others_train_is_a_fault_at_once() -> None:
    job = Job(("n1", "n2", "n3"), ())
    job.train_to(7)
    end(job, 2, signal=signal.SIGABRT)
    assert [event.detail for event in job.events(ev.IncidentOpened)] == [
        "rank 2: SIGABRT on n3 (generation 1)"
    ]


def test_a_fault_is_one_where_another_rank_never_ends() -> None:
    job = Job(("n1", "n2", "n3"), ())
    job.train_to(7)
    end(job, 0, code=0)
    end(job, 2, signal=signal.SIGABRT)
    assert job.events(ev.IncidentOpened) == []
    end(job, 2, signal=signal.SIGABRT, age_s=11.0)
    assert len(job.events(ev.IncidentOpened)) == 1


def test_a_script_that_answers_term_by_code_0_has_not_done_its_work() -> None:
    job = Job(("n1", "n2"), ())
    job.train_to(7)
    job.stubborn.update(("n1", "n2"))  # they end by themselves, after the order
    job.kill_rank(0)
    job.until(lambda: job.stage == "Stopping")
    end(job, 1, code=0)
    job.stubborn.clear()
    job.until(lambda: job.core.world.generation == 2)
    assert job.events(ev.RunEnded) == []
