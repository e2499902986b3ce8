"""The report on a training: those on its jobs, put together with one ledger. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_robust.evidence.incident_text import IncidentRow
from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.ledger.account import ClassShare, Span
from slurm_robust.ledger.chapters import joined
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.ledger import Ledger
from slurm_robust.ledger.summary import figures
from slurm_robust.model import events as ev
from slurm_robust.model.record import Record
from slurm_robust.report.curves import ettr_points, progress
from slurm_robust.report.job_report import MAX_NOTES, Books, JobReport
from slurm_robust.report.lanes import lanes
from slurm_robust.report.marks import CHAPTER, ChartMark
from slurm_robust.report.nodelines import node_lines
from slurm_robust.report.stages import stages
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
    """Return the report on the training ``name``, of which one job at least has a journal.

    ``rows``: those of all its jobs. ``waits``: what a job that has none yet does, as :func:`waiting` says.
    """
    newest, last = jobs[-1].report, rows[-1]
    journals = [one.events for one in jobs]
    added, before, reports = 0, list[int](), list[JobReport]()
    for one in jobs:
        before.append(added)
        reports.append(_renumbered(one, added))
        added += max((entry.row.number for entry in one.report.incidents), default=0)
    books = joined(
        [*(one.books.ledger for one in jobs), *([waits] if waits else [])],
        [*journals, *([[]] if waits else [])],
        [*before, *([0] if waits else [])],
    )
    entries = [entry for report in reports for entry in report.incidents]
    costs = tuple(cost for report in reports for cost in report.ledger.incidents)
    over = {entry.row.number for entry in entries if entry.row.status is IncidentStatus.OVER}
    # Steps that were completed, each counted once.
    firsts = (
        next((e for e in each if isinstance(e, ev.FirstStep | ev.ProgressMade)), None) for each in journals
    )
    first = min((event.step for event in firsts if event is not None), default=0)
    steps = max(0, max((span.step for span in books.spans), default=-1) - first + 1)
    summary = figures(books, costs, over, steps)
    end = books.begin + books.wall_ms / 1000
    events, times = list[ev.AnyEvent](), list[float]()
    for one in jobs:
        events += one.events
        times += one.books.times
        if one is not jobs[-1]:  # each job gives its nodes back at its end, also if it did not say so
            events.append(ev.RunEnded(t=one.report.end, code=0, reason=""))
            times.append(one.report.end)
    marks = [mark for report in reports for mark in report.marks]
    for row in rows:
        if (t := row.started if row.started is not None else row.begin) is not None:
            went_on = f" goes on from step {row.from_step}" if (row.from_step or -1) >= 0 else " begins"
            marks.append(ChartMark(t=t, kind=CHAPTER, text=f"job {row.job}{went_on}", label=f"job {row.job}"))
    # Each note once, with the jobs that it is about.
    about: dict[str, list[str]] = {}
    for one in jobs:
        for note in one.report.notes:
            about.setdefault(note, []).append(one.job)
    nodes = node_lines(events, times, end, costs, summary.by_node)
    return replace(
        newest,
        begin=books.begin,
        started=books.begin + books.started_ms / 1000,
        end=end,
        ended=books.ended,
        phase=newest.phase if waits is None else last.state.value,
        reason=newest.reason if waits is None else last.how,
        slurm=newest.slurm if waits is None else "",
        notes=tuple(
            f"job{'s' if len(names) > 1 else ''} {some_of(names)}: {note}" for note, names in about.items()
        ),
        noted=tuple(sorted((n for one in reports for n in one.noted), key=lambda n: n.t)[-MAX_NOTES:]),
        ledger=summary,
        ettr=ettr_points(books),
        progress=progress(events, times),
        marks=tuple(sorted(marks, key=lambda mark: mark.t)),
        generations=tuple(made for report in reports for made in report.generations),
        incidents=tuple(entries),
        updates=tuple(row for report in reports for row in report.updates),
        nodes=nodes,
        lanes=lanes(events, times, end, nodes),
        stages=stages(books),
        waiting=newest.waiting if waits is None else None,
        exit_code=newest.exit_code if waits is None else None,
        training=name,
        chapters=tuple(rows),
        seen=tuple(seen for one in reports for seen in one.seen),
    )


def _renumbered(one: ReportedJob, added: int) -> JobReport:
    """Return the report of a job as one of several: ``added`` to the numbers of its incidents."""
    report = one.report
    return replace(
        report,
        incidents=tuple(
            replace(
                entry,
                row=replace(row, number=row.number + added, job=one.job, of_job=row.number),
                cost=replace(cost, number=cost.number + added) if cost is not None else None,
            )
            for entry in report.incidents
            for row, cost in [(entry.row, entry.cost)]
        ),
        ledger=replace(
            report.ledger,
            incidents=tuple(replace(cost, number=cost.number + added) for cost in report.ledger.incidents),
        ),
        generations=tuple(
            replace(made, incident=made.incident + added if made.incident else 0)
            for made in report.generations
        ),
        marks=tuple(replace(mark, text=f"job {one.job}: {mark.text}") for mark in report.marks),
        updates=tuple(replace(row, job=one.job) for row in report.updates),
    )


def waiting(row: ChapterRow, since: float, now: float) -> Ledger | None:
    """Return what a job without a journal has done ``since`` the one before ended.

    None if time does not pass.
    """
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
    """Return the incidents of several jobs, in their order, each with its job and a number of its own."""
    found: list[IncidentRow] = []
    for job, rows in jobs:
        added = found[-1].number if found else 0
        found += (replace(row, number=row.number + added, job=job, of_job=row.number) for row in rows)
    return tuple(found)
