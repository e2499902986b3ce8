"""Nodes that somebody else drains: a standby gets no slot, a node that trains is left at the next restart."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import JobConfig, StandbyConfig
from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import evicted, gets_on, trained

WHY = "root: bad fan"
SEEN_S = 32.0
"""A drain is known by then: half a minute, and the time for Slurm's answer."""

PLAIN = JobConfig(standby=StandbyConfig(rehearse=False, test_s=0.0))


def drained(node: str, nodes: int = 2, spares: int = 2, why: str = WHY) -> Sim:
    """A job that trains, and has seen that ``node`` is drained."""
    sim = trained(nodes, spares, config=PLAIN)
    drain(sim, node, why)
    return sim


def drain(sim: Sim, node: str, why: str = WHY) -> None:
    user, _, reason = why.partition(": ")
    states = sim.cluster.nodes[node].states | {"DRAIN"}
    sim.cluster.set_node(node, states=states, reason=reason, reason_user=user)
    sim.run(SEEN_S)
    assert sim.state.drained[node] == why


def resume(sim: Sim, node: str) -> None:
    states = sim.cluster.nodes[node].states - {"DRAIN"}
    sim.cluster.set_node(node, states=states, reason="")


def test_a_drain_is_seen_within_half_a_minute_and_told_once() -> None:
    sim = drained("n2")
    gets_on(sim, 1)
    sim.run(120.0)
    assert len(sim.events(ev.NodeDrained)) == 1
    (line,) = [text for text in sim.said if "drained" in text]
    assert line == (
        "n2 is drained by root: bad fan: training goes on there, and the next restart leaves it if there is "
        "a standby"
    )


def test_the_next_restart_leaves_a_drained_node_and_evicts_no_node() -> None:
    sim = drained("n2")
    sim.kill_rank(0)
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    assert sim.state.world.slots == ("n1", "n3")
    assert evicted(sim) == set()
    assert sim.events(ev.Decided)[-1].reason.endswith(
        "n3 takes the slot of n2, which is drained by root: bad fan"
    )
    assert sim.events(ev.GenerationLaunched)[-1].restore_step == sim.state.world.best_step
    gets_on(sim, 2)
    sim.node_dies("n3")
    gets_on(sim, 3)
    assert sim.state.world.slots == ("n1", "n4")


def test_a_drained_standby_gets_no_slot() -> None:
    sim = drained("n3")
    assert not sim.state.aside["n3"].usable
    assert f"n3 is drained by {WHY}: it gets no slot as long as it is" in sim.said
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n4")


@pytest.mark.parametrize(
    "why",
    [
        "slurm: k8s: cordon: node condition GpuXidError",
        "slurm: k8s: pod terminated: cordon: rolling upgrade",
        "root: NHC: check_hw_gpu: 7 of 8 GPUs",
        "slurm: Kill task failed",
        "root: reboot ASAP : fw update",
        "root: Epilog error; srobust: gpu.leftovers 0000:1b:00",
        "root: srobust: gpu3 XID 79, fell off the bus",
    ],
)
def test_a_standby_that_is_drained_for_any_reason_gets_no_slot_and_no_blame(why: str) -> None:
    sim = drained("n3", why=why)
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert (sim.state.world.slots, evicted(sim)) == (("n1", "n4"), {"n2"})


@pytest.mark.parametrize("spares", [(), ("n3",)], ids=["without a standby", "with a drained one"])
def test_a_drained_node_keeps_its_slot_if_no_standby_can_take_it(spares: tuple[str, ...]) -> None:
    sim = drained("n2", spares=len(spares))
    for node in spares:
        drain(sim, node)
    sim.kill_rank(0)
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n2")


def test_a_standby_that_is_resumed_counts_again() -> None:
    sim = drained("n3")
    resume(sim, "n3")
    sim.run(SEEN_S)
    assert (sim.state.drained, sim.state.aside) == ({}, {})
    assert "n3 is drained no more" in sim.said
    assert fold(sim.journal) == sim.state


def test_a_slurm_that_does_not_answer_leaves_a_drain_as_it_was_seen() -> None:
    sim = drained("n3")
    resume(sim, "n3")
    sim.slurm_is_silent()
    sim.run(300.0)
    assert sim.state.drained == {"n3": WHY}


def test_the_next_run_asks_anew_which_nodes_are_drained() -> None:
    sim = drained("n1", spares=0)
    resume(sim, "n1")
    sim.node_dies("n2")
    sim.run_until(lambda: sim.runs == 2, within_s=300.0)
    seen = [type(event) for event in sim.journal]
    assert seen.count(ev.NodeDrained) == 1
    assert ev.NodeUndrained not in seen
    gets_on(sim, 2)
    assert (sim.state.world.slots, sim.state.drained) == (("n1", "n3"), {})
