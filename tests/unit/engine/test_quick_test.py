"""Standbys are too few for a group that is suspected: those of it that pass a quick test go on."""

from __future__ import annotations

from functools import partial

import pytest

from slurm_robust.config.job import JobConfig, ParallelConfig, SlurmConfig
from slurm_robust.engine import questions as qs
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.findings import Outcome
from slurm_robust.model.journal import fold
from slurm_robust.model.stacks import RankStacks
from slurm_robust.policy.quick_test import TESTS
from slurm_robust.testing.sim.environment import Reply, Tell, never
from slurm_robust.testing.sim.job import BEGUN, Sim
from slurm_robust.testing.sim.training import doing
from slurm_robust.wire.messages import TakeStacks
from tests.builders.events import run_started
from tests.unit.engine.stories import core_of, gets_on, node_tests, questions, requeues, starts, trained

PIPELINE = {1: "n2", 5: "n6", 9: "n10"}
"""Ranks of one pipeline, with their nodes."""

GROUP = tuple(PIPELINE.values())
BEFORE = (
    inc.StackLocation(symptom=inc.Symptom.HANG, step=2, ranks=(0,), nodes=GROUP),
    inc.StackLocation(symptom=inc.Symptom.SLOW, step=2, ranks=(3,), nodes=("n6",)),
)
"""Other ranks hung on these nodes before, and n6 is the most suspect."""


def receives(rank: int, node: str, _: TakeStacks) -> RankStacks:
    return doing(rank, node, "recv@torch/distributed/distributed_c10d.py", "main@train.py")


def suspects_group(reply: Reply | None = None) -> Sim:
    """A pipeline hangs, and its nodes are tested, since there is one standby for three of them."""
    history = (
        run_started(t=BEGUN, slots=12, spares=1),
        *(ev.Decided(t=BEGUN, incident=0, actions=(), reason="before", place=place) for place in BEFORE),
    )
    config = JobConfig(parallel=ParallelConfig(pp=3))
    replies = {} if reply is None else {qs.TestNodes: reply}
    sim = trained(12, 1, config=config, history=history, replies=replies)
    for rank, node in PIPELINE.items():
        assert sim.rank(rank).node == node
        sim.hang_rank(rank, shows=partial(receives, rank, node))
    sim.run_until(lambda: sim.stage == "Testing", within_s=60.0)
    return sim


def one_passes_one_fails(asked: qs.TestNodes, tell: Tell) -> None:
    """n6 passes, n2 fails, and all others give no answer."""
    outcomes = {"n6": Outcome.PASS, "n2": Outcome.FAIL}
    results = (
        inc.TestResult(test=test, node=node, outcome=outcome)
        for node, outcome in outcomes.items()
        if node in asked.nodes
        for test in TESTS
    )
    tell(inc.Diagnosis(results=tuple(results)))


def test_one_standby_and_two_that_pass_replace_a_group_of_three() -> None:
    sim = suspects_group()
    gets_on(sim, 2)
    (test,) = node_tests(sim)
    assert (test.nodes, test.quick, test.budget_s) == (("n6", "n2", "n10"), True, 60.0)
    slots = [f"n{number + 1}" for number in range(12)]
    slots[5] = "n13"
    assert sim.state.world.slots == tuple(slots)
    assert (list(sim.state.evicted), requeues(sim)) == (["n6"], [])
    (found,) = sim.events(ev.QuickTested)
    assert (found.incident, found.passed, found.failed, found.silent) == (1, ("n6", "n2", "n10"), {}, {})
    assert len([decided for decided in sim.events(ev.Decided) if decided.incident == 1]) == 2
    assert len(sim.state.world.attempts) == 1
    assert fold(sim.journal).quick_tested == ("n6", "n2", "n10")


def test_nodes_that_fail_the_quick_test_or_are_silent_are_not_used() -> None:
    sim = suspects_group(one_passes_one_fails)
    sim.run_until(lambda: bool(requeues(sim)), within_s=20.0)
    assert set(requeues(sim)[0]) == set(GROUP)
    (found,) = sim.events(ev.QuickTested)
    assert (found.passed, list(found.failed), list(found.silent)) == (("n6",), ["n2"], ["n10"])
    assert any("n10 gave no answer" in text for text in sim.said)
    assert sim.state.quick_tested == ("n6", "n2"), "silence says nothing of a node"


def test_a_quick_test_without_an_answer_is_waited_for_within_a_bound() -> None:
    sim = suspects_group(never)
    sim.run_until(lambda: bool(requeues(sim)), within_s=100.0)
    (found,) = sim.events(ev.QuickTested)
    assert (set(found.silent), 60.0 <= found.took_s <= 95.0) == (set(GROUP), True)


def test_an_order_to_end_during_a_quick_test_ends_the_job() -> None:
    sim = suspects_group(never)
    sim.term()
    assert (sim.run_to_end(within_s=60.0), sim.events(ev.QuickTested)) == (ExitCode.TERMINATED, [])


# -- nodes that were evicted before ---------------------------------------------------------------------


def evicted_before(*, give_back: bool) -> Sim:
    """A job of three nodes; n4 was evicted by suspicion."""
    sim = trained(
        3, 1, config=JobConfig(slurm=SlurmConfig(give_back=give_back)), replies={qs.GiveBack: never}
    )
    core, now = core_of(sim)
    core.evict("n4", "suspected", now, unproven=True)
    sim.run(10.0)
    return sim


@pytest.mark.parametrize("gone", [True, False], ids=["without agent", "with agent"])
def test_a_node_that_was_evicted_by_suspicion_takes_the_slot_of_a_dead_one(gone: bool) -> None:
    sim = evicted_before(give_back=False)
    if gone:
        sim.agent_dies("n4", told=False)
        sim.run(2.0)
    assert bool(sim.nodes["n4"].agents) is not gone
    started = len(starts(sim))
    sim.node_dies("n2")
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=45.0)
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n4", "n3")
    assert [test.nodes for test in node_tests(sim)] == [("n4",)]
    assert starts(sim)[started:] == ([("n4",)] if gone else [])
    assert list(sim.state.evicted) == ["n2"]


def test_a_node_on_its_way_back_to_slurm_is_not_used() -> None:
    sim = evicted_before(give_back=True)
    assert [asked.node for asked in questions(sim, qs.GiveBack)] == ["n4"]
    sim.node_dies("n2")
    sim.run_until(lambda: bool(requeues(sim)), within_s=120.0)
    (found,) = sim.events(ev.QuickTested)
    assert list(found.silent) == ["n4"]
