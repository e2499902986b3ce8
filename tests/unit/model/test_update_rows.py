"""What becomes of each update of a job, by its journal."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.incident import RollBack
from slurm_robust.model.journal import fold
from slurm_robust.model.release import UpdateEnd, When
from slurm_robust.model.updates import UpdateBook, UpdateResult, update_rows
from tests.builders import incidents
from tests.builders import updates as job
from tests.builders.updates import BATCH, BEGIN, FIRST, LAYERS


def results(*events: ev.AnyEvent) -> dict[int, str]:
    return {row.number: row.result.value for row in update_rows(events)}


def test_each_update_has_the_result_of_its_last_event() -> None:
    assert results(*job.whole()) == {
        1: "good",
        2: "refused",
        3: "rolled back",
        4: "superseded",
        5: "waiting",
    }


def test_an_update_at_a_step_boundary_stops_training_until_the_first_step_of_its_release() -> None:
    (row,) = update_rows([*job.start(), *job.good()])
    assert (row.applied, row.step, row.generation) == (BEGIN + 211, 200, 2)
    assert (row.stopped, row.stopped_s, row.recovery) == (BEGIN + 210, 4.5, 0)
    assert (row.before, row.trial_s, row.message) == (FIRST, 8.2, "a larger batch")


def test_an_update_that_a_recovery_takes_along_stops_nothing_of_its_own() -> None:
    row = update_rows(job.whole())[2]
    assert (row.recovery, row.stopped, row.stopped_s) == (1, None, None)


def test_a_rollback_names_the_incident_the_reason_and_the_release_that_runs_again() -> None:
    row = update_rows(job.whole())[2]
    assert (row.incident, row.back_to) == (2, BATCH)
    assert row.why == f"release {LAYERS} raised IndexError at train.py:40 before it was good"


def test_a_rollback_that_is_only_observed_is_none() -> None:
    events = [
        ev.Decided(
            t=event.t, incident=2, actions=event.actions, reason="", verdict=event.verdict, carried_out=False
        )
        if isinstance(event, ev.Decided) and any(isinstance(a, RollBack) for a in event.actions)
        else event
        for event in [*job.start(), *job.good(), *job.rolled_back()]
    ]
    assert results(*events)[3] == "candidate"


def test_the_book_knows_what_runs_as_the_state_does() -> None:
    book, before = UpdateBook(), list[ev.AnyEvent]()
    for event in job.whole():
        book.read(event)
        before.append(event)
        state = fold(before)
        assert book.release == state.release
        candidate = state.candidate.update if state.candidate is not None else 0
        assert (book.candidate.number if book.candidate is not None else 0) == candidate


def test_a_candidate_gives_way_to_the_next_update() -> None:
    events = [*job.start(), job.requested(200, 1, BATCH), job.applied(201, 1, BATCH, FIRST, 150)]
    events += [job.requested(210, 2, LAYERS), job.applied(211, 2, LAYERS, BATCH, 160)]
    assert results(*events) == {1: "replaced", 2: "candidate"}


def test_a_release_that_was_good_before_needs_no_second_trial() -> None:
    events = [*job.start(), *job.good(), job.requested(400, 2, FIRST, rollback=True, when=When.NOW)]
    events.append(job.applied(401, 2, FIRST, BATCH, 300))
    row = update_rows(events)[1]
    assert (row.result, row.judged) == (UpdateResult.GOOD, row.applied)


def test_an_update_that_waits_when_the_job_ends_is_never_applied() -> None:
    events = [*job.start(), job.requested(200, 1, BATCH), ev.RunEnded(t=BEGIN + 300, code=0, reason="done")]
    assert results(*events) == {1: "never applied"}
    requeued = [*events[:-1], ev.RunEnded(t=BEGIN + 300, code=85, reason="", final=False)]
    assert results(*requeued) == {1: "waiting"}


@pytest.mark.parametrize("how", list(UpdateEnd))
def test_the_end_of_an_update_that_nobody_requested_is_passed_over(how: UpdateEnd) -> None:
    assert update_rows([ev.UpdateEnded(t=1.0, update=7, how=how)]) == ()


def test_a_release_that_failed_its_trial_is_refused_before_the_update_ends() -> None:
    events = [*job.start(), job.requested(200, 1, BATCH), job.tried(209, 1, ok=False, node="n2", text="typo")]
    (row,) = update_rows(events)
    assert (row.result, row.why, row.node, row.over) == (UpdateResult.REFUSED, "typo", "n2", BEGIN + 209)


def test_a_rollback_is_of_the_update_that_was_applied_and_not_of_one_that_waits() -> None:
    events = [*job.start(), *job.good(), *job.rolled_back()]
    place = next(i for i, e in enumerate(events) if isinstance(e, ev.IncidentOpened) and e.incident == 2)
    events.insert(place, job.requested(573, 4, LAYERS, from_step=40))
    assert results(*events) == {1: "good", 3: "rolled back", 4: "waiting"}


def test_training_stands_still_for_an_update_until_its_first_step_also_with_an_incident_between() -> None:
    events = [*job.start(), *job.good()[:9]]
    events += [
        incidents.opened(t=BEGIN + 212, incident=1, generation=2),
        job.launched(220, 3, BATCH, 200, of=1),
    ]
    (row,) = update_rows([*events, job.first_step(225, 3, 201)])
    assert (row.stopped_s, row.first_step, row.generation, row.recovery) == (15.0, 201, 2, 0)


def test_ranks_that_do_not_train_make_no_first_step_of_a_release() -> None:
    other = structs.replace(job.first_step(212, 2, 7), world="rollout")
    (row,) = update_rows([*job.start(), *job.good()[:9], other])
    assert (row.first_step, row.stopped_s) == (None, None)
