"""The lanes of the timeline, what the job did, and the marks: of small journals."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.ledger.classes import PARTS, Part, TimeClass
from slurm_robust.ledger.shares import shares
from slurm_robust.model import events as ev
from slurm_robust.report.job_report import SlurmFacts, job_report
from slurm_robust.report.lanes import MAX_EACH
from slurm_robust.report.nodelines import NodeActivity
from slurm_robust.report.page.charts import pieces, steps_per_second
from tests.builders.events import allocation_taken
from tests.unit.ledger.journals import Journal, at
from tests.unit.report.pictured import Pictured, short
from tests.unit.report.test_job_report import report

SLOT, STANDBY, EVICTED = NodeActivity.SLOT, NodeActivity.STANDBY, NodeActivity.EVICTED


def test_each_slot_has_a_lane_with_those_who_held_it() -> None:
    lanes = report(short()).lanes
    assert [lane.slots for lane in lanes] == ["0", "1", "2", "3", "", ""]
    assert [(bar.nodes, bar.begin, bar.end, bar.evicted) for bar in lanes[1].bars] == [
        ("n2", at(6), at(67.4), True),
        ("n5", at(68), at(112.4), True),
    ]
    beside = [[(bar.nodes, bar.doing) for bar in lane.bars] for lane in lanes[4:]]
    assert beside == [[("n5", STANDBY), ("n5", EVICTED)], [("n2", EVICTED)]]


def test_slots_of_a_run_with_fewer_ranks_are_empty() -> None:
    found = report(short(requeued=True))
    ends = [lane.bars[-1].end - at(0) for lane in found.lanes if lane.slots]
    assert ends[3] == 113 < min(ends[:3])


def test_many_slots_that_changed_hands_together_share_a_lane() -> None:
    slots = tuple(f"n{number}" for number in range(MAX_EACH + 10))
    journal = Pictured().controller(5)
    journal.add(allocation_taken(slots, ("s1",), t=at(6), epoch=1))
    journal.launches(7, 1, slots)
    journal.launches(8, 2, ("n0", "s1", *slots[2:]))
    journal.say(ev.Noted, 9, text="it goes on")
    lanes = [lane for lane in report(journal).lanes if lane.count]
    assert [(lane.count, lane.slots) for lane in lanes] == [(MAX_EACH + 9, f"0,2-{MAX_EACH + 9}"), (1, "1")]


def test_the_stages_leave_no_gap_and_end_with_the_wait() -> None:
    found = job_report(short().events, at(999), SlurmFacts(state="PENDING", now=at(153)), {})
    stages = found.stages
    assert [(one.begin, one.end) for one in stages[:1]] == [(at(0), at(5))]
    assert all(one.end == other.begin for one, other in itertools.pairwise(stages))
    assert (stages[-1].part, stages[-1].end) == (Part.QUEUE, at(153))


def test_each_class_of_time_is_in_a_part() -> None:
    assert set(PARTS) == set(TimeClass)


@given(st.dictionaries(st.sampled_from(TimeClass), st.integers(1, 10**10), min_size=1))
def test_parts_add_up_to_the_whole(classes: dict[TimeClass, int]) -> None:
    found = shares(classes)
    assert sum(one.ms for one in found) == sum(classes.values())
    assert sum(one.share for one in found) == pytest.approx(1)


def test_a_restart_from_step_0_with_fewer_ranks_is_marked_and_usual_ones_are_not() -> None:
    marks = report(short(requeued=True)).marks
    assert [mark.label for mark in marks] == ["requeue", "run 1", "3 ranks", "from step 0"]
    assert "with 3 ranks instead of 4" in marks[-2].text
    assert {mark.t for mark in marks[2:]} == {at(181)}


def test_a_restart_from_a_step_before_one_that_was_saved_is_marked() -> None:
    journal = Journal().controller(0).allocation(0).launch(0, 1).first(10, 1, 0).progress(20, 1, 10)
    journal.ended(21, 1, 10).launch(22, 2, 4).first(25, 2, 5).progress(30, 2, 9).ended(31, 2, 9)
    journal.launch(32, 3, 9)
    assert [(mark.label, mark.t) for mark in report(journal).marks] == [("from step 4", at(22))]


def test_a_curve_begins_anew_with_each_generation_and_has_rates_within_one() -> None:
    found = report(short())
    begins = pieces(found)
    assert [found.progress.generation[place] for place in begins] == [1, 2, 3]
    rates = steps_per_second(found)
    assert [rates[place] for place in begins] == [None] * 3
    assert {rate for rate in rates if rate is not None} == {3.0}
