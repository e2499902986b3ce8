"""Nodes that suspicion alone speaks against: when they are tested, and what those that pass are used for."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.config.job import CompanionConfig
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.stacks import Localisation
from slurm_robust.model.state import JobState, apply
from slurm_robust.policy import Rules, decide
from slurm_robust.policy.quick_test import TESTS, quick_answers
from tests.builders.rules import rules
from tests.builders.state import changed, job_state

SPARES, PARTITION = CompanionPool(reservation="spares"), CompanionPool()
RULES = rules(quick_test_s=60.0)
NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
GROUP = ("n2", "n3", "n4")
STATE = job_state(job_id=7, slots=NODES, held=NODES, generation=3, best_step=5, reports=True)


def suspected(state: JobState, *, exact: bool = False, **fields: object) -> tuple[JobState, inc.Fault]:
    """A hang for the second time on the nodes of a group, n3 the odd one; others of its ranks hung before."""
    ranks = tuple(NODES.index(node) for node in GROUP)
    before = inc.StackLocation(symptom=inc.Symptom.HANG, step=2, ranks=(0,), nodes=GROUP)
    found = Localisation(ranks=ranks, outliers=(2,), group="pp 1-3", exact=exact, reason="pp 1-3 waits")
    fault = inc.Fault(symptom=inc.Symptom.HANG, detail="hang", localisation=found, generation=3, alive=NODES)
    return changed(state, places=(before,)), structs.replace(fault, **fields)


def choose(state: JobState, by: Rules = RULES, **fields: object) -> tuple[inc.Action, ...]:
    state, fault = suspected(state, **fields)  # type: ignore[arg-type]
    return decide(state, fault, 0.0, by).actions


def test_with_enough_standbys_a_whole_group_is_replaced_untested() -> None:
    actions = choose(changed(STATE, spares=("n7", "n8", "n9")))
    assert [a.node for a in actions if isinstance(a, inc.Evict)] == ["n3", "n2", "n4"]
    assert [a.standby for a in actions if isinstance(a, inc.Replace)] == ["n7", "n8", "n9"]


def test_with_fewer_the_group_is_tested_and_nothing_else_is_done() -> None:
    (test,) = choose(changed(STATE, spares=("n7",)))
    assert test == inc.QuickTest(nodes=("n3", "n2", "n4"), reason="3 nodes to replace, 1 standby left")


def test_standbys_replace_the_most_suspect_and_those_that_passed_go_on() -> None:
    state = changed(STATE, spares=("n7",))
    assert choose(state, cleared=GROUP) == (
        inc.Evict(node="n3"),
        inc.Replace(node="n3", standby="n7"),
        inc.Restart(),
    )
    # One that has failed is more suspect than what stacks say.
    assert choose(state, cleared=("n3", "n4"))[:2] == (
        inc.Evict(node="n2"),
        inc.Replace(node="n2", standby="n7"),
    )


def test_too_few_that_pass_lead_to_a_requeue_without_any_of_them() -> None:
    state = changed(STATE, spares=("n7",))
    *evictions, requeue = choose(state, cleared=("n4",))
    assert {a.node for a in evictions if isinstance(a, inc.Evict)} == set(GROUP)
    assert isinstance(requeue, inc.Requeue)
    assert set(requeue.exclude) == set(GROUP)


def test_the_reservation_comes_before_the_test_and_the_partition_after_it() -> None:
    both = rules(quick_test_s=60.0, companions=CompanionConfig(reservation="spares", partition=True))
    (first,) = choose(STATE, both)
    assert isinstance(first, inc.Borrow)
    assert (first.sources, first.some) == ((SPARES,), True)
    (second,) = choose(STATE, both, asked=(SPARES,), not_lent=("full",))
    assert isinstance(second, inc.QuickTest)
    (third,) = choose(STATE, both, asked=(SPARES,), not_lent=("full",), cleared=())
    assert isinstance(third, inc.Borrow)
    assert (third.sources, third.some) == ((PARTITION,), False)
    last = choose(STATE, both, asked=(SPARES, PARTITION), not_lent=("full", "full"), cleared=())[-1]
    assert isinstance(last, inc.Requeue)


def test_a_node_is_tested_once_in_a_job_and_none_with_hard_evidence() -> None:
    tested = apply(ev.QuickTested(t=0.0, incident=1, passed=("n3",), failed={"n2": "x"}), STATE)
    (test,) = choose(tested)
    assert isinstance(test, inc.QuickTest)
    assert test.nodes == ("n4",)
    assert isinstance(choose(STATE, exact=True)[-1], inc.Requeue)
    assert isinstance(choose(STATE, rules())[-1], inc.Requeue)
    gone = changed(STATE, held=("n1", "n5", "n6"))
    assert isinstance(choose(gone)[-1], inc.Requeue), "the job does not hold them any more"


def test_a_node_that_was_evicted_unproven_stands_by_again_once_it_has_passed() -> None:
    lost = inc.Fault(generation=3, lost=("n1",), alive=NODES[1:])
    state = changed(STATE, held=(*NODES, "n8", "n9"))
    for node, unproven in (("n8", True), ("n9", False)):
        event = ev.NodeEvicted(t=0.0, node=node, reason="x", incident=1, unproven=unproven)
        state = apply(event, state)
    assert decide(state, lost, 0.0, RULES).actions == (
        inc.QuickTest(nodes=("n8",), reason="1 node to replace, 0 standbys left"),
    )
    state = apply(ev.QuickTested(t=1.0, incident=2, passed=("n8",)), state)
    assert (state.spares, list(state.evicted)) == (("n8",), ["n9"])
    assert decide(state, structs.replace(lost, cleared=("n8",)), 0.0, RULES).actions == (
        inc.Evict(node="n1"),
        inc.Replace(node="n1", standby="n8"),
        inc.Restart(),
    )


def test_only_who_has_passed_everything_has_passed() -> None:
    def result(node: str, test: str, outcome: Outcome = Outcome.PASS) -> TestResult:
        return TestResult(
            test=test, node=node, outcome=outcome, text="" if outcome is Outcome.PASS else "bad"
        )

    results = [result(node, test) for node in ("n1", "n2") for test in TESTS[:2]]
    results += [result("n1", TESTS[2]), result("n3", TESTS[0], Outcome.FAIL), result("n4", TESTS[0])]
    results += [result("n4", test, Outcome.UNKNOWN) for test in TESTS[1:]]
    answers = quick_answers(("n1", "n2", "n3", "n4", "n5"), results)
    assert [(a.node, a.outcome) for a in answers] == [
        ("n1", Outcome.PASS),
        ("n2", Outcome.UNKNOWN),
        ("n3", Outcome.FAIL),
        ("n4", Outcome.UNKNOWN),
        ("n5", Outcome.UNKNOWN),
    ]
    assert answers[1].text == "memory: no answer"
