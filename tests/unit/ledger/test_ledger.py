"""Journals of a few events each, with accounts worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.ledger.accounting import AccountedRun
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.ledger import Ledger, ledger
from slurm_robust.ledger.summary import summarise
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Diagnose, Evict, Requeue, Restart, RollBack, Symptom
from tests.builders import updates
from tests.unit.ledger.journals import Journal, at


def account(books: Ledger) -> dict[str, float]:
    """Seconds of each class, with the detail of start phases and of the script's own phases."""
    found: Counter[str] = Counter()
    for span in books.spans:
        assert sum(part.ms for part in span.parts) == span.end_ms - span.begin_ms > 0
        for part in span.parts:
            found[f"{part.time.value}: {part.detail}" if part.detail else part.time.value] += part.ms
    assert sum(found.values()) == books.wall_ms
    return {name: ms / 1000 for name, ms in found.items()}


def made(journal: Journal, now: float, *runs: AccountedRun, ended: bool = False) -> dict[str, float]:
    return account(ledger(journal.events, at(now), runs, ended))


def started() -> Journal:
    """Queued for 60 s, the controller runs at 65, agents are there at 70; ten steps of 1 s are done at 90."""
    journal = Journal().controller(64).allocation(65, queued_s=60).launch(70, 1)
    journal.first(81, 1, 0).measured(81, 1, worker=1, imports=4, restore=2, first_step=3)
    return journal.progress(90, 1, 9)


STARTED = {
    "queued": 60,
    "starting: controller": 5,
    "starting: agent": 5,
    "starting: worker": 1.1,
    "starting: imports": 4.4,
    "restoring: restore": 2.2,
    # Of the 3.3 s until the first step was done, the step itself took one.
    "starting: first step": 2.3,
    "productive": 10,
}


def test_a_start_is_shared_by_its_phases_and_its_first_step_counts() -> None:
    assert made(started(), 90) == STARTED


def test_a_job_that_goes_on_trains_until_it_is_clear_that_nothing_is_known() -> None:
    assert made(started(), 100) == STARTED | {"productive": 20}
    assert made(started(), 190) == STARTED | {"idle: no news": 100}


def crashed() -> Journal:
    """A rank dies in the middle of step 10, which is noticed 0.1 s later; step 8 is restored."""
    journal = started().opened(90.6, 1, 1, 0.1, Symptom.WORKER_EXIT).ended(91, 1, 8).decided(91.5, 1)
    journal.launch(92, 2, 8).measured(95, 2, worker=1, restore=1, first_step=1).first(95, 2, 9)
    return journal.closed(96, 1, 2, 10).progress(96, 2, 10).progress(105, 2, 19)


CRASHED = STARTED | {
    "recomputing": 0.5 + 1,  # what the fault cut off, and step 9 again
    "detecting": 0.1,
    "deciding": 0.9,
    "recovering": 0.5,
    "starting: worker": 1.1 + 1,
    "restoring: restore": 2.2 + 1,
    "productive": 20,
}


def test_the_seconds_of_a_crash_go_to_their_classes() -> None:
    assert made(crashed().over(105), 900) == CRASHED


def test_an_incident_costs_what_lies_between_its_fault_and_the_first_new_step() -> None:
    journal = crashed().over(105)
    summary = summarise(ledger(journal.events, at(105)), journal.events)
    (cost,) = summary.incidents
    assert (cost.number, cost.symptom, cost.cause, cost.nodes) == (1, "worker exit", "nobody", ())
    assert cost.lost.ms == 5000
    assert cost.lost.node_hours == 5 * 2 / 3600
    assert summary.mttr_s == 5.0
    assert summary.mttf_s == 45.0  # it held nodes from 60 to 105
    assert (summary.wall_ms, summary.effective_ms) == (105_000, 20_000)
    assert summary.ettr == 20 / 45  # since Slurm started it
    assert summary.repeated == 1
    assert summary.ettr_held == 20 / 45
    assert summary.steps == 20


def test_a_hang_is_detected_from_its_last_step_on() -> None:
    journal = started().opened(120, 1, 1, 30).ended(126, 1, 9).decided(127, 1, Evict(node="n2"), Restart())
    journal.launch(130, 2, 9).first(140, 2, 10).closed(140, 1, 2, 10).progress(149, 2, 19).over(150)
    found = made(journal, 900)
    assert found == STARTED | {
        "detecting": 30,
        "deciding": 7,
        "recovering": 3,
        "starting: launch": 9,
        "productive": 20,
        "idle": 1,
    }


def test_a_hang_that_ends_by_itself_was_a_slow_step() -> None:
    journal = started()
    for k in range(1, 8):
        journal.progress(90 + 10 * k, 1, 9 + 10 * k)
    journal.opened(190, 1, 1, 29).progress(200, 1, 80).closed(200, 1, 1, 80).progress(210, 1, 90)
    found = made(journal, 210)
    assert found == STARTED | {"productive": 10 + 70 + 1 + 10, "slow": 39}


def stood_still(journal: Journal, until: float, seconds: float) -> Journal:
    """The controller was suspended, with its job or alone, and says so."""
    return journal.add(ev.Noted(t=at(until), text="the controller stood still", stood_still_s=seconds))


def test_a_job_that_is_suspended_does_not_train() -> None:
    journal = stood_still(started(), 155, 60).progress(160, 1, 19).progress(170, 1, 29)
    assert made(journal, 170) == STARTED | {"productive": 10 + 20, "suspended": 60}
    assert "slow" not in made(journal.progress(180, 1, 39), 180)


def test_a_slow_step_that_was_a_suspension_costs_no_incident_anything() -> None:
    journal = stood_still(started().opened(94, 1, 1, 1), 155, 60).progress(160, 1, 19).closed(160, 1, 1, 19)
    assert made(journal, 160) == STARTED | {"productive": 10 + 10, "suspended": 60}
    (cost,) = summarise(ledger(journal.events, at(160)), journal.events).incidents
    assert cost.lost.ms == 0


def test_a_controller_that_stands_still_alone_stops_no_training() -> None:
    journal = stood_still(started(), 155, 60).progress(160, 1, 79)
    assert made(journal, 160) == STARTED | {"productive": 10 + 70}


def test_news_of_a_step_before_the_suspension_may_be_dated_within_it() -> None:
    """The controller forgives its agents the time in which it could not hear them."""
    journal = stood_still(started(), 155, 60).progress(152, 1, 14).progress(160, 1, 19).progress(170, 1, 29)
    found = made(journal, 170)
    assert (found["suspended"], found["productive"]) == (60, 10 + 20)


def test_the_first_steps_of_a_generation_may_be_those_in_which_it_is_suspended() -> None:
    journal = Journal().controller(64).allocation(65, queued_s=60).launch(70, 1).first(80, 1, 0)
    stood_still(journal, 150, 60).progress(160, 1, 19).progress(170, 1, 29)
    found = made(journal, 170)
    assert (found["suspended"], found["productive"]) == (60, 20 + 10 + 1)


def test_an_incident_does_not_cost_what_the_job_was_suspended_in_it() -> None:
    journal = started().opened(90.5, 1, 1, 0.5, Symptom.WORKER_EXIT).ended(91, 1, 9).decided(92, 1)
    stood_still(journal, 160, 60).launch(162, 2, 9).first(172, 2, 10).closed(172, 1, 2, 10).over(172)
    assert made(journal, 172) == STARTED | {
        "detecting": 0.5,
        "deciding": 1.5,
        "recovering": 10,
        "suspended": 60,
        "starting: launch": 9,
        "productive": 11,
    }
    (cost,) = summarise(ledger(journal.events, at(172)), journal.events).incidents
    assert cost.lost.ms == 21_000
    assert TimeClass.SUSPENDED not in cost.classes


def test_a_job_that_ends_right_after_it_was_suspended_was_suspended() -> None:
    journal = stood_still(started(), 160, 60).ended(165, 1, 9).over(165)
    assert made(journal, 165)["suspended"] == 60
    cancelled = stood_still(started(), 160, 60).over(165)
    assert made(cancelled, 165) == STARTED | {"idle": 15, "suspended": 60}


def test_tests_of_nodes_are_a_class_of_their_own() -> None:
    journal = started().opened(91, 1, 1, 0.5, Symptom.NON_FINITE).ended(92, 1, 9)
    journal.decided(93, 1, Diagnose(reason="", bitwise=True))
    journal.add(ev.NodesTested(t=at(153), incident=1, results=(), suspects=(), reason="", took_s=55))
    journal.decided(154, 1).launch(155, 2, 9).first(160, 2, 10)
    found = made(journal, 160)
    assert found == STARTED | {
        "recomputing": 0.5,
        "detecting": 0.5,
        "deciding": 3,
        "testing": 60,
        "recovering": 1,
        "starting: launch": 4,
        "productive": 11,
    }


def requeued() -> Journal:
    """The time limit is near: a checkpoint is taken, the requeue begins; Slurm starts the next run at 300."""
    journal = started()
    journal.add(ev.CheckpointRequested(t=at(90.5), epoch=1, generation=1, step=11, reason="time limit"))
    journal.progress(92, 1, 11).ended(93, 1, 11).requeue(100, failure=False)
    journal.controller(306).allocation(307, 1, submitted=101, eligible=221, queued_s=199)
    return journal.launch(310, 2, 11).first(320, 2, 12).progress(329, 2, 21)


def test_a_requeue_is_told_from_the_queue() -> None:
    assert made(requeued(), 329) == STARTED | {
        "productive": 10 + 2 + 10,
        "checkpoint-blocked": 1 + 7,
        "requeue delay": 121,
        "queued": 60 + 79,
        "starting: controller": 5 + 7,
        "starting: agent": 5 + 3,
        "starting: launch": 9,
    }


def test_no_nodes_are_held_between_two_runs() -> None:
    books = ledger(requeued().events, at(329))
    waiting = [s for s in books.spans if s.parts[0].time in (TimeClass.QUEUED, TimeClass.REQUEUE_DELAY)]
    assert [span.nodes for span in waiting] == [0, 0, 0]
    assert {span.run for span in waiting} == {0, 1}
    assert {span.nodes for span in books.spans if span not in waiting} == {2}


def test_a_run_that_dies_with_its_controller_ends_when_slurm_says_so() -> None:
    journal = started().controller(307)
    journal.ended(307, 1, pending=True).allocation(307, 1, submitted=150, queued_s=150)
    journal.launch(310, 2, 9).first(320, 2, 10)
    found = made(journal, 320)
    assert found == STARTED | {
        "detecting": 60,  # nobody knows when it died: until Slurm queued it again
        "requeue delay": 150,
        "starting: controller": 12,
        "starting: agent": 8,
        "starting: launch": 9,
        "productive": 11,
    }
    known = made(journal, 320, AccountedRun(run=0, ended=at(100)), AccountedRun(run=1, eligible=at(270)))
    assert known == found | {"detecting": 10, "requeue delay": 50 + 120, "queued": 60 + 30}


def test_steps_that_no_controller_heard_of_are_done_all_the_same() -> None:
    """The controller died at 90 and training went on until step 49, of which a checkpoint is proof."""
    journal = started().controller(200).ended(200, 1, 49, pending=True).launch(201, 2, 49)
    found = made(journal.first(211, 2, 50), 211)
    assert found["productive"] == 10 + 40 + 1
    assert found["detecting"] == 70


def test_training_goes_on_while_a_controller_is_started_again() -> None:
    journal = started().controller(97).progress(100, 1, 19)
    assert made(journal, 100) == STARTED | {"productive": 20}


def test_phases_and_checkpoints_are_taken_from_the_time_of_the_steps() -> None:
    journal = started().progress(105, 1, 19, checkpoint=1, evaluation=3)
    journal.progress(120, 1, 29, checkpoint=1.5, evaluation=3, tokenize=4.5)
    assert made(journal, 120) == STARTED | {
        "productive": 10 + 11 + 10,
        "checkpoint-blocked": 1.5,
        "evaluating": 3,
        "other phase: tokenize": 4.5,
    }


def test_what_a_step_takes_beyond_the_baseline_is_slow() -> None:
    journal = started()
    for k in range(1, 8):
        journal.progress(90 + 10 * k, 1, 9 + 10 * k)
    journal.progress(175, 1, 89).progress(186, 1, 99)
    # 15 s for ten steps are slow, 11 s are noise.
    assert made(journal, 186) == STARTED | {"productive": 10 + 70 + 10 + 11, "slow": 5}


def test_observing_changes_nothing() -> None:
    journal = started().opened(91, 1, 1).decided(91, 1, carried_out=False).progress(100, 1, 19)
    assert made(journal, 100) == STARTED | {"productive": 20}


def test_the_clock_of_another_node_counts_by_slurms() -> None:
    """The next controller's node is ten minutes ahead, until somebody sets its clock at 100."""
    journal = started().controller(696)
    journal.add(ev.ClockCompared(t=at(697), epoch=2, ahead_s=600))
    journal.progress(700, 1, 19)
    journal.add(ev.ClockCompared(t=at(101), epoch=2, ahead_s=0))
    journal.progress(110, 1, 29)
    assert made(journal, 110) == STARTED | {"productive": 30}


def test_a_clock_that_nobody_compared_goes_back_and_adds_nothing() -> None:
    journal = started().controller(80).opened(50, 1, 1).ended(51, 1, 9).decided(52, 1).launch(53, 2, 9)
    found = made(journal.first(110, 2, 10), 110)
    assert sum(found.values()) == 110


def test_a_node_that_is_given_back_is_not_held() -> None:
    journal = started().add(ev.NodeGivenBack(t=at(90), node="n2", how=""))
    books = ledger(journal.progress(100, 1, 19).events, at(100))
    assert [span.nodes for span in books.spans][-2:] == [2, 1]


def test_a_companion_is_held_while_it_lends() -> None:
    journal = started().add(ev.CompanionStarted(t=at(90), job_id=8, node="n5"))
    journal.progress(100, 1, 19).add(ev.CompanionEnded(t=at(100), job_id=8, reason=""))
    journal.add(ev.CompanionEnded(t=at(100), job_id=9, reason="it never lent anything"))
    books = ledger(journal.progress(110, 1, 29).events, at(110))
    assert [span.nodes for span in books.spans][-3:] == [2, 3, 2]


def test_gpu_hours_are_lost_to_the_node_that_is_blamed() -> None:
    journal = Journal().controller(0).allocation(0, submitted=None, gpus=16).launch(0, 1).first(1, 1, 0)
    journal.progress(100, 1, 99).opened(100, 1, 1, 0, Symptom.NODE_FAULT).ended(100, 1, 99)
    journal.decided(
        100, 1, Evict(node="n2"), Requeue(reason="", exclude=()), blame=Blame.NODE, suspects=("n2",)
    )
    journal.requeue(118)
    summary = summarise(ledger(journal.events, at(118)), journal.events)
    assert list(summary.causes) == ["node"]
    assert summary.causes["node"].ms == summary.by_node["n2"].ms == 18_000
    assert summary.by_node["n2"].gpu_hours == 18 * 16 / 3600


def updated() -> Journal:
    """The ranks stop for an update 1 s after a step; the new release makes its first step 9 s later."""
    journal = started().progress(100, 1, 19)
    journal.say(ev.StopStarted, 101, generation=1, reason="update 1", update=1)
    journal.progress(102, 1, 20).ended(103, 1, 20)
    journal.say(ev.UpdateApplied, 104, update=1, release="b", before="a", step=20)
    journal.launch(104, 2, 20).first(110, 2, 21).measured(110, 2, imports=2, restore=1, first_step=3)
    return journal.progress(120, 2, 31)


UPDATED = STARTED | {
    "productive": 10 + 10 + 1 + 1 + 10,
    "updating: stop": 3,
    "updating: imports": 2,
    "updating: restore": 1,
    "updating: first step": 2,
}


def test_an_update_costs_what_lies_between_the_stop_and_the_first_step_of_its_release() -> None:
    assert made(updated(), 120) == UPDATED


def test_the_time_in_which_ranks_are_held_is_that_of_the_update() -> None:
    journal = started().progress(100, 1, 19)
    journal.say(ev.StopStarted, 103, generation=1, reason="update 1", update=1)
    journal.progress(104, 1, 20, update=3.0).ended(105, 1, 20)  # a step of 1 s, held since
    journal.launch(106, 2, 20).first(110, 2, 21).measured(110, 2, first_step=1)
    found = made(journal, 110)
    assert (found["updating"], found["updating: stop"]) == (2, 3)
    assert found["productive"] == 10 + 10 + 1 + 1


def test_an_update_that_stops_a_start_costs_what_follows_the_stop() -> None:
    journal = started().ended(91, 1, 9).launch(92, 2, 9)
    journal.say(ev.StopStarted, 95, generation=2, reason="update 1", update=1).ended(96, 2)
    journal.launch(97, 3, 9).first(100, 3, 10).measured(100, 3, first_step=1)
    found = made(journal, 100)
    assert (found["starting: launch"], found["updating: stop"]) == (3, 2)
    assert found["updating: first step"] == 2


def test_a_fault_in_an_update_ends_what_it_costs() -> None:
    journal = started().progress(100, 1, 19)
    journal.say(ev.StopStarted, 100, generation=1, reason="update 1", update=1).ended(101, 1, 19)
    journal.launch(102, 2, 19).opened(105, 1, 2).ended(106, 2).decided(107, 1, Restart())
    journal.launch(108, 3, 19).first(112, 3, 20).measured(112, 3, first_step=4).closed(112, 1, 3, 20)
    found = made(journal, 112)
    assert {name: s for name, s in found.items() if name.startswith("updating")} == {
        "updating: stop": 2,
        "updating: launch": 3,
    }
    assert (found["deciding"], found["recovering"], found["starting: first step"]) == (2, 1, 2.3 + 3)


def test_an_update_that_the_run_does_not_live_to_see_costs_no_requeue() -> None:
    journal = started().say(ev.StopStarted, 91, generation=1, reason="update 1", update=1).ended(92, 1, 9)
    journal.requeue(93, failure=False)
    journal.controller(100).allocation(101, 1, submitted=94, queued_s=5).launch(103, 2, 9)
    journal.first(105, 2, 10).measured(105, 2, first_step=1)
    found = made(journal, 105)
    assert found["updating: stop"] == 2
    assert found["starting: first step"] > STARTED["starting: first step"]


def slower(*, good: bool) -> dict[str, float]:
    """A job of steps of 1 s whose update makes them 2 s long; the release is judged after 100 s."""
    journal = started()
    for second in range(100, 500, 10):
        journal.progress(second, 1, second - 81)
    journal.say(ev.StopStarted, 490, generation=1, reason="update 1", update=1).ended(491, 1, 409)
    journal.say(ev.UpdateApplied, 492, update=1, release="b", before="a", step=409).launch(492, 2, 409)
    journal.first(502, 2, 410).measured(502, 2, first_step=1)
    for second in range(512, 702, 10):
        journal.progress(second, 2, 410 + (second - 502) // 2)
        if second == 602 and good:
            journal.say(ev.ReleaseProven, 602, release="b", reason="x", step=460)
    return made(journal, 692)


def test_a_release_whose_steps_take_longer_is_slow_until_it_is_good() -> None:
    assert slower(good=False)["slow"] == pytest.approx(95)
    assert slower(good=True)["slow"] == pytest.approx(50)


def test_steps_of_a_release_that_is_rolled_back_are_done_again() -> None:
    journal = updated().opened(121, 1, 2).ended(122, 2)
    journal.decided(123, 1, RollBack(release="b", to="a", step=20), blame=Blame.CODE)
    journal.launch(124, 3, 20).first(126, 3, 21).measured(126, 3, first_step=2).progress(136, 3, 31)
    journal.closed(137, 1, 3, 32).progress(137, 3, 32)
    found = made(journal, 137)
    # Eleven steps again, and the part of a step that the fault cut off; each counts once.
    assert found["recomputing"] == 11 + 1
    assert found["productive"] == UPDATED["productive"] + 1
    assert summarise(ledger(journal.events, at(137)), journal.events).steps == 33


def test_the_incident_of_a_rollback_costs_the_steps_that_are_done_again_also_after_its_first_new_step() -> (
    None
):
    journal = updated().opened(121, 1, 2).ended(122, 2)
    journal.decided(123, 1, RollBack(release="b", to="a", step=20), blame=Blame.CODE)
    journal.launch(124, 3, 20).first(126, 3, 21).measured(126, 3, first_step=2).closed(126, 1, 3, 21)
    for second in range(127, 147):
        journal.progress(second, 3, second - 105)
    (cost,) = summarise(ledger(journal.events, at(146)), journal.events).incidents
    assert cost.classes[TimeClass.RECOMPUTING] == (11 + 1) * 1000
    found = ledger(journal.events, at(146))
    assert found.spans[-1].incident == 0
    account(found)


@given(st.data())
def test_each_moment_is_counted_once_whatever_is_left_of_a_journal_with_updates(data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(updates.whole()), min_size=1, max_size=40))
    shifts = data.draw(st.lists(st.floats(-50, 50), min_size=len(kept), max_size=len(kept)))
    events = [structs.replace(event, t=event.t + by) for event, by in zip(kept, shifts, strict=True)]
    end = max(event.t for event in events) + 60
    books = ledger(events, end)
    account(books)
    assert books.wall_ms == round((end - books.begin) * 1000) or books.ended


def test_a_job_without_a_journal_is_empty() -> None:
    books = ledger([], at(0))
    assert (books.spans, books.wall_ms) == ((), 0)
    assert summarise(books, []).ettr == 0.0


@pytest.mark.parametrize(("first", "repeated"), [(0, 51), (41, 10)])
def test_a_script_that_resumes_by_itself_repeats_only_what_follows_its_first_step(
    first: int, repeated: int
) -> None:
    journal = Journal().controller(0).allocation(0).launch(0, 1).first(10, 1, 0).progress(60, 1, 50)
    journal.ended(61, 1).launch(62, 2).first(70, 2, first).progress(130, 2, 60)
    assert ledger(journal.events, at(130)).repeated == repeated


def test_steps_that_only_some_ranks_had_completed_are_repeated() -> None:
    journal = Journal().controller(0).allocation(0).launch(0, 1).first(10, 1, 0).progress(60, 1, 50)
    journal.opened(63, 1, 1, detect_s=0.5).ended(64, 1, reached=53).launch(65, 2, restore=50)
    journal.first(66, 2, 51).progress(130, 2, 110)
    assert ledger(journal.events, at(130)).repeated == 3
