"""Nodes that come one after the other, as they do where all read from one storage, are not late."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.wire.messages import Phase
from tests.unit.engine.fake_job import Job

MANY = tuple(f"n{i}" for i in range(1, 13))
EACH_S = 50.0


class Slow(Job):
    """No agent joins and none is ready before the test says so."""

    def join(self, node: str, agent: str = "a", **changes: object) -> None:
        if self.open:
            super().join(node, agent, **changes)

    open = False


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


def test_agents_that_join_one_by_one_over_ten_minutes_are_waited_for() -> None:
    job = Slow(MANY, ())
    job.pass_time(200.0, tick=2.0)
    job.open = True
    for node in MANY:
        job.join(node)
        job.pass_time(EACH_S, tick=2.0)
    assert (job.stage, evicted(job), job.core.world.incident) == ("Running", set(), None)
    assert [nodes for nodes in job.started if len(nodes) < len(MANY)] == [], "none was started twice"


def test_nodes_that_import_torch_one_by_one_over_ten_minutes_are_waited_for() -> None:
    job = Slow(MANY, ())
    job.open = True
    for node in MANY:
        job.join(node, ready=False)
    job.pass_time(500.0, tick=2.0)
    for node in MANY:
        job.change(node, ready=True)
        job.pass_time(EACH_S, tick=2.0)
    assert (job.stage, evicted(job), job.core.world.incident) == ("Running", set(), None)
    assert any("of 12 nodes have imported torch; importing: n[" in text for text in job.said)


def test_one_node_that_never_imports_is_late_when_the_others_have() -> None:
    job = Slow(("n1", "n2", "n3"), ("n4",))
    job.open = True
    for node in ("n1", "n2", "n3", "n4"):
        job.join(node, ready=node != "n2")
    began = job.mono
    job.until(lambda: job.stage == "Running", limit=300)
    assert (evicted(job), job.core.world.slots) == ({"n2"}, ("n1", "n4", "n3"))
    assert 180 <= job.mono - began < 190


def test_one_agent_that_never_comes_is_late_when_the_others_have() -> None:
    job = Slow(("n1", "n2", "n3"), ())
    job.open = True
    job.join("n1")
    job.join("n3")
    began = job.mono
    job.open = False
    job.until(lambda: len(job.started) > 1, limit=100)
    assert job.started[1] == ("n2",)
    assert 60 <= job.mono - began < 65


def test_where_no_node_gets_ready_the_job_ends_after_a_stated_time() -> None:
    job = Slow(("n1", "n2"), ())
    job.open = True
    for node in ("n1", "n2"):
        job.join(node, ready=False)
    job.pass_time(890.0, tick=2.0)
    assert job.code is None
    job.until(lambda: job.code is not None, limit=60)
    assert evicted(job) == set()


def test_workers_that_start_one_by_one_are_waited_for() -> None:
    job = Job(MANY, ())
    job.freeing = set(MANY)
    job.kill_rank(0)
    for node in MANY:
        job.pass_time(EACH_S, tick=2.0)
        job.change(node, phase=Phase.RUNNING)
    assert (job.stage, job.core.world.generation) == ("Running", 2)
