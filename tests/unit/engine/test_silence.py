"""The end of the agents' srun is why they are silent: no node is blamed, and no progress is lost."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import JobConfig
from slurm_robust.engine.transitions import ToGathering, ToReconnecting
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Evict
from tests.unit.engine.fake_job import Job

INSANE = "srun: error: slurm_msg_recvfrom_timeout: Insane message length"
KILLED = ""  # nothing is left to say anything


def trained(slots: tuple[str, ...], spares: tuple[str, ...] = (), config: JobConfig | None = None) -> Job:
    job = Job(slots, spares, memory=True, config=config)
    train(job, 20)
    return job


def train(job: Job, seconds: int) -> None:
    """A step a second."""
    for _ in range(seconds):
        newest = [p.step for p in job.heartbeats[job.core.world.slots[0]].progress]
        job.train_to(max(*newest, job.core.world.restored_step) + 1)
        job.pass_time(1.0)


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


def restarted(job: Job, slots: tuple[str, ...], generation: int = 2) -> None:
    """Training goes on from its newest step on the same nodes, and nobody is blamed."""
    job.until(
        lambda: job.code is not None or (job.core.world.generation, job.stage) == (generation, "Running"),
        30,
    )
    assert job.code is None, job.said
    state = job.core.state
    assert (evicted(job), job.requeued, state.world.slots) == (set(), [], slots)
    assert state.world.restored is not None
    assert state.world.restored.step >= 19
    verdicts = [d.verdict for d in job.events(ev.Decided)]
    assert all(verdict is not None and verdict.blame is Blame.NOBODY for verdict in verdicts)


@pytest.mark.parametrize("order", [1, -1], ids=["training nodes first", "standbys first"])
@pytest.mark.parametrize("apart_s", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("message", [INSANE, KILLED], ids=["srun says why", "srun is killed"])
@pytest.mark.parametrize(
    ("slots", "spares"),
    [
        (("n1",), ()),
        (("n1",), ("n2",)),
        (("n1",), ("n2", "n3")),
        (("n2",), ("n1",)),
        (("n1", "n2"), ("n3",)),
        (("n1", "n2", "n3", "n4"), ("n5",)),
    ],
    ids=["1", "1+1", "1+2", "batch host stands by", "2+1", "4+1"],
)
def test_the_end_of_the_agents_step_costs_a_restart_in_place(
    slots: tuple[str, ...], spares: tuple[str, ...], message: str, apart_s: float, order: int
) -> None:
    job = trained(slots, spares)
    job.step_dies(*(*slots, *spares)[::order], message=message, apart_s=apart_s)
    restarted(job, slots)
    assert job.core.state.spares == spares
    job.until(lambda: not job.core.state.aside, 30)
    train(job, 5)
    assert job.core.world.incident is None


@pytest.mark.parametrize("order", [1, -1], ids=["training nodes first", "standbys first"])
@pytest.mark.parametrize("apart_s", [6.0, 9.0, 11.0, 16.0])
@pytest.mark.parametrize(
    ("slots", "spares"), [(("n1",), ("n2", "n3")), (("n1", "n2"), ("n3",)), (("n1", "n2", "n3"), ())]
)
def test_agents_of_one_step_that_end_one_after_the_other_are_one_incident(
    slots: tuple[str, ...], spares: tuple[str, ...], apart_s: float, order: int
) -> None:
    job = trained(slots, spares)
    job.step_dies(*(*slots, *spares)[::order], message=KILLED, apart_s=apart_s)
    restarted(job, slots)
    job.until(lambda: not job.core.state.aside, 30)
    train(job, 60)
    assert len(job.events(ev.IncidentOpened)) == 1
    assert job.core.world.incident is None


def test_a_step_may_be_ended_again_and_again_while_training_gets_on() -> None:
    job = trained(("n1",), ("n2",))
    for generation in range(2, 7):
        job.step_dies("n1", "n2", message=INSANE, apart_s=0.3)
        restarted(job, ("n1",), generation)
        train(job, 60)
    assert job.code is None


def test_agents_of_another_step_are_left_in_peace() -> None:
    job = trained(("n1", "n2", "n3"), ("n4",))
    job.step_dies("n2", "n4", message=KILLED)
    restarted(job, ("n1", "n2", "n3"))
    assert {node for nodes in job.started[1:] for node in nodes} == {"n2", "n4"}


def test_what_nodes_without_an_agent_keep_in_memory_is_found_again_by_the_next() -> None:
    job = trained(("n1", "n2", "n3", "n4"))
    job.step_dies("n2", "n3", "n4", message=KILLED)
    restarted(job, ("n1", "n2", "n3", "n4"))


def test_a_batch_host_without_an_agent_hears_from_srun_that_it_is_not_cut_off() -> None:
    job = trained(("n2", "n3", "n4"))
    job.step_dies("n2", "n3", "n4", message=INSANE)
    restarted(job, ("n2", "n3", "n4"))


def test_a_node_that_srun_names_is_still_lost() -> None:
    job = trained(("n1", "n2"), ("n3",))
    job.step_ends("n1", "n2", "n3", message="srun: error: Node failure on n2")
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2, 20)
    assert evicted(job) == {"n2"}


def test_a_node_that_dies_long_after_its_srun_is_lost_as_early_as_ever() -> None:
    job = trained(("n1", "n2"), ("n3",))
    job.step_ends("n1", "n2", "n3", message=KILLED)
    job.pass_time(60.0)
    assert job.stage == "Running"
    job.power_cut("n2")
    job.pass_time(6.0)
    assert evicted(job) == {"n2"}


def test_of_two_silent_nodes_the_one_whose_step_ended_is_not_blamed() -> None:
    job = trained(("n1", "n2", "n3", "n4"), ("n5", "n6"))
    job.step_dies("n2", message=KILLED)
    job.pass_time(3.0)
    job.power_cut("n4")
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", 30)
    assert evicted(job) <= {"n4"}
    assert "n2" in job.core.world.slots


@pytest.mark.parametrize("heard_s", [0.5, 1.0, 2.0, 3.0, 5.0])
def test_the_step_may_end_on_the_way_into_the_next_generation(heard_s: float) -> None:
    job = trained(("n1", "n2", "n3", "n4"))
    job.change("n4", ready=False)  # so the next generation waits for it
    job.kill_rank(3)
    job.step_dies("n1", "n2", "n3", message=KILLED, heard_s=heard_s)
    job.pass_time(30.0)
    if "n4" in job.heartbeats:
        job.change("n4", ready=True)
    job.until(lambda: job.stage == "Running", 60)
    assert (evicted(job), job.code) == (set(), None)


def test_a_lost_node_beside_the_end_of_a_step_that_nothing_starts_does_not_end_the_job() -> None:
    job = trained(("n1", "n2", "n3", "n4"), ("n5", "n6"))
    job.step_dies("n2", message="srun: error: plugin_load_from_file: Permission denied")
    job.pass_time(1.0)
    job.power_cut("n4")
    job.until(lambda: job.code is not None or (job.core.world.generation == 2 and job.stage == "Running"), 60)
    assert (job.code, evicted(job)) == (None, {"n4"})


def test_a_requeue_beside_the_end_of_a_step_restores_what_its_nodes_keep_in_memory() -> None:
    job = trained(("n1", "n2", "n3", "n4"))
    job.step_dies("n2", message=KILLED)
    job.pass_time(1.0)
    left = job.copies | {node: heartbeat.copies for node, heartbeat in job.heartbeats.items()}
    job.power_cut("n4")
    job.until(lambda: bool(job.requeued), 30)
    assert job.requeued == [("n4",)]
    slots = ("n1", "n2", "n3", "n5")
    taken = ev.AllocationTaken(t=job.wall, restart_count=1, nodes=slots, slots=slots, spares=())
    history = (*job.journal, taken)
    later = Job(slots, history=history, first=ToGathering(start=True), copies=left)
    later.until(lambda: later.core.world.generation == 2, 30)
    restored = later.core.world.restored
    assert restored is not None
    assert restored.step >= 19
    assert later.core.world.unsealed == ()


def test_a_controller_that_stood_still_when_the_step_ended_blames_nobody() -> None:
    job = trained(("n1",), ("n2",))
    job.step_ends("n1", "n2", message=KILLED)
    job.mono += 40.0
    job.wall += 40.0
    job.core.on_stall(40.0, job.now())
    for node in ("n1", "n2"):
        job.copies[node] = job.heartbeats.pop(node).copies
    restarted(job, ("n1",))


def next_controller(job: Job) -> Job:
    """Another controller on the same job, which knows no more than its journal."""
    later = Job(history=tuple(job.journal), first=ToReconnecting(), memory=True, clock=(job.mono, job.wall))
    later.heartbeats, later.orders, later.copies = job.heartbeats, job.orders, job.copies
    return later


@pytest.mark.parametrize("apart_s", [0.0, 11.0])
def test_the_end_of_a_step_that_an_earlier_controller_started_blames_nobody(apart_s: float) -> None:
    later = next_controller(trained(("n1", "n2"), ("n3",)))
    later.until(lambda: later.stage == "Running", 5)
    later.step_dies("n2", "n1", "n3", message=KILLED, apart_s=apart_s)
    restarted(later, ("n1", "n2"))
    assert len(later.events(ev.IncidentOpened)) == 1


def test_agents_that_end_with_their_step_while_no_controller_lives_blame_nobody() -> None:
    job = trained(("n1", "n2"), ("n3",))
    job.copies = {node: heartbeat.copies for node, heartbeat in job.heartbeats.items()}
    del job.heartbeats["n1"], job.heartbeats["n2"]
    later = next_controller(job)
    later.step_ends("n1", "n2", "n3", message=INSANE)
    restarted(later, ("n1", "n2"))


def test_an_agent_that_ends_alone_while_no_controller_lives_is_started_again() -> None:
    job = trained(("n1", "n2"), ("n3",))
    job.copies = {"n2": job.heartbeats.pop("n2").copies}
    later = next_controller(job)
    later.task_ends("n2", "srun: error: n2: task 1: Killed")
    restarted(later, ("n1", "n2"))


def test_observe_mode_would_evict_nobody_for_the_end_of_the_step() -> None:
    job = trained(("n1",), ("n2",), JobConfig(mode="observe"))
    job.step_dies("n1", "n2", message=INSANE, apart_s=0.3)
    job.until(lambda: bool(job.events(ev.Decided)), 30)
    (decided,) = job.events(ev.Decided)
    assert not [action for action in decided.actions if isinstance(action, Evict)]
