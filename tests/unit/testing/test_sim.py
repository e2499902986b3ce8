"""A simulated job does what a real one does, and says the same."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import JobConfig, SlurmConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.evidence.incidents import incident_reports
from slurm_robust.ledger.ledger import ledger
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Symptom
from slurm_robust.testing.sim.environment import SimulatedPace, always
from slurm_robust.testing.sim.job import NotWithin, Sim

SHORT = SimulatedPace(step_s=2.0, turn_s=0.5)


USABLE = ev.SpareSetAside(t=0.0, node="", reason="", usable=True)


def trains(sim: Sim, steps: int) -> None:
    """Until the newest generation has made that step."""
    sim.run_until(lambda: sim.step >= steps, within_s=600.0)


def opened(sim: Sim) -> list[Symptom]:
    return [event.symptom for event in sim.events(ev.IncidentOpened)]


def test_a_job_without_a_fault_ends_with_its_training() -> None:
    sim = Sim(nodes=2, spares=1, seed=1, pace=SHORT)
    assert sim.run_to_end(600.0) == 0
    assert (sim.state.world.best_step, sim.state.world.generation, sim.runs) == (59, 1, 1)
    assert not sim.events(ev.IncidentOpened)
    assert not any(node.agents or node.workers or node.copies for node in sim.nodes.values())


def test_the_same_seed_lives_the_same_life() -> None:
    first, second = (Sim(nodes=2, spares=1, seed=5, pace=SHORT) for _ in range(2))
    for sim in (first, second):
        trains(sim, 5)
        sim.kill_rank(0)
        sim.run_to_end(600.0)
    assert first.journal == second.journal
    assert first.said == second.said


def test_a_killed_rank_is_started_again_from_memory() -> None:
    sim = Sim(nodes=2, seed=2, pace=SHORT)
    trains(sim, 5)
    sim.kill_rank(1)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    trains(sim, 10)
    assert sim.events(ev.GenerationLaunched)[1].tiers == {"memory": 2}
    assert opened(sim) == [Symptom.WORKER_EXIT]
    assert (sim.state.evicted, sim.disagreement()) == ({}, "")


def test_a_dead_node_is_replaced_and_its_part_comes_from_its_peer() -> None:
    sim = Sim(nodes=3, spares=1, seed=3, pace=SHORT)
    trains(sim, 5)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    assert "n4" in sim.state.world.slots
    assert list(sim.state.evicted) == ["n2"]
    assert sim.events(ev.GenerationLaunched)[1].tiers == {"memory": 2, "peer": 1}
    assert sim.run_to_end(600.0) == 0


def test_steps_that_the_peers_of_a_dead_node_had_completed_are_repeated_and_not_new() -> None:
    sim = Sim(nodes=3, spares=1, seed=3, pace=SimulatedPace(step_s=0.2, turn_s=0.1))
    trains(sim, 15)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.events(ev.IncidentClosed) != [], within_s=60.0)
    (begun,), (ended,) = sim.events(ev.IncidentOpened), sim.events(ev.GenerationEnded)
    (closed,), resumed = sim.events(ev.IncidentClosed), sim.events(ev.GenerationLaunched)[1]
    assert ended.reached_step > begun.best_step, "heartbeats of the dead node lag behind its peers"
    assert closed.step > ended.reached_step
    again = ended.reached_step - resumed.restore_step
    assert again > 0
    assert [report.steps_repeated for report in incident_reports(sim.journal)] == [again]
    assert ledger(sim.journal, sim.clock.time()).repeated == again


def test_without_a_standby_the_job_is_requeued_and_goes_on_from_storage() -> None:
    sim = Sim(nodes=2, seed=4, others=1, pace=SHORT)
    trains(sim, 5)
    sim.node_dies("n2")
    assert sim.run_to_end(600.0) == 0
    assert sim.runs == 2
    (asked,) = (asked for asked in sim.asked if isinstance(asked, qs.BeginRequeue))
    assert asked.exclude == ("n2",)
    resumed = sim.events(ev.GenerationLaunched)[1]
    assert set(resumed.slots) == {"n1", "n3"}
    assert resumed.tiers == {"storage": 2}


def test_training_goes_on_without_a_controller_and_the_next_one_finds_it() -> None:
    sim = Sim(nodes=2, seed=5, pace=SHORT)
    trains(sim, 5)
    sim.controller_dies()
    assert sim.controller is None
    trains(sim, 15)
    assert (sim.state.epoch, sim.state.world.generation) == (2, 1)
    sim.run(10.0)
    assert (sim.disagreement(), opened(sim)) == ("", [])


def test_agents_take_over_when_the_host_of_the_controller_dies() -> None:
    sim = Sim(nodes=4, spares=1, seed=6, pace=SHORT)
    trains(sim, 5)
    sim.node_dies("n1")
    sim.run_until(lambda: sim.controller is not None, within_s=60.0)
    assert sim.controller is not None
    assert sim.controller.host == "n2"
    assert sim.state.taken_from == "n1"
    trains(sim, 15)
    assert list(sim.state.evicted) == ["n1"]
    assert sim.run_to_end(600.0) == 0


def test_a_controller_that_was_cut_off_has_no_power_over_what_its_successor_does() -> None:
    sim = Sim(nodes=4, spares=1, seed=7, pace=SHORT)
    trains(sim, 5)
    sim.partition("n1")
    sim.run_until(lambda: sim.controller is not None and sim.controller.epoch == 2, within_s=120.0)
    sim.heal()
    sim.run(30.0)
    assert sim.controller is not None
    assert list(sim.env.mailboxes) == [2]
    assert sim.disagreement() == ""
    epochs = [event.epoch for event in sim.events(ev.ControllerStarted)]
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("seconds", [3.0, 60.0])
def test_a_controller_that_stood_still_blames_nobody(seconds: float) -> None:
    sim = Sim(nodes=2, seed=8, pace=SHORT)
    trains(sim, 5)
    sim.controller_stalls(seconds)
    sim.run(seconds + 10.0)
    assert sim.run_to_end(600.0) == 0
    assert opened(sim) == []


def test_an_agent_that_died_while_the_controller_stood_still_costs_no_node() -> None:
    """What it said before lies unread when its end is reported: it was not heard after its end."""
    sim = Sim(nodes=3, seed=8, pace=SHORT)
    trains(sim, 5)
    sim.controller_stalls(4.0)
    sim.run(1.5)
    sim.agent_dies("n3")
    assert sim.run_to_end(600.0) == 0
    assert opened(sim) == [Symptom.AGENTS_LOST]
    assert (sim.state.evicted, sim.runs) == ({}, 1)


def test_a_hung_rank_is_found_by_its_stacks() -> None:
    sim = Sim(nodes=3, spares=1, seed=9, pace=SHORT)
    trains(sim, 5)
    sim.hang_rank(1)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=120.0)
    assert opened(sim) == [Symptom.HANG]
    assert list(sim.state.evicted) == ["n2"]
    assert sim.run_to_end(600.0) == 0


def test_a_broken_node_is_found_by_tests_when_losses_are_not_finite() -> None:
    sim = Sim(nodes=3, spares=1, seed=10, pace=SHORT)
    trains(sim, 5)
    node = sim.nodes["n2"]
    node.is_broken = node.spoils = True
    sim.spoil_rank(1)
    assert sim.run_to_end(600.0) == 0
    assert Symptom.NON_FINITE in opened(sim)
    assert list(sim.state.evicted) == ["n2"]


def test_workers_that_no_signal_ends_cost_their_node() -> None:
    timings = Timings(stop_grace_s=2.0, kill_wait_s=10.0)
    sim = Sim(nodes=3, spares=1, seed=11, pace=SHORT, config=JobConfig(timings=timings))
    trains(sim, 5)
    sim.hang_rank(1, unkillable=True)
    trains(sim, 10)
    assert list(sim.state.evicted) == ["n2"]
    assert "cannot be killed" in sim.state.evicted["n2"]
    assert sim.disagreement() == ""


def test_what_only_memory_has_is_saved_when_the_owner_ends_the_job() -> None:
    sim = Sim(nodes=2, seed=12, pace=SHORT)
    trains(sim, 5)
    sim.order_to_end()
    assert sim.run_to_end(60.0) == 130
    assert opened(sim) == []
    assert max(sim.storage.complete()).step >= 5


def test_a_cancelled_job_is_over_and_saved() -> None:
    sim = Sim(nodes=2, seed=13, pace=SHORT)
    trains(sim, 5)
    sim.cancel()
    assert sim.run_to_end(60.0) == ExitCode.TERMINATED
    assert max(sim.storage.complete()).step >= 5


def test_workers_beyond_a_cut_network_are_stopped_when_it_heals() -> None:
    sim = Sim(nodes=4, spares=1, seed=17, pace=SHORT)
    trains(sim, 5)
    sim.partition("n3")
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    assert [rank.generation for rank in sim.nodes["n3"].workers.values()] == [1]
    sim.heal()
    sim.run(30.0)
    assert sim.nodes["n3"].workers == {}
    assert sim.disagreement() == ""


@pytest.mark.parametrize("forbidden", ["by Slurm", "by the owner"])
def test_without_a_requeue_the_job_ends_for_good(forbidden: str) -> None:
    config = JobConfig(slurm=SlurmConfig(requeue=forbidden != "by the owner"))
    sim = Sim(nodes=3, seed=18, pace=SHORT, config=config)
    sim.refuses_requeue = forbidden == "by Slurm"
    trains(sim, 5)
    sim.node_dies("n2")
    assert sim.run_to_end(300.0) == ExitCode.DO_NOT_REQUEUE
    requeued = any(isinstance(asked, qs.BeginRequeue) for asked in sim.asked)
    assert requeued == (forbidden == "by Slurm")


def test_a_requeue_waits_until_slurm_answers_again() -> None:
    sim = Sim(nodes=3, seed=14, others=1, pace=SHORT)
    trains(sim, 5)
    sim.slurm_is_silent()
    sim.node_dies("n2")
    sim.run(120.0)
    assert (sim.stage, sim.runs) == ("Requeueing", 1)
    sim.slurm_is_silent(False)
    assert sim.run_to_end(900.0) == 0
    assert sim.runs == 2


def test_nothing_is_decided_while_storage_does_not_take_the_journal() -> None:
    sim = Sim(nodes=2, seed=15, pace=SHORT)
    trains(sim, 5)
    sim.storage_hangs()
    sim.kill_rank(0)
    sim.run(60.0)
    assert sim.events(ev.IncidentOpened) == []
    assert sim.state.world.generation == 1
    sim.storage_hangs(False)
    assert sim.run_to_end(600.0) == 0
    assert opened(sim) == [Symptom.WORKER_EXIT]


def test_agents_that_cannot_read_where_their_next_controller_is_are_no_new_ones() -> None:
    """Storage names it, and hangs: they are heard when it answers, and are those that were launched."""
    sim = Sim(nodes=2, spares=1, seed=1094, pace=SHORT, steps=200)
    trains(sim, 5)
    sim.controller_dies()
    sim.run_until(lambda: sim.controller is not None, within_s=5.0)
    sim.storage_hangs()
    sim.run(200.0)
    sim.storage_hangs(False)
    sim.run(30.0)
    assert (sim.state.evicted, sim.state.world.generation, sim.disagreement()) == ({}, 1, "")


def test_what_does_not_come_is_told_with_where_the_job_is() -> None:
    sim = Sim(nodes=1, seed=16, pace=SHORT)
    with pytest.raises(NotWithin, match=r"stage Gathering(.|\n)*starting agents on n1"):
        sim.run_until(lambda: sim.step > 5, within_s=1.0)


def test_a_test_answers_questions_in_place_of_the_pretended_world() -> None:
    refused = qs.SlurmAnswer(said=qs.RequeueStatus.REFUSED, detail="not today")
    sim = Sim(nodes=2, others=1, seed=3, replies={qs.BeginRequeue: always(refused)})
    sim.run_until(lambda: sim.step >= 3, within_s=120.0)
    sim.node_dies("n2")
    assert sim.run_to_end(within_s=900.0) != 0
    assert (sim.runs, any("not today" in line for line in sim.said)) == (1, True)


def test_srun_can_say_why_it_starts_no_agent() -> None:
    sim = Sim(nodes=2, spares=1, seed=3)
    sim.no_agent["n3"] = "srun: error: n3: task 2: Exited with exit code 2"
    sim.run_until(lambda: not sim.state.aside.get("n3", USABLE).usable, within_s=120.0)
    assert sim.no_agent["n3"] in sim.state.aside["n3"].reason


def test_a_job_that_is_suspended_goes_on_where_it_was() -> None:
    sim = Sim(nodes=2, spares=1, seed=4, pace=SHORT)
    trains(sim, 5)
    began = sim.now
    sim.suspend(300.0)
    assert (sim.step, sim.now) == (5, began + 300.0)
    assert sim.run_to_end(600.0) == 0
    assert (sim.state.world.generation, opened(sim)) == (1, [])


def test_a_script_without_our_api_keeps_nothing_and_begins_again() -> None:
    sim = Sim(nodes=2, seed=4, pace=SHORT)
    sim.training.reports = False
    trains(sim, 5)
    sim.kill_rank(1)
    sim.run_until(lambda: sim.state.world.generation == 2 and sim.step >= 0, within_s=60.0)
    assert (sim.step, sim.state.world.restored) == (0, None)
    assert not any(node.copies for node in sim.nodes.values())
