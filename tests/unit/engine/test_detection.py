"""From the first sign of an implicit failure to the right action."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from slurm_robust.analysis.replay import ReplayVerdict
from slurm_robust.config.job import DetectConfig, JobConfig, Limits, ReplayConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.evidence.incident_text import facts, timeline
from slurm_robust.evidence.incidents import incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.findings import Alert, Effect, Party, Suggestion
from slurm_robust.model.incident import Diagnosis, Symptom
from slurm_robust.model.progress import Traffic
from slurm_robust.testing.sim.environment import SimulatedPace, always, never
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import (
    all_wait,
    evicted,
    gets_on,
    mute,
    node_tests,
    notes,
    opened,
    questions,
    starts_again,
    trained,
)

NODES = ("n1", "n2", "n3", "n4")
SPARES = ("n5", "n6")


def job(mode: Literal["act", "observe"] = "act", spares: int = 2, **detect: Any) -> Sim:
    """Four nodes that have trained for a while."""
    return trained(4, spares, config=JobConfig(mode=mode, detect=DetectConfig(**detect)))


# -- hangs -----------------------------------------------------------------------------------------


def test_a_hang_is_localised_by_stacks_and_the_node_replaced() -> None:
    sim = job()
    sim.hang_rank(2)
    starts_again(sim)
    assert (opened(sim), evicted(sim)) == ([Symptom.HANG], {"n3"})
    (decided,) = sim.events(ev.Decided)
    assert decided.verdict is not None
    assert decided.verdict.rung == 4
    assert [len(saved.stacks) for saved in questions(sim, qs.SaveStacks)] == [4]
    gets_on(sim, 2)


def test_the_limit_of_a_hang_stands_once_in_its_report() -> None:
    sim = job()
    sim.hang_rank(2)
    starts_again(sim)
    (report,) = incident_reports(sim.journal)
    assert report.signs[0].startswith("no step for 14 s since step 10")
    assert report.why.startswith("the limit is ")
    told = [text for _, text in facts(report)] + [entry.text for entry in timeline(report)]
    assert sum("the limit is" in text for text in told) == 1


def test_a_hang_that_heals_costs_nothing() -> None:
    sim = job()
    mute(sim, *NODES)
    sim.hang_rank(2)
    sim.run_until(lambda: sim.stage == "Localising", 60.0)
    sim.resume_rank(2)
    gets_on(sim, 1)
    assert evicted(sim) == set()


def test_a_hang_that_stacks_do_not_place_is_tested_for() -> None:
    sim = job()
    sim.nodes["n2"].is_broken = True
    all_wait(sim)
    starts_again(sim)
    assert [asked.bitwise for asked in node_tests(sim)] == [False]
    assert evicted(sim) == {"n2"}
    assert [d.verdict.rung for d in sim.events(ev.Decided) if d.verdict] == [5, 5]


def test_tests_that_never_answer_do_not_hold_the_job_for_ever() -> None:
    sim = job(spares=0, diagnose_s=20.0)
    sim.answer(qs.TestNodes, never)
    all_wait(sim)
    starts_again(sim)
    assert evicted(sim) == set()
    (unanswered,) = sim.events(ev.Unanswered)
    assert (unanswered.asked, unanswered.nodes) == ("tests", NODES)
    assert unanswered.why == "no answer within 50 s"
    assert not sim.events(ev.NodesTested)
    assert sim.events(ev.Decided)[-1].reason.endswith("; tests: no answer within 50 s: restart in place")


def test_tests_that_could_not_begin_are_reported_with_the_reason() -> None:
    sim = job(spares=0)
    found = Diagnosis(reason="nothing could be tested", left_out={"gemm": "srun: error: n2: down"})
    sim.answer(qs.TestNodes, always(found))
    all_wait(sim)
    starts_again(sim)
    (unanswered,) = sim.events(ev.Unanswered)
    assert unanswered.why == "nothing could be tested; gemm: srun: error: n2: down"


def test_a_replay_that_was_not_possible_is_reported() -> None:
    replay = ReplayConfig(args=())
    config = JobConfig(replay=replay, limits=Limits(per_signature=1), detect=DetectConfig(diagnose=False))
    sim = trained(4, 2, config=config)
    why = "no replay: only a Python script can be replayed"
    sim.answer(qs.ReplayTraining, always(ReplayVerdict(reason=why).diagnosis()))
    sim.kill_rank(1)
    starts_again(sim)
    sim.run_until(lambda: sim.stage == "Running", 60.0)
    sim.kill_rank(1)
    sim.run_until(lambda: bool(sim.events(ev.Unanswered)), 60.0)
    (unanswered,) = sim.events(ev.Unanswered)
    assert (unanswered.asked, unanswered.nodes, unanswered.why) == ("a replay", NODES, why)


def test_agents_that_do_not_answer_are_waited_for_briefly() -> None:
    sim = job(stacks_s=3.0)
    mute(sim, "n4")
    all_wait(sim)
    sim.run_until(lambda: sim.stage == "Localising", 60.0)
    begun = sim.now
    starts_again(sim)
    assert 6.0 < sim.now - begun < 14.0, "two sample rounds, each waits for it"
    gets_on(sim, 2)
    assert evicted(sim) == set(), "silence alone convicts no node"
    (unanswered,) = sim.events(ev.Unanswered)  # once, though it was silent in both rounds
    assert (unanswered.incident, unanswered.asked, unanswered.nodes) == (1, "stacks", ("n4",))
    assert unanswered.why == "no answer within 4 s"
    (report,) = incident_reports(sim.journal)
    told = [entry.text for entry in timeline(report) if entry.what == "no answer"]
    assert told == ["asked n4 for stacks: no answer within 4 s"]


def test_observe_mode_says_what_it_would_do_and_does_nothing() -> None:
    sim = job("observe")
    sim.hang_rank(2)
    sim.run_until(lambda: bool(sim.events(ev.Decided)), 60.0)
    (decided,) = sim.events(ev.Decided)
    assert not decided.carried_out
    assert any(isinstance(action, inc.Evict) and action.node == "n3" for action in decided.actions)
    sim.resume_rank(2)  # it was only slow
    gets_on(sim, 1)
    assert evicted(sim) == set()


# -- slowdowns --------------------------------------------------------------------------------------

SLOW_PACE = SimulatedPace(step_s=5.0, turn_s=1.0, rest_s=1.0)


def slow_job(**detect: Any) -> Sim:
    """Steps take twice as long as before, and all ranks wait in the same collective."""
    config = JobConfig(timings=Timings(heartbeat_s=2.0), detect=DetectConfig(**detect))
    sim = trained(2, 1, config=config, pace=SLOW_PACE, steps=5000)
    sim.run_until(lambda: sim.step >= 40, 300.0)
    sim.training.slow[0] = 2.0
    return sim


def slow_rounds(sim: Sim) -> int:
    """How many sample rounds were begun since steps took too long."""
    return sum("steps take" in text for text in notes(sim))


def test_a_slowdown_that_three_sample_rounds_do_not_place_is_tested_for() -> None:
    sim = slow_job()
    sim.nodes["n2"].is_broken = True
    sim.run(1500.0)
    assert (slow_rounds(sim), sim.stage, node_tests(sim)) == (2, "Running", [])
    starts_again(sim, 1000.0)
    assert opened(sim) == [Symptom.SLOW]
    assert [asked.bitwise for asked in node_tests(sim)] == [False]
    assert evicted(sim) == {"n2"}


def test_tests_that_find_no_slow_node_are_made_once_in_a_job() -> None:
    sim = slow_job(slow_samples=1)
    starts_again(sim, 300.0)
    assert evicted(sim) == set()
    sim.run(1000.0)
    assert slow_rounds(sim) >= 1, "it goes on as slowly"
    assert (len(node_tests(sim)), sim.state.world.generation) == (1, 2)


@pytest.mark.parametrize("off", [{"slow_samples": 0}, {"slow_samples": 1, "diagnose": False}])
def test_slow_training_without_a_culprit_is_never_stopped_if_tests_are_off(off: dict[str, object]) -> None:
    sim = slow_job(**off)
    sim.run_until(lambda: slow_rounds(sim) == 2, 1500.0)
    sim.run(60.0)
    assert (sim.state.world.generation, node_tests(sim)) == (1, [])


# -- no traffic ------------------------------------------------------------------------------------


def mute_network(sim: Sim, *nodes: str) -> None:
    """The links of these nodes have carried nothing for a while."""
    for node in nodes:
        sim.nodes[node].traffic = Traffic(silent_s=610.0, talked_s=3600.0)


def silent_job(*nodes: str) -> Sim:
    """A program that shows no steps, whose ranks are still; so are the links of ``nodes``."""
    config = JobConfig(timings=Timings(heartbeat_s=2.0))
    sim = Sim(4, 2, seed=1, pace=SimulatedPace(step_s=1e5, turn_s=2.0), config=config)
    sim.run(700.0)
    assert (sim.stage, sim.step) == ("Running", -1)
    mute_network(sim, *nodes)
    return sim


def test_a_silent_network_has_stacks_sampled_and_they_name_the_node() -> None:
    sim = silent_job(*NODES)
    sim.hang_rank(2)
    starts_again(sim)
    (incident,) = sim.events(ev.IncidentOpened)
    assert incident.symptom is Symptom.HANG
    assert incident.detail.startswith("the links of all 4 nodes have carried next to nothing for 61")
    assert evicted(sim) == {"n3"}


def test_a_silent_network_without_a_culprit_ends_nothing() -> None:
    sim = silent_job(*NODES)
    sim.run_until(lambda: sim.stage == "Localising", 20.0)
    sim.run_until(lambda: sim.stage == "Running", 20.0)
    sim.run(30.0)
    assert sim.stage == "Running", "the same silence is not localised again"
    assert sum("next to nothing" in text for text in notes(sim)) == 1
    assert (opened(sim), sim.state.world.generation) == ([], 1)


@pytest.mark.parametrize("makes_steps", [False, True])
def test_a_network_is_not_silent_while_a_node_is_unknown_or_steps_are_made(makes_steps: bool) -> None:
    sim = job() if makes_steps else silent_job(*NODES[:3])
    mute_network(sim, *NODES if makes_steps else ())
    sim.run(12.0)
    assert (sim.stage, opened(sim), questions(sim, qs.SaveStacks)) == ("Running", [], [])
    assert not any("next to nothing" in text for text in notes(sim))


# -- wrong numbers ---------------------------------------------------------------------------------


def test_a_loss_of_nan_is_tested_for_bit_by_bit() -> None:
    sim = job()
    sim.nodes["n4"].is_broken = True
    sim.spoil_rank(0)
    starts_again(sim)
    assert opened(sim) == [Symptom.NON_FINITE]
    assert [asked.bitwise for asked in node_tests(sim)] == [True]
    assert evicted(sim) == {"n4"}


def test_a_loss_of_nan_on_good_nodes_costs_restarts_and_then_ends_the_job() -> None:
    sim = job()
    while sim.code is None:
        sim.run_until(lambda: sim.stage == "Running", 120.0)
        sim.spoil_rank(0)
        starts_again(sim)
    assert (sim.code, sim.state.world.generation, evicted(sim)) == (93, 3, set())


# -- alerts ----------------------------------------------------------------------------------------


def alert(number: int = 1, **fields: Any) -> Alert:
    lost = {
        "check": "gpu.lost", "subject": "gpu3", "text": "fell off the bus", "blame": Party.NODE,
        "suggestion": Suggestion.REBOOT, "age_s": 0.5,
    }  # fmt: skip
    return Alert(number=number, **{**lost, **fields})


LINK = {
    "check": "ethernet.state", "effect": Effect.LINK_DOWN, "subject": "mlx5_0/1", "text": "down",
    "blame": Party.FABRIC, "suggestion": Suggestion.RESET,
}  # fmt: skip


def test_a_lost_gpu_evicts_its_node_immediately() -> None:
    sim = job()
    sim.alert("n2", alert())
    starts_again(sim, 20.0)
    assert (opened(sim), evicted(sim)) == ([Symptom.NODE_FAULT], {"n2"})


def test_one_network_alert_is_borne_and_two_are_not() -> None:
    sim = job()
    sim.alert("n2", alert(**{**LINK, "age_s": 60.0, "ended_s": 50.0}))
    gets_on(sim, 1)
    sim.alert("n2", alert(2, **LINK))
    starts_again(sim, 20.0)
    assert (opened(sim), evicted(sim)) == ([Symptom.NETWORK], {"n2"})


@pytest.mark.parametrize("leaf", ["leaf1", ""])
def test_nodes_behind_one_switch_are_one_event(leaf: str) -> None:
    leaves = {node: leaf or f"leaf of {node}" for node in NODES}
    sim = trained(4, 2, replies={qs.FindSwitches: always(leaves)})
    for node in NODES[:2]:
        sim.nodes[node].alerts = (alert(**{**LINK, "age_s": 60.0, "ended_s": 50.0}), alert(2, **LINK))
    sim.run(10.0)
    assert evicted(sim) == (set() if leaf else {"n1", "n2"})


def test_a_standby_that_is_not_fit_is_dropped_before_it_is_used() -> None:
    sim = job()
    sim.alert("n5", alert())
    sim.run(1.0)
    assert (evicted(sim), sim.state.world.generation) == ({"n5"}, 1)
    sim.alert("n2", alert())
    starts_again(sim, 20.0)
    assert sim.state.world.slots == ("n1", "n6", "n3", "n4")


def test_a_standby_that_breaks_while_the_generation_ends_takes_no_slot() -> None:
    sim = job()
    sim.alert("n2", alert())
    sim.run_until(lambda: sim.stage == "Stopping", 5.0)
    sim.alert("n5", alert())
    starts_again(sim)
    assert evicted(sim) == {"n2", "n5"}
    assert sim.state.world.slots == ("n1", "n6", "n3", "n4")


def test_a_standby_with_one_alert_of_its_network_stays() -> None:
    sim = job()
    sim.alert("n5", alert(**LINK))
    sim.run(5.0)
    assert tuple(sim.state.spares) == SPARES


def test_memory_that_runs_out_evicts_no_node_and_explains_the_kill() -> None:
    sim = job()
    warning = alert(check="memory.pressure", blame=Party.JOB, suggestion=Suggestion.MONITOR)
    sim.alert("n2", warning)
    sim.run(5.0)
    assert opened(sim) == []
    sim.kill_rank(1)
    starts_again(sim, 20.0)
    assert evicted(sim) == set()
    assert [saved.alerts for saved in questions(sim, qs.SaveAlerts)] == [{"n2": (warning,)}]


# -- crashes ---------------------------------------------------------------------------------------


def test_a_crash_that_comes_again_is_tested_for() -> None:
    sim = job()
    sim.kill_rank(1)
    starts_again(sim, 20.0)
    assert node_tests(sim) == []
    sim.run_until(lambda: sim.stage == "Running", 60.0)
    sim.nodes["n2"].is_broken = True
    sim.kill_rank(1)
    starts_again(sim, 60.0)
    assert (len(node_tests(sim)), evicted(sim)) == (1, {"n2"})


LOST = "Connection closed by peer [10.0.0.1]:3"


@pytest.mark.parametrize("named", [1, 2])
def test_the_root_of_ranks_that_lost_their_peers_is_the_one_that_they_name(named: int) -> None:
    sim = job()
    sim.controller_stalls(0.3)  # and hears of all together
    for rank in (3, 2, 1, 0):
        message = f"{LOST}, rank {named} is unreachable" if rank != named else LOST
        sim.exit_rank(rank, error=WorkerError(type="RuntimeError", message=message))
    starts_again(sim, 30.0)
    assert evicted(sim) == set()
    (ended,) = sim.events(ev.GenerationEnded)
    assert (len(ended.exits), ended.root) == (4, named)
