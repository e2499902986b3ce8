"""Ends from outside: what memory has is saved in the time that Slurm leaves, and nobody is blamed."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.engine import questions as qs
from slurm_robust.engine.units.departure import Departure
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerExit
from slurm_robust.policy.leaving import ASKING_S, WORD_S, Sentence
from slurm_robust.report.job_view import JobView
from slurm_robust.report.status import status_at
from slurm_robust.wire.messages import Phase, Stay
from tests.unit.engine.fake_job import Job

ORDERED = "ordered to end by SIGTERM"


def trained(**fields: Any) -> Job:
    job = Job(memory=True, spares=(), **fields)
    for step in range(5):
        job.train_to(step)
    return job


def leave(job: Job) -> Job:
    job.act(job.core.on_leave(ORDERED, job.now()))
    return job


def term_agents(job: Job, *nodes: str) -> None:
    """Slurm tells agents and ranks to end; the controller is told nothing."""
    for node in nodes or job.core.world.slots:
        killed = tuple(WorkerExit(rank=p.rank, signal=15) for p in job.heartbeats[node].progress)
        job.change(node, termed=True, phase=Phase.ENDED, exits=killed)


def questions(job: Job) -> int:
    """How often Slurm was asked why; the fake job answers nothing by itself."""
    return job.run_questions


def answer(job: Job, said: Sentence | None) -> None:
    job.reply(qs.AskAboutRun, said)


# -- an order to end -------------------------------------------------------------------------------------


def test_what_memory_has_is_saved_before_the_end() -> None:
    job = leave(trained())
    job.until(lambda: job.code is not None)
    (written,) = job.events(ev.StorageWritten)
    assert (written.step, job.code) == (4, ExitCode.TERMINATED)
    assert not job.events(ev.IncidentOpened)
    assert set(job.kept.values()) == {False}, "storage has it, so no copy stays behind"


def test_however_often_an_order_comes_it_is_one() -> None:
    """Slurm signals the controller, and the supervisor passes on what it got, however late."""
    job = trained()
    job.writes = False
    leave(job)
    begun, left_s = job.mono, job.core.departure.left_s(job.now())
    for _ in range(4):
        job.pass_time(2.0)
        leave(job)
    assert (job.stage, job.core.departure.at_once) == ("Saving", False)
    assert job.core.departure.left_s(job.now()) == left_s - (job.mono - begun), "the first one counts"
    later = Departure(job.core, lambda reason, now: None, job.now())
    later.order(job.now())
    assert not later.at_once, "the next controller is given it, too"
    job.writes = True
    job.until(lambda: job.code is not None)
    assert job.events(ev.StorageWritten)


def test_a_second_order_without_a_first_one_is_nobodys() -> None:
    job = trained()
    job.act(job.core.on_second_order(job.now()))
    leave(job)
    job.until(lambda: job.code is not None)
    assert job.events(ev.StorageWritten)


def test_a_requeue_by_somebody_else_is_told_as_one() -> None:
    """Slurm sends the same signal as for a cancellation."""
    job = trained()
    job.writes = False
    leave(job)
    assert questions(job) == 1
    answer(job, Sentence(running=False, requeued=True, left_s=0.0))
    job.until(lambda: job.code is not None)
    assert job.code == ExitCode.TERMINATED
    assert f"end, exit code 143: the job is requeued ({ORDERED})" in job.said
    (ended,) = job.events(ev.RunEnded)
    assert ended.reason == f"the job is requeued ({ORDERED})"
    late = leave(trained())
    late.until(lambda: late.core.state.ended is not None)
    answer(late, Sentence(running=False, requeued=True, left_s=0.0))
    assert "the job is requeued: it goes on in its next run" in late.said
    cancelled = leave(trained())
    answer(cancelled, Sentence(running=False, left_s=0.0))
    cancelled.until(lambda: cancelled.code is not None)
    assert f"end, exit code 143: {ORDERED}" in cancelled.said


@pytest.mark.parametrize(
    ("requeued", "reason", "phase"),
    [
        (True, "preempted by Slurm, which requeues the job", "requeued"),
        (False, "preempted by Slurm, which cancels the job", "preempted"),
    ],
)
def test_a_preemption_is_told_as_one(requeued: bool, reason: str, phase: str) -> None:
    """Slurm sends the signal of a cancellation. What it means may be known after all is saved."""
    job = leave(trained())
    answer(job, Sentence(running=False, requeued=requeued, certain=False))
    job.until(lambda: bool(job.events(ev.StorageWritten)))
    job.pass_time(1.0, tick=0.1)
    assert not job.events(ev.RunEnded), "it is still being asked"
    answer(job, Sentence(running=False, requeued=requeued, preempted=True))
    job.until(lambda: job.code is not None)
    (ended,) = job.events(ev.RunEnded)
    assert (ended.reason, ended.preempted, ended.requeued) == (reason, True, requeued)
    assert (ended.final, job.code, job.requeued) == (False, ExitCode.TERMINATED, [])
    assert f"end, exit code 143: {reason}" in job.said
    status = status_at(JobView(events=job.journal), job.wall)
    assert (status.phase, status.reason) == (phase, reason)
    assert not [e for e in job.journal if isinstance(e, ev.IncidentOpened | ev.NodeEvicted | ev.Decided)]


def test_slurms_word_is_waited_for_within_bounds_and_never_before_all_is_saved() -> None:
    job = trained()
    begun = job.mono
    leave(job)
    job.until(lambda: bool(job.events(ev.StorageWritten)))
    assert job.mono - begun < 1.5
    job.until(lambda: job.code is not None)
    assert WORD_S <= job.mono - begun < WORD_S + 2
    (ended,) = job.events(ev.RunEnded)
    assert ended.reason == ORDERED
    cancelled = leave(trained())
    begun = cancelled.mono
    answer(cancelled, Sentence(running=False))
    cancelled.until(lambda: cancelled.code is not None)
    assert cancelled.mono - begun < WORD_S, "Slurm has said it"
    assert status_at(JobView(events=cancelled.journal), cancelled.wall).phase == "cancelled"


def test_a_next_controller_asks_what_the_order_means() -> None:
    job = leave(trained())
    later = Departure(job.core, lambda reason, now: None, job.now())
    asked = questions(job)
    later.order(job.now())
    job.act(job.core.on_tick(job.now()))
    assert questions(job) == asked + 1
    assert later.meaning("", job.now()).is_open


def test_a_warning_of_a_preemption_is_told_as_one() -> None:
    """``send_user_signal``: Slurm sends the signal of ``--signal`` at once."""
    job = trained()
    job.act(job.core.on_end_approaching("the end of this run is near (USR1)", job.now()))
    answer(job, Sentence(running=True, preempted=True, left_s=60.0))
    job.until(lambda: bool(job.requeued))
    (started,) = job.events(ev.RequeueStarted)
    assert started.reason == "preempted by Slurm, which ends it in 60 s"


def test_status_says_what_is_lost_while_the_job_saves() -> None:
    job = trained()
    job.writes = False
    leave(job)
    job.until(lambda: job.stage == "Saving")
    status = status_at(JobView(events=job.journal), job.wall)
    assert (status.phase, status.exit_code) == ("saving", None)
    assert status.reason == "step 4 goes from memory to storage before the job leaves its nodes"


def test_slurms_kill_wait_is_the_bound() -> None:
    job = trained()
    job.writes = False
    job.reply(qs.FindKillWait, 15.0)
    begun = job.mono
    leave(job)
    job.until(lambda: job.code is not None)
    assert 10 <= job.mono - begun <= 12
    (note,) = [e.text for e in job.events(ev.Noted) if "only in memory" in e.text]
    assert "storage has no step; steps 0 to 4 are lost: n[1-2] did not write it" in note
    assert "(KillWait=15); fix: the administrator raises KillWait" in note


def refuse(job: Job, node: str, *steps: int) -> None:
    """``node`` cannot put these steps of its generation on storage."""
    job.refuses |= {(node, CheckpointId(step=step, generation=1)) for step in steps}


def test_agents_that_say_why_they_cannot_write_are_not_waited_for() -> None:
    job = trained()
    for node in ("n1", "n2"):
        refuse(job, node, *range(5))
    begun = job.mono
    leave(job)
    job.until(lambda: job.code is not None)
    assert job.mono - begun < 8
    (lost,) = [text for text in job.said if "steps 0 to 4 are lost" in text]
    for node in ("n1", "n2"):
        assert f"{node}: gen-0001/step-00000004: No space left on device" in lost


def test_what_one_node_refuses_another_one_writes_that_has_the_same_parts() -> None:
    job = trained()
    refuse(job, "n1", *range(5))
    leave(job)
    job.until(lambda: job.code is not None)
    (written,) = job.events(ev.StorageWritten)
    assert (written.step, job.saves["n2"].ranks) == (4, (0, 1))
    assert not any("lost" in text for text in job.said)


def test_what_could_not_be_written_for_an_earlier_order_may_be_written_now() -> None:
    """The storage was full for a moment, and the agents still say so when the next order comes."""
    job = trained()
    for node in ("n1", "n2"):
        job.change(node, unsaved="gen-0001/step-00000004: No space left on device", save_begun=job.wall - 60)
    job.writes = False
    leave(job)
    job.pass_time(3)
    job.writes = True
    job.until(lambda: job.code is not None)
    assert [e.step for e in job.events(ev.StorageWritten)] == [4]
    assert not any("lost" in text for text in job.said)


def test_agents_of_an_earlier_release_are_believed() -> None:
    """They say neither which order they have carried out nor for which ranks."""
    job = trained()
    job.names_order = False
    begun = job.mono
    leave(job)
    job.until(lambda: job.code is not None)
    assert [e.step for e in job.events(ev.StorageWritten)] == [4]
    assert job.mono - begun < 8
    assert not any("lost" in text for text in job.said)


def test_what_nobody_else_has_makes_way_for_the_step_before() -> None:
    """Only n1 has rank 0's part of the newest step, and cannot write that."""
    job = trained()
    job.snapshot(5, peers=False)
    refuse(job, "n1", 5)
    leave(job)
    job.until(lambda: job.code is not None)
    (written,) = job.events(ev.StorageWritten)
    assert (written.step, job.code) == (4, ExitCode.TERMINATED)
    assert [e.step for e in job.events(ev.SavingStarted)] == [5, 4]
    assert any("gen-0001/step-00000004 goes there instead" in text for text in job.said)
    lost = "gen-0001/step-00000005 was only in memory: storage has step 4; step 5 is lost: n1: gen-0001/step"
    (text,) = [text for text in job.said if lost in text]
    assert "No space left on device; fix: see to these nodes, or lower checkpoint.every_s" in text
    assert any("gen-0001/step-00000004 was only in memory; it is on storage now" in text for text in job.said)


@pytest.mark.parametrize("peers", [True, False])
def test_a_node_that_falls_silent_while_it_writes_is_not_waited_for(peers: bool) -> None:
    """Its peer has the same parts, if not of the newest step, then of the one before."""
    job = trained()
    job.snapshot(5, peers=peers)
    job.writes = False
    leave(job)
    job.until(lambda: job.stage == "Saving")
    job.writes = True
    job.power_cut("n1")
    begun = job.mono
    job.until(lambda: job.code is not None)
    assert job.mono - begun < 10
    (written,) = job.events(ev.StorageWritten)
    assert (written.step, job.saves["n2"].ranks) == (5 if peers else 4, (0, 1))
    is_said = any("step 5 is lost: n1 did not write it to storage" in text for text in job.said)
    assert is_said is not peers


def test_the_step_before_has_no_time_of_its_own() -> None:
    job = trained()
    job.snapshot(5, peers=False)
    refuse(job, "n1", 5)
    job.writes = False
    begun = job.mono
    leave(job)
    job.until(lambda: job.code is not None)
    assert 25 <= job.mono - begun <= 27
    assert any("steps 0 to 5 are lost: n2 did not write it to storage; n1: gen-" in t for t in job.said)


def test_a_requeue_asks_for_the_nodes_that_have_what_storage_did_not_get() -> None:
    job = trained()
    job.snapshot(5, peers=False)
    refuse(job, "n1", 5)
    term_agents(job)
    answer(job, None)
    job.until(lambda: bool(job.requeued))
    (asked,) = job.events(ev.RequeueStarted)
    assert asked.holders == ("n1", "n2")
    assert [e.step for e in job.events(ev.StorageWritten)] == [4]
    assert not job.kept, "agents keep their copies: they have step 5"


def test_a_second_order_ends_at_once() -> None:
    job = trained()
    job.writes = False
    leave(job)
    job.until(lambda: job.stage == "Saving")
    begun = job.mono
    job.act(job.core.on_second_order(job.now()))
    job.until(lambda: job.code is not None)
    assert job.mono - begun <= 2
    assert any("steps 0 to 4 are lost: a second order to end came" in text for text in job.said)


def test_a_second_order_while_ranks_are_being_stopped_names_what_is_lost() -> None:
    job = trained()
    job.stubborn.update(job.core.world.slots)
    leave(job)
    assert job.stage == "Stopping"
    job.act(job.core.on_second_order(job.now()))
    job.until(lambda: job.code is not None)
    assert any("steps 0 to 4 are lost: a second order to end came" in text for text in job.said)


def test_agents_that_ended_just_before_an_order_are_not_passed_over_in_silence() -> None:
    """As where srun ends the step of all agents, and the owner cancels the job in that second."""
    job = trained()
    for node in ("n1", "n2"):
        job.cut.add(node)
    leave(job)
    job.until(lambda: job.code is not None)
    assert not job.events(ev.StorageWritten)
    (told,) = [text for text in job.said if "are lost" in text]
    assert told.startswith("nothing more is saved: storage has no step; steps 0 to 4 are lost: n[1-2] do not")
    assert [e.text for e in job.events(ev.Noted) if "are lost" in e.text] == [told]


def test_a_storage_that_lists_nothing_is_not_taken_for_one_that_has_all() -> None:
    job = trained()
    job.hears_storage = False
    leave(job)
    job.pass_time(4.0)
    for node in ("n1", "n2"):
        job.cut.add(node)
    job.pass_time(4.0)
    job.until(lambda: job.code is not None)
    assert any("steps 0 to 4 are lost" in text for text in job.said)


def test_agents_are_told_to_stay_until_all_is_saved() -> None:
    job = trained()
    job.writes = False
    leave(job)
    job.pass_time(5.0)
    stays = [node for node, message in job.sent if isinstance(message, Stay)]
    assert stays.count("n1") >= 4
    assert stays.count("n2") >= 4


def test_the_shared_part_is_written_by_a_node_that_has_it_with_rank_0() -> None:
    job = trained(shared=True)
    job.snapshot(4)
    without = tuple(c for c in job.heartbeats["n1"].copies if c.rank != SHARED or c.step != 4)
    job.change("n1", copies=without)
    leave(job)
    job.until(lambda: job.code is not None)
    assert job.saves["n2"].ranks == (0, 1)


def test_a_training_that_ends_well_saves_its_last_step() -> None:
    job = trained()
    job.finish()
    job.until(lambda: job.code is not None)
    assert job.code == 0
    (written,) = job.events(ev.StorageWritten)
    assert written.step == 4
    assert job.core.world.sealed == {1: 4}


def test_a_training_that_ends_well_ends_well_without_storage() -> None:
    job = trained()
    job.writes = False
    job.finish()
    job.until(lambda: job.code is not None, limit=120)
    assert job.code == 0
    assert any("steps 0 to 4 are lost" in text for text in job.said)


# -- signals to the agents alone -------------------------------------------------------------------------


def test_a_preemption_with_grace_is_no_fault() -> None:
    job = trained()
    term_agents(job)
    assert questions(job) == 1
    answer(job, Sentence(running=True, preempted=True, left_s=60.0))
    job.until(lambda: bool(job.requeued))
    (started,) = job.events(ev.RequeueStarted)
    assert started.reason == "preempted by Slurm, which ends it in 60 s"
    assert job.requeued == [()]
    assert not [e for e in job.journal if isinstance(e, ev.IncidentOpened | ev.NodeEvicted | ev.Decided)]
    (written,) = job.events(ev.StorageWritten)
    assert written.step == 4


def test_a_preemption_of_which_slurm_tells_late_still_saves() -> None:
    """slurmctld may need longer than the controller waits before it goes by what it sees."""
    job = trained()
    job.change("n1", termed=True)
    job.pass_time(ASKING_S + 2.0)
    assert job.core.ending is None
    answer(job, Sentence(running=True, preempted=True, left_s=45.0))
    assert job.core.ending == "preempted by Slurm, which ends it in 45 s"
    job.until(lambda: bool(job.requeued))
    (written,) = job.events(ev.StorageWritten)
    assert written.step == 4


def test_while_slurm_is_asked_nobody_is_blamed() -> None:
    job = trained()
    term_agents(job, "n2")
    job.pass_time(5.0)
    assert not job.events(ev.IncidentOpened)
    assert job.stage == "Running"


def test_a_step_that_somebody_cancels_is_started_again() -> None:
    job = trained()
    term_agents(job)
    answer(job, Sentence(running=True, left_s=36000.0))
    job.until(lambda: bool(job.events(ev.IncidentOpened)))
    assert not job.requeued
    assert not job.core.ending


def test_slurm_that_does_not_say_why_has_the_job_saved_and_requeued() -> None:
    job = trained()
    term_agents(job)
    answer(job, None)
    job.until(lambda: bool(job.requeued))
    assert job.events(ev.StorageWritten)


def test_a_rank_that_term_ends_first_waits_for_the_news_of_its_agent() -> None:
    job = trained()
    job.kill_rank(1, signal=15)
    job.pass_time(0.5, tick=0.1)
    assert not job.events(ev.IncidentOpened)
    term_agents(job)
    answer(job, Sentence(running=True, preempted=True, left_s=30.0))
    job.until(lambda: bool(job.requeued))
    assert not job.events(ev.IncidentOpened)


def test_a_rank_that_somebody_kills_with_term_is_a_fault_all_the_same() -> None:
    job = trained()
    job.kill_rank(1, signal=15)
    job.until(lambda: bool(job.events(ev.IncidentOpened)), limit=5)


def test_a_warning_to_the_steps_counts_as_one_to_the_script() -> None:
    job = trained()
    job.change("n1", warned=True)
    job.change("n2", warned=True)
    job.until(lambda: bool(job.requeued), limit=120)
    assert [e.reason for e in job.events(ev.RequeueStarted)] == [
        "the end of this run is near (USR1 to its steps)"
    ]


def test_storage_gets_as_long_as_slurm_says_that_the_run_has() -> None:
    job = trained()
    job.writes = False
    term_agents(job)
    begun = job.mono
    answer(job, Sentence(running=True, preempted=True, left_s=60.0))
    job.until(lambda: bool(job.requeued), limit=120)
    assert 40 <= job.mono - begun <= 50, "fifteen seconds are kept for the requeue"
    assert any("unless the next run gets the same nodes" in text for text in job.said)


def test_what_storage_has_counts_as_stored() -> None:
    job = trained(storage=(CheckpointId(step=2, generation=1),))
    job.writes = False
    leave(job)
    job.until(lambda: job.code is not None)
    assert any("storage has step 2; steps 3 to 4 are lost" in text for text in job.said)
    assert [e.step for e in job.events(ev.SavingStarted)] == [4]


# -- a warning -------------------------------------------------------------------------------------------


def warned(job: Job, left_s: float) -> None:
    job.act(job.core.on_end_approaching("the end of this run is near (USR1)", job.now()))
    answer(job, Sentence(running=True, left_s=left_s))


def test_what_is_there_goes_to_storage_while_no_rank_gets_on() -> None:
    job = trained()
    warned(job, 60.0)
    begun = job.mono
    job.until(lambda: job.flush_step == 4, limit=5)
    for node in job.core.world.slots:
        job.change(node, flushed=4)
    assert [e.step for e in job.events(ev.StorageWritten)] == [4]
    job.until(lambda: bool(job.requeued))
    assert 20 <= job.mono - begun <= 30, "half of what is left after the requeue's share is for a newer step"
    assert [e.step for e in job.events(ev.StorageWritten)] == [4]


def test_a_training_that_gets_on_is_asked_for_a_newer_step_only() -> None:
    job = trained()
    warned(job, 60.0)
    for step in range(5, 10):
        job.train_to(step)
        job.pass_time(1.0)
    assert job.flush_step == -1
    assert job.events(ev.CheckpointRequested)
