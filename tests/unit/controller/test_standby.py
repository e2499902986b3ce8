"""Standbys are checked before they are needed, and a hiccup costs none of them."""

from __future__ import annotations

from slurm_robust.model import events as ev
from tests.unit.controller.fake_job import Job


class Absent(Job):
    """No agent of ``absent`` joins before the ``comes``-th start."""

    absent = "n3"
    comes = 100

    def join(self, node: str, agent: str = "a", **changes: object) -> None:
        if node != self.absent or sum(node in nodes for nodes in self.started) >= self.comes:
            super().join(node, agent, **changes)


USABLE = ev.SpareSetAside(t=0.0, node="", reason="", usable=True)


def test_a_standby_that_has_not_joined_is_noted_and_not_chosen() -> None:
    job = Absent(spares=("n3", "n4"))
    job.train_to(3)
    job.pass_time(61)
    assert job.core.state.aside["n3"].usable is False
    assert any("standby n3" in text and "Slurm says ALLOCATED" in text for text in job.said)
    job.power_cut("n2")
    job.until(lambda: job.core.state.generation == 2)
    assert job.core.state.slots == ("n1", "n4")
    assert "n3" not in job.core.state.evicted


def test_a_standby_that_never_joins_is_not_chosen_at_all() -> None:
    job = Absent()
    job.train_to(3)
    job.pass_time(200)
    assert [nodes for nodes in job.started if "n3" in nodes] == [("n1", "n2", "n3"), ("n3",)]
    job.power_cut("n2")
    job.until(lambda: job.requeued != [])
    assert job.requeued == [("n2",)]  # and the standby may be given to the next run


def test_an_agent_that_is_started_again_makes_the_standby_fit() -> None:
    job = Absent()
    job.comes = 2
    job.train_to(3)
    job.until(lambda: "n3" in job.heartbeats, limit=90)
    job.pass_time(1)
    assert job.core.state.aside == {}
    assert "standby n3 answers" in job.said


def test_a_standby_whose_agent_cannot_start_is_known_within_seconds() -> None:
    job = Absent()
    job.train_to(3)
    message = "srun: error: n3: task 2: Exited with exit code 2"
    for _ in range(2):
        job.task_ends("n3", message)
        job.pass_time(4)
    assert job.core.state.aside["n3"].usable is False
    assert message in job.core.state.aside["n3"].reason
    assert job.core.state.evicted == {}


def test_a_hiccup_of_a_standby_is_no_loss() -> None:
    job = Job()
    job.train_to(3)
    silent = job.heartbeats.pop("n3")
    job.pass_time(6)
    assert job.core.state.aside["n3"].usable
    assert job.core.state.evicted == {}
    job.heartbeats["n3"] = silent
    job.pass_time(1)
    assert job.core.state.aside == {}
    job.power_cut("n2")
    job.until(lambda: job.core.state.generation == 2)
    assert job.core.state.slots == ("n1", "n3")


def test_a_silent_standby_is_taken_where_there_is_no_other() -> None:
    job = Job()
    job.train_to(3)
    silent = job.heartbeats.pop("n3")
    job.pass_time(6)
    job.power_cut("n2")
    job.until(lambda: job.core.state.slots == ("n1", "n3"))
    job.heartbeats["n3"] = silent
    job.until(lambda: job.core.state.generation == 2)
    assert job.requeued == []


def test_a_standby_that_slurm_gives_up_is_not_taken_and_is_convicted_of_nothing() -> None:
    job = Job()
    job.train_to(3)
    job.power_cut("n3")
    job.until(lambda: not job.core.state.aside.get("n3", USABLE).usable, limit=90)
    assert "Slurm says DOWN" in job.core.state.aside["n3"].reason
    assert job.core.state.evicted == {}
    assert job.events(ev.IncidentOpened) == []
    job.power_cut("n2")
    job.until(lambda: bool(job.requeued), limit=20)
    assert job.requeued == [("n2",)]
