"""Crashes that keep to one node: chance convicts nobody, and neither does the code of a rank."""

from __future__ import annotations

from random import Random

import pytest

from slurm_robust.config.job import CompanionConfig, StandbyConfig
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import Blame, StackLocation, Symptom
from slurm_robust.model.stacks import Localisation
from slurm_robust.model.state import JobState, apply
from slurm_robust.model.world import OpenIncident
from slurm_robust.policy import decide
from slurm_robust.policy.repeats import by_chance, left_behind
from tests.builders.rules import rules
from tests.builders.state import changed, job_state

RULES = rules(
    companions=CompanionConfig(reservation="spares"), standby=StandbyConfig(replenish="reservation")
)
HOUR_S = 3600.0
MANY = tuple(f"n{number}" for number in range(1, 1201))


def job(nodes: int = 1200, *spares: str) -> JobState:
    slots = MANY[:nodes]
    return job_state(
        job_id=7,
        slots=slots,
        trained_on=slots,
        held=(*slots, *spares),
        spares=spares,
        generation=1,
        reports=True,
    )


def crashed(state: JobState, node: str, t: float) -> tuple[JobState, ev.Decided]:
    """A rank of ``node`` crashes at ``t``; training has made steps since the last fault."""
    state = changed(state, best_step=int(t), steps_here=int(t), incident=_incident(t))
    rank = next(iter(state.world.placement.ranks_of(node)))
    root = inc.NodeExit(node=node, exit=WorkerExit(rank=rank, signal=6))
    fault = inc.Fault(
        symptom=Symptom.WORKER_EXIT, root=root, exits=(root,), generation=1, alive=state.world.slots
    )
    decided = decide(state, fault, t, RULES)
    return changed(apply(decided, state), incident=None), decided


def _incident(t: float) -> OpenIncident:
    return OpenIncident(number=1, symptom=Symptom.WORKER_EXIT, step=int(t), generation=1, begun=t)


def all_of(state: JobState, *crashes: tuple[str, float]) -> tuple[JobState, list[ev.Decided]]:
    found = []
    for node, t in crashes:
        state, decided = crashed(state, node, t)
        found.append(decided)
    return state, found


def kinds(decided: ev.Decided) -> list[type]:
    return [type(action) for action in decided.actions]


@pytest.mark.parametrize(
    ("nodes", "faults", "here", "chance"),
    [(1200, 2, 2, 1 / 1200), (4, 3, 3, 1 / 16), (2, 1, 1, 1.0), (1, 5, 5, 1.0), (16, 10, 2, 1.0)],
)
def test_chance_is_that_of_faults_that_strike_all_nodes_alike(
    nodes: int, faults: int, here: int, chance: float
) -> None:
    assert by_chance(nodes, faults, here) == pytest.approx(chance, rel=1e-6)


def test_the_second_crash_of_one_node_of_many_moves_its_ranks_and_the_third_elsewhere_clears_it() -> None:
    state, (first, second, third) = all_of(
        job(1200, "s1"), ("n9", HOUR_S), ("n9", 2 * HOUR_S), ("s1", 3 * HOUR_S)
    )
    assert kinds(first) == [inc.Restart]
    assert kinds(second) == [inc.Replace, inc.Restart]
    assert kinds(third) == [inc.Restart], "it moves with the rank, so it is the code's"
    assert state.spares == ("n9",)
    assert not left_behind(state, RULES, 2 * HOUR_S + 10 * HOUR_S)


def test_a_node_whose_new_ranks_crash_too_is_evicted() -> None:
    _, (*_, moved, last) = all_of(job(), ("n9", HOUR_S), ("n9", 2 * HOUR_S), ("n9", 3 * HOUR_S))
    assert kinds(moved) == [inc.Swap, inc.Restart]
    assert last.verdict is not None
    assert (last.verdict.blame, last.verdict.suspects) == (Blame.NODE, ("n9",))
    assert "stays with the node" in last.reason


def test_a_suspect_of_another_day_that_serves_again_is_evicted_and_its_new_rank_is_not_blamed() -> None:
    day = 24 * HOUR_S
    crashes = [("n9", HOUR_S), ("n9", 2 * HOUR_S), *(("n7", 2 * day + hour * HOUR_S) for hour in (1, 2))]
    state, _ = all_of(job(1200, "s1"), *crashes)
    assert state.world.slots[6] == "n9", "the last standby is a suspect"
    _, found = all_of(state, *(("n9", 2 * day + hour * HOUR_S) for hour in (3, 4, 5)))
    assert [kinds(one) for one in found[:2]] == [[inc.Restart]] * 2
    assert found[2].verdict is not None
    assert found[2].verdict.suspects == ("n9",)


def test_crashes_of_another_day_or_without_progress_or_of_a_few_nodes_move_nothing() -> None:
    day = 24 * HOUR_S
    assert kinds(all_of(job(), ("n9", HOUR_S), ("n9", day + 2 * HOUR_S))[1][-1]) == [inc.Restart]
    assert kinds(all_of(job(), ("n9", HOUR_S), ("n9", HOUR_S))[1][-1]) == [inc.Restart]
    few = all_of(job(4), *(("n1", hour * HOUR_S) for hour in range(1, 4)))[1]
    assert [kinds(one) for one in few] == [[inc.Restart]] * 3
    assert Blame.NODE not in {one.verdict.blame for one in few if one.verdict}


@pytest.mark.parametrize("nodes", [1, 2, 4, 16, 128, 1200])
def test_crashes_by_chance_evict_nobody(nodes: int) -> None:
    chance, state, t = Random(nodes), job(nodes), 0.0
    for _ in range(180):
        t += chance.expovariate(2 / (24 * HOUR_S))
        state, decided = crashed(state, chance.choice(state.world.slots), t)
        assert decided.verdict is not None
        assert decided.verdict.blame is Blame.NOBODY


def test_a_node_that_is_left_behind_is_evicted_once_training_has_gone_on_for_an_hour_without_it() -> None:
    state, _ = all_of(job(1200, "s1"), ("n9", HOUR_S), ("n9", 2 * HOUR_S))
    assert not left_behind(state, RULES, 2.5 * HOUR_S)
    assert set(left_behind(state, RULES, 3.5 * HOUR_S)) == {"n9"}
    assert not left_behind(state, rules(), 3.5 * HOUR_S), "no other would stand by for it"
    assert not left_behind(changed(state, incident=_incident(3.4 * HOUR_S)), RULES, 3.5 * HOUR_S)


def test_a_slowdown_long_after_another_one_is_not_the_same_though_its_stack_is() -> None:
    def answer(at: float) -> ev.Decided:
        before = StackLocation(
            symptom=Symptom.SLOW, step=5, ranks=(7,), nodes=("n8",), stack="wait", t=HOUR_S
        )
        found = Localisation(ranks=(3,), group="node 3", reason="r", stack="wait", exact=True)
        state = changed(job(), places=(before,), incident=_incident(at))
        fault = inc.Fault(symptom=Symptom.SLOW, detail="slow", localisation=found, generation=1, alive=MANY)
        return decide(state, fault, at, RULES)

    assert kinds(answer(1.5 * HOUR_S)) == [inc.GiveUp]
    assert kinds(answer(3 * HOUR_S)) == [inc.Swap, inc.Restart]
