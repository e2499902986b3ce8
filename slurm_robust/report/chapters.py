"""The chapters of a training as rows: what each of its jobs did, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from slurm_robust.ledger.ledger import Ledger
from slurm_robust.ledger.summary import Summary
from slurm_robust.model import events as ev
from slurm_robust.model.progress import began_after
from slurm_robust.report.job_view import JobView
from slurm_robust.terminal.console import told_table
from slurm_robust.trainings.jobs import ChapterRow, ChapterState
from slurm_robust.util.text import date_and_time, duration, one_line


def chapter_row(job: JobView, books: Ledger, summary: Summary, state: ChapterState, how: str) -> ChapterRow:
    """Return the row of a job with a journal, by its ledger."""
    events, started = job.events, job.started
    launched = next((launch.launched for launch in job.launches.values()), None)
    seen = [event for event in events if isinstance(event, ev.FirstStep | ev.ProgressMade)]
    steps = [event.step for event in seen]
    ends = [event for event in events if isinstance(event, ev.RunEnded | ev.ControllerStarted)]
    last = ends[-1] if ends else None
    code = last.code if isinstance(last, ev.RunEnded) and last.final else None
    went_on = next((event for event in events if isinstance(event, ev.Continued)), None)
    if went_on is not None and went_on.reason and went_on.undone_step > went_on.best_step:
        how += f"; where it began was {went_on.reason}"
    has_begun = books.wall_ms > books.started_ms
    return ChapterRow(
        job=(started.array_task if started is not None else "") or str(books.job_id),
        job_id=books.job_id,
        state=state,
        how=how,
        begin=books.begin,
        started=books.begin + books.started_ms / 1000 if has_begun else None,
        end=books.begin + books.wall_ms / 1000 if state is ChapterState.ENDED else None,
        nodes=max((span.nodes for span in books.spans), default=0),
        from_step=_from_step(launched, seen[0] if seen else None, went_on),
        to_step=max(steps, default=None),
        repeated=books.repeated,
        incidents=len(summary.incidents) - summary.drills,
        ettr=summary.ettr if has_begun else None,
        exit_code=code,
    )


def _from_step(
    launched: ev.GenerationLaunched | None,
    first: ev.FirstStep | ev.ProgressMade | None,
    went_on: ev.Continued | None,
) -> int | None:
    """Return the step from which the job began, -1 for none; None if that is not known."""
    if launched is None:
        return None
    if launched.restore is not None or first is None:
        return launched.restore_step
    best = went_on.best_step if went_on is not None else -1
    # A script that does not number its steps resumes by itself, if at all.
    return began_after(launched.restore_step, first.step, best) if first.reported else None


# -- the screen ------------------------------------------------------------------------------------


def chapters_table(rows: Sequence[ChapterRow]) -> RenderableType:
    """Return one line for each job."""
    numbers = ("lasted", "nodes", "from", "to", "again", "incidents", "ETTR")
    return told_table(("job", "started", *numbers, "how"), map(_cells, rows), right=numbers)


def _cells(row: ChapterRow) -> tuple[str | Text, ...]:
    lasted = "-"
    if row.started is not None and row.end is not None:
        lasted = duration(row.end - row.started)
    style = {ChapterState.RUNNING: "green", ChapterState.GONE: "dim"}.get(row.state, "")
    return (
        one_line(row.job),
        date_and_time(row.started).partition("-")[2] if row.started is not None else "-",
        lasted,
        str(row.nodes or "-"),
        step_text(row.from_step),
        "-" if row.to_step is None else str(row.to_step),
        "-" if row.repeated is None else str(row.repeated),
        str(row.incidents),
        f"{row.ettr:.1%}" if row.ettr is not None else "-",
        Text(one_line(row.how), style=style),
    )


def place_text(training: str, chapter: int, newest: str | None) -> str:
    """Return ``gpt, its newest job (chapter 3); all jobs: …``, or ``gpt, chapter 2; its newest job is 12``.

    ``newest``: the newest job, "" for this one, None if that is not known.
    """
    name, number = one_line(training), f"chapter {chapter}" if chapter else "one of its jobs"
    if newest == "":
        return f"{name}, its newest job ({number}); all jobs: srobust report {name}"
    return f"{name}, {number}" + (f"; its newest job is {one_line(newest)}" if newest else "")


def step_text(step: int | None) -> str:
    """Return ``120``, ``begin`` for a fresh start, ``-`` before anything was launched."""
    return "-" if step is None else "begin" if step < 0 else str(step)
