"""The life of jobs, driven through the core by scripted agents: no thread, socket, file or sleep."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import JobConfig, Limits
from slurm_robust.engine import questions as qs
from slurm_robust.engine.effects import Send
from slurm_robust.engine.transitions import ToGathering, ToReconnecting
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import Symptom
from slurm_robust.model.journal import fold
from slurm_robust.wire.messages import Ack, Launch, Pulse
from tests.unit.engine.fake_job import Job

BUG = WorkerError(type="ValueError", message="bad shape", file="train.py", line=12, traceback="boom")


def test_ranks_are_numbered_slot_by_slot_and_share_one_rendezvous() -> None:
    job = Job()
    launches = {node: m for node, m in job.sent if isinstance(m, Launch)}
    assert [(n, m.ranks, m.slot) for n, m in launches.items()] == [("n1", (0,), 0), ("n2", (1,), 1)]
    assert {(m.master_addr, m.master_port) for m in launches.values()} == {("10.0.0.1", 4000)}


def test_a_killed_rank_restarts_in_place_from_the_newest_sealed_checkpoint() -> None:
    job = Job()
    job.train_to(7)
    job.checkpoints[1] = 6
    job.kill_rank(1)
    assert job.stage == "Running"
    assert job.core.world.generation == 2
    launched = job.events(ev.GenerationLaunched)[-1]
    assert (launched.slots, launched.restore, launched.restore_step) == (
        ("n1", "n2"), CheckpointId(generation=1, step=6), 6,
    )  # fmt: skip
    job.pass_time(1.0)
    job.train_to(7)
    assert job.core.world.incident is not None  # step 7 is repeated, not new
    job.pass_time(1.0)
    job.train_to(8)
    (closed,) = job.events(ev.IncidentClosed)
    assert (closed.step, closed.recover_s) == (8, pytest.approx(2.0))


def test_a_dead_node_is_replaced_by_the_spare_after_five_seconds() -> None:
    job = Job()
    job.train_to(3)
    job.power_cut("n2")
    job.pass_time(4.5)
    assert job.core.world.incident is None
    job.until(lambda: job.core.world.generation == 2)
    (opened,) = job.events(ev.IncidentOpened)
    assert opened.symptom is Symptom.NODE_LOST
    assert 5.0 < opened.detect_s < 6.0
    assert job.core.world.slots == ("n1", "n3")
    assert job.core.state.spares == ()
    assert "n2" in job.core.state.evicted
    job.train_to(4)
    assert job.core.world.incident is None


def test_a_job_that_was_suspended_says_how_long() -> None:
    job = Job()
    job.train_to(3)
    job.core.on_stall(2.0, job.now())
    before = len(job.said)
    job.core.on_stall(30.0, job.now())
    job.pass_time(1)
    assert len(job.said) == before + 1
    assert "stood still for 30 s: the job was suspended (scontrol suspend)" in job.said[-1]
    noted = job.events(ev.Noted)[-1]
    assert (noted.text, noted.stood_still_s) == (job.said[-1], 30.0)


def test_ranks_that_break_because_a_node_died_do_not_hide_the_node() -> None:
    job = Job()
    job.train_to(3)
    job.power_cut("n2")
    job.pass_time(1.0)
    job.kill_rank(
        0, signal=None, code=1, error=WorkerError(type="RuntimeError", message="Connection closed by peer")
    )
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n3")
    (decided,) = job.events(ev.Decided)
    assert decided.verdict.suspects == ("n2",)


def test_the_requeued_run_continues_from_the_journal_and_avoids_evicted_nodes() -> None:
    job = Job(spares=())
    job.train_to(3)
    job.checkpoints[1] = 3
    job.power_cut("n2")
    job.until(lambda: bool(job.requeued))
    taken = ev.AllocationTaken(t=1.0, restart_count=1, nodes=("n1", "n4"), slots=("n1", "n4"), spares=())
    later = Job(
        history=(*job.journal, taken),
        first=ToGathering(start=True),
        storage=[CheckpointId(step=3, generation=1)],
    )
    assert later.core.world.generation == 2
    assert later.events(ev.GenerationLaunched)[-1].restore == CheckpointId(generation=1, step=3)
    later.wall = job.wall + 58.0
    later.train_to(4)
    assert later.core.world.incident is None
    (closed,), decided = later.events(ev.IncidentClosed), later.events(ev.Decided)[0]
    assert closed.recover_s == pytest.approx(later.wall - decided.t)
    assert closed.recover_s >= 58.0
    assert any("recover_s is by wall clocks" in e.text for e in later.events(ev.Noted))
    assert any(f"(recovery took {closed.recover_s:.2f} s)" in text for text in later.said)


def test_the_same_fault_without_a_new_step_is_answered_twice_and_no_more() -> None:
    job = Job()
    job.train_to(3)
    for generation in (2, 3):
        job.kill_rank(0)
        assert job.core.world.generation == generation
    job.kill_rank(0)
    job.pass_time(20)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert "without new progress" in job.core.state.ended.reason


def test_a_new_step_in_between_starts_the_count_again() -> None:
    job = Job()
    for step in range(1, 8):
        job.train_to(step)
        job.kill_rank(0)
    assert job.core.world.generation == 8


def test_the_bound_per_hour_holds_even_with_progress() -> None:
    config = JobConfig(limits=Limits(per_signature=2, per_hour=3, total=100))
    job = Job(config=config)
    for step in range(1, 5):
        job.train_to(step)
        job.kill_rank(0)
    job.pass_time(20)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert "limits.per_hour" in job.core.state.ended.reason


def test_a_user_exception_restarts_once_then_gives_up_with_its_place() -> None:
    job = Job()
    job.kill_rank(1, signal=None, code=1, error=BUG)
    assert job.core.world.generation == 2
    job.kill_rank(1, signal=None, code=1, error=BUG)
    job.pass_time(20)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert "ValueError at train.py:12" in job.core.state.ended.reason
    assert any("boom" in text for text in job.said)


def test_a_final_exit_code_is_the_jobs() -> None:
    job = Job()
    job.kill_rank(0, signal=None, code=2)
    job.pass_time(20)
    assert job.code == 2


def test_a_lost_spare_is_no_incident() -> None:
    job = Job()
    job.train_to(3)
    job.power_cut("n3")
    job.until(lambda: "n3" in job.core.state.aside, limit=120)
    assert job.core.world.generation == 1
    assert job.events(ev.IncidentOpened) == []


def test_all_agents_lost_at_once_evicts_nobody() -> None:
    job = Job()
    job.train_to(3)
    for node in ("n1", "n2", "n3"):
        job.heartbeats.pop(node)
    job.until(lambda: len(job.started) == 2, limit=30)
    assert job.core.state.evicted == {}
    assert job.core.world.generation == 2


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_clock_that_jumps_kills_nobody_and_falsifies_no_duration(jump: float) -> None:
    job = Job()
    job.train_to(3)
    job.pass_time(2, wall_jump=jump)
    assert job.events(ev.IncidentOpened) == []
    job.kill_rank(0)
    job.pass_time(3, wall_jump=-jump)
    job.train_to(4)
    (closed,) = job.events(ev.IncidentClosed)
    assert closed.recover_s == pytest.approx(3.0)


def test_before_the_end_a_checkpoint_is_taken_at_a_step_no_rank_has_reached() -> None:
    job = Job()
    for step in range(1, 5):
        job.train_to(step)
        job.pass_time(0.5)
    job.act(job.core.on_end_approaching("USR1", job.now()))
    for step in range(5, 9):
        job.pass_time(0.5)
        job.train_to(step)
    (asked,) = job.events(ev.CheckpointRequested)
    assert asked.step > 6
    job.checkpoints[1] = asked.step
    for node in ("n1", "n2"):
        progress = tuple(
            structs.replace(p, step=asked.step, checkpoint=asked.step) for p in job.heartbeats[node].progress
        )
        job.change(node, progress=progress)
    assert job.requeued == [()]
    assert job.core.world.attempts == ()  # no failure is counted
    assert not job.events(ev.RequeueStarted)[0].failure


def test_reports_that_come_together_do_not_put_that_step_far_away() -> None:
    """On a busy machine four steps of 0.3 s each are reported within a tenth of a second."""
    job = Job()
    job.train_to(32)
    job.act(job.core.on_end_approaching("USR1", job.now()))
    job.pass_time(0.1)
    for step in range(36, 41):
        job.train_to(step)
        job.pass_time(0.3)
    (asked,) = job.events(ev.CheckpointRequested)
    assert 40 < asked.step < 60


def test_a_script_without_checkpoints_is_requeued_at_once() -> None:
    job = Job(reported=False)
    job.train_to(5)
    job.act(job.core.on_end_approaching("USR1", job.now()))
    assert job.requeued == [()]


def test_a_new_controller_that_misses_a_node_replaces_it() -> None:
    job = Job()
    job.train_to(3)
    later = Job(history=tuple(job.journal), first=ToReconnecting())
    later.heartbeats = {n: b for n, b in job.heartbeats.items() if n != "n2"}
    later.dead.add("n2")
    for node in ("n1", "n3"):
        later.change(node)
    later.until(lambda: later.core.world.generation == 2)
    assert later.core.world.slots == ("n1", "n3")


def test_an_exit_while_no_controller_lived_is_seen_by_the_next() -> None:
    job = Job()
    job.train_to(3)
    later = Job(history=tuple(job.journal), first=ToReconnecting())
    later.heartbeats = dict(job.heartbeats)
    later.kill_rank(1)
    later.change("n1")
    assert later.core.world.generation == 2


def test_agents_that_refuse_on_more_nodes_than_spares_end_the_job_at_once() -> None:
    job = JobWithoutAgents(("n1", "n2", "n4"), ("n3",))
    for node in ("n2", "n4"):
        job.core.on_refusal(node, "job directory /x is not there")
    job.pass_time(0.5)
    job.pass_time(15)
    assert job.code == ExitCode.JOB_DIR
    ended = job.core.state.ended
    assert ended is not None
    assert not ended.final  # nothing was lost: the same job may be started again


def test_an_agent_that_refuses_costs_its_node_and_not_the_job() -> None:
    job = JobWithoutAgents(("n1", "n2"), ("n3",))
    job.core.on_refusal("n2", "no folder in /dev/shm")
    for node in ("n1", "n3"):
        Job.join(job, node)
    job.until(lambda: job.stage == "Running")
    assert job.core.world.slots == ("n1", "n3")
    assert "no folder in /dev/shm" in job.core.state.evicted["n2"]


def test_what_too_many_nodes_lack_ends_the_job_with_its_code_and_no_second_try() -> None:
    job = JobWithoutAgents(("n1", "n2"), ())
    job.core.on_refusal("n2", "module not found: train; fix: install it", ExitCode.NO_INPUT)
    job.pass_time(15)
    assert job.code == 66
    assert job.requeued == []
    assert job.said[-1] == (
        "end, exit code 66: agents cannot start on n2; n2 says: module not found: train; fix: install it"
    )


class JobWithoutAgents(Job):
    """Agents are ordered but none comes."""

    def join(self, node: str, agent: str = "a", **changes: object) -> None:
        pass


def test_term_ends_everything_without_an_incident() -> None:
    job = Job()
    job.train_to(3)
    job.act(job.core.on_leave("TERM", job.now()))
    job.pass_time(20)
    assert job.code == ExitCode.TERMINATED
    assert job.events(ev.IncidentOpened) == []


def test_the_state_is_the_fold_of_what_was_written() -> None:
    job = Job()
    job.train_to(3)
    job.kill_rank(0)
    job.train_to(5)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 3)
    assert fold(job.journal) == job.core.state


# -- Pulses -----------------------------------------------------------------------------------------


def pulse_of(job: Job, node: str, base: int | None = None) -> None:
    heartbeat = job.heartbeats[node]
    base = heartbeat.seq if base is None else base
    job.core.on_pulse(Pulse(node=node, agent=heartbeat.agent, seq=heartbeat.seq + 1, base=base), job.now())


def test_a_pulse_is_a_sign_of_life_and_ages_go_on() -> None:
    job = Job()
    job.train_to(5)
    slots, generation = job.core.world.slots, job.core.world.generation
    for _ in range(8):
        job.mono += 1.0
        for node in job.heartbeats:
            pulse_of(job, node)
        job.act(job.core.on_tick(job.now()))
    assert job.stage == "Running"
    assert not job.core.world.incident
    records = job.core.fleet.progress(slots, generation, job.mono)
    assert [(r.step, r.age_s) for r in records] == [(5, 8.0), (5, 8.0)]


def test_a_pulse_is_answered_only_where_its_heartbeat_is_known() -> None:
    job = Job()
    job.core.on_tick(job.now())
    for base, answers in ((None, 1), (1_000, 0)):
        pulse_of(job, "n1", base)
        acks = [e for e in job.core.on_tick(job.now()) if isinstance(e, Send) and isinstance(e.message, Ack)]
        assert len(acks) == answers
    job.mono += 6.0
    for node in job.heartbeats:
        pulse_of(job, node, 1_000)  # who speaks lives, whatever of it is not known here
    job.act(job.core.on_tick(job.now()))
    assert (job.stage, job.core.world.incident) == ("Running", None)


def test_waiting_for_what_an_ended_job_no_longer_does_fails_and_says_why() -> None:
    job = Job()
    job.act(job.core.on_leave("ordered to end", job.now()))
    job.until(lambda: job.code is not None)
    with pytest.raises(AssertionError, match="the job ended with 143"):
        job.until(lambda: job.stage == "Running")


def test_the_standby_behind_the_leaf_switch_of_the_lost_node_is_taken() -> None:
    job = Job(slots=("n1", "n2"), spares=("n3", "n4"))
    job.reply(qs.FindSwitches, {"n1": "a", "n2": "b", "n3": "a", "n4": "b"})
    job.train_to(3)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n4")
