"""A dead node is known within a second, and nothing that lives is called dead."""

from __future__ import annotations

import random

import pytest

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.model.probes import Answers, PortsProbed
from slurm_robust.wire.messages import NodesProbed, ProbeNodes
from tests.unit.engine.fake_job import Job

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")  # n1 is the controller's


def trained(nodes: tuple[str, ...] = NODES, spares: tuple[str, ...] = ("n7",), **options: object) -> Job:
    job = Job(nodes, spares, memory=True, beacons=True, **options)  # type: ignore[arg-type]
    job.until(lambda: job.stage == "Running")
    job.pass_time(3.0)
    job.train_to(5)
    return job


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


def opened(job: Job) -> list[ev.IncidentOpened]:
    return job.events(ev.IncidentOpened)


def seconds_until_opened(job: Job, limit: float) -> float:
    began = job.mono
    job.until(lambda: bool(opened(job)), limit)
    return job.mono - began


def test_a_node_without_power_is_known_within_a_second() -> None:
    job = trained()
    job.power_cut("n3")
    assert 0.7 <= seconds_until_opened(job, 5.0) <= 1.0
    (incident,) = opened(job)
    assert incident.symptom is Symptom.NODE_LOST
    assert 0.7 <= incident.detect_s <= 1.0
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", 5.0)
    assert evicted(job) == {"n3"}
    assert "n7" in job.core.world.slots


def test_the_incident_has_the_numbers() -> None:
    job = trained()
    job.power_cut("n3")
    seconds_until_opened(job, 5.0)
    (incident,) = opened(job)
    for part in (
        "n3 is dead: no beacon for 0.",
        "every 0.10 s",
        "no probe (TCP)",
        "nor those of 3 other nodes (n[2,4-5])",
    ):
        assert part in incident.detail


def test_an_agent_that_is_stopped_is_not_dead() -> None:
    job = trained()
    job.cut.add("n3")
    job.stalled.add("n3")
    job.pass_time(3.0)
    job.cut.clear()
    job.stalled.clear()
    job.pass_time(10.0)
    assert (opened(job), evicted(job), job.stage) == ([], set(), "Running")
    assert any("but its kernel answers" in note.text for note in job.events(ev.Noted))


def test_a_node_that_others_reach_is_not_dead() -> None:
    job = trained()
    job.cut.add("n3")
    job.hidden.add("n3")
    job.pass_time(3.0)
    assert opened(job) == []
    assert any("its kernel answers n2" in note.text for note in job.events(ev.Noted))


def test_without_an_observer_that_agrees_only_the_long_silence_counts() -> None:
    job = trained()
    job.deaf.update(NODES)
    job.power_cut("n3")
    assert 5.0 <= seconds_until_opened(job, 10.0) <= 6.0


def test_one_observer_that_is_slow_holds_nobody_up() -> None:
    job = trained()
    job.deaf.add("n2")
    job.power_cut("n3")
    assert seconds_until_opened(job, 5.0) <= 1.1


def test_an_observer_that_reaches_nobody_proves_nothing() -> None:
    job = trained()
    job.alone.update({"n2", "n4", "n5", "n6", "n7"})
    job.power_cut("n3")
    assert 5.0 <= seconds_until_opened(job, 10.0) <= 6.0


def test_probes_that_could_not_be_sent_prove_nothing() -> None:
    job = trained()
    job.answer_probe = lambda number, nodes: job.hear(  # type: ignore[method-assign]
        number, Answers()
    )
    job.power_cut("n3")
    assert 5.0 <= seconds_until_opened(job, 10.0) <= 6.0


def test_in_a_job_of_three_nodes_the_third_is_asked() -> None:
    job = trained(("n1", "n2"), ("n3",))
    job.power_cut("n2")
    assert seconds_until_opened(job, 5.0) <= 1.1


def test_when_all_agents_go_silent_it_is_not_the_nodes() -> None:
    job = trained()
    job.cut.update(set(NODES) - {"n1"})
    job.pass_time(4.0)
    assert opened(job) == []
    job.pass_time(4.0)
    assert [incident.symptom for incident in opened(job)] == [Symptom.UNREACHABLE]


def test_nodes_that_fall_silent_in_the_same_moment_are_given_time() -> None:
    """Two of sixteen: a switch that restarts, rather than two deaths."""
    nodes = tuple(f"n{number}" for number in range(1, 17))
    job = trained(nodes, ("n17", "n18"))
    job.cut.update({"n3", "n9"})
    job.pass_time(3.0)
    assert opened(job) == []
    job.cut.clear()
    job.pass_time(3.0)
    assert (opened(job), job.stage) == ([], "Running")


def test_two_deaths_one_after_the_other_are_both_known() -> None:
    nodes = tuple(f"n{number}" for number in range(1, 17))
    job = trained(nodes, ("n17", "n18"))
    job.power_cut("n3")
    job.pass_time(0.6)
    job.power_cut("n9")
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", 5.0)
    assert evicted(job) == {"n3", "n9"}


def test_a_death_does_not_make_the_silence_of_all_others_their_own() -> None:
    """The node dies first, and its switch takes the others down: only it is evicted, if anybody is."""
    job = trained()
    job.stubborn.add("n4")  # the workers of the others take long to die
    job.power_cut("n3")
    job.until(lambda: bool(opened(job)), 3.0)
    job.cut.update({"n2", "n4", "n5", "n6", "n7"})
    job.pass_time(20.0)
    assert evicted(job) <= {"n3"}


def test_half_the_nodes_are_waited_for() -> None:
    job = trained()
    for node in ("n2", "n3", "n4"):
        job.power_cut(node)
    job.pass_time(4.0)
    assert opened(job) == []


@pytest.mark.parametrize("spares", [(), ("n7",)])
def test_without_standbys_enough_a_return_is_waited_for(spares: tuple[str, ...]) -> None:
    """A requeue costs far more than the seconds that a flapping link needs."""
    job = trained(spares=spares)
    for node in ("n3", "n4")[: 1 + len(spares)]:
        job.power_cut(node)
    job.pass_time(4.0)
    assert opened(job) == []


def test_a_short_cut_of_a_job_without_standbys_costs_nothing() -> None:
    job = trained(spares=())
    job.cut.add("n3")
    job.pass_time(3.0)
    job.cut.clear()
    job.pass_time(10.0)
    assert (opened(job), job.stage) == ([], "Running")


def test_a_site_that_drops_probes_is_told_and_keeps_the_long_silence() -> None:
    job = Job(NODES, ("n7",), memory=True, beacons=True)
    job.answers = lambda node: False  # type: ignore[method-assign]
    job.pass_time(130.0)
    assert any("no probe of the kernel of n[1-7] is answered" in text for text in job.said)
    job.power_cut("n3")
    assert 5.0 <= seconds_until_opened(job, 10.0) <= 6.0


def test_a_site_that_drops_beacons_is_told_and_keeps_the_long_silence() -> None:
    job = Job(NODES, ("n7",), memory=True, beacons=True)
    job.shine = lambda: job.core.on_beacons({})  # type: ignore[method-assign]
    job.until(lambda: job.stage == "Running")
    job.train_to(5)
    job.pass_time(35.0)
    assert any("no beacon of n[1-6] has come" in text for text in job.said)
    job.power_cut("n3")
    assert 4.9 <= seconds_until_opened(job, 10.0) <= 6.0


def test_beacons_can_be_turned_off() -> None:
    job = trained(config=JobConfig(timings=Timings(verdict_s=0.0)))
    job.power_cut("n3")
    assert seconds_until_opened(job, 10.0) >= 5.0


def test_a_standby_that_died_is_set_aside_at_once() -> None:
    job = trained()
    job.power_cut("n7")
    job.pass_time(1.2)
    assert set(job.core.state.aside) == {"n7"}
    assert opened(job) == []


def test_a_node_that_dies_while_workers_are_stopped_holds_nobody_up() -> None:
    job = trained()
    job.stubborn.add("n3")
    job.kill_rank(0)
    job.pass_time(0.5)
    assert job.stage == "Stopping"
    job.power_cut("n3")
    began = job.mono
    job.until(lambda: job.core.world.generation == 2 and job.stage == "Running", 10.0)
    assert job.mono - began < 3.0


def test_a_node_whose_beacons_come_again_is_not_dead_any_more() -> None:
    """Its connection for heartbeats takes longer to come back."""
    job = trained()
    job.core.fleet.declare_dead("n3", "nothing of it answered", job.mono - 0.9)
    job.pass_time(1.0)
    assert (job.core.fleet.deaths(("n3",)), opened(job), job.stage) == ({}, [], "Running")


def test_an_answer_to_old_probes_does_not_count() -> None:
    job = trained()
    job.deaf.update(NODES)
    job.cut.add("n3")
    job.pass_time(0.5)
    job.hear(1_000_000, Answers())
    job.pass_time(2.0)
    assert opened(job) == []


def probes_of(job: Job) -> int:
    """The number of the probes that are under way, with ``n3`` as the suspect."""
    job.cut.add("n3")
    orders = [message for _, message in job.sent if isinstance(message, ProbeNodes)]
    while orders == [m for _, m in job.sent if isinstance(m, ProbeNodes)]:
        job.pass_time(0.1)
    return [message.number for _, message in job.sent if isinstance(message, ProbeNodes)][-1]


@pytest.mark.parametrize("who", ["the controller's own", "an observer's"])
def test_an_answer_about_a_node_whose_agent_was_forgotten_meanwhile_says_nothing(who: str) -> None:
    job = trained()
    number = probes_of(job)
    observer = next(node for node, m in job.sent if isinstance(m, ProbeNodes) and m.number == number)
    job.core.fleet.forget("n3")
    if who == "an observer's":
        found = NodesProbed(node=observer, number=number, answering=("n3",), asked=("n3",))
        job.core.on_agent_answer(found, job.now())
    else:
        found_here = Answers(tcp={"n3": 0.001}, asked=frozenset({"n3"}))
        job.reply(qs.ProbeKernels, found_here)
    assert not any("its kernel answers" in note.text for note in job.events(ev.Noted))


def test_a_sign_of_a_node_whose_agent_was_forgotten_changes_nothing() -> None:
    job = trained()
    job.core.fleet.forget("n3")
    job.core.fleet.give_sign("n3", job.mono)
    job.core.fleet.declare_dead("n3", "x", job.mono)
    job.core.fleet.declare_alive("n3")
    job.core.witnesses._on_ports(PortsProbed(taken=frozenset({"n3"}), refused=frozenset()), job.now())
    assert "n3" not in job.core.fleet.views


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_late_or_lost_nothing_that_lives_is_called_dead(seed: int) -> None:
    draw = random.Random(seed)
    job = trained()
    for _ in range(40):
        job.stalled = {node for node in NODES[1:] if draw.random() < 0.2}
        job.cut = set(job.stalled)
        job.deaf = {node for node in NODES if draw.random() < 0.3}
        job.pass_time(draw.uniform(0.1, 3.0))
    assert not any(" is dead: " in note.text for note in job.events(ev.Noted))


def test_an_agent_whose_beacons_come_has_not_ended() -> None:
    job = trained()
    job.cut.add("n3")
    job.stalled.add("n3")
    for _ in range(40):
        job.beacon_at["agent of n3"] = job.mono
        job.pass_time(0.1)
    refused = PortsProbed(taken=frozenset(), refused=frozenset({"n3"}))
    job.core.witnesses._on_ports(refused, job.now())
    job.tick()
    assert (job.stage, opened(job)) == ("Running", [])
    job.pass_time(0.5)  # without beacons
    job.core.witnesses._on_ports(refused, job.now())
    job.tick()
    assert [incident.symptom for incident in opened(job)] == [Symptom.AGENTS_LOST]
