"""What rank 0 was seen to import is in the journal, and all agents are told of it, standbys first."""

from __future__ import annotations

from slurm_robust.config.job import JobConfig, StandbyConfig
from slurm_robust.engine.transitions import ToReconnecting
from slurm_robust.engine.units.learning import AT_ONCE, MAX_LEARNED, RESEND_S
from slurm_robust.model import events as ev
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.wire.messages import Load
from tests.unit.engine.fake_job import Job
from tests.unit.engine.test_standby import train

CONFIG = JobConfig(standby=StandbyConfig(rehearse=False, test_s=0))


def loads(job: Job) -> list[tuple[str, int]]:
    """Orders to load, without repetitions."""
    return list(dict.fromkeys((node, m.number) for node, m in job.sent if isinstance(m, Load)))


def learn(job: Job, node: str, *modules: str) -> None:
    job.change(node, learned=modules)
    job.change(node, learned=())


def test_what_is_learned_is_written_down_once_and_told_to_all_when_training_has_settled() -> None:
    job = Job(config=CONFIG)
    train(job, 2)
    learn(job, "n1", "yaml", "transformers")
    learn(job, "n1", "transformers", "yaml")
    (event,) = job.events(ev.ModulesLearned)
    assert (event.number, event.modules, event.node) == (1, ("yaml", "transformers"), "n1")
    assert loads(job) == []
    train(job, SETTLED_S + 2)
    assert loads(job) == [("n3", 1), ("n1", 1), ("n2", 1)]
    (order,) = {message for _, message in job.sent if isinstance(message, Load)}
    assert order.modules == ("yaml", "transformers")


def test_a_new_cause_is_learned_under_another_number() -> None:
    job = Job(config=CONFIG)
    train(job, 2)
    learn(job, "n1", "yaml")
    train(job, SETTLED_S + 2)
    for node in ("n1", "n2", "n3"):
        job.change(node, loaded=1)
    learn(job, "n1", "wds")
    train(job, 2)
    assert job.core.state.learned is not None
    assert job.core.state.learned.modules == ("yaml", "wds")
    assert loads(job)[3:] == [("n3", 2), ("n1", 2), ("n2", 2)]


def test_the_order_is_repeated_until_the_agent_says_that_it_is_over() -> None:
    job = Job(config=CONFIG)
    train(job, 2)
    learn(job, "n1", "yaml")
    train(job, SETTLED_S + 4 * RESEND_S)
    assert len([node for node, message in job.sent if isinstance(message, Load) and node == "n2"]) > 2
    job.change("n2", loaded=1)
    sent = len(job.sent)
    train(job, 4 * RESEND_S)
    again = [node for node, message in job.sent[sent:] if isinstance(message, Load)]
    assert ("n1" in again, "n2" in again) == (True, False)


def test_not_all_nodes_of_a_large_job_import_at_once() -> None:
    slots = tuple(f"n{number}" for number in range(1, 2 * AT_ONCE + 1))
    job = Job(slots=slots, spares=("s1",), config=CONFIG)
    train(job, 2)
    learn(job, "n1", "yaml")
    train(job, SETTLED_S + 1)
    assert len(loads(job)) == AT_ONCE
    assert loads(job)[0] == ("s1", 1)
    for node, _ in loads(job):
        job.change(node, loaded=1)
    train(job, 1)
    assert len(loads(job)) == 2 * AT_ONCE


def test_hostile_and_endless_news_are_bounded() -> None:
    job = Job(config=CONFIG)
    train(job, 2)
    learn(job, "n1", "os; import evil", "../x", "\x1b[31m")
    assert job.events(ev.ModulesLearned) == []
    learn(job, "n3", "yaml")
    assert job.events(ev.ModulesLearned) == [], "no worker is there"
    for number in range(2 * MAX_LEARNED):
        learn(job, "n1", f"m{number}")
    assert len(job.events(ev.ModulesLearned)) == MAX_LEARNED


def test_the_next_controller_and_the_next_run_know_it_from_the_journal() -> None:
    job = Job(config=CONFIG)
    train(job, 2)
    learn(job, "n1", "yaml")
    history = (*job.journal, ev.ControllerStarted(t=job.wall, epoch=2, host="n1", pid=2, port=2))
    again = Job(history=history, config=CONFIG, first=ToReconnecting(), clock=(job.mono, job.wall))
    again.heartbeats = dict(job.heartbeats)
    again.until(lambda: again.stage == "Running")
    train(again, SETTLED_S + 2)
    assert loads(again) == [("n3", 1), ("n1", 1), ("n2", 1)]
    taken = ev.AllocationTaken(
        t=job.wall, restart_count=1, nodes=("n1", "n2", "n4"), slots=("n1", "n2"), spares=("n4",)
    )
    third = Job(history=(*history, taken), config=CONFIG, clock=(job.mono, job.wall))
    train(third, SETTLED_S + 3)
    assert loads(third) == [("n4", 1), ("n1", 1), ("n2", 1)]


def test_nothing_is_learned_where_that_is_switched_off() -> None:
    job = Job(config=JobConfig(standby=StandbyConfig(learn=False)))
    train(job, 2)
    learn(job, "n1", "yaml")
    train(job, SETTLED_S + 2)
    assert (job.events(ev.ModulesLearned), loads(job)) == ([], [])
