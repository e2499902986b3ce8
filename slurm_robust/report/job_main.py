"""``srobust report JOB``: gathers what is known of a job and shows it as text, JSON, CSV or a page."""

from __future__ import annotations

import gc
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from slurm_robust.evidence.bundle import folder_of
from slurm_robust.ledger.accounting import AccountedRun, accounted
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold, read
from slurm_robust.model.libraries import need
from slurm_robust.model.record import Record
from slurm_robust.model.training import TrainingDirectory
from slurm_robust.page.write import STDOUT, write_page
from slurm_robust.report.curves import progress
from slurm_robust.report.hookseen import clique_notes, seen_of
from slurm_robust.report.job_report import Evidence, JobReport, SlurmFacts, books_of, job_report
from slurm_robust.report.job_text import CsvTable, csv_text, render
from slurm_robust.report.together import ReportedJob, together, waiting
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.clock import clock_offset
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.terminal.console import show
from slurm_robust.trainings.find import NoSuchJob, named, newest_job, unreadable, without_events
from slurm_robust.trainings.jobs import Begun, ChapterRow, begun, jobs_of, journals_after, later_of
from slurm_robust.trainings.slurmview import SlurmView, make_slurm, view_of, waits_for
from slurm_robust.trainings.waiting import PendingJob
from slurm_robust.util.ours import open_plain
from slurm_robust.util.text import clean_log, count, some_of

MAX_HEAD = 6 * 1024
"""Bytes of one text of an incident's folder that the report holds; the folder has the whole text."""

MAX_FILES = 200
"""Names of files of one incident."""

MAX_EVIDENCE = 2 * 1024 * 1024
"""Bytes of such texts of all incidents together; the newest incidents come first."""

HEADS = ("alerts.txt", "stacks.txt")


class ReportFormat(Record):
    """What was asked for."""

    html: Path | None = None
    json: bool = False
    csv: CsvTable | None = None


def main(name: str, wanted: ReportFormat, *, job_dir: str | None) -> int:
    """Print or write the report. Raises ``NoSuchJob``, ``JournalDamaged``, :class:`CannotWrite`."""
    if wanted.html is not None:
        need("jinja2", "srobust report --html")
    slurm = make_slurm()
    found = named(name, job_dir, slurm)
    with _without_collections():
        if isinstance(found, TrainingDirectory):
            report = of_training(found, slurm, every_step=wanted.csv == CsvTable.STEPS)
        else:
            report = of_job(found, slurm, every_step=wanted.csv == CsvTable.STEPS)
        if wanted.csv is not None:
            print(csv_text(report, wanted.csv), end="")
    page = _page(report) if wanted.html is not None else ""
    if wanted.html == STDOUT:
        print(page, end="")
    elif wanted.html is not None:
        written, size = write_page(wanted.html, page, "report.html")
        if not wanted.json and wanted.csv is None:
            print(f"wrote {written} ({size / 1e6:.1f} MB): open it in a browser, or send it as one file")
    if wanted.json or (wanted.csv is None and wanted.html is None):
        show(report, render, json=wanted.json)
    return 0


def _told(
    directory: JobDirectory,
    events: list[ev.AnyEvent],
    notes: Sequence[str],
    facts: SlurmFacts,
    best: int = -1,
    not_before: float | None = None,
    later: Iterable[Sequence[ev.AnyEvent]] = (),
) -> ReportedJob:
    """Return one job with its report; ``best``, ``not_before``: those of the jobs before it.

    ``later``: those after it.
    """
    books = books_of(events, facts, best, not_before)
    notes = [*notes, *clique_notes(directory)]
    report = job_report(events, time.time(), facts, gather(directory, events), notes, books, later)
    row = replace(report.chapters[0], folder=directory.path.name)
    return ReportedJob(
        job=row.job,
        events=events,
        books=books,
        report=replace(report, chapters=(row,), seen=seen_of(directory)),
    )


def of_job(directory: JobDirectory, slurm: SlurmClient, *, every_step: bool = False) -> JobReport:
    """Return the report on one job.

    ``every_step``: with all that is known of each, else with some thousand of them.

    Raises ``NoSuchJob``, ``JournalDamaged``.
    """
    events, notes = load(directory)
    one = _told(directory, events, notes, ask(slurm, events), later=journals_after(directory, events))
    if not every_step:
        return one.report
    return replace(one.report, progress=progress(events, one.books.times, None))


def of_training(training: TrainingDirectory, slurm: SlurmClient, *, every_step: bool = False) -> JobReport:
    """Return the report on all jobs of a training. Raises ``NoSuchJob`` if none of them has a journal."""
    found = jobs_of(training, slurm, load)
    told, rows, best, end, waits = list[ReportedJob](), list[ChapterRow](), -1, None, None
    facts = _facts_of(begun(found), slurm)
    later = iter(later_of(begun(found)))
    for job in found:
        if isinstance(job, ChapterRow):
            rows.append(job)
            waits = waiting(job, end or 0.0, time.time()) if told else None
            continue
        one = _told(job.directory, job.events, job.notes, facts[job.chapter.run_id], best, end, next(later))
        told.append(one)
        rows += one.report.chapters
        steps = (e for e in job.events if isinstance(e, ev.FirstStep | ev.ProgressMade))
        best = max([best, *(step.step for step in steps if step.reported)])
        end = one.books.ledger.begin + one.books.ledger.wall_ms / 1000
    if not told:
        newest_job(training, slurm)  # says why there is none
        raise NoSuchJob(f"no job of training {training.name} has a journal", fix="wait until one has begun")
    report = together(training.name, told, rows, waits)
    if not every_step:
        return report
    events = [event for one in told for event in one.events]
    times = [t for one in told for t in one.books.times]
    return replace(report, progress=progress(events, times, None))


def _facts_of(jobs: Sequence[Begun], slurm: SlurmClient) -> dict[str, SlurmFacts]:
    """Ask Slurm about each, by run; one that does not answer once, about the newest."""
    found: dict[str, SlurmFacts] = {}
    silent: SlurmFacts | None = None
    for job in reversed(jobs):
        facts = silent or ask(slurm, job.events)
        if facts.silent:
            silent = SlurmFacts(notes=facts.notes, silent=True)
        found[job.chapter.run_id] = facts
    return found


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector off: a million events are made here, and none is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def load(directory: JobDirectory) -> tuple[list[ev.AnyEvent], list[str]]:
    """Return the journal's events, and notes on what of it could not be read.

    Raises :class:`NoSuchJob` when it cannot be read or has no event, ``JournalDamaged``.
    """
    unread: Counter[str] = Counter()
    try:
        events = read(directory.journal, unread)
    except OSError as error:
        raise unreadable(directory.path, error) from error
    if not events:
        raise without_events(directory)
    if not unread:
        return events, []
    kinds = [f"{name} ({number})" for name, number in unread.most_common()]
    return events, [
        f"the journal has {count(unread.total(), 'event')} that this release of slurm_robust cannot read and "
        f"leaves out: {some_of(kinds)}. For the whole report use the release that ran the job"
    ]


def ask(slurm: SlurmClient, events: Sequence[ev.AnyEvent]) -> SlurmFacts:
    """Return what slurmctld and slurmdbd say of the journal's job. Never raises."""
    view = view_of(events, slurm)
    runs: tuple[AccountedRun, ...] = ()
    notes = []
    job_id = next((event.job_id for event in events if isinstance(event, ev.RunStarted)), 0)
    try:
        found = accounted(slurm.accounting(job_id), events)
    except SlurmError as error:
        if view.job is not None or view.away:
            notes.append(f"no answer from sacct ({error}): queues and requeues are as the journal has them")
    else:
        runs = found.runs
        if found.another_job and view.job is None:
            view = SlurmView()
        if found.lost:
            notes.append(
                f"sacct has lost {count(found.lost, 'run')}: their queues are as the journal has them"
            )
    if view.job is None and view.row is None and not view.away:
        why = f"Slurm {view.silent}" if view.silent else "Slurm does not know the job"
        notes.append(f"{why}: the report ends with the journal")
        return SlurmFacts(runs=runs, notes=tuple(notes))
    now = None
    if view.goes_on:
        now = time.time()
        with suppress(SlurmError):
            now -= clock_offset(slurm) or 0.0
    return SlurmFacts(
        state="" if view.silent else view.describe(),
        now=now,
        runs=runs,
        ended=view.is_over,
        notes=tuple(notes),
        silent=view.away,
        waiting=_waits(slurm, view, events),
    )


def _waits(slurm: SlurmClient, view: SlurmView, events: Sequence[ev.AnyEvent]) -> PendingJob | None:
    """Return what a pending job waits for; a job that runs costs no fold of its journal."""
    if view.job is None or not view.job.is_pending:
        return None
    return waits_for(slurm, view.job, fold(events))


# -- evidence --------------------------------------------------------------------------------------


def gather(directory: JobDirectory, events: Sequence[ev.AnyEvent]) -> dict[int, Evidence]:
    """Return what the folders of the incidents hold, if they can be read."""
    numbers = sorted((e.incident for e in events if isinstance(e, ev.IncidentOpened)), reverse=True)
    found, left = {}, MAX_EVIDENCE
    for number in numbers:
        folder = folder_of(directory, number)
        files = dict(_files(folder))
        heads = {}
        for name in HEADS:
            head = _head(folder / name, min(left, MAX_HEAD)) if name in files else ""
            if head:
                heads[name] = head
                left -= len(head)
        if files:
            found[number] = Evidence(folder=str(folder), files=files, heads=heads)
    return found


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield plain files and their bytes; links are not followed."""
    found = 0
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.startswith("."):
                continue
            place = Path(path, name)
            try:
                about = place.lstat()
            except OSError:
                continue  # removed meanwhile
            if stat.S_ISREG(about.st_mode):
                yield str(place.relative_to(folder)), about.st_size
                found += 1
            if found == MAX_FILES:
                return


def _head(path: Path, most: int) -> str:
    """Return the first whole lines of a text, cleaned; "" if it cannot be read."""
    try:
        with open(open_plain(path, os.O_NOFOLLOW), "rb") as file:
            data = file.read(most + 1)
    except OSError:
        return ""
    text = clean_log(data[:most].decode(errors="replace"))
    if len(data) <= most:
        return text
    return (text.rpartition("\n")[0] or text) + f"\n… {path.name} has more"


# -- the page --------------------------------------------------------------------------------------


def _page(report: JobReport) -> str:
    from slurm_robust.report.page.page import page_of

    return page_of(report)
