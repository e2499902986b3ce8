from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.ledger.classes import EFFECTIVE, NAMES, TimeClass
from slurm_robust.ledger.ledger import ledger
from slurm_robust.ledger.summary import ettr_curve, summary_of
from slurm_robust.model import events as ev
from tests.builders.events import run_started
from tests.unit.ledger.journals import Journal, at

START = run_started(t=0.0)


def first(t: float, generation: int, step: int, reported: bool = True) -> ev.FirstStep:
    return ev.FirstStep(t=t, generation=generation, step=step, reported=reported)


def made(t: float, generation: int, step: int, reported: bool = True) -> ev.ProgressMade:
    return ev.ProgressMade(t=t, generation=generation, step=step, reported=reported)


def test_steps_that_were_repeated_count_once() -> None:
    # 11 steps of 1 s, a fault, 5 of them again, then 5 new ones
    journal = [
        START,
        first(1, 1, 0),
        made(11, 1, 10),
        first(21, 2, 6),
        made(30, 2, 15),
        ev.RunEnded(t=32, code=0, reason=""),
    ]
    p = summary_of(journal, now=99)
    assert (p.steps, p.repeated) == (16, 5)
    assert p.effective_ms == 16_000
    assert p.wall_ms == 32_000
    assert p.ettr == 0.5


def test_steps_before_the_first_one_are_another_jobs() -> None:
    p = summary_of([START, first(1, 1, 1000), made(11, 1, 1010)], now=11)
    assert (p.steps, p.effective_ms) == (11, 11_000)


def test_a_job_that_never_made_a_step_was_never_productive() -> None:
    assert summary_of([START], now=50).ettr == 0.0
    assert summary_of([], now=50).ettr == 0.0


def test_unreported_steps_all_count() -> None:
    p = summary_of([START, first(10, 1, 0, False), made(20, 1, 10, False)], now=20)
    assert p.effective_ms == 11_000


def test_how_many_steps_were_repeated_is_not_known_of_a_script_that_does_not_number_them() -> None:
    before = [START, first(1, 1, 0, False), made(11, 1, 10, False)]
    again = [*before, first(21, 2, 0, False), made(30, 2, 15, False)]
    assert summary_of(before, now=12).repeated == 0
    p = summary_of(again, now=31)
    assert (p.steps, p.repeated) == (16, None)


def test_every_class_has_a_name_for_others() -> None:
    assert set(NAMES) == set(TimeClass)
    assert all(NAMES[one].google == "goodput" for one in EFFECTIVE - {TimeClass.SLOW})


def test_the_sliding_ettr_forgets_what_is_older_than_its_window() -> None:
    """An hour of training, an hour without, an hour of training, in pieces of 10 s."""
    journal = Journal().controller(0).allocation(0, submitted=None).launch(0, 1).first(1, 1, 0)
    for t in range(11, 3602, 10):
        journal.progress(t, 1, t - 1)
    journal.opened(3601, 1, 1).ended(3601, 1, 3600).decided(3601, 1).launch(7200, 2, 3600).first(
        7201, 2, 3601
    )
    for t in range(7211, 10802, 10):
        journal.progress(t, 2, t - 3600)
    books = ledger(journal.events, at(10801))
    curve = dict(ettr_curve(books, 3600))
    assert curve[3_601_000] == 1.0
    assert curve[7_200_000] == 1 / 3600  # the first hour's last second
    assert abs(curve[9_001_000] - 0.5) < 0.001
    assert curve[10_801_000] == 1.0
    assert list(ettr_curve(books))[-1] == (10_801_000, 7202 / 10801)


EVENTS = (
    "controller",
    "allocation",
    "launch",
    "first",
    "progress",
    "opened",
    "ended",
    "decided",
    "closed",
    "requeue",
    "over",
)


@st.composite
def journals(draw: st.DrawFn) -> list[ev.AnyEvent]:
    """Any events in any order, at any times, with clocks that jump and controllers that come and go."""
    journal = Journal()
    small = st.integers(0, 5)
    for name in draw(st.lists(st.sampled_from(EVENTS), max_size=25)):
        t = draw(st.one_of(st.integers(0, 400), st.floats(-1e5, 1e7), st.just(0.0)))
        match name:
            case "controller":
                journal.controller(t)
                if draw(st.booleans()):
                    journal.add(
                        ev.ClockCompared(t=at(t), epoch=journal.epoch, ahead_s=draw(st.floats(-1e6, 1e6)))
                    )
            case "allocation":
                journal.allocation(t, draw(small), submitted=draw(st.none() | st.floats(-1e4, 1e6)))
            case "launch":
                journal.launch(t, draw(small), draw(st.integers(-1, 50)))
            case "first":
                journal.first(t, draw(small), draw(st.integers(-1, 60)), draw(st.booleans()))
            case "progress":
                spent = {"evaluation": draw(st.floats(0, 1e6)), "x": draw(st.floats(0, 1e3))}
                journal.progress(t, draw(small), draw(st.integers(-1, 60)), draw(st.booleans()), **spent)
            case "opened":
                journal.opened(t, draw(small), draw(small), draw(st.floats(0, 1e5)))
            case "ended":
                journal.ended(t, draw(small), draw(st.integers(-1, 60)), pending=draw(st.booleans()))
            case "decided":
                journal.decided(t, draw(small), carried_out=draw(st.booleans()))
            case "closed":
                journal.closed(t, draw(small), draw(small), draw(st.integers(0, 60)))
            case "requeue":
                journal.requeue(t)
            case "over":
                journal.over(t, final=draw(st.booleans()))
    return journal.events


@given(journals(), st.floats(-1e6, 1e7))
def test_whatever_happens_the_classes_add_up_to_the_wall_time(events: list[ev.AnyEvent], now: float) -> None:
    books = ledger(events, at(now))
    assert books == ledger(events, at(now))
    end = 0
    for span in books.spans:
        assert span.begin_ms == end < span.end_ms
        end = span.end_ms
        assert sum(part.ms for part in span.parts) == span.end_ms - span.begin_ms
        assert all(part.ms > 0 for part in span.parts)
    found = summary_of(events, at(now))
    assert sum(found.classes.values()) == found.wall_ms == end
    assert found.effective_ms + found.lost.ms == found.wall_ms
    assert 0 <= found.ettr <= 1
    assert all(-1e-9 <= ettr <= 1 + 1e-9 for _, ettr in ettr_curve(books, 3600))
