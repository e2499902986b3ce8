"""The end of the agents' srun is why they are silent: no node is blamed, and no progress is lost."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Evict
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import PACE, controller_of, evicted, gets_on, requeues, starts, trained

INSANE = "srun: error: slurm_msg_recvfrom_timeout: Insane message length"
KILLED = ""  # nothing is left to say anything
STAYS = "srun: error: plugin_load_from_file: Permission denied"


def without_agent_on_n1() -> Sim:
    """A job of three nodes and a standby whose batch host has no agent, so that the standby has its slot."""
    sim = Sim(3, 1, seed=1, steps=400, pace=PACE)
    sim.no_agent["n1"] = "srun: error: n1: task 0: Killed"
    sim.run_until(lambda: sim.step >= 10, within_s=200.0)
    assert sim.state.world.slots == ("n4", "n2", "n3")
    return sim


def hears(sim: Sim, *nodes: str, says: str, is_task: bool = False) -> None:
    """The controller hears that the srun of agents, or of a task, has ended; the agents may live on."""
    sim.run_until(lambda: sim.controller is not None, within_s=5.0)
    controller_of(sim).hear_step(nodes, 1, (says,) if says else (), is_task=is_task)


def restarted(sim: Sim, generation: int = 2, step: int = 9) -> None:
    """Training goes on from its newest step on the same nodes, and no node is blamed."""
    slots, before = sim.state.world.slots, evicted(sim)
    gets_on(sim, generation)
    verdicts = [d.verdict for d in sim.events(ev.Decided)[-1:]]
    assert all(verdict is not None and verdict.blame is Blame.NOBODY for verdict in verdicts)
    assert (evicted(sim), requeues(sim)) == (before, []), sim.describe()
    assert sim.state.world.slots == slots
    assert sim.state.world.restored_step >= step


@pytest.mark.parametrize("order", [1, -1], ids=["training nodes first", "standbys first"])
@pytest.mark.parametrize("apart_s", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("says", [INSANE, KILLED], ids=["srun says why", "srun is killed"])
@pytest.mark.parametrize(
    ("slots", "spares", "batch_host"),
    [(1, 0, ""), (1, 1, ""), (1, 2, ""), (1, 1, "n2"), (2, 1, ""), (4, 1, "")],
    ids=["1", "1+1", "1+2", "batch host stands by", "2+1", "4+1"],
)
def test_the_end_of_the_agents_step_costs_a_restart_in_place(
    slots: int, spares: int, batch_host: str, says: str, apart_s: float, order: int
) -> None:
    sim = trained(slots, spares, batch_host=batch_host)
    standbys = sim.state.spares
    sim.srun_ends(*(*sim.state.world.slots, *standbys)[::order], says=says, apart_s=apart_s)
    restarted(sim)
    assert sim.state.spares == standbys
    sim.run_until(lambda: not sim.state.aside, within_s=30.0)


@pytest.mark.parametrize("order", [1, -1], ids=["training nodes first", "standbys first"])
@pytest.mark.parametrize("apart_s", [6.0, 9.0, 11.0, 16.0])
@pytest.mark.parametrize("size", [(1, 2), (2, 1), (3, 0)])
def test_agents_of_one_step_that_end_one_after_the_other_are_one_incident(
    size: tuple[int, int], apart_s: float, order: int
) -> None:
    sim = trained(*size)
    sim.srun_ends(*(*sim.state.world.slots, *sim.state.spares)[::order], apart_s=apart_s)
    restarted(sim)
    sim.run_until(lambda: not sim.state.aside, within_s=30.0)
    sim.run(60.0)
    assert len(sim.events(ev.IncidentOpened)) == 1
    assert sim.state.world.incident is None


def test_the_agents_step_may_be_ended_again_and_again_while_training_gets_on() -> None:
    sim = trained(1, 1)
    for generation in range(2, 7):
        step = sim.step
        sim.srun_ends("n1", "n2", says=INSANE, apart_s=0.3)
        restarted(sim, generation, step)
        sim.run(40.0)
    assert sim.code is None


def test_agents_of_another_srun_are_not_started_again() -> None:
    sim = trained(3, 1)
    sim.srun_ends("n2", "n4")
    restarted(sim)
    assert {node for nodes in starts(sim)[1:] for node in nodes} == {"n2", "n4"}


def test_the_next_agent_of_a_node_finds_what_that_keeps_in_memory() -> None:
    sim = trained(4)
    sim.srun_ends("n2", "n3", "n4")
    restarted(sim)


def test_a_batch_host_without_an_agent_hears_from_srun_that_it_is_not_cut_off() -> None:
    sim = without_agent_on_n1()
    sim.srun_ends("n2", "n3", "n4", says=INSANE)
    restarted(sim)


def test_a_node_that_srun_names_is_still_lost() -> None:
    sim = trained(2, 1)
    hears(sim, "n1", "n2", "n3", says="srun: error: Node failure on n2")
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert evicted(sim) == {"n2"}


def test_a_node_that_dies_long_after_its_srun_is_lost_as_early_as_ever() -> None:
    sim = trained(2, 1)
    hears(sim, "n1", "n2", "n3", says=KILLED)
    sim.run(60.0)
    assert sim.stage == "Running"
    sim.node_dies("n2")
    sim.run(6.0)
    assert evicted(sim) == {"n2"}


def test_a_silent_node_whose_srun_ended_is_not_blamed_beside_a_dead_one() -> None:
    sim = trained(4, 2)
    sim.srun_ends("n2")
    sim.run(4.0)
    sim.node_dies("n4")
    gets_on(sim, 2)
    assert evicted(sim) <= {"n4"}
    assert "n2" in sim.state.world.slots


@pytest.mark.parametrize("heard_s", [0.5, 1.0, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("is_gathering", [False, True], ids=["workers end", "a node is waited for"])
def test_the_agents_step_may_end_on_the_way_into_the_next_generation(
    is_gathering: bool, heard_s: float
) -> None:
    sim = trained(4, pace=structs.replace(PACE, zygote_s=(12.0, 12.0)))
    if is_gathering:
        sim.agent_dies("n4", told=False)
        sim.run_until(lambda: sim.stage == "Gathering", within_s=10.0)
    else:
        sim.nodes["n4"].dying_s = 8.0
        sim.kill_rank(0)
    sim.srun_ends("n1", "n2", "n3", after_s=heard_s)
    sim.run(30.0)
    sim.run_until(lambda: sim.has_been_well(5.0), within_s=60.0)
    assert (evicted(sim), requeues(sim), sim.code) == (set(), [], None)
    assert sim.state.world.restored_step >= 9


def test_a_node_that_is_lost_after_the_end_of_an_agents_step_does_not_end_the_job() -> None:
    sim = trained(4, 2)
    sim.srun_ends("n2", says=STAYS)
    sim.run(2.0)
    sim.node_dies("n4")
    gets_on(sim, 2)
    assert (sim.code, evicted(sim)) == (None, {"n4"})


def test_a_requeue_after_the_end_of_an_agents_step_restores_what_nodes_keep_in_memory() -> None:
    sim = trained(4)
    sim.srun_ends("n2")
    sim.run(2.0)
    sim.node_dies("n4")
    sim.run_until(lambda: bool(requeues(sim)), within_s=30.0)
    assert requeues(sim) == [("n4",)]
    gets_on(sim, 2)
    assert (sim.runs, sim.state.world.unsealed) == (2, ())
    assert sim.state.world.restored_step >= 9


def test_a_controller_that_stood_still_when_the_agents_step_ended_blames_no_node() -> None:
    sim = trained(1, 1)
    sim.srun_ends("n1", "n2")
    sim.run(0.5)
    sim.controller_stalls(40.0)
    restarted(sim)


CANCELLED = (
    "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-28T22:08:04 ***",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "srun: error: n[1-3]: tasks 0-2: Killed",
)


def test_a_cancelled_step_of_which_slurm_reports_each_task_costs_no_wait_for_silence() -> None:
    sim = trained(2, 1)
    for node in ("n1", "n2", "n3"):
        sim.agent_dies(node, told=False)
    controller_of(sim).hear_step(("n1", "n2", "n3"), 137, CANCELLED, is_task=False)
    begun = sim.now
    sim.run_until(lambda: bool(sim.events(ev.Decided)), within_s=2.0)
    assert sim.now - begun < 1.0, "neither the fault nor its workers are waited for"
    restarted(sim)


def test_agents_that_outlive_a_cancelled_step_of_which_slurm_reports_no_task_train_on() -> None:
    sim = trained(2, 1)
    controller_of(sim).hear_step(("n1", "n2", "n3"), 137, CANCELLED[:2], is_task=False)
    sim.run(60.0)
    assert (sim.stage, sim.events(ev.IncidentOpened)) == ("Running", [])


@pytest.mark.parametrize(("age_s", "least_s", "most_s"), [(0.0, 25.0, 40.0), (60.0, 0.0, 8.0)])
def test_a_launch_waits_for_agents_that_may_follow_their_srun_once_only(
    age_s: float, least_s: float, most_s: float
) -> None:
    """The next controller finds the dead srun, too, and knows that its agents have outlived it."""
    sim = trained(2, 1)
    sim.controller_dies()
    sim.run_until(lambda: sim.stage == "Running", within_s=10.0)
    controller_of(sim).hear_step(("n1", "n2", "n3"), -9, (), is_task=False, age_s=age_s)
    sim.run(1.0)
    begun = sim.now
    sim.kill_rank(1)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    assert least_s <= sim.now - begun <= most_s
    restarted(sim)


@pytest.mark.parametrize("apart_s", [0.0, 11.0])
def test_the_end_of_an_agents_step_of_an_earlier_controller_blames_no_node(apart_s: float) -> None:
    sim = trained(2, 1)
    sim.controller_dies()
    sim.run_until(lambda: sim.stage == "Running", within_s=10.0)
    sim.srun_ends("n2", "n1", "n3", apart_s=apart_s)
    restarted(sim)
    assert len(sim.events(ev.IncidentOpened)) == 1


def test_agents_that_end_with_their_step_while_no_controller_lives_blame_no_node() -> None:
    sim = trained(2, 1)
    sim.controller_dies()
    for node in ("n1", "n2"):
        sim.agent_dies(node, told=False)
    hears(sim, "n1", "n2", "n3", says=INSANE)
    restarted(sim)


def test_an_agent_that_ends_alone_while_no_controller_lives_is_started_again() -> None:
    sim = trained(2, 1)
    sim.controller_dies()
    sim.agent_dies("n2", told=False)
    hears(sim, "n2", says="srun: error: n2: task 1: Killed", is_task=True)
    restarted(sim)


def test_observe_mode_would_evict_no_node_for_the_end_of_the_agents_step() -> None:
    sim = trained(1, 1, config=JobConfig(mode="observe"))
    sim.srun_ends("n1", "n2", says=INSANE, apart_s=0.3)
    sim.run_until(lambda: bool(sim.events(ev.Decided)), within_s=30.0)
    (decided,) = sim.events(ev.Decided)
    assert not [action for action in decided.actions if isinstance(action, Evict)]
