"""An agent's silence alone evicts nobody: its node and the other ranks are asked first."""

from __future__ import annotations

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from tests.unit.engine.fake_job import Job

NODES = ("n1", "n2", "n3", "n4")
DEAD_S = 5.0


def trained() -> Job:
    job = Job(NODES, ("n5",), memory=True)
    job.ages = True
    train(job, 20.0)
    return job


def train(job: Job, seconds: float, without: tuple[str, ...] = ()) -> None:
    """A step a second, as far as it is heard of; ranks of ``without`` make none, and the others wait."""
    for _ in range(round(seconds)):
        if not without:
            job.train_to(max(p.step for p in job.heartbeats["n1"].progress) + 1)
        job.pass_time(1.0)


def stall(job: Job, *nodes: str) -> None:
    """Their agents are stopped, the kernels answer."""
    job.cut |= set(nodes)
    job.stalled |= set(nodes)


def wake(job: Job) -> None:
    job.cut.clear()
    job.stalled.clear()


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


def seconds_to_eviction(job: Job, limit: float) -> float:
    began = job.mono
    job.until(lambda: bool(evicted(job)), limit)
    return job.mono - began


@pytest.mark.parametrize("seconds", [10.0, 25.0])
def test_an_agent_that_is_stopped_for_a_while_costs_nothing(seconds: float) -> None:
    job = trained()
    stall(job, "n3")
    train(job, seconds, without=("n3",))
    wake(job)
    train(job, 10.0)
    assert (evicted(job), job.core.world.generation, job.stage) == (set(), 1, "Running")
    assert job.core.world.incident is None
    assert any("agent of n3 is silent, but its node answers" in text for text in job.said)


def test_a_node_without_power_is_evicted_as_early_as_ever() -> None:
    job = trained()
    job.power_cut("n3")
    assert DEAD_S <= seconds_to_eviction(job, 20.0) <= DEAD_S + 1.0
    assert evicted(job) == {"n3"}


def test_a_node_that_is_cut_off_alone_is_evicted_as_early_as_ever() -> None:
    job = trained()
    job.cut.add("n3")
    assert DEAD_S <= seconds_to_eviction(job, 20.0) <= DEAD_S + 1.0


def test_an_agent_that_stays_silent_is_lost_although_its_node_answers() -> None:
    job = trained()
    stall(job, "n3")
    assert 30.0 <= seconds_to_eviction(job, 60.0) <= 32.0


def test_an_agent_that_has_ended_unreported_is_started_again_on_its_node() -> None:
    job = trained()
    job.agent_dies("n3")
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", 15.0)
    assert (evicted(job), job.started[1:]) == (set(), [("n3",)])
    assert job.core.world.slots == NODES
    (opened,) = job.events(ev.IncidentOpened)
    assert opened.symptom is Symptom.AGENTS_LOST
    assert opened.detect_s < DEAD_S
    assert "no process listens at its port any more, while its node answers" in opened.detail


def test_several_nodes_that_refuse_a_connection_at_once_may_be_cut_off() -> None:
    job = trained()
    job.agent_dies("n3", "n4")
    train(job, DEAD_S - 1.0, without=("n3", "n4"))
    assert (job.core.world.incident, job.stage) == (None, "Running")


def test_a_node_that_slurm_has_given_up_is_not_waited_for() -> None:
    job = trained()
    job.given_up.add("n3")
    stall(job, "n3")
    assert seconds_to_eviction(job, 60.0) < 15.0


def test_a_node_whose_ranks_go_on_is_not_evicted_although_it_does_not_answer() -> None:
    job = trained()
    job.cut.add("n3")  # from the controller, not from the other ranks
    train(job, 20.0)
    assert (evicted(job), job.stage) == (set(), "Running")
    assert any("agent of n3 is silent, but its ranks go on" in text for text in job.said)
    job.cut.clear()
    train(job, 5.0)
    assert job.core.world.incident is None


def test_while_an_agent_is_silent_no_hang_of_its_ranks_is_reported() -> None:
    job = trained()
    stall(job, "n3")
    train(job, 28.0)
    wake(job)
    train(job, 5.0)
    assert (job.core.world.incident, job.stage) == (None, "Running")


def test_a_stopped_agent_while_workers_are_stopped_is_waited_for() -> None:
    job = trained()
    stall(job, "n3")
    job.kill_rank(0)
    job.pass_time(10.0)
    assert (job.stage, evicted(job)) == ("Stopping", set())
    wake(job)
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", 10)
    assert evicted(job) == set()


def test_many_stalled_agents_are_judged_together() -> None:
    job = trained()
    stall(job, "n2", "n3", "n4")
    train(job, 40.0, without=("n2", "n3", "n4"))
    assert (job.stage, evicted(job)) == ("Unreachable", set())
