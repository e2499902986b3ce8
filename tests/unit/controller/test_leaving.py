"""Whoever tells a job to end, whatever it does: its journal says so before Slurm kills the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.engine import questions as qs
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.journal import fold
from slurm_robust.report.job_view import JobView
from slurm_robust.report.status import status_at
from slurm_robust.run.preflight import check_history
from slurm_robust.testing.sim.environment import Tell, never
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import PACE, mute, trained, writes

KILL_WAIT_S = 30.0
"""Slurm's default, from TERM to KILL."""

ORDERED = "ordered to end by SIGTERM"
SILENT = SlurmAnswer(said=RequeueStatus.NOTHING, detail="Unable to contact slurm controller")


def comes_to(sim: Sim, stage: str, within_s: float = 60.0) -> Sim:
    sim.run_until(lambda: sim.stage == stage, within_s)
    return sim


def running() -> Sim:
    return trained(2, 1)


def localising() -> Sim:
    sim = running()
    mute(sim)
    sim.hang_rank(0)
    return comes_to(sim, "Localising", within_s=2000.0)


def gathering() -> Sim:
    sim = Sim(2, 1, pace=structs.replace(PACE, agent_s=(900.0, 900.0)))
    return comes_to(sim, "Gathering")


def stopping() -> Sim:
    sim = running()
    sim.hang_rank(1, unkillable=True)
    sim.answer(qs.FindCheckpoint, never)
    sim.kill_rank(0)
    return comes_to(sim, "Stopping")


def under_test() -> Sim:
    sim = running()
    sim.answer(qs.TestNodes, never)
    for _ in range(2):
        sim.run_until(lambda: sim.stage == "Running" and len(sim.ranks) == 2, within_s=60.0)
        sim.kill_rank(0)
        sim.run_until(lambda: sim.stage != "Running", within_s=60.0)
    return comes_to(sim, "Testing")


def saving() -> Sim:
    sim = trained(2)
    writes(sim, anything=False)
    sim.node_dies("n2")
    return comes_to(sim, "Saving")


def requeueing() -> Sim:
    def is_silent(asked: qs.Question[Any], tell: Tell) -> None:
        tell(SILENT, is_last=False)

    sim = trained(2)
    sim.answer(qs.BeginRequeue, is_silent)
    sim.node_dies("n2")
    return comes_to(sim, "Requeueing")


def unreachable() -> Sim:
    sim = trained(3)
    sim.slurm_is_silent()
    sim.partition("n2", "n3", fabric=True)
    return comes_to(sim, "Unreachable")


def checkpointing() -> Sim:
    sim = running()
    sim.warn()
    return comes_to(sim, "Checkpointing")


def observing() -> Sim:
    sim = trained(2, 1, config=JobConfig(mode="observe"))
    sim.kill_rank(0)
    return comes_to(sim, "Observing")


def reconnecting() -> Sim:
    sim = running()
    sim.controller_dies()
    return comes_to(sim, "Reconnecting")


STAGES: dict[str, Callable[[], Sim]] = {
    "Running": running,
    "Localising": localising,
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
    sim = STAGES[stage]()
    assert sim.stage == stage
    sim.term()
    sim.run_until(lambda: bool(sim.events(ev.RunEnded)), within_s=KILL_WAIT_S - 4)
    (ended,) = sim.events(ev.RunEnded)
    assert (ended.code, ended.reason, ended.final) == (ExitCode.TERMINATED, ORDERED, False)
    status = status_at(JobView(events=sim.journal), sim.clock.now)
    assert (status.phase, status.reason, status.exit_code) == ("cancelled", ORDERED, 143)


def test_ctrl_c_while_slurm_is_asked_for_a_requeue_has_its_own_code() -> None:
    sim = requeueing()
    sim.order_to_end()
    assert sim.run_to_end(within_s=60.0) == ExitCode.INTERRUPTED


def test_a_job_that_was_ordered_to_end_may_be_started_again() -> None:
    sim = running()
    sim.term()
    sim.run_to_end(within_s=60.0)
    journal, wall = sim.journal, sim.clock.now
    assert check_history(fold(journal), journal, ("train.py",)) is None
    again = ev.ControllerStarted(t=wall, epoch=2, host="n1", pid=2, port=1)
    assert status_at(JobView(events=[*journal, again]), wall).phase == "starting"
    wall_ms = status_at(JobView(events=[*journal, again]), wall + 60).ledger.wall_ms
    assert wall_ms == pytest.approx(1000 * (wall + 60 - journal[0].t), abs=1)
