"""In which order a node is replaced: standby, companions, requeue."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.config.job import CompanionConfig, SlurmConfig
from slurm_robust.model import incident as inc
from slurm_robust.model.companion import Companion, CompanionPool
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.state import JobState, apply
from slurm_robust.policy import decide
from slurm_robust.policy.patience import borrowing_s
from tests.builders.rules import rules
from tests.builders.state import changed, job_state

SPARES, PARTITION = CompanionPool(reservation="spares"), CompanionPool()
BOTH = CompanionConfig(reservation="spares", partition=True)
RULES = rules(companions=BOTH)
STATE = job_state(job_id=7, slots=("n1", "n2"), generation=3, best_step=5, reports=True, evicted={"n9": "x"})
LOST = inc.Fault(generation=3, lost=("n2",), alive=("n1",))


def asked(nodes: int, reason: str) -> inc.Borrow:
    """Of all sources."""
    return inc.Borrow(nodes=nodes, reason=reason, sources=(SPARES, PARTITION))


def lending(state: JobState, *nodes: str) -> JobState:
    companions = {100 + i: Companion(source=SPARES, node=node) for i, node in enumerate(nodes)}
    return structs.replace(state, spares=(*state.spares, *nodes), companions=companions)


def test_without_a_standby_nodes_are_asked_for_and_nothing_else_is_done() -> None:
    decision = decide(STATE, LOST, 0.0, RULES)
    assert decision.actions == (asked(1, "1 node to replace, 0 standbys left"),)
    assert decision.reason.endswith("ask for 1 node from reservation spares, then the partition")
    assert apply(decision, STATE).world.attempts == (), "the decision that follows is the attempt"


def test_only_what_standbys_do_not_cover_is_asked_for() -> None:
    both = structs.replace(LOST, lost=("n1", "n2"), alive=())
    state = changed(STATE, slots=("n1", "n2", "n4"), spares=("n3",))
    (borrow,) = decide(state, structs.replace(both, alive=("n4",)), 0.0, RULES).actions
    assert borrow == asked(1, "2 nodes to replace, 1 standby left")


@pytest.mark.parametrize("lent", [(), ("n5",)])
def test_too_few_lead_to_a_requeue_that_says_why(lent: tuple[str, ...]) -> None:
    state = lending(changed(STATE, slots=("n1", "n2", "n3", "n4")), *lent)
    fault = structs.replace(
        LOST,
        lost=("n2", "n3"),
        alive=("n1", "n4"),
        not_lent=("reservation spares: full",),
        asked=RULES.sources,
    )
    requeue = decide(state, fault, 0.0, RULES).actions[-1]
    assert isinstance(requeue, inc.Requeue)
    assert requeue.exclude == ("n9", "n2", "n3")
    assert requeue.reason.endswith("left; reservation spares: full")


def test_without_requeue_the_job_ends_only_after_companions_were_asked_for() -> None:
    never = rules(companions=BOTH, slurm=SlurmConfig(requeue=False))
    assert isinstance(decide(STATE, LOST, 0.0, never).actions[0], inc.Borrow)
    (*_, last) = decide(
        STATE, structs.replace(LOST, not_lent=("full",), asked=RULES.sources), 0.0, never
    ).actions
    assert isinstance(last, inc.GiveUp)
    assert last.code == ExitCode.DO_NOT_REQUEUE


def test_nodes_that_cannot_be_reached_are_replaced_by_lent_ones_without_an_agent_yet() -> None:
    fault = structs.replace(LOST, lost=("n1", "n2"), alive=(), unreachable="all silent at once")
    state = changed(STATE, slots=("n1", "n2", "n4"), evicted={})
    fault = structs.replace(fault, alive=("n4",))
    assert decide(state, fault, 0.0, RULES).actions[0] == asked(2, "2 nodes to replace, 0 standbys left")
    decision = decide(lending(state, "n5", "n6"), structs.replace(fault, not_lent=()), 0.0, RULES)
    assert [type(action) for action in decision.actions] == [inc.Replace, inc.Replace, inc.Restart]


def test_sources_in_their_order() -> None:
    assert rules().sources == ()
    assert rules(companions=CompanionConfig(reservation="spares")).sources == (SPARES,)
    assert RULES.sources == (SPARES, PARTITION)
    assert [str(source) for source in (SPARES, PARTITION)] == ["reservation spares", "the partition"]


def test_the_wait_has_a_bound() -> None:
    assert 60 < borrowing_s(2, 30.0, 30.0, 1) < 600
