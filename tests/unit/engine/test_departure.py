"""Ends from outside: what memory has is saved in the time that Slurm leaves, and no node is blamed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.policy.leaving import ASKING_S, WORD_S, Sentence
from slurm_robust.report.job_view import JobView
from slurm_robust.report.status import Status, status_at
from slurm_robust.testing.sim.environment import Tell, always, never
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Flush, Save, Shutdown, Stay
from tests.unit.engine.stories import (
    PACE,
    controller_of,
    core_of,
    gets_on,
    notes,
    opened,
    questions,
    requeues,
    says,
    seconds_until,
    sent,
    trained,
    writes,
)

ORDERED = "ordered to end by SIGTERM"
FULL = "No space left on device"
QUICK = structs.replace(PACE, term_s=(0.05, 0.3), write_s=(0.2, 0.4), copy_s=(0.05, 0.1))
NODES = ("n1", "n2")
PREEMPTED = Sentence(running=True, preempted=True, left_s=60.0)


def job(said: Sentence | None = None, **more: Any) -> Sim:
    """A job of two nodes that has trained. Slurm says ``said`` of the end of its run, None: nothing yet."""
    sim = trained(2, **{"pace": QUICK} | more)
    sim.answer(qs.AskAboutRun, never if said is None else always(said))
    return sim


def unwritten(**more: Any) -> Sim:
    """A job whose nodes get nothing onto storage, and do not say so."""
    sim = job(**more)
    writes(sim, anything=False)
    return sim


def uncopied(**more: Any) -> tuple[Sim, int]:
    """A job that has just made a step of which no peer has a copy; the step."""
    sim = job(**more)
    sim.run(0.5)
    sim.env.pace = structs.replace(QUICK, copy_s=(60.0, 60.0))
    newest = sim.step + 1
    sim.run_until(lambda: sim.step == newest, within_s=5.0)
    return sim, newest


def asks(sim: Sim) -> int:
    """How often Slurm was asked about the run."""
    return len(questions(sim, qs.AskAboutRun))


def saved(sim: Sim) -> list[int]:
    """The steps that were put on storage as a whole."""
    return [event.step for event in sim.events(ev.StorageWritten)]


def saving(sim: Sim) -> int:
    """Time passes until the job saves; the step that goes to storage."""
    sim.run_until(lambda: sim.stage == "Saving" and bool(sim.events(ev.SavingStarted)), within_s=10.0)
    return sim.events(ev.SavingStarted)[-1].step


def seconds_to_end(sim: Sim) -> float:
    return seconds_until(sim, lambda: sim.code is not None)


def seconds_to_requeue(sim: Sim) -> float:
    return seconds_until(sim, lambda: bool(requeues(sim)))


def says_lost(sim: Sim, text: str) -> bool:
    return any(text in line for line in sim.said)


def ranks_of(sim: Sim, node: str) -> tuple[int, ...]:
    """The ranks whose parts ``node`` was told last to save."""
    return [m.ranks for to, m in sim.sent if to == node and isinstance(m, Save)][-1]


def status(sim: Sim) -> Status:
    return status_at(JobView(events=sim.journal), sim.clock.now)


def faults(sim: Sim) -> list[ev.AnyEvent]:
    return [e for e in sim.journal if isinstance(e, ev.IncidentOpened | ev.NodeEvicted | ev.Decided)]


# -- an order to end -------------------------------------------------------------------------------------


def test_an_order_to_end_saves_what_memory_has() -> None:
    sim = job()
    sim.term()
    assert sim.run_to_end(within_s=60.0) == ExitCode.TERMINATED
    assert saved(sim) == [sim.training.newest]
    assert opened(sim) == []
    kept = {message.keep_copies for _, message in sent(sim, Shutdown)}
    assert kept == {False}, "storage has it, so no copy stays behind"


def test_an_order_to_end_that_comes_again_and_again_is_one_order() -> None:
    """Slurm signals the controller, and the supervisor passes on what it got, however late."""
    sim = unwritten()
    sim.term()
    begun = sim.now
    sim.run(0.01)
    for _ in range(4):
        sim.run(2.0)
        sim.term()
    sim.run(0.01)
    first = controller_of(sim)
    departure = first.core.departure
    assert (sim.stage, departure.at_once) == ("Saving", False)
    left_s = departure.left_s(first.now())
    assert left_s == pytest.approx(25.0 - (sim.now - begun), abs=0.1), "the first one counts"
    sim.controller_dies()
    sim.run_until(lambda: sim.controller not in (None, first), within_s=5.0)
    sim.run(1.0)
    departure = controller_of(sim).core.departure
    assert not departure.at_once, "the next controller is given it, too"
    assert departure.left_s(controller_of(sim).now()) == pytest.approx(25.0 - (sim.now - begun), abs=0.1)
    writes(sim, anything=True)
    sim.run_to_end(within_s=60.0)
    assert saved(sim) == [sim.training.newest]


def test_a_second_order_to_end_without_a_first_one_is_ignored() -> None:
    sim = job()
    controller_of(sim).hurry()
    sim.run(1.0)
    sim.term()
    sim.run_to_end(within_s=60.0)
    assert saved(sim) == [sim.training.newest]


def test_an_order_to_end_by_a_requeue_is_reported_as_a_requeue() -> None:
    """Slurm sends the same signal as for a cancellation."""
    sim = trained(2, pace=QUICK)
    sim.slurm.requeue(sim.job_id)
    sim.term()
    sim.run_until(lambda: bool(sim.events(ev.RunEnded)), within_s=60.0)
    assert f"end, exit code 143: the job is requeued ({ORDERED})" in sim.said
    (ended,) = sim.events(ev.RunEnded)
    assert (ended.reason, ended.requeued) == (f"the job is requeued ({ORDERED})", True)
    sim.run_until(lambda: sim.runs == 2 and sim.step >= 20, within_s=400.0)


def test_a_requeue_of_which_slurm_tells_after_the_end_is_said() -> None:
    sim, tells = job(), list[Tell]()
    sim.answer(qs.AskAboutRun, lambda asked, tell: tells.append(tell))
    sim.term()
    sim.run(0.01)
    tells[0](Sentence(running=False), is_last=False)
    sim.run_until(lambda: sim.state.ended is not None, within_s=60.0)
    tells[0](Sentence(running=False, requeued=True, left_s=0.0))
    sim.run(0.01)
    assert "the job is requeued: it goes on in its next run" in sim.said


def test_a_cancellation_is_told_as_the_order_that_came() -> None:
    sim = trained(2, pace=QUICK)
    sim.cancel()
    assert seconds_to_end(sim) < 30.0
    assert "end, exit code 143: cancelled (scancel, or Slurm ended it)" in sim.said
    assert status(sim).phase == "cancelled"


@pytest.mark.parametrize(
    ("requeued", "reason", "phase"),
    [
        (True, "preempted by Slurm, which requeues the job", "requeued"),
        (False, "preempted by Slurm, which cancels the job", "preempted"),
    ],
)
def test_an_order_to_end_by_a_preemption_is_reported_as_a_preemption(
    requeued: bool, reason: str, phase: str
) -> None:
    """Slurm sends the signal of a cancellation. What it means may be known after all is saved."""
    sim, tells = job(), list[Tell]()
    sim.answer(qs.AskAboutRun, lambda asked, tell: tells.append(tell))
    sim.term()
    sim.run(0.01)
    tells[0](Sentence(running=False, requeued=requeued, certain=False), is_last=False)
    sim.run_until(lambda: bool(saved(sim)), within_s=WORD_S)
    sim.run(1.0)
    assert sim.events(ev.RunEnded) == [], "it is still being asked"
    tells[0](Sentence(running=False, requeued=requeued, preempted=True))
    assert sim.run_to_end(within_s=60.0) == ExitCode.TERMINATED
    (ended,) = sim.events(ev.RunEnded)
    assert (ended.reason, ended.preempted, ended.requeued) == (reason, True, requeued)
    assert (ended.final, requeues(sim)) == (False, [])
    assert f"end, exit code 143: {reason}" in sim.said
    assert (status(sim).phase, status(sim).reason) == (phase, reason)
    assert faults(sim) == []


def test_a_requeue_since_a_node_booted_says_so_instead_of_the_signal() -> None:
    sim = job(Sentence(running=False, requeued=True, node_fail=True))
    sim.term()
    assert sim.run_to_end(within_s=60.0) == ExitCode.TERMINATED
    (ended,) = sim.events(ev.RunEnded)
    assert ended.reason.startswith(
        "the job is requeued: Slurm gave up a node of it, or the node booted (NODE_FAIL)"
    )


def test_slurms_word_is_waited_for_within_bounds_and_never_before_all_is_saved() -> None:
    sim = job()
    begun = sim.now
    sim.term()
    sim.run_until(lambda: bool(saved(sim)), within_s=2.0)
    sim.run_until(lambda: bool(sim.events(ev.RunEnded)), within_s=60.0)
    assert WORD_S <= sim.now - begun < WORD_S + 2
    assert [event.reason for event in sim.events(ev.RunEnded)] == [ORDERED]
    sim = job(Sentence(running=False))
    begun = sim.now
    sim.term()
    sim.run_until(lambda: bool(sim.events(ev.RunEnded)), within_s=60.0)
    assert sim.now - begun < WORD_S, "Slurm has said it"
    assert status(sim).phase == "cancelled"


def test_a_next_controller_asks_what_an_order_to_end_means() -> None:
    sim = job()
    sim.term()
    sim.run(0.5)
    assert asks(sim) == 1
    sim.controller_dies()
    sim.run_until(lambda: asks(sim) == 2, within_s=2.0)
    core, now = core_of(sim)
    assert core.departure.meaning("", now).is_open


def test_a_warning_of_a_preemption_is_reported_as_a_preemption() -> None:
    """``send_user_signal``: Slurm sends the signal of ``--signal`` immediately."""
    sim = job(PREEMPTED)
    sim.warn()
    seconds_to_requeue(sim)
    assert [event.reason for event in sim.events(ev.RequeueStarted)] == [
        "preempted by Slurm, which ends it in 60 s"
    ]


def test_status_says_what_is_lost_while_the_job_saves() -> None:
    sim = unwritten()
    sim.term()
    step = saving(sim)
    assert (status(sim).phase, status(sim).exit_code) == ("saving", None)
    assert status(sim).reason == f"step {step} goes from memory to storage before the job leaves its nodes"


def test_kill_wait_bounds_the_time_for_saving() -> None:
    sim = unwritten(pace=structs.replace(QUICK, kill_wait_s=15.0))
    sim.term()
    assert 10 <= seconds_to_end(sim) <= 13
    (note,) = [text for text in notes(sim) if "only in memory" in text]
    newest = sim.training.newest
    assert f"storage has no step; steps 0 to {newest} are lost: n[1-2] did not write it" in note
    assert "(KillWait=15); fix: the administrator raises KillWait" in note


def test_no_time_is_left_for_saving_if_ranks_take_all_of_it_to_end() -> None:
    sim = job(pace=structs.replace(QUICK, kill_wait_s=5.0))
    sim.nodes["n2"].dying_s = 3.0
    sim.term()
    sim.run_to_end(within_s=60.0)
    assert [event.most_s for event in sim.events(ev.SavingStarted)] == [0.0]
    assert says_lost(sim, "it goes to storage first (within 0 s)")


def test_agents_that_say_why_they_cannot_write_are_not_waited_for() -> None:
    sim = job()
    for node in NODES:
        sim.nodes[node].refuses = FULL
    sim.term()
    assert seconds_to_end(sim) < 8
    newest = sim.training.newest
    (lost,) = [text for text in sim.said if f"steps 0 to {newest} are lost" in text]
    for node in NODES:
        assert f"{node}: gen-0001/step-{newest:08}: {FULL}" in lost


def test_parts_that_one_node_cannot_write_are_written_by_another_that_has_them() -> None:
    sim = job()
    sim.nodes["n1"].refuses = FULL
    sim.run(0.5)
    sim.term()
    sim.run_to_end(within_s=60.0)
    assert (saved(sim), ranks_of(sim, "n2")) == ([sim.training.newest], (0, 1))
    assert not says_lost(sim, "lost")


def test_what_could_not_be_written_for_an_earlier_order_may_be_written_now() -> None:
    """The storage was full for a moment, and the agents still say so when the next order comes."""
    sim = unwritten()
    sim.term()
    step = saving(sim)
    for node in NODES:
        text = f"gen-0001/step-{step:08}: {FULL}"
        says(sim, node, unsaved=text, save_begun=sim.clock.now - 60)
    assert sim.stage == "Saving"
    writes(sim, anything=True)
    sim.run_to_end(within_s=60.0)
    assert (saved(sim), [event.step for event in sim.events(ev.SavingStarted)]) == ([step], [step])
    assert not says_lost(sim, "lost")


def test_what_agents_of_an_earlier_release_say_they_saved_is_believed() -> None:
    """They say neither which order they have carried out nor for which ranks."""
    sim = unwritten()
    sim.term()
    step = saving(sim)
    assert saved(sim) == []
    for node in NODES:
        says(sim, node, saved=CheckpointId(step=step, generation=1), saved_ranks=(), save_begun=0.0)
    assert saved(sim) == [step]
    assert seconds_to_end(sim) < 8
    assert not says_lost(sim, "lost")


def test_a_part_that_only_one_node_has_and_cannot_write_makes_way_for_the_step_before() -> None:
    """Only n1 has rank 0's part of the newest step, and cannot write that."""
    sim, newest = uncopied()
    sim.nodes["n1"].unwritable.add(newest)
    sim.term()
    assert sim.run_to_end(within_s=60.0) == ExitCode.TERMINATED
    before = newest - 1
    assert saved(sim) == [before]
    assert [event.step for event in sim.events(ev.SavingStarted)] == [newest, before]
    first, second = f"gen-0001/step-{newest:08}", f"gen-0001/step-{before:08}"
    assert says_lost(sim, f"{second} goes there instead")
    lost = f"{first} was only in memory: storage has step {before}; step {newest} is lost: n1: gen-0001/step"
    (text,) = [text for text in sim.said if lost in text]
    assert f"{FULL}; fix: see to these nodes, or lower checkpoint.every_s" in text
    assert says_lost(sim, f"{second} was only in memory; it is on storage now")


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_node_that_falls_silent_while_it_writes_is_not_waited_for(is_copied: bool) -> None:
    """Its peer has the same parts, if not of the newest step, then of the one before."""
    sim, newest = uncopied() if not is_copied else (job(), 10)
    if is_copied:
        sim.run(0.5)
    writes(sim, anything=False)
    sim.term()
    assert saving(sim) == newest
    writes(sim, anything=True)
    sim.node_dies("n2")
    assert seconds_to_end(sim) < 12
    assert (saved(sim), ranks_of(sim, "n1")) == ([newest if is_copied else newest - 1], (0, 1))
    assert says_lost(sim, f"step {newest} is lost: n2 did not write it to storage") is not is_copied


def test_saving_the_step_before_has_no_time_of_its_own() -> None:
    sim, newest = uncopied()
    sim.nodes["n1"].unwritable.add(newest)
    writes(sim, "n2", anything=False)
    sim.term()
    assert 25 <= seconds_to_end(sim) <= 28
    assert says_lost(sim, f"steps 0 to {newest} are lost: n2 did not write it to storage; n1: gen-")


def test_a_requeue_asks_for_the_nodes_that_have_what_storage_did_not_get() -> None:
    sim, newest = uncopied()
    sim.answer(qs.AskAboutRun, always(None))
    sim.nodes["n1"].unwritable.add(newest)
    sim.term_agents()
    seconds_to_requeue(sim)
    assert [event.holders for event in sim.events(ev.RequeueStarted)] == [NODES]
    assert saved(sim) == [newest - 1]
    assert not [m for _, m in sent(sim, Shutdown) if not m.keep_copies], "they have the newest"


def test_a_second_order_to_end_ends_the_job_immediately() -> None:
    sim = unwritten()
    sim.order_to_end()
    saving(sim)
    sim.order_to_end()
    assert seconds_to_end(sim) <= 2
    assert says_lost(sim, f"steps 0 to {sim.training.newest} are lost: a second order to end came")


def test_a_second_order_while_ranks_are_being_stopped_names_what_is_lost() -> None:
    sim = job()
    for rank in (0, 1):
        sim.hang_rank(rank, unkillable=True)
    sim.order_to_end()
    sim.run(1.0)
    assert sim.stage == "Stopping"
    sim.order_to_end()
    assert seconds_to_end(sim) < 5
    assert says_lost(sim, f"steps 0 to {sim.training.newest} are lost: a second order to end came")


def test_what_is_lost_with_agents_that_ended_just_before_an_order_to_end_is_named() -> None:
    """As where srun ends the step of all agents, and the owner cancels the job in that second."""
    sim = job()
    sim.run(1.0)
    for node in NODES:
        sim.agent_dies(node, told=False)
    sim.term()
    sim.run_to_end(within_s=60.0)
    assert saved(sim) == []
    (told,) = [text for text in sim.said if "are lost" in text]
    lost = f"steps 0 to {sim.training.newest} are lost: n[1-2] do not answer"
    assert told.startswith(f"nothing more is saved: storage has no step; {lost}")
    assert [text for text in notes(sim) if "are lost" in text] == [told]


def test_storage_that_does_not_answer_is_not_taken_for_one_that_has_all() -> None:
    sim = job()
    sim.answer(qs.FindCheckpoint, never)
    sim.term()
    sim.run(0.5)
    for node in NODES:
        sim.agent_dies(node, told=False)
    sim.run_to_end(within_s=60.0)
    assert says_lost(sim, f"steps 0 to {sim.training.newest} are lost")


def test_agents_are_told_to_stay_until_all_is_saved() -> None:
    sim = unwritten()
    sim.term()
    sim.run(5.0)
    stays = [node for node, message in sent(sim, Stay)]
    assert stays.count("n1") >= 4
    assert stays.count("n2") >= 4


def test_the_shared_part_is_written_by_a_node_that_has_it_with_rank_0() -> None:
    sim = job(shared=True)
    sim.run(0.5)
    sim.nodes["n1"].lose(SHARED, sim.step)
    sim.term()
    sim.run_to_end(within_s=60.0)
    assert (saved(sim), ranks_of(sim, "n2")) == ([sim.training.newest], (0, 1))


@pytest.mark.parametrize("does_write", [True, False])
def test_a_training_that_ends_well_saves_its_last_step_and_ends_well_without_storage(
    does_write: bool,
) -> None:
    sim = job(steps=12)
    writes(sim, anything=does_write)
    assert sim.run_to_end(within_s=180.0) == 0
    assert saved(sim) == ([11] if does_write else [])
    assert sim.state.world.sealed == {1: 11}
    assert says_lost(sim, "steps 0 to 11 are lost") is not does_write


# -- signals to the agents alone -------------------------------------------------------------------------


def test_a_preemption_with_grace_is_no_fault() -> None:
    sim = job(PREEMPTED)
    sim.term_agents()
    seconds_to_requeue(sim)
    assert [event.reason for event in sim.events(ev.RequeueStarted)] == [
        "preempted by Slurm, which ends it in 60 s"
    ]
    assert (asks(sim), requeues(sim), faults(sim)) == (1, [()], [])
    assert saved(sim) == [sim.training.newest]


def test_a_preemption_of_which_slurm_tells_late_still_saves() -> None:
    """slurmctld may need longer than the controller waits before it goes by what it sees."""
    sim, tells = job(), list[Tell]()
    sim.answer(qs.AskAboutRun, lambda asked, tell: tells.append(tell))
    sim.hang_rank(0, unkillable=True)
    sim.term_agents("n1")
    sim.run(ASKING_S + 2.0)
    core, _ = core_of(sim)
    assert (core.ending, sim.stage) == (None, "Running")
    tells[0](Sentence(running=True, preempted=True, left_s=45.0))
    sim.run(0.01)
    assert core.ending == "preempted by Slurm, which ends it in 45 s"
    sim.resume_rank(0)
    sim.kill_rank(0)
    seconds_to_requeue(sim)
    assert saved(sim) == [sim.training.newest]


def test_no_incident_is_opened_while_slurm_is_asked_why_an_agent_got_term() -> None:
    sim = job()
    sim.term_agents("n2")
    sim.run(5.0)
    assert (opened(sim), sim.stage, sorted(sim.ranks)) == ([], "Running", [0])


def test_an_agents_step_that_is_cancelled_is_started_again() -> None:
    sim = job(Sentence(running=True, left_s=36000.0))
    sim.term_agents()
    gets_on(sim, 3)
    assert len(opened(sim)) == 1
    assert (requeues(sim), controller_of(sim).core.ending) == ([], None)


def test_slurm_that_does_not_say_why_has_the_job_saved_and_requeued() -> None:
    sim = job()
    sim.answer(qs.AskAboutRun, always(None))
    sim.term_agents()
    seconds_to_requeue(sim)
    assert saved(sim) == [sim.training.newest]


def test_a_rank_that_term_ends_first_waits_for_the_news_of_its_agent() -> None:
    sim = job(Sentence(running=True, preempted=True, left_s=30.0))
    sim.kill_rank(1, signal=15)
    sim.run(0.5)
    assert opened(sim) == []
    sim.term_agents()
    seconds_to_requeue(sim)
    assert opened(sim) == []


def test_a_rank_that_somebody_kills_with_term_is_a_fault_all_the_same() -> None:
    sim = job()
    sim.kill_rank(1, signal=15)
    sim.run_until(lambda: bool(opened(sim)), within_s=5.0)


def test_a_warning_to_the_steps_counts_as_one_to_the_script() -> None:
    sim = job()
    for node in NODES:
        agent = sim.nodes[node].agent
        assert agent is not None
        agent.warn()
    seconds_to_requeue(sim)
    assert [event.reason for event in sim.events(ev.RequeueStarted)] == [
        "the end of this run is near (USR1 to its steps)"
    ]


def test_storage_gets_as_long_as_slurm_says_that_the_run_has() -> None:
    sim = unwritten(said=PREEMPTED)
    sim.term_agents()
    assert 40 <= seconds_to_requeue(sim) <= 50, "fifteen seconds are kept for the requeue"
    assert says_lost(sim, "unless the next run gets the same nodes")


def test_steps_on_storage_are_not_reported_as_lost() -> None:
    sim = job(config=JobConfig(checkpoint=CheckpointConfig(every_s=10.0)))
    stored = max(ref.step for ref in sim.storage.complete())
    writes(sim, anything=False)
    sim.run(4.0)
    sim.term()
    sim.run_to_end(within_s=60.0)
    newest = sim.training.newest
    assert says_lost(sim, f"storage has step {stored}; steps {stored + 1} to {newest} are lost")
    assert [event.step for event in sim.events(ev.SavingStarted)] == [newest]


# -- a warning -------------------------------------------------------------------------------------------


def test_a_warning_puts_the_newest_step_on_storage_while_no_rank_gets_on() -> None:
    sim = job(Sentence(running=True, left_s=60.0))
    sim.hang_rank(0)
    newest = sim.step
    sim.warn()
    begun = sim.now
    sim.run_until(lambda: bool(saved(sim)), within_s=6.0)
    seconds_to_requeue(sim)
    assert 20 <= sim.now - begun <= 30, "half of what is left after the requeue's share is for a newer step"
    assert saved(sim) == [newest]


def test_a_warning_asks_a_training_that_gets_on_for_a_newer_step_only() -> None:
    sim = job(Sentence(running=True, left_s=60.0))
    sim.warn()
    seconds_to_requeue(sim)
    (asked,) = sim.events(ev.CheckpointRequested)
    assert asked.step > 10
    assert CheckpointId(step=asked.step, generation=1) in sim.storage.complete()
    assert not [message for _, message in sent(sim, Flush)]
