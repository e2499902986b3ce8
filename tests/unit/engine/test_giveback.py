"""An evicted node is given back while the job runs on, once nothing that only it holds is needed."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.config.job import JobConfig, SlurmConfig
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import RECONNECT_S
from slurm_robust.engine.units.giveback import LONGEST_PAUSE_S, PAUSE_S
from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from tests.unit.engine.fake_job import Job
from tests.unit.engine.test_detection import alert

NOT_NOW = qs.SlurmAnswer(said=qs.RequeueStatus.NOTHING, detail="the DB index is being set")


def evict(job: Job, node: str = "n2") -> Job:
    """``node`` answers, and its inspection names it; the standby takes its slot and trains."""
    job.train_to(3)
    job.change(node, alerts=(alert(),))
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", limit=90)
    return job


def get_on(job: Job, steps: range) -> Job:
    for step in steps:
        job.train_to(step)
        job.pass_time(2)
    return job


def test_the_agent_of_a_node_given_back_ends_first_and_takes_its_copies_along() -> None:
    job = get_on(evict(Job()), range(4, 8))
    assert job.given_back == ["n2"]
    assert job.kept == {"n2": False}
    (event,) = job.events(ev.NodeGivenBack)
    assert event.node == "n2"
    assert "n2" in job.core.state.evicted, "it stays excluded from a requeue"
    assert job.core.state.held == ("n1", "n3")


def test_a_node_is_not_given_back_before_training_gets_on() -> None:
    job = evict(Job())
    job.pass_time(20)
    assert job.given_back == []


def test_a_node_is_not_given_back_before_a_checkpoint_of_the_others_has_replaced_its_copies() -> None:
    job = Job(memory=True)
    for step in range(4):
        job.train_to(step)
    evict(job)
    assert job.heartbeats["n2"].copies
    job.memory = False  # steps are made, snapshots are not
    get_on(job, range(4, 8))
    assert (job.given_back, job.kept) == ([], {})
    job.memory = True
    get_on(job, range(8, 11))
    assert job.given_back == ["n2"]


def test_where_slurm_refuses_it_is_asked_again_ever_more_rarely() -> None:
    job = evict(Job())
    job.slurm_returns = NOT_NOW
    job.train_to(4)
    job.train_to(5)
    job.pass_time(60)
    few = len(job.given_back)
    assert 2 <= few <= 1 + 60 / PAUSE_S
    job.pass_time(600)
    assert len(job.given_back) - few <= 6
    assert LONGEST_PAUSE_S > 600
    job.slurm_returns = structs.replace(NOT_NOW, said=qs.RequeueStatus.DONE)
    job.pass_time(LONGEST_PAUSE_S)
    assert len(job.events(ev.NodeGivenBack)) == 1


def test_a_refusal_for_good_is_told_once() -> None:
    job = evict(Job())
    job.slurm_returns = structs.replace(NOT_NOW, said=qs.RequeueStatus.REFUSED)
    get_on(job, range(4, 40))
    assert job.given_back == ["n2"]
    assert job.events(ev.NodeGivenBack) == []
    assert len([e for e in job.events(ev.Noted) if "not given back" in e.text]) == 1


def test_the_next_controller_goes_on_with_it() -> None:
    job = evict(Job())
    job.slurm_returns = NOT_NOW
    get_on(job, range(4, 6))
    state = fold(job.journal)
    assert (state.held, tuple(state.evicted)) == (("n1", "n2", "n3"), ("n2",))


def test_a_site_or_a_user_may_keep_nodes() -> None:
    job = get_on(evict(Job(config=JobConfig(slurm=SlurmConfig(give_back=False)))), range(4, 10))
    assert (job.given_back, job.kept) == ([], {})


def test_a_new_controller_waits_until_agents_can_say_what_they_hold() -> None:
    job = Job()
    checkpoints, began = job.core.checkpoints, job.core.started
    assert not checkpoints.can_spare("n9", Now(mono=began + 1, wall=job.wall))
    assert checkpoints.can_spare("n9", Now(mono=began + RECONNECT_S + 1, wall=job.wall)), "it is gone"
