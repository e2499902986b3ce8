"""Agents that do not start: reported with Slurm's message, tried again if that helps, blamed on no node."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import Blame, Symptom
from slurm_robust.testing.sim.environment import SimulatedPace, always
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import BAD_GPU
from slurm_robust.wire.messages import Shutdown
from tests.unit.engine.stories import (
    PACE,
    controller_of,
    evicted,
    gets_on,
    gives_up,
    notes,
    opened,
    questions,
    requeues,
    sent,
    starts,
    trained,
)

ACCOUNT = "srun: error: Unable to create step for job 7: Invalid account or account/partition combination"
NO_SLURMCTLD = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"
UNKNOWN = "srun: error: Unable to create step for job 7: Job credential expired"
DEAD_NODE = "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure"


def unstarted(nodes: int = 2, spares: int = 1) -> Sim:
    """A job on whose nodes no agent comes, until srun is the pretended world's again."""
    return Sim(nodes, spares, seed=1, pace=PACE, steps=400, replies={qs.StartAgents: always({})})


def requeued(pace: SimulatedPace = PACE, *, starts: bool = False) -> Sim:
    """A job of two nodes that has trained, in its next run; ``starts``: in which agents come."""
    sim = Sim(2, seed=1, pace=pace, steps=400)
    sim.run_until(lambda: sim.step >= 5, within_s=120.0)
    sim.answer(qs.StartAgents, None if starts else always({}))
    sim.warn()
    sim.run_until(lambda: sim.runs == 2, within_s=200.0)
    return sim


def srun_ends(sim: Sim, says: str, code: int = 1) -> None:
    """The newest srun of agents ends, with that line."""
    controller_of(sim).hear_step(starts(sim)[-1], code, (says,), is_task=False)


def srun_ends_again_and_again(sim: Sim, says: str, times: int = 1000) -> None:
    """Each srun ends with that line, until the job has ended or agents were started so often."""
    while sim.code is None and len(starts(sim)) < times:
        before = len(starts(sim))
        srun_ends(sim, says)
        sim.run_until(lambda before=before: sim.code is not None or len(starts(sim)) > before, within_s=60.0)


def let_go(sim: Sim) -> list[str]:
    """Dead nodes whose srun was killed."""
    return [asked.node for asked in questions(sim, qs.LetGo)]


def decision(sim: Sim) -> ev.Decided:
    (decided,) = sim.events(ev.Decided)
    return decided


@pytest.mark.parametrize("answers", [True, False], ids=["slurm answers", "slurm is silent"])
def test_a_step_that_slurm_refuses_ends_the_job_with_its_message(answers: bool) -> None:
    sim = unstarted()
    sim.run(1.0)
    sim.slurm_is_silent(not answers)
    srun_ends(sim, ACCOUNT)
    assert sim.run_to_end(within_s=5.0 if answers else 20.0) == ExitCode.DO_NOT_REQUEUE
    decided = decision(sim)
    assert decided.verdict is not None
    assert decided.verdict.blame is Blame.NOBODY
    assert ACCOUNT in decided.reason
    assert "sacctmgr show assoc" in decided.reason
    assert ("Slurm does not say" in decided.reason) is not answers
    assert (evicted(sim), len(starts(sim))) == (set(), 1)
    assert any(ACCOUNT in text for text in sim.said)


def test_a_slurmctld_that_restarts_is_waited_for() -> None:
    sim = unstarted()
    srun_ends_again_and_again(sim, NO_SLURMCTLD, times=3)
    sim.answer(qs.StartAgents, None)
    srun_ends(sim, NO_SLURMCTLD)
    gets_on(sim, 1)
    assert (sim.events(ev.Decided), opened(sim)) == ([], [])
    assert any("Unable to contact slurm controller" in text for text in sim.said)


@pytest.mark.parametrize(
    "says", [NO_SLURMCTLD, UNKNOWN], ids=["no slurmctld", "no known cause, in a later run"]
)
def test_what_never_lets_agents_start_ends_the_job_after_a_quarter_of_an_hour(says: str) -> None:
    sim = unstarted() if says is NO_SLURMCTLD else requeued()
    began = sim.now
    srun_ends_again_and_again(sim, says)
    assert sim.code == ExitCode.DO_NOT_REQUEUE
    assert evicted(sim) == set()
    assert 900 <= sim.now - began < 1000
    assert says in sim.events(ev.RunEnded)[-1].reason


def test_a_training_whose_agents_came_before_waits_while_something_keeps_them_away() -> None:
    """No cause is known, so it may pass: nothing that was computed is given up for it."""
    sim = requeued()
    srun_ends_again_and_again(sim, UNKNOWN, times=5)
    sim.answer(qs.StartAgents, None)
    srun_ends(sim, UNKNOWN)
    gets_on(sim, 2)
    assert opened(sim) == []


def test_before_the_first_training_two_failures_that_name_no_cause_are_enough() -> None:
    sim = unstarted()
    srun_ends_again_and_again(sim, UNKNOWN)
    assert sim.code == ExitCode.DO_NOT_REQUEUE
    assert starts(sim) == [("n1", "n2", "n3"), ("n1", "n2")]


def test_no_node_is_evicted_if_no_agent_comes_at_all() -> None:
    sim = unstarted()
    assert sim.run_to_end(within_s=700.0) == ExitCode.DO_NOT_REQUEUE
    assert evicted(sim) == set()


def test_a_node_that_slurm_calls_down_is_replaced_on_its_word() -> None:
    sim = unstarted()
    sim.run(1.0)
    sim.node_dies("n2")
    gives_up(sim, "n2")
    sim.answer(qs.StartAgents, None)
    srun_ends(sim, DEAD_NODE, code=233)
    gets_on(sim, 1)
    assert sim.state.world.slots == ("n1", "n3")
    reason = decision(sim).reason
    assert "Slurm says DOWN" in reason
    assert "Communication connection failure" in reason


def test_a_silent_node_that_slurm_calls_well_gets_a_second_start() -> None:
    sim = Sim(2, 1, seed=1, pace=PACE, steps=400)
    sim.no_agent["n2"] = ""
    sim.run(30.0)
    sim.no_agent.clear()
    gets_on(sim, 1)
    assert (sim.state.world.slots, opened(sim)) == (("n1", "n2"), [])
    assert [asked.nodes for asked in questions(sim, qs.AskAboutNodes)] == [("n2",)]


def test_a_node_on_which_two_starts_show_nothing_is_replaced_with_little_confidence() -> None:
    sim = Sim(2, 1, seed=1, pace=PACE, steps=400)
    sim.no_agent["n2"] = ""
    sim.run_until(lambda: sim.stage == "Running", within_s=180.0)
    assert sim.state.world.slots == ("n1", "n3")
    decided = decision(sim)
    assert decided.verdict is not None
    assert decided.verdict.confidence == 0.5
    assert "no agent has joined in 2 starts" in decided.reason
    assert "Slurm says ALLOCATED" in decided.reason


# -- nodes that are dead when agents start, which Slurm does not know ------------------------------


SRUN_ABORTS = structs.replace(PACE, srun_aborts_s=5.0, agent_s=(10.0, 10.0))


@pytest.mark.parametrize("agent_s", [1.0, 10.0], ids=["agents come first", "srun ends first"])
def test_a_node_that_is_dead_at_the_start_ends_no_other_agent_a_second_time(agent_s: float) -> None:
    pace = structs.replace(SRUN_ABORTS, agent_s=(agent_s, agent_s))
    sim = Sim(2, 1, seed=1, steps=400, pace=pace)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.stage == "Running", within_s=60.0)
    assert (sim.state.world.slots, evicted(sim)) == (("n1", "n3"), {"n2"})
    assert "failed on node n2" in decision(sim).reason


def test_several_dead_nodes_at_the_start_end_no_run() -> None:
    """Those that live are slower than Slurm is to find the dead ones, as on a busy machine."""
    sim = Sim(4, seed=1, steps=400, pace=SRUN_ABORTS)
    sim.node_dies("n2")
    sim.node_dies("n4")
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    assert requeues(sim) == [("n2", "n4")]
    assert sim.events(ev.RunEnded) == []


def test_a_requeued_training_is_not_lost_to_a_node_that_dies_while_agents_start() -> None:
    sim = requeued(SRUN_ABORTS, starts=True)
    sim.node_dies("n2")
    sim.run_until(lambda: len(requeues(sim)) > 1, within_s=60.0)
    assert requeues(sim)[1:] == [("n2",)]


# -- agents that end, and second ones --------------------------------------------------------------


def test_the_second_of_two_agents_on_a_node_is_ordered_to_end() -> None:
    sim = Sim(2, 1, seed=1, pace=PACE, steps=400)
    sim.no_agent["n2"] = ""
    sim.run(30.0)
    sim.no_agent.clear()
    gets_on(sim, 1)
    first = sim.nodes["n2"].agent
    sim.nodes["n2"].start_agent()
    late = sim.nodes["n2"].agent
    assert late is not None
    sim.run(5.0)
    gets_on(sim, 1)
    assert {(to, order.keep_copies) for to, order in sent(sim, Shutdown)} == {(late.id, True)}
    assert sim.nodes["n2"].agent is first


def test_an_agent_that_ended_is_started_again_once_and_its_node_is_not_blamed() -> None:
    killed = "srun: error: n2: task 0: Killed"
    sim = trained(2, 1)
    lost_peer = WorkerError(
        type="torch.distributed.DistBackendError",
        message="Connection closed by peer",
        file="train.py",
        line=3,
    )
    sim.agent_dies("n2", told=False)
    sim.exit_rank(0, error=lost_peer)
    sim.run_until(lambda: bool(opened(sim)), within_s=5.0)
    sim.agent_dies("n2")
    sim.run_until(lambda: bool(sim.events(ev.Decided)), within_s=10.0)
    assert opened(sim) == [Symptom.WORKER_EXIT]  # not the user's exception
    (added,) = sim.events(ev.SymptomAdded)
    assert (added.symptom, added.detail) == (Symptom.AGENTS_LOST, f"the agent on n2 ended ({killed})")
    decided = decision(sim)
    assert decided.verdict is not None
    assert decided.verdict.blame is Blame.NOBODY
    assert decided.reason == f"the agent on n2 ended ({killed}): start the agent again and restart"
    gets_on(sim, 2)
    assert (sim.state.world.slots, sim.state.evicted) == (("n1", "n2"), {})
    assert starts(sim)[-1] == ("n2",)
    sim.agent_dies("n2")
    gets_on(sim, 3)
    assert opened(sim)[-1] is Symptom.AGENTS_LOST
    assert sim.state.evicted == {"n2": f"the agent on n2 ended again ({killed})"}


def test_no_silence_is_waited_for_if_slurm_says_that_an_agent_ended() -> None:
    sim = trained(2, 1)
    sim.agent_dies("n2")
    sim.run_until(lambda: bool(sim.events(ev.Decided)), within_s=sim.config.timings.node_dead_s / 2)


def test_a_node_whose_agent_ran_out_of_memory_is_not_the_one_to_blame() -> None:
    sim = trained(2, 1)
    sim.agent_dies("n2", how="Out Of Memory")
    gets_on(sim, 2)
    assert (sim.state.world.slots, evicted(sim)) == (("n1", "n2"), set())
    assert "on n2: srun: error: n2: task 0: Out Of Memory: ask for more memory" in decision(sim).reason


def test_the_end_of_the_agents_step_under_a_training_is_reported() -> None:
    sim = trained(2, 1)
    srun_ends(sim, "slurmstepd: error: *** STEP 7.0 CANCELLED ***", code=143)
    gets_on(sim, 1)
    assert any("STEP 7.0 CANCELLED" in text for text in notes(sim))


# -- the srun of dead nodes ------------------------------------------------------------------------


@pytest.mark.parametrize("dead", ["n2", "n3"], ids=["a slot", "a standby"])
def test_a_dead_node_that_comes_back_ends_no_agent_of_the_others(dead: str) -> None:
    sim = trained(2, 1)
    sim.node_dies(dead)
    sim.run_until(lambda: bool(let_go(sim)), within_s=30.0)
    sim.run(10.0)
    assert let_go(sim) == [dead]


def test_the_srun_of_a_node_that_lives_is_kept() -> None:
    """It tells of the ends of its agents."""
    sim = trained(2, 1)
    sim.alert("n2", BAD_GPU)
    gets_on(sim, 2)
    assert (evicted(sim), let_go(sim)) == ({"n2"}, [])


def test_an_srun_is_not_killed_while_it_starts_other_agents() -> None:
    sim = Sim(2, 2, seed=1, pace=PACE, steps=400)
    sim.no_agent["n4"] = ""
    sim.run_until(lambda: sim.step >= 5, within_s=120.0)
    sim.node_dies("n3")
    sim.run_until(lambda: any(e.node == "n3" for e in sim.events(ev.SpareSetAside)), within_s=60.0)
    sim.run(5.0)
    assert let_go(sim) == []
    sim.nodes["n4"].start_agent()
    sim.run(2.0)
    assert let_go(sim) == ["n3"]
