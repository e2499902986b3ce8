"""When standbys are replaced while training goes on."""

from __future__ import annotations

from functools import reduce

from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.state import JobState, apply
from slurm_robust.policy.replenish import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_IN_A_DAY,
    MAX_IN_VAIN,
    missing_standbys,
    next_attempt,
)
from tests.builders.events import allocation_taken, run_started

STARTED = run_started(t=0.0, slots=2, spares=2)
TAKEN = allocation_taken(("n1", "n2"), ("n3", "n4"))
EVICTED = ev.NodeEvicted(t=2.0, node="n3", reason="", incident=0)
SUBMITTED = ev.CompanionSubmitted(t=3.0, job_id=9, source=CompanionPool(reservation="spares"))
LENT = ev.CompanionStarted(t=4.0, job_id=9, node="n5")


def state(*events: ev.AnyEvent) -> JobState:
    return reduce(lambda state, event: apply(event, state), (STARTED, TAKEN, *events), JobState())


def begun(t: float, attempt: int, missing: int = 1) -> ev.ReplenishBegun:
    return ev.ReplenishBegun(t=t, missing=missing, attempt=attempt, reason="")


def test_standbys_that_are_missing() -> None:
    assert missing_standbys(state()) == 0
    assert missing_standbys(state(EVICTED)) == 1
    gone = ev.SpareSetAside(t=3.0, node="n4", reason="down", usable=False)
    assert missing_standbys(state(EVICTED, gone)) == 2
    silent = ev.SpareSetAside(t=3.0, node="n4", reason="silent", usable=True)
    assert missing_standbys(state(EVICTED, silent)) == 1, "it may be heard again"
    assert missing_standbys(state(EVICTED, SUBMITTED)) == 0, "one is on its way"
    assert missing_standbys(state(EVICTED, SUBMITTED, LENT)) == 0


def test_attempts_that_get_nothing_come_later_and_later_and_end() -> None:
    now, attempts, pauses = 10.0, state(EVICTED), []
    while number := next_attempt(attempts, now):
        attempts = apply(begun(now, number), attempts)
        last = now
        while not next_attempt(attempts, now) and now - last < 2 * LONGEST_PAUSE_S:
            now += FIRST_PAUSE_S
        pauses.append(now - last)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert max(pauses[:-1]) == LONGEST_PAUSE_S
    assert len(pauses) == MAX_IN_VAIN


def test_another_standby_is_lost_or_a_node_came_and_attempts_begin_anew() -> None:
    tired = state(EVICTED, begun(5.0, MAX_IN_VAIN))
    assert next_attempt(tired, 1e6) == 0
    other = ev.NodeEvicted(t=6.0, node="n4", reason="", incident=0)
    assert next_attempt(apply(other, tired), 6.0) == 1
    lent = reduce(lambda s, e: apply(e, s), (SUBMITTED, LENT, other), tired)
    assert next_attempt(lent, 6.0) == 1


def test_a_clock_that_jumped_back_delays_nothing() -> None:
    assert next_attempt(state(EVICTED, begun(1e6, 1)), 10.0) == 2


def test_nodes_that_go_bad_one_after_the_other_are_not_replaced_for_ever() -> None:
    many = state(EVICTED, *(begun(5.0, 1) for _ in range(MAX_IN_A_DAY)))
    assert next_attempt(many, 3600.0) == 0
    assert next_attempt(many, 86406.0) == 2, "a run of months uses more standbys than those of a bad day"
    assert next_attempt(apply(TAKEN, apply(EVICTED, many)), 1e6) == 0, "the next run has its standbys"
