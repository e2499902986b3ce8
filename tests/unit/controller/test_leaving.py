"""Whoever tells a job to end, whatever it does: its journal says so before Slurm kills the controller."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import JobConfig
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.engine.transitions import ToReconnecting
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.journal import fold
from slurm_robust.report.job_view import JobView
from slurm_robust.report.status import status_at
from slurm_robust.run.preflight import check_history
from slurm_robust.testing.sim.training import doing
from tests.unit.engine.fake_job import Job

KILL_WAIT_S = 30.0
"""Slurm's default, from TERM to KILL."""

ORDERED = "ordered to end by SIGTERM"
SILENT = SlurmAnswer(said=RequeueStatus.NOTHING, detail="Unable to contact slurm controller")


class JobWithoutAgents(Job):
    def join(self, node: str, agent: str = "a", **changes: object) -> None:
        pass


def running(**fields: object) -> Job:
    job = Job(**fields)  # type: ignore[arg-type]
    job.train_to(3)
    return job


def hanging(**fields: object) -> Job:
    job = running(**fields)
    job.ages = True
    job.mute.update(("n1", "n2"))
    job.until(lambda: job.stage == "Localising", limit=2000)
    return job


def gathering() -> Job:
    return JobWithoutAgents()


def stopping() -> Job:
    job = running()
    job.stubborn.add("n2")
    job.hears_storage = False
    job.kill_rank(0)
    return job


def under_test() -> Job:
    job = running()
    job.diagnosis = None
    for _ in range(2):
        job.kill_rank(0)
    return job


def saving() -> Job:
    job = Job(spares=(), memory=True)
    job.writes = False
    job.snapshot(3)
    job.train_to(3)
    job.power_cut("n2")
    job.until(lambda: job.stage == "Saving")
    return job


def requeueing() -> Job:
    job = running(spares=())
    job.slurm_says = (SILENT,)
    job.power_cut("n2")
    job.until(lambda: job.stage == "Requeueing")
    return job


def unreachable() -> Job:
    job = running(slots=("n1", "n2", "n3"), spares=())
    job.slurm_answers = False
    job.cut.update(("n2", "n3"))
    job.until(lambda: job.stage == "Unreachable")
    return job


def checkpointing() -> Job:
    job = running()
    job.act(job.core.on_end_approaching("the end of this run is near (USR1)", job.now()))
    return job


def observing() -> Job:
    job = running(config=JobConfig(mode="observe"))
    job.stacks[0] = doing(0, "n1", "sleep@train.py")
    job.kill_rank(0)
    job.pass_time(0.5)
    return job


def reconnecting() -> Job:
    return Job(history=tuple(running().journal), first=ToReconnecting())


STAGES = {
    "Running": running,
    "Localising": hanging,
    "Gathering": gathering,
    "Stopping": stopping,
    "Testing": under_test,
    "Saving": saving,
    "Requeueing": requeueing,
    "Unreachable": unreachable,
    "Checkpointing": checkpointing,
    "Observing": observing,
    "Reconnecting": reconnecting,
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_journal_says_that_the_job_was_ordered_to_end(stage: str) -> None:
    job = STAGES[stage]()
    assert job.stage == stage
    job.act(job.core.on_leave(ORDERED, job.now()))
    job.until(lambda: bool(job.events(ev.RunEnded)), limit=KILL_WAIT_S - 5)
    (ended,) = job.events(ev.RunEnded)
    assert (ended.code, ended.reason, ended.final) == (ExitCode.TERMINATED, ORDERED, False)
    status = status_at(JobView(events=job.journal), job.wall)
    assert (status.phase, status.reason, status.exit_code) == ("cancelled", ORDERED, 143)


def test_ctrl_c_while_slurm_is_asked_for_a_requeue_has_its_own_code() -> None:
    job = requeueing()
    job.act(job.core.on_leave("ordered to end by SIGINT", job.now(), ExitCode.INTERRUPTED))
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.INTERRUPTED


def test_a_job_that_was_ordered_to_end_may_be_started_again() -> None:
    job = running()
    job.act(job.core.on_leave(ORDERED, job.now()))
    job.until(lambda: job.code is not None)
    assert check_history(fold(job.journal), job.journal, ("train.py",)) is None
    again = ev.ControllerStarted(t=job.wall, epoch=2, host="n1", pid=2, port=1)
    assert status_at(JobView(events=[*job.journal, again]), job.wall).phase == "starting"
    wall_ms = status_at(JobView(events=[*job.journal, again]), job.wall + 60).ledger.wall_ms
    assert wall_ms == pytest.approx(1000 * (job.wall + 60 - job.journal[0].t), abs=1)
