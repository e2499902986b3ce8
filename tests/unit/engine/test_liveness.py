"""A dead node is known within a second, and nothing that lives is called dead."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.model.probes import Answers, PortsProbed
from slurm_robust.model.standby import StandbyStage
from slurm_robust.testing.sim.environment import SimulatedPace, Tell, always
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import NodesProbed, ProbeNodes
from tests.unit.engine.stories import (
    controller_of,
    core_of,
    evicted,
    mute,
    notes,
    opened,
    questions,
    seconds_until,
    trained,
)

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")  # n1 is the controller's
QUICK = SimulatedPace(step_s=2.0, turn_s=0.1)


def job(nodes: int = 6, spares: int = 1, config: JobConfig | None = None) -> Sim:
    return trained(nodes, spares, config=config, pace=QUICK)


def site(prepare: Callable[[Sim], None]) -> Sim:
    """A job on a site that is like that from the beginning."""
    sim = Sim(6, 1, seed=1, steps=400, pace=QUICK)
    prepare(sim)
    sim.run_until(lambda: sim.step >= 5, within_s=120.0)
    return sim


def noted(sim: Sim, part: str) -> bool:
    return any(part in text for text in notes(sim))


def seconds_until_opened(sim: Sim, limit: float) -> float:
    return seconds_until(sim, lambda: bool(opened(sim)), limit)


def relaunched(sim: Sim) -> bool:
    return sim.state.world.generation == 2 and sim.stage == "Running"


def test_a_node_without_power_is_known_within_a_second() -> None:
    sim = job()
    sim.node_dies("n3")
    assert 0.7 <= seconds_until_opened(sim, 5.0) <= 1.0
    (incident,) = sim.events(ev.IncidentOpened)
    assert incident.symptom is Symptom.NODE_LOST
    assert 0.7 <= incident.detect_s <= 1.0
    sim.run_until(lambda: relaunched(sim), 5.0)
    assert evicted(sim) == {"n3"}
    assert "n7" in sim.state.world.slots


def test_the_incident_of_a_dead_node_says_in_numbers_what_was_seen() -> None:
    sim = job()
    sim.node_dies("n3")
    seconds_until_opened(sim, 5.0)
    (incident,) = sim.events(ev.IncidentOpened)
    for part in (
        "n3 is dead: no beacon for 0.",
        "every 0.10 s",
        "no probe (TCP)",
        "nor those of 3 other nodes (n[2,4-5])",
    ):
        assert part in incident.detail


def test_an_agent_that_is_stopped_is_not_dead() -> None:
    sim = job()
    sim.agent_stalls("n3")
    sim.run(3.0)
    sim.agent_stalls("n3", stalls=False)
    sim.run(10.0)
    assert (opened(sim), evicted(sim), sim.stage) == ([], set(), "Running")
    assert noted(sim, "but its kernel answers")


def test_a_node_that_others_reach_is_not_dead() -> None:
    sim = job()
    sim.network.cut("n1", "n3")
    sim.run(3.0)
    assert opened(sim) == []
    assert noted(sim, "its kernel answers n2")


def test_without_an_observer_that_agrees_only_the_long_silence_counts() -> None:
    sim = job()
    mute(sim)
    sim.node_dies("n3")
    assert 4.5 <= seconds_until_opened(sim, 10.0) <= 6.0


def test_one_observer_that_is_slow_does_not_delay_the_verdict() -> None:
    sim = job()
    mute(sim, "n2")
    sim.node_dies("n3")
    assert seconds_until_opened(sim, 5.0) <= 1.1


def test_an_observer_that_reaches_no_node_proves_nothing() -> None:
    sim = job()
    for one, other in combinations(("n2", "n3", "n4", "n5", "n6", "n7"), 2):
        sim.network.cut(one, other)
    sim.node_dies("n3")
    assert 4.5 <= seconds_until_opened(sim, 10.0) <= 6.0


def test_probes_that_could_not_be_sent_prove_nothing() -> None:
    sim = job()
    sim.answer(qs.ProbeKernels, always(Answers()))
    sim.node_dies("n3")
    assert 4.5 <= seconds_until_opened(sim, 10.0) <= 6.0


def test_in_a_job_of_three_nodes_the_third_is_asked() -> None:
    sim = job(2, 1)
    sim.node_dies("n2")
    assert seconds_until_opened(sim, 5.0) <= 1.1


def test_no_node_is_called_dead_when_all_agents_go_silent() -> None:
    sim = job()
    sim.partition(*NODES[1:], fabric=True)
    sim.run(4.0)
    assert opened(sim) == []
    sim.run(4.0)
    assert opened(sim) == [Symptom.UNREACHABLE]


def test_nodes_that_fall_silent_in_the_same_moment_are_given_time() -> None:
    """Two of sixteen: a switch that restarts, rather than two deaths."""
    sim = job(16, 2)
    sim.partition("n3")
    sim.partition("n9")
    sim.run(3.0)
    assert opened(sim) == []
    sim.heal()
    sim.run(3.0)
    assert (opened(sim), sim.stage) == ([], "Running")


def test_two_deaths_one_after_the_other_are_both_known() -> None:
    sim = job(16, 2)
    sim.node_dies("n3")
    sim.run(0.6)
    sim.node_dies("n9")
    sim.run_until(lambda: relaunched(sim), 5.0)
    assert evicted(sim) == {"n3", "n9"}


def test_a_death_does_not_make_the_silence_of_all_others_their_own() -> None:
    """The node dies first, and its switch takes the others down: only it is evicted, if any node is."""
    sim = job(config=JobConfig(timings=Timings(takeover_s=0.0)))
    sim.nodes["n4"].dying_s = 1e9  # the workers of the others take long to die
    sim.node_dies("n3")
    seconds_until_opened(sim, 3.0)
    sim.partition("n2", "n4", "n5", "n6", "n7", fabric=True)
    sim.run(20.0)
    assert evicted(sim) <= {"n3"}


def test_half_of_the_nodes_that_fall_silent_are_waited_for() -> None:
    sim = job()
    for node in ("n2", "n3", "n4"):
        sim.node_dies(node)
    sim.run(4.0)
    assert opened(sim) == []


@pytest.mark.parametrize("spares", [0, 1])
def test_silent_nodes_are_waited_for_if_standbys_are_too_few(spares: int) -> None:
    """A requeue costs far more than the seconds that a flapping link needs."""
    sim = job(spares=spares)
    for node in ("n3", "n4")[: 1 + spares]:
        sim.node_dies(node)
    sim.run(4.0)
    assert opened(sim) == []


def test_a_short_cut_of_a_job_without_standbys_costs_nothing() -> None:
    sim = job(spares=0)
    sim.partition("n3")
    sim.run(3.0)
    sim.heal()
    sim.run(10.0)
    assert (opened(sim), sim.stage) == ([], "Running")


@pytest.mark.parametrize(
    ("dropped", "after_s", "says"),
    [
        ("answers_probes", 110.0, "no probe of the kernel of n[1-7] is answered"),
        ("beacons", 25.0, "no beacon of n[1-6] has come"),
    ],
    ids=["probes", "beacons"],
)
def test_a_site_that_drops_what_shows_deaths_is_told_and_keeps_the_long_silence(
    dropped: str, after_s: float, says: str
) -> None:
    def drop(sim: Sim) -> None:
        for node in sim.nodes.values():
            setattr(node, dropped, False)

    sim = site(drop)
    sim.run(after_s)
    assert any(says in text for text in sim.said)
    sim.node_dies("n3")
    assert 4.5 <= seconds_until_opened(sim, 10.0) <= 6.0


def test_beacons_can_be_turned_off() -> None:
    sim = job(config=JobConfig(timings=Timings(verdict_s=0.0)))
    sim.node_dies("n3")
    assert seconds_until_opened(sim, 10.0) >= 4.5


def test_a_standby_that_died_is_set_aside_within_a_second() -> None:
    sim = job()
    sim.node_dies("n7")
    sim.run(1.2)
    assert set(sim.state.aside) == {"n7"}
    assert opened(sim) == []


def test_a_node_that_dies_while_workers_are_stopped_does_not_delay_the_restart() -> None:
    sim = job()
    sim.nodes["n3"].dying_s = 1e9
    sim.kill_rank(0)
    sim.run(0.5)
    assert sim.stage == "Stopping"
    sim.node_dies("n3")
    assert seconds_until(sim, lambda: relaunched(sim), 10.0) < 3.0


def test_a_node_whose_beacons_come_again_is_not_dead_any_more() -> None:
    """Its connection for heartbeats takes longer to come back."""
    sim = job()
    core, now = core_of(sim)
    core.fleet.declare_dead("n3", "nothing of it answered", now.mono - 0.9)
    sim.run(1.0)
    assert (core.fleet.deaths(("n3",)), opened(sim), sim.stage) == ({}, [], "Running")


def test_an_answer_to_old_probes_does_not_count() -> None:
    sim = job()
    mute(sim)
    sim.partition("n3")
    sim.run(0.5)
    controller_of(sim).tell(1_000_000, Answers())
    sim.run(2.0)
    assert opened(sim) == []


@pytest.mark.parametrize("who", ["the controller's own", "an observer's"])
def test_an_answer_about_a_node_whose_agent_was_forgotten_meanwhile_says_nothing(who: str) -> None:
    sim = job()
    mute(sim)
    asked: list[Tell] = []

    def keep(_: qs.Question[Any], tell: Tell) -> None:
        asked.append(tell)

    sim.answer(qs.ProbeKernels, keep)
    sim.partition("n3")
    before = len(sim.sent)
    sim.run_until(lambda: bool(asked) and len(sim.sent) > before, 2.0)
    (observer, order), *_ = [(n, m) for n, m in sim.sent[before:] if isinstance(m, ProbeNodes)]
    core, now = core_of(sim)
    core.fleet.forget("n3")
    if who == "an observer's":
        found = NodesProbed(node=observer, number=order.number, answering=("n3",), asked=("n3",))
        core.on_agent_answer(found, now)
    else:
        asked[-1](Answers(tcp={"n3": 0.001}, asked=frozenset({"n3"})))
    sim.run(0.2)
    assert not noted(sim, "its kernel answers")


def test_a_sign_of_a_node_whose_agent_was_forgotten_changes_nothing() -> None:
    sim = job()
    core, now = core_of(sim)
    fleet = core.fleet
    fleet.forget("n3")
    fleet.give_sign("n3", now.mono)
    fleet.declare_dead("n3", "x", now.mono)
    fleet.declare_alive("n3")
    core.witnesses._on_ports(PortsProbed(taken=frozenset({"n3"}), refused=frozenset()), now)
    assert "n3" not in fleet.views


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_late_or_lost_nothing_that_lives_is_called_dead(seed: int) -> None:
    draw = random.Random(seed)
    sim = job()
    for _ in range(25):
        stalled = [node for node in NODES[1:] if draw.random() < 0.2]
        for node in sim.nodes.values():
            node.is_mute = draw.random() < 0.3
        sim.agent_stalls(*stalled)
        sim.run(draw.uniform(0.1, 3.0))
        sim.agent_stalls(*stalled, stalls=False)
    assert not noted(sim, " is dead: ")


def test_an_agent_whose_beacons_come_has_not_ended() -> None:
    sim = job()
    refused = PortsProbed(taken=frozenset(), refused=frozenset({"n3"}))
    sim.answer(qs.ProbePorts, always(refused))
    sim.nodes["n3"].beacons = True
    sim.agent_stalls("n3")
    sim.run_until(lambda: bool(questions(sim, qs.ProbePorts)), 5.0)
    sim.run(0.8)
    assert (sim.stage, opened(sim)) == ("Running", [])
    sim.nodes["n3"].beacons = None
    sim.run(3.0)
    assert opened(sim) == [Symptom.AGENTS_LOST]


PATIENT = JobConfig(timings=Timings(takeover_s=0.0))


def large_job(*, config: JobConfig = PATIENT, gpus: int = 8, **more: Any) -> Sim:
    return trained(128, 1, to=3, config=config, pace=QUICK, gpus_per_node=gpus, **more)


def flaps(sim: Sim, node: str, seconds: float) -> None:
    sim.partition(node)
    sim.run(seconds)
    sim.heal()
    sim.run(6.0)


@pytest.mark.slow
def test_a_link_that_flaps_for_two_seconds_costs_a_large_job_of_gpus_nothing() -> None:
    sim = large_job()
    flaps(sim, "n70", 2.0)
    assert (opened(sim), evicted(sim), sim.stage) == ([], set(), "Running")


@pytest.mark.slow
def test_a_dead_node_of_a_large_job_of_gpus_is_replaced_after_three_seconds() -> None:
    sim = large_job()
    sim.node_dies("n70")
    assert 2.8 <= seconds_until_opened(sim, 10.0) <= 3.3
    sim.run_until(lambda: relaunched(sim), 10.0)
    assert evicted(sim) == {"n70"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        {"config": JobConfig(timings=Timings(takeover_s=0.0, verdict_s=0.8))},
        {"gpus": 0},
    ],
    ids=["the owner says so", "it has no GPUs"],
)
def test_a_large_job_is_not_patient_if(job: dict[str, Any]) -> None:
    sim = large_job(**job)
    sim.node_dies("n70")
    assert seconds_until_opened(sim, 10.0) <= 1.1


@pytest.mark.slow
def test_a_large_job_with_a_standby_that_has_rehearsed_replaces_a_dead_node_within_a_second() -> None:
    """The patience is for jobs in which a replacement costs more than the seconds that it saves."""
    sim = large_job()
    rehearsed = StandbyStage.REHEARSED
    sim.run_until(lambda: any(s.stage is rehearsed for s in sim.state.standbys.values()), 300.0)
    sim.node_dies("n70")
    assert seconds_until_opened(sim, 10.0) <= 1.1
    sim.run_until(lambda: relaunched(sim), 10.0)
    assert evicted(sim) == {"n70"}
