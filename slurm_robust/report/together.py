"""The report on a training: those on its jobs, put together with one ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from slurm_robust.evidence.incident_text import IncidentRow
from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.ledger.account import ClassShare, Span
from slurm_robust.ledger.chapters import joined
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.ledger import Ledger
from slurm_robust.ledger.summary import IncidentCost, figures
from slurm_robust.model import events as ev
from slurm_robust.model.record import Record
from slurm_robust.report.curves import ettr_points, progress
from slurm_robust.report.job_report import (
    CHAPTER,
    MAX_NOTES,
    Books,
    ChartMark,
    Generation,
    IncidentEntry,
    JobReport,
)
from slurm_robust.report.nodelines import node_lines
from slurm_robust.trainings.jobs import ChapterRow, ChapterState
from slurm_robust.util.text import some_of


class ReportedJob(Record):
    """One job of a training with its report."""

    job: str
    """As squeue shows it."""
    events: list[ev.AnyEvent]
    books: Books
    report: JobReport


def together(
    name: str, jobs: Sequence[ReportedJob], rows: Sequence[ChapterRow], waits: Ledger | None
) -> JobReport:
    """The report on the training ``name``, of which one job at least has a journal.

    ``rows``: of all its jobs. ``waits``: what a job that has none yet does, as :func:`waiting` says.
    """
    newest = jobs[-1].report
    before = _before(jobs)
    ledgers = [one.books.ledger for one in jobs]
    journals = [one.events for one in jobs]
    books = joined(
        [*ledgers, *([waits] if waits else [])],
        [*journals, *([[]] if waits else [])],
        [*before, *([0] if waits else [])],
    )
    entries = [
        _renumbered(entry, one.job, added)
        for one, added in zip(jobs, before, strict=True)
        for entry in one.report.incidents
    ]
    costs = tuple(_costs(jobs, before))
    over = {entry.row.number for entry in entries if entry.row.status is IncidentStatus.OVER}
    summary = figures(books, costs, over, _steps(journals, books))
    end = books.begin + books.wall_ms / 1000
    events, times = _one_after_the_other(jobs)
    last = rows[-1]
    return replace(
        newest,
        begin=books.begin,
        started=books.begin + books.started_ms / 1000,
        end=end,
        ended=books.ended,
        phase=newest.phase if waits is None else last.state.value,
        reason=newest.reason if waits is None else last.how,
        slurm=newest.slurm if waits is None else "",
        notes=tuple(_notes(jobs)),
        noted=tuple(sorted((n for one in jobs for n in one.report.noted), key=lambda n: n.t)[-MAX_NOTES:]),
        ledger=summary,
        ettr=ettr_points(books),
        progress=progress(events, times),
        marks=tuple(sorted((*_marks(jobs), *_begins(rows)), key=lambda mark: mark.t)),
        generations=tuple(_generations(jobs, before)),
        incidents=tuple(entries),
        nodes=node_lines(events, times, end, costs, summary.by_node),
        training=name,
        chapters=tuple(rows),
        seen=tuple(seen for one in jobs for seen in one.report.seen),
    )


def waiting(row: ChapterRow, since: float, now: float) -> Ledger | None:
    """What a job without a journal has done ``since`` the one before ended; None where time does not pass."""
    kinds = {ChapterState.PENDING: TimeClass.QUEUED, ChapterState.STARTING: TimeClass.STARTING}
    begin = max(since, row.begin if row.begin is not None else now)
    ms = round((now - begin) * 1000)
    if row.state not in kinds or ms <= 0:
        return None
    part = ClassShare(time=kinds[row.state], ms=ms)
    span = Span(
        begin_ms=0, end_ms=ms, parts=(part,), run=0, generation=0, incident=0, nodes=0, gpus=0, step=-1
    )
    return Ledger(job_id=row.job_id, begin=begin, spans=(span,), repeated=0, ended=False)


def all_incidents(jobs: Sequence[tuple[str, Sequence[IncidentRow]]]) -> tuple[IncidentRow, ...]:
    """The incidents of several jobs, in their order, each with its job and a number of its own."""
    found: list[IncidentRow] = []
    for job, rows in jobs:
        added = found[-1].number if found else 0
        found += (replace(row, number=row.number + added, job=job, of_job=row.number) for row in rows)
    return tuple(found)


def _before(jobs: Sequence[ReportedJob]) -> list[int]:
    """What is added to the numbers of the incidents of each job."""
    found, number = [], 0
    for one in jobs:
        found.append(number)
        number += max((entry.row.number for entry in one.report.incidents), default=0)
    return found


def _renumbered(entry: IncidentEntry, job: str, added: int) -> IncidentEntry:
    number = entry.row.number
    cost = replace(entry.cost, number=number + added) if entry.cost is not None else None
    return replace(entry, row=replace(entry.row, number=number + added, job=job, of_job=number), cost=cost)


def _costs(jobs: Sequence[ReportedJob], before: Sequence[int]) -> Iterator[IncidentCost]:
    for one, added in zip(jobs, before, strict=True):
        for cost in one.report.ledger.incidents:
            yield replace(cost, number=cost.number + added)


def _generations(jobs: Sequence[ReportedJob], before: Sequence[int]) -> Iterator[Generation]:
    for one, added in zip(jobs, before, strict=True):
        for made in one.report.generations:
            yield replace(made, incident=made.incident + added if made.incident else 0)


def _steps(journals: Sequence[Sequence[ev.AnyEvent]], books: Ledger) -> int:
    """How many were completed, each counted once."""
    firsts = [
        next((e.step for e in events if isinstance(e, ev.FirstStep | ev.ProgressMade)), None)
        for events in journals
    ]
    first = min((step for step in firsts if step is not None), default=0)
    return max(0, max((span.step for span in books.spans), default=-1) - first + 1)


def _one_after_the_other(jobs: Sequence[ReportedJob]) -> tuple[list[ev.AnyEvent], list[float]]:
    """All events with their times. Each job gives its nodes back at its end, also where it did not say so."""
    events, times = list[ev.AnyEvent](), list[float]()
    for place, one in enumerate(jobs):
        events += one.events
        times += one.books.times
        if place < len(jobs) - 1:
            end = one.report.end
            events.append(ev.RunEnded(t=end, code=0, reason=""))
            times.append(end)
    return events, times


def _marks(jobs: Sequence[ReportedJob]) -> Iterator[ChartMark]:
    for one in jobs:
        for mark in one.report.marks:
            yield replace(mark, text=f"job {one.job}: {mark.text}")


def _begins(rows: Sequence[ChapterRow]) -> Iterator[ChartMark]:
    for row in rows:
        t = row.started if row.started is not None else row.begin
        if t is not None:
            went_on = f" goes on from step {row.from_step}" if (row.from_step or -1) >= 0 else ""
            yield ChartMark(t=t, kind=CHAPTER, text=f"job {row.job}{went_on or ' begins'}")


def _notes(jobs: Sequence[ReportedJob]) -> Iterator[str]:
    """Each note once, with the jobs that it is about."""
    about: dict[str, list[str]] = {}
    for one in jobs:
        for note in one.report.notes:
            about.setdefault(note, []).append(one.job)
    for note, names in about.items():
        yield f"job{'s' if len(names) > 1 else ''} {some_of(names)}: {note}"
