"""The life of jobs: what the engine makes of what happens to them."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig, Limits, SlurmConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.effects import Send
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import Symptom
from slurm_robust.model.journal import fold
from slurm_robust.testing.sim.environment import always
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Ack, Launch, Pulse
from tests.unit.engine.stories import (
    PACE,
    begins,
    core_of,
    evicted,
    gets_on,
    notes,
    opened,
    orders,
    requeues,
    starts,
    trained,
)

BUG = WorkerError(type="ValueError", message="bad shape", file="train.py", line=12, traceback="boom")
LOST_PEER = WorkerError(type="RuntimeError", message="Connection closed by peer")
NO_BEACONS = JobConfig(timings=Timings(verdict_s=0.0))
NO_MEMORY = JobConfig(checkpoint=CheckpointConfig(memory=False))


def recovers(sim: Sim, within_s: float = 60.0) -> tuple[ev.IncidentClosed, float]:
    """The incident is decided and closed; how many seconds that takes."""
    sim.run_until(lambda: bool(sim.events(ev.Decided)), within_s=20.0)
    decided = sim.now
    sim.run_until(lambda: bool(sim.events(ev.IncidentClosed)), within_s)
    (closed,) = sim.events(ev.IncidentClosed)
    return closed, sim.now - decided


def test_ranks_are_numbered_slot_by_slot_and_share_one_rendezvous() -> None:
    sim = trained(2, 1, ranks_per_node=2)
    launches = orders(sim, Launch)
    found = {node: (order.ranks, order.slot) for node, order in launches.items()}
    assert found == {"n1": ((0, 1), 0), "n2": ((2, 3), 1)}
    assert {(m.master_addr, m.master_port) for m in launches.values()} == {(sim.nodes["n1"].address, 4000)}


def test_a_killed_rank_restarts_in_place_from_the_newest_sealed_checkpoint() -> None:
    sim = trained(2, 1, config=NO_MEMORY)
    ref = CheckpointId(generation=1, step=6)
    for stored in (CheckpointId(generation=1, step=3), ref):
        sim.storage.write(stored, (0, 1), 2)
    sim.kill_rank(1)
    closed, took_s = recovers(sim)
    launched = sim.events(ev.GenerationLaunched)[-1]
    assert (launched.slots, launched.restore, launched.restore_step) == (("n1", "n2"), ref, 6)
    assert closed.step == 11  # those before are repeated, not new
    assert closed.recover_s == pytest.approx(took_s, abs=0.1)


def test_a_dead_node_is_replaced_by_the_standby_after_five_seconds() -> None:
    sim = trained(2, 1, config=NO_BEACONS)
    sim.node_dies("n2")
    sim.run(3.9)
    assert opened(sim) == []
    gets_on(sim, 2)
    (incident,) = sim.events(ev.IncidentOpened)
    assert incident.symptom is Symptom.NODE_LOST
    assert 5.0 < incident.detect_s < 6.0
    assert (sim.state.world.slots, sim.state.spares, evicted(sim)) == (("n1", "n3"), (), {"n2"})


def test_the_standby_behind_the_leaf_switch_of_the_lost_node_is_taken() -> None:
    leaves = {"n1": "a", "n2": "b", "n3": "a", "n4": "b"}
    sim = trained(2, 2, replies={qs.FindSwitches: always(leaves)})
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n4")


def test_a_job_that_was_suspended_says_how_long() -> None:
    sim = trained(2, 1)
    before = len(sim.said)
    sim.controller_stalls(2.0)
    sim.run(5.0)
    assert sim.said[before:] == []
    sim.suspend(30.0)
    sim.run(5.0)
    (text,) = [line for line in sim.said[before:] if "stood still" in line]
    assert re.search(r"stood still for 3\d s: the job was suspended \(scontrol suspend\)", text)
    noted = sim.events(ev.Noted)[-1]
    assert (noted.text, noted.stood_still_s) == (text, pytest.approx(30.5, abs=0.5))


def test_ranks_that_break_because_a_node_died_do_not_hide_the_node() -> None:
    sim = trained(2, 1, config=NO_BEACONS)
    sim.node_dies("n2")
    sim.run(1.0)
    sim.exit_rank(0, error=LOST_PEER)
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n3")
    (decided,) = sim.events(ev.Decided)
    assert decided.verdict is not None
    assert decided.verdict.suspects == ("n2",)


def test_the_requeued_run_continues_from_the_journal_and_avoids_evicted_nodes() -> None:
    sim = trained(2, others=1, config=NO_MEMORY)
    ref = CheckpointId(step=8, generation=1)
    sim.storage.write(ref, (0, 1), 2)
    sim.node_dies("n2")
    closed, took_s = recovers(sim, within_s=200.0)
    (launched,) = sim.events(ev.GenerationLaunched)[1:]
    assert (sim.runs, set(launched.slots), launched.restore) == (2, {"n1", "n3"}, ref)
    assert closed.recover_s == pytest.approx(took_s, abs=0.5)
    assert any("recover_s is by wall clocks" in text for text in notes(sim))
    assert any(f"(recovery took {closed.recover_s:.2f} s)" in text for text in sim.said)


def test_the_same_fault_without_a_new_step_is_answered_twice_and_no_more() -> None:
    sim = trained(2, 1)
    for generation in (2, 3):
        sim.kill_rank(0)
        begins(sim, generation)
    sim.kill_rank(0)
    assert sim.run_to_end(within_s=30.0) == ExitCode.DO_NOT_REQUEUE
    assert sim.state.ended is not None
    assert "without new progress" in sim.state.ended.reason


def kill_after_a_new_step(sim: Sim) -> None:
    best = sim.state.world.best_step
    sim.run_until(lambda: sim.state.world.best_step > best, within_s=60.0)
    sim.kill_rank(0)


def test_a_new_step_between_faults_starts_their_count_again() -> None:
    sim = trained(2, 1)
    for generation in range(2, 9):
        kill_after_a_new_step(sim)
        begins(sim, generation)
    gets_on(sim, 8)


def test_the_bound_of_restarts_per_hour_holds_even_with_progress() -> None:
    limits = Limits(per_signature=2, per_hour=3, total=100)
    sim = trained(2, 1, config=JobConfig(limits=limits))
    for generation in range(2, 5):
        kill_after_a_new_step(sim)
        begins(sim, generation)
    kill_after_a_new_step(sim)
    assert sim.run_to_end(within_s=30.0) == ExitCode.DO_NOT_REQUEUE
    assert sim.state.ended is not None
    assert "limits.per_hour" in sim.state.ended.reason


def test_a_user_exception_restarts_once_then_gives_up_with_its_place() -> None:
    sim = trained(2, 1, to=-1)
    begins(sim, 1)
    sim.exit_rank(1, error=BUG)
    begins(sim, 2)
    sim.exit_rank(1, error=BUG)
    assert sim.run_to_end(within_s=30.0) == ExitCode.DO_NOT_REQUEUE
    assert sim.state.ended is not None
    assert "ValueError at train.py:12" in sim.state.ended.reason
    assert any("boom" in text for text in sim.said)


def test_a_final_exit_code_of_a_rank_is_that_of_the_job() -> None:
    sim = trained(2, 1)
    sim.exit_rank(0, code=2)
    assert sim.run_to_end(within_s=30.0) == 2


def test_a_lost_standby_is_no_incident() -> None:
    sim = trained(2, 1)
    sim.node_dies("n3")
    sim.run_until(lambda: "n3" in sim.state.aside, within_s=120.0)
    gets_on(sim, 1)
    assert opened(sim) == []


def test_the_loss_of_all_agents_evicts_no_node() -> None:
    sim = trained(2, 1)
    for node in sim.nodes:
        sim.agent_dies(node, told=False)
    gets_on(sim, 2)
    assert (evicted(sim), len(starts(sim))) == (set(), 2)


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_a_clock_that_jumps_opens_no_incident_and_falsifies_no_duration(jump_s: float) -> None:
    sim = trained(2, 1)
    host = sim.nodes["n1"]
    host.ahead_s = jump_s
    sim.run(2.0)
    assert opened(sim) == []
    sim.kill_rank(0)
    sim.at(sim.now + 3.0, lambda: setattr(host, "ahead_s", 0.0))
    closed, took_s = recovers(sim)
    assert took_s > 3.0
    assert closed.recover_s == pytest.approx(took_s, abs=0.1)


def test_before_the_end_a_checkpoint_is_taken_at_a_step_no_rank_has_reached() -> None:
    sim = trained(2, 1, config=NO_MEMORY)
    sim.warn()
    sim.run_until(lambda: bool(sim.events(ev.CheckpointRequested)), within_s=10.0)
    (asked,) = sim.events(ev.CheckpointRequested)
    assert asked.step > sim.step
    assert requeues(sim) == []
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    assert max(sim.storage.complete()).step == asked.step
    assert (requeues(sim), sim.state.world.attempts) == ([()], ())  # no failure is counted
    assert not sim.events(ev.RequeueStarted)[0].failure


def test_reports_that_come_together_do_not_put_the_last_checkpoint_far_away() -> None:
    """Agents report each second: one that reports right after the warning has done several steps since."""
    sim = trained(1, config=NO_MEMORY, pace=structs.replace(PACE, step_s=0.3), to=32)
    core, now = core_of(sim)
    sim.run(core.fleet.views["n1"].heard + 0.95 - now.mono)
    sim.warn()
    sim.run_until(lambda: bool(sim.events(ev.CheckpointRequested)), within_s=10.0)
    (asked,) = sim.events(ev.CheckpointRequested)
    assert sim.step < asked.step < sim.step + 20


def test_a_script_without_checkpoints_is_requeued_without_waiting() -> None:
    sim = Sim(2, 1, pace=PACE)
    sim.training.reports = False
    sim.run_until(lambda: sim.step >= 5, within_s=60.0)
    sim.warn()
    sim.run(2.0)
    assert requeues(sim) == [()]


def test_a_new_controller_that_misses_a_node_replaces_it() -> None:
    sim = trained(2, 1)
    sim.controller_dies()
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert (sim.state.epoch, sim.state.world.slots) == (2, ("n1", "n3"))


def test_an_exit_while_no_controller_lived_is_seen_by_the_next() -> None:
    sim = trained(2, 1)
    sim.controller_dies()
    sim.kill_rank(1)
    gets_on(sim, 2)
    assert (sim.state.epoch, opened(sim)) == (2, [Symptom.WORKER_EXIT])


# -- agents that cannot begin ----------------------------------------------------------------------


def refused(nodes: int, spares: int, *names: str, text: str, code: ExitCode = ExitCode.JOB_DIR) -> Sim:
    """A job whose agents on some nodes could not begin."""
    sim = Sim(nodes, spares, seed=1, pace=PACE, steps=400)
    sim.refusals.update(dict.fromkeys(names, (text, code)))
    return sim


def test_agents_that_refuse_on_more_nodes_than_spares_end_the_job() -> None:
    sim = refused(3, 1, "n2", "n3", text="job directory /x is not there")
    assert sim.run_to_end(within_s=30.0) == ExitCode.JOB_DIR
    assert sim.state.ended is not None
    assert not sim.state.ended.final  # nothing was lost: the same job may be started again


def test_an_agent_that_refuses_costs_its_node_and_not_the_job() -> None:
    sim = refused(2, 1, "n2", text="no folder in /dev/shm")
    gets_on(sim, 1)
    assert sim.state.world.slots == ("n1", "n3")
    assert "no folder in /dev/shm" in sim.state.evicted["n2"]


def test_what_too_many_nodes_lack_ends_the_job_with_its_code_and_no_second_try() -> None:
    sim = refused(2, 0, "n2", text="module not found: train; fix: install it", code=ExitCode.NO_INPUT)
    assert sim.run_to_end(within_s=30.0) == 66
    assert requeues(sim) == []
    assert sim.said[-1] == (
        "end, exit code 66: agents cannot start on n2; n2 says: module not found: train; fix: install it"
    )
    long = refused(2, 0, "n2", text="x" * 900, code=ExitCode.NO_INPUT)
    assert long.run_to_end(within_s=30.0) == 66
    assert len(long.said[-1]) < 400, "lines before it have all of the reason"


# -- orders and the journal ------------------------------------------------------------------------


def test_term_ends_everything_without_an_incident() -> None:
    sim = trained(2, 1)
    sim.term()
    assert sim.run_to_end(within_s=60.0) == ExitCode.TERMINATED
    assert opened(sim) == []
    assert not any(node.agents or node.workers for node in sim.nodes.values())


def test_the_state_is_the_fold_of_what_was_written() -> None:
    sim = trained(2, 1)
    sim.kill_rank(0)
    gets_on(sim, 2)
    sim.node_dies("n2")
    gets_on(sim, 3)
    assert fold(sim.journal) == sim.state


# -- Pulses ----------------------------------------------------------------------------------------


def test_a_pulse_is_a_sign_of_life_and_ages_go_on() -> None:
    sim = trained(2, 1, to=2, pace=structs.replace(PACE, step_s=30.0))
    sim.run(4.0)
    core, now = core_of(sim)
    before = {node: view.heartbeat.seq for node, view in core.fleet.views.items()}
    sim.run(12.0)
    core, now = core_of(sim)
    assert {node: view.heartbeat.seq for node, view in core.fleet.views.items()} == before, (
        "no heartbeat came"
    )
    assert all(now.mono - view.heard < 1.5 for view in core.fleet.views.values())
    assert (sim.stage, opened(sim)) == ("Running", [])
    records = core.fleet.progress(("n1", "n2"), 1, now.mono)
    assert [(r.step, r.age_s) for r in records] == [(2, pytest.approx(16.0, abs=0.2))] * 2


def test_a_pulse_is_answered_only_if_its_heartbeat_is_known() -> None:
    sim = trained(2, 1)
    core, now = core_of(sim)
    core.on_tick(now)
    heartbeats = {node: view.heartbeat for node, view in core.fleet.views.items()}

    def pulse(node: str, base: int, now: Now) -> None:
        agent, seq = heartbeats[node].agent, heartbeats[node].seq
        core.on_pulse(Pulse(node=node, agent=agent, seq=seq + 1, base=base), now)

    for base, answers in ((heartbeats["n1"].seq, 1), (1_000_000, 0)):
        pulse("n1", base, now)
        effects = core.on_tick(now)
        acks = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Ack)]
        assert len(acks) == answers
    later = Now(mono=now.mono + 6.0, wall=now.wall + 6.0)
    for node in heartbeats:
        pulse(node, 1_000_000, later)  # who speaks lives, whatever of it is not known here
    core.on_tick(later)
    assert (sim.stage, core.world.incident) == ("Running", None)


def woken(sim: Sim) -> None:
    """A node dies, and a standby is to take its slot: its workers start."""
    sim.node_dies("n2")
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    assert sim.state.world.slots[1] == "n4"


def test_a_standby_that_dies_while_it_takes_a_slot_is_replaced_by_the_next_one() -> None:
    sim = trained(3, 2)
    woken(sim)
    sim.node_dies("n4")
    gets_on(sim, 3)
    assert (sim.state.world.slots, evicted(sim)) == (("n1", "n5", "n3"), {"n2", "n4"})
    assert requeues(sim) == []


def test_standbys_that_all_die_while_one_takes_a_slot_cost_one_requeue() -> None:
    sim = trained(3, 2, others=2)
    woken(sim)
    sim.node_dies("n4")
    sim.node_dies("n5")
    sim.run_until(lambda: sim.runs == 2 and sim.stage == "Running", within_s=400.0)
    assert evicted(sim) <= {"n2", "n4", "n5"}
    assert not {"n2", "n4", "n5"} & set(sim.state.world.slots)
    assert len(requeues(sim)) == 1


def test_a_run_says_what_the_loss_of_a_node_does_when_no_standby_is_left() -> None:
    def said(config: JobConfig | None = None) -> str:
        (taken,) = trained(2, config=config or JobConfig(), to=1).events(ev.AllocationTaken)
        return taken.lost_node

    assert said() == "costs a requeue"
    assert said(JobConfig(slurm=SlurmConfig(requeue=False))) == "ends the job: slurm.requeue is false"
