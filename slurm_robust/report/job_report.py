"""The report on a whole job: one record, made of its journal and of what Slurm says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_robust.evidence import incident_text
from slurm_robust.evidence.incident_text import IncidentRow, ResultRow, TimelineEntry
from slurm_robust.ledger.accounting import AccountedRun
from slurm_robust.ledger.ledger import Ledger, ledger, times_of
from slurm_robust.ledger.summary import IncidentCost, Summary, summarise
from slurm_robust.model import events as ev
from slurm_robust.model.nodeseen import NodeSeen
from slurm_robust.model.record import Record
from slurm_robust.model.updates import UpdateRow, update_rows
from slurm_robust.report.chapters import chapter_row
from slurm_robust.report.curves import EttrCurve, TrainingCurves, ettr_points, progress
from slurm_robust.report.job_view import JobView
from slurm_robust.report.lanes import Lane, lanes
from slurm_robust.report.marks import ChartMark, marks
from slurm_robust.report.nodelines import NodeLine, node_lines
from slurm_robust.report.stages import JobStage, stages
from slurm_robust.trainings.jobs import ChapterRow, state_and_how
from slurm_robust.trainings.phase import exit_code
from slurm_robust.trainings.waiting import PendingJob
from slurm_robust.util.text import one_line

MAX_NOTES = 100
"""Notes of the journal, the newest; the journal has all."""


class SlurmFacts(Record):
    """What Slurm says of the job; by default nothing."""

    state: str = ""
    """In words for a person, "" if Slurm does not know the job."""
    now: float | None = None
    """The time by slurmctld's clock, of a job that may go on; None: the report ends with the journal."""
    runs: tuple[AccountedRun, ...] = ()
    ended: bool = False
    notes: tuple[str, ...] = ()
    """What Slurm did not say, and what that means for the report."""
    silent: bool = False
    """Slurm may answer later."""
    waiting: PendingJob | None = None
    """What a pending job waits for."""


class Evidence(Record):
    """What the folder of an incident holds."""

    folder: str
    files: dict[str, int]
    """Names with their bytes."""
    heads: dict[str, str] = {}
    """The first lines of texts, by name."""


class PhaseFigures(Record):
    """One start phase of one generation, in seconds."""

    phase: str
    median_s: float
    slowest_s: float
    slowest: str
    """The node that took longest."""


class Generation(Record):
    """One launch of the workers. Times are seconds since 1970 by slurmctld's clock, None if not known."""

    number: int
    run: int
    """Number of the Slurm job's run."""
    launched: float
    first_step: float | None
    ended: float | None
    incident: int
    """Number of the incident in which it was launched, 0 for none."""
    update: int
    """Number of the update for which it was, 0 for none."""
    release: str
    """What its ranks ran, "" for a job without releases."""
    slots: int
    restored: str
    """The checkpoint with which it began, "" for a fresh start."""
    took_s: float | None
    """From the order to launch until the first step of all ranks."""
    phases: tuple[PhaseFigures, ...]


class IncidentEntry(Record):
    """One incident with its evidence."""

    row: IncidentRow
    cost: IncidentCost | None
    begin: float
    """The fault, in seconds since 1970 by slurmctld's clock."""
    end: float
    """The first new step, or the end of the report."""
    facts: dict[str, str]
    timeline: tuple[TimelineEntry, ...]
    root: str
    """The exit that explains the others, "" if no worker failed."""
    lines: tuple[str, ...]
    """The last ones that the worker of ``root`` wrote."""
    tests: tuple[ResultRow, ...]
    evidence: Evidence | None = None


class JobReport(Record):
    """All that is known of a job, or of all jobs of a training: what ``srobust report --json`` prints.

    For a training, what is of one job only (its command, its state) is of the newest; incidents are numbered
    anew, and have the numbers that they have in their job besides.

    Times are seconds since 1970 by slurmctld's clock, if the journal knows that.
    """

    job_id: int
    command: tuple[str, ...]
    cluster: str
    slots: int
    spares: int
    ranks: int
    version: str
    """The version of slurm_robust with which the job began."""
    made: float
    """When this report was made."""
    begin: float
    started: float
    """When Slurm first started the job."""
    end: float
    """Until when this report goes: the job's end, now, or the newest event."""
    ended: bool
    phase: str
    reason: str
    slurm: str
    """Slurm's own state of the job, "" if it does not know the job."""
    notes: tuple[str, ...]
    """What this report lacks, and why."""
    noted: tuple[TimelineEntry, ...]
    """The newest notes of the journal."""
    ledger: Summary
    ettr: EttrCurve
    progress: TrainingCurves
    marks: tuple[ChartMark, ...]
    generations: tuple[Generation, ...]
    incidents: tuple[IncidentEntry, ...]
    nodes: tuple[NodeLine, ...]
    training: str = ""
    """Its name, "" for a job without one."""
    chapters: tuple[ChapterRow, ...] = ()
    """The jobs of the training in their order, or this one."""
    updates: tuple[UpdateRow, ...] = ()
    """Updates of the code, beside the incidents; times by the same clock."""
    stages: tuple[JobStage, ...] = ()
    """What the job did when, in a word."""
    lanes: tuple[Lane, ...] = ()
    """Who held each slot, and who stood by."""
    waiting: PendingJob | None = None
    """What the job waits for in Slurm's queue."""
    exit_code: int | None = None
    """Of a job that has ended for good."""
    seen: tuple[NodeSeen, ...] = ()
    """What prolog and epilog told of nodes around the job's runs, if that is more than nothing."""


class Books(Record):
    """The ledger of a journal, and the times of its events by one clock."""

    times: list[float]
    ledger: Ledger


def books_of(
    events: Sequence[ev.AnyEvent], slurm: SlurmFacts, best: int = -1, not_before: float | None = None
) -> Books:
    """Return the ledger; ``best``, ``not_before``: as in :func:`~slurm_robust.ledger.ledger.ledger`."""
    times = times_of(events, slurm.runs)
    now = slurm.now if slurm.now is not None else max(times)
    return Books(
        times=times,
        ledger=ledger(events, now, slurm.runs, slurm.ended, times, best=best, not_before=not_before),
    )


def job_report(
    events: Sequence[ev.AnyEvent],
    made: float,
    slurm: SlurmFacts,
    evidence: Mapping[int, Evidence],
    notes: Sequence[str] = (),
    known: Books | None = None,
    later: Iterable[Sequence[ev.AnyEvent]] = (),
) -> JobReport:
    """Return the report by a journal that has an event.

    ``evidence`` by incident, ``notes`` on how it was read.

    ``known``: its ledger, if it is known. ``later`` is as in
    :func:`~slurm_robust.evidence.incidents.incident_reports`.
    """
    known = known or books_of(events, slurm)
    times, books = known.times, known.ledger
    summary = summarise(books, events)
    end = books.begin + books.wall_ms / 1000
    few, when = _without_steps(events, times)
    job = JobView(events=few, is_over=slurm.ended, slurm=slurm.state, later=later)
    started, (phase, reason) = job.started, job.activity
    at = dict(zip(map(id, few), when, strict=True))
    notes = [*notes, *slurm.notes]
    if started is None:
        notes.append(
            "the journal does not begin with the start of a job: it is a part of one, or of another program"
        )
    if books.repeated is None:
        notes.append("the script does not number its steps, so steps that were done again count as new ones")
    updates = update_rows(few, when)
    noted = [event for event in few if isinstance(event, ev.Noted)]
    nodes = node_lines(few, when, end, summary.incidents, summary.by_node)
    return JobReport(
        job_id=books.job_id,
        command=job.command,
        cluster=started.cluster if started is not None else "",
        slots=started.slots if started is not None else 0,
        spares=started.spares if started is not None else 0,
        ranks=started.slots * started.nproc_per_node if started is not None else 0,
        version=started.version if started is not None else "",
        made=made,
        begin=books.begin,
        started=books.begin + books.started_ms / 1000,
        end=end,
        ended=books.ended,
        phase=phase,
        reason=one_line(reason),
        slurm=one_line(slurm.state),
        notes=tuple(notes),
        noted=tuple(
            TimelineEntry(t=at[id(event)], after_s=0.0, what=one_line(event.node), text=one_line(event.text))
            for event in noted[-MAX_NOTES:]
        ),
        ledger=summary,
        ettr=ettr_points(books),
        progress=progress(events, times),
        marks=marks(few, when, updates, books),
        generations=tuple(_generations(job, at)),
        incidents=tuple(_entries(job, at, end, summary, evidence)),
        nodes=nodes,
        lanes=lanes(few, when, end, nodes),
        stages=stages(books),
        waiting=slurm.waiting,
        exit_code=exit_code(job.state, phase) if books.ended else None,
        updates=updates,
        training=started.training if started is not None else "",
        chapters=(
            chapter_row(
                job,
                books,
                summary,
                *state_and_how(phase, reason, ended=books.ended, lost=slurm.now is None),
            ),
        ),
    )


def _without_steps(
    events: Sequence[ev.AnyEvent], times: Sequence[float]
) -> tuple[list[ev.AnyEvent], list[float]]:
    """Return the journal without lines of progress that another one of the same generation follows.

    Steps of a generation only grow, so a search for the newest step finds the same.
    """
    few, when = [], []
    after: ev.AnyEvent | None = None
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        newer = (
            isinstance(event, ev.ProgressMade)
            and isinstance(after, ev.ProgressMade)
            and after.generation == event.generation
        )
        if not newer:
            few.append(event)
            when.append(times[place])
        after = event
    few.reverse()
    when.reverse()
    return few, when


def _generations(job: JobView, at: Mapping[int, float]) -> Iterator[Generation]:
    updates = {row.generation: row.number for row in job.updates}
    for number, launch in job.launches.items():
        incident, ended = job.incident_of.get(number), launch.ended
        yield Generation(
            number=number,
            run=max(0, launch.run),
            launched=at[id(launch.launched)],
            first_step=at[id(launch.first)] if launch.first is not None else None,
            ended=at[id(ended)] if isinstance(ended, ev.GenerationEnded) else None,
            incident=incident.number if incident is not None else 0,
            update=updates.get(number, 0),
            release=one_line(launch.launched.release),
            slots=len(launch.launched.slots),
            restored=launch.restored,
            took_s=launch.took_s,
            phases=tuple(
                PhaseFigures(
                    phase=times.phase,
                    median_s=times.median_s,
                    slowest_s=max(times.nodes.values(), default=times.median_s),
                    slowest=next(iter(times.nodes), ""),
                )
                for times in launch.phases
            ),
        )


def _entries(
    job: JobView, at: Mapping[int, float], end: float, summary: Summary, evidence: Mapping[int, Evidence]
) -> Iterator[IncidentEntry]:
    costs = {cost.number: cost for cost in summary.incidents}
    for report in job.incidents:
        opened = next(e for e in report.events if isinstance(e, ev.IncidentOpened))
        closed, begin = report.events[-1], at[id(opened)] - opened.detect_s
        root, lines = incident_text.deciding_lines(report)
        yield IncidentEntry(
            row=incident_text.incident_row(report),
            cost=costs.get(report.number),
            begin=begin,
            end=max(begin, at[id(closed)] if isinstance(closed, ev.IncidentClosed) else end),
            facts=dict(incident_text.facts(report)),
            timeline=tuple(incident_text.timeline(report)),
            root=root,
            lines=tuple(one_line(line) for line in lines),
            tests=tuple(incident_text.result_rows(r for tested in report.tests for r in tested.results)),
            evidence=evidence.get(report.number),
        )
