"""The ledger of a training is that of its jobs and the time between them: nothing lost, nothing twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.ledger.chapters import joined
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.ledger import Ledger, ledger
from slurm_robust.ledger.summary import summarise
from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from slurm_robust.policy.continuing import lineage, until
from slurm_robust.report.chapters import chapter_row
from slurm_robust.report.job_view import JobView
from slurm_robust.trainings.jobs import ChapterState
from tests.unit.ledger.journals import Journal, at


def job(submitted: float, began: float, steps: range, end: float, generation: int = 1) -> list[ev.AnyEvent]:
    """One step a second from ten seconds after ``began``, and the end."""
    journal = Journal().controller(began)
    journal.allocation(began, submitted=submitted, queued_s=began - submitted)
    journal.launch(began + 1, generation, restore=steps.start - 1)
    journal.first(began + 10, generation, steps.start)
    for step in steps[1:]:
        journal.progress(began + 10 + step - steps.start, generation, step)
    journal.ended(end, generation)
    return journal.add(ev.RunEnded(t=at(end), epoch=1, code=143, reason="cancelled")).events


def classes(books: Ledger) -> Counter[str]:
    found: Counter[str] = Counter()
    for span in books.spans:
        for part in span.parts:
            found[part.time.value] += part.ms
    return found


def chapters(*journals: list[ev.AnyEvent]) -> list[Ledger]:
    found: list[Ledger] = []
    best, end = -1, None
    for events in journals:
        one = ledger(events, events[-1].t, best=best, not_before=end)
        found.append(one)
        end = one.begin + one.wall_ms / 1000
        best = max([best, *(e.step for e in events if isinstance(e, ev.FirstStep | ev.ProgressMade))])
    return found


def test_between_two_jobs_is_a_class_of_its_own() -> None:
    first, second = job(0, 20, range(50), 100), job(400, 430, range(50, 80), 520, 2)
    books = chapters(first, second)
    both = joined(books, [first, second])
    assert classes(both) == classes(books[0]) + classes(books[1]) + Counter({"between jobs": 300_000})
    assert both.wall_ms == 520_000
    assert both.started_ms == 20_000
    assert both.repeated == 0
    assert both.ended


def test_steps_of_an_earlier_job_that_are_done_again_are_repeated() -> None:
    first, second = job(0, 20, range(50), 100), job(400, 430, range(30, 80), 540, 2)
    books = chapters(first, second)
    assert books[1].repeated == 20
    assert joined(books, [first, second]).repeated == 20
    assert classes(books[1])["recomputing"] >= 20_000


def test_a_job_alone_knows_by_its_own_journal_what_it_repeats() -> None:
    started, *rest = job(400, 430, range(30, 80), 540, 2)
    went_on = ev.Continued(t=started.t, from_job=1, from_folder="1", generation=1, best_step=49, reports=True)
    assert ledger([started, went_on, *rest], rest[-1].t).repeated == 20
    assert ledger([started, *rest], rest[-1].t).repeated == 0


def test_a_job_that_was_sent_back_repeats_what_comes_after_the_chosen_step() -> None:
    first, (started, *rest) = job(0, 20, range(50), 100), job(400, 430, range(20, 70), 540, 2)
    gone_on = lineage(fold(first), "1", started.t)
    second = [started, structs.replace(until(gone_on, 19), reason="chosen by --step 19"), *rest]
    assert ledger(second, rest[-1].t).repeated == 30
    assert chapters(first, second)[1].repeated == 30
    books = ledger(second, rest[-1].t)
    row = chapter_row(
        JobView(events=second), books, summarise(books, second), ChapterState.ENDED, "cancelled"
    )
    assert row.how == "cancelled; where it began was chosen by --step 19"


def test_a_job_that_waits_while_the_one_before_still_runs_waits_only_after_it() -> None:
    first, second = job(0, 20, range(50), 100), job(50, 130, range(50, 80), 220, 2)
    books = chapters(first, second)
    both = joined(books, [first, second])
    assert classes(both)["between jobs"] == 0
    assert classes(both)["queued"] == 20_000 + 30_000
    assert both.wall_ms == 220_000


def test_numbers_of_incidents_stay_apart() -> None:
    def with_incident(begin: float, generation: int) -> list[ev.AnyEvent]:
        journal = Journal().controller(begin).allocation(begin, submitted=begin)
        journal.launch(begin, generation).first(begin + 5, generation, 10 * generation)
        journal.opened(begin + 20, 1, generation, detect_s=2).ended(begin + 25, generation)
        return journal.add(ev.RunEnded(t=at(begin + 30), code=1, reason="")).events

    first, second = with_incident(0, 1), with_incident(100, 2)
    both = joined(chapters(first, second), [first, second], [0, 1])
    assert {span.incident for span in both.spans} == {0, 1, 2}


def test_a_script_that_does_not_number_its_steps_began_anew_as_far_as_is_known() -> None:
    def unnumbered(begin: float) -> list[ev.AnyEvent]:
        journal = Journal().controller(begin).allocation(begin, submitted=begin).launch(begin, 1)
        journal.first(begin + 5, 1, 0, reported=False)
        return journal.add(ev.RunEnded(t=at(begin + 30), code=1, reason="")).events

    one = unnumbered(0)
    assert joined(chapters(one), [one]).repeated == 0
    two = [one, unnumbered(100)]
    assert joined(chapters(*two), two).repeated is None


def test_no_chapter_makes_no_ledger() -> None:
    assert joined([], []).wall_ms == 0
    empty = ledger([], 5.0)
    assert joined([empty], [[]]).wall_ms == 0


@given(
    st.lists(
        st.tuples(st.integers(-200, 500), st.integers(0, 60), st.integers(1, 60), st.integers(0, 30)),
        min_size=1,
        max_size=6,
    )
)
def test_all_classes_add_up_to_the_time_of_the_training(jobs: list[tuple[int, int, int, int]]) -> None:
    journals, now, newest = [], 0, 0
    for number, (pause, queued, steps, back) in enumerate(jobs):
        submitted = max(0, now + pause)
        began = max(now, submitted + queued)
        first = max(0, newest - back)
        end = began + 10 + steps + 5
        journals.append(job(submitted, began, range(first, first + steps), end, number + 1))
        now, newest = end, max(newest, first + steps)
    books = chapters(*journals)
    both = joined(books, journals)
    assert sum(classes(both).values()) == both.wall_ms
    ends = [span.end_ms for span in both.spans]
    assert [span.begin_ms for span in both.spans] == [0, *ends[:-1]]
    own: Counter[str] = sum(map(classes, books), Counter())
    together = classes(both)
    del together[TimeClass.BETWEEN.value]
    assert +together == own
    assert abs(both.wall_ms - (now - (books[0].begin - at(0))) * 1000) <= 1
