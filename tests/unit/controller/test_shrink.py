"""Nodes leave the allocation when Slurm cannot offer a dead one to anybody."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_robust.controller.shrink import MAX_REFUSALS, NOTICE_S, Shrinker
from slurm_robust.engine.questions import RequeueStatus
from slurm_robust.model.probes import PortsProbed
from slurm_robust.slurm import errors
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm

NODES = ("n1", "n2", "n3")


class Site:
    """A job of three nodes; ``alive`` has those whose slurmd takes connections."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm()
        request = SubmitRequest(command=("train.sh",), nodes=3, options=("--no-kill",))
        self.job_id = self.slurm.submit(request)
        assert self.slurm.job(self.job_id).nodes == NODES
        self.alive = set(NODES)
        self.reports: list[tuple[str, bool, str]] = []
        self.shrinker = self.on_node("n1")

    def on_node(self, node: str) -> Shrinker:
        clock = self.slurm.cluster.clock
        return Shrinker(self.slurm, self.job_id, own_node=node, probe_ports=self.probe_ports, clock=clock)

    def probe_ports(self, places: Mapping[str, tuple[str, int]]) -> PortsProbed:
        assert {port for _, port in places.values()} == {6818}
        return PortsProbed(taken=frozenset(self.alive & places.keys()), refused=frozenset())

    def drop_dead(self, *nodes: str) -> None:
        self.shrinker.drop_dead(nodes, lambda *report: self.reports.append(report))

    def silence(self, node: str) -> None:
        self.slurm.cluster.set_node(node, states=frozenset({"ALLOCATED", "NOT_RESPONDING"}))

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.slurm.job(self.job_id).nodes


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_node_whose_slurmd_answers_is_given_back(site: Site) -> None:
    assert site.shrinker.give_back("n2").said is RequeueStatus.DONE
    assert site.nodes == ("n1", "n3")
    assert site.shrinker.give_back("n2").said is RequeueStatus.DONE, "again, by the next controller"


def test_a_dead_node_of_which_slurm_does_not_know_is_kept(site: Site) -> None:
    site.alive.remove("n2")
    assert site.shrinker.give_back("n2").said is RequeueStatus.NOTHING
    assert site.nodes == NODES
    site.silence("n2")
    assert site.shrinker.give_back("n2").said is RequeueStatus.DONE
    assert site.nodes == ("n1", "n3")


def test_the_batch_host_is_never_given_back(site: Site) -> None:
    assert site.shrinker.give_back("n1").said is RequeueStatus.REFUSED
    assert site.nodes == NODES


def test_without_an_epilog_nobody_would_test_the_node(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.slurm, "config", lambda: {"SlurmdPort": "6818"})
    assert site.shrinker.give_back("n2").said is RequeueStatus.REFUSED
    assert site.nodes == NODES


def test_a_refusal_may_pass_a_silent_slurm_surely_does(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.slurm.cluster.unreachable = True
    assert {site.shrinker.give_back("n2").said for _ in range(2 * MAX_REFUSALS)} == {RequeueStatus.NOTHING}
    site.slurm.cluster.unreachable = False

    def refuse(*_: object) -> None:
        raise errors.UpdateUnavailable("Job update not available right now, the DB index is being set")

    monkeypatch.setattr(site.slurm, "shrink", refuse)
    said = [site.shrinker.give_back("n2").said for _ in range(MAX_REFUSALS)]
    assert said == [*[RequeueStatus.NOTHING] * (MAX_REFUSALS - 1), RequeueStatus.REFUSED]


def test_a_requeue_does_not_wait_for_a_dead_node_that_slurm_has_noticed(site: Site) -> None:
    site.silence("n3")
    site.alive.remove("n3")
    site.drop_dead("n3")
    assert site.nodes == ("n1", "n2")
    assert [ok for _, ok, _ in site.reports] == [True]


def test_a_second_resize_is_tried_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink = site.slurm.shrink

    def refuse_once(*words: object) -> None:
        monkeypatch.setattr(site.slurm, "shrink", shrink)
        raise errors.UpdateUnavailable("Job update not available right now, the DB index is being set")

    monkeypatch.setattr(site.slurm, "shrink", refuse_once)
    site.silence("n3")
    site.alive.remove("n3")
    site.drop_dead("n3")
    assert site.nodes == ("n1", "n2")


def test_slurm_is_made_to_try_the_node_and_waited_for(site: Site) -> None:
    clock = site.slurm.cluster.clock
    begun = clock.now
    site.alive.remove("n3")
    clock.on_advance.append(lambda now: site.silence("n3") if now >= begun + 10 else None)
    site.drop_dead("n3")
    assert site.slurm.cluster.signals == [(site.job_id, None, "CONT")]
    assert site.nodes == ("n1", "n2")


def test_a_node_that_slurm_keeps_is_not_waited_for_for_ever(site: Site) -> None:
    begun = site.slurm.cluster.clock.now
    site.alive.remove("n3")
    site.drop_dead("n3")
    assert site.nodes == NODES
    assert site.slurm.cluster.clock.now - begun <= NOTICE_S + 1
    assert [ok for _, ok, _ in site.reports] == [False]


def test_a_silent_agent_on_a_living_node_costs_nothing(site: Site) -> None:
    begun = site.slurm.cluster.clock.now
    site.drop_dead("n2", "n3")
    assert site.nodes == NODES
    assert site.slurm.cluster.clock.now == begun
    assert site.reports == []


def test_a_drained_node_that_lives_is_not_dead(site: Site) -> None:
    site.slurm.drain(["n2", "n3"], "a warning")
    site.alive.remove("n3")
    clock = site.slurm.cluster.clock
    begun = clock.now
    dead = frozenset({"ALLOCATED", "DRAIN", "NOT_RESPONDING"})
    clock.on_advance.append(
        lambda now: site.slurm.cluster.set_node("n3", states=dead) if now >= begun + 10 else None
    )
    site.drop_dead("n2", "n3")
    assert site.nodes == ("n1", "n2")


def test_a_node_that_answers_is_alive_whatever_slurm_says(site: Site) -> None:
    site.silence("n2")
    site.drop_dead("n2")
    assert (site.nodes, site.reports) == (NODES, [])


def test_a_controller_after_a_takeover_keeps_its_own_node(site: Site) -> None:
    for node in ("n2", "n3"):
        site.silence(node)
    site.alive.clear()
    site.on_node("n2").drop_dead(("n2", "n3"), lambda *report: None)
    assert site.nodes == ("n1", "n2")


def test_a_silent_slurm_keeps_nobody_from_the_requeue(site: Site) -> None:
    site.slurm.cluster.unreachable = True
    site.drop_dead("n3")
    assert [ok for _, ok, _ in site.reports] == [False]
