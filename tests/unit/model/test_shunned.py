"""How long an evicted node is shunned by its job."""

from __future__ import annotations

from functools import reduce

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.state import REPAIRED_S, JobState, apply
from tests.builders.events import allocation_taken

EVICTED = ev.NodeEvicted(t=100.0, node="n2", reason="a GPU is lost", incident=1)
GIVEN_BACK = ev.NodeGivenBack(t=110.0, node="n2", how="by shrinking the job")
LATE = 100.0 + REPAIRED_S
POOL = CompanionPool(reservation="spares")


def state(*events: ev.AnyEvent) -> JobState:
    return reduce(
        lambda state, event: apply(event, state),
        (allocation_taken(("n1", "n2"), ("n3",)), *events),
        JobState(),
    )


def lent(t: float) -> tuple[ev.AnyEvent, ...]:
    return (ev.CompanionSubmitted(t=t, job_id=9, source=POOL), ev.CompanionStarted(t=t, job_id=9, node="n2"))


def test_a_node_is_asked_for_again_once_it_may_be_repaired_but_not_while_the_job_holds_it() -> None:
    back = state(EVICTED, GIVEN_BACK)
    assert back.shunned(LATE - 1) == ("n2",)
    assert back.shunned(LATE) == ()
    assert state(EVICTED).shunned(LATE) == ("n2",)
    assert state(EVICTED).shunned(LATE, anew=True) == ()


def test_a_repaired_node_that_is_lent_serves_again_and_can_be_evicted_again() -> None:
    again = state(EVICTED, GIVEN_BACK, *lent(LATE))
    assert (again.evicted, again.spares) == ({}, ("n3", "n2"))
    twice = reduce(
        lambda state, event: apply(event, state),
        [ev.NodeEvicted(t=LATE + 5, node="n2", reason="r", incident=2)],
        again,
    )
    assert twice.shunned(LATE + 10) == ("n2",)
    assert set(state(EVICTED, GIVEN_BACK, *lent(LATE - 1)).evicted) == {"n2"}


def test_a_repaired_node_in_another_run_is_no_evicted_one() -> None:
    requeued = ev.RequeueStarted(t=LATE, exclude=(), reason="r", failure=True)
    soon = allocation_taken(("n1", "n2"), ("n3",))
    early, late = (structs.replace(soon, t=t) for t in (LATE - 1, LATE))
    assert set(state(EVICTED, requeued, early).evicted) == {"n2"}
    assert state(EVICTED, requeued, late).evicted == {}


def test_what_a_requeue_excludes_are_nodes_that_are_still_shunned() -> None:
    first = ev.RequeueStarted(t=200.0, exclude=("n2",), reason="r", failure=True)
    assert state(
        EVICTED, first, ev.RequeueStarted(t=300.0, exclude=(), reason="r", failure=True)
    ).excluded == ("n2",)
    assert (
        state(EVICTED, first, ev.RequeueStarted(t=LATE, exclude=(), reason="r", failure=True)).excluded == ()
    )
