"""``srobust incidents JOB``: all that went wrong with a job, one row each."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_robust.analysis.incidents import Standing, Story, stories
from slurm_robust.controller.evidence import words
from slurm_robust.controller.evidence.texts import count, one_line
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.report.find import find, load_events
from slurm_robust.report.screen import Screen
from slurm_robust.report.slurmview import make_slurm, view_of
from slurm_robust.report.status import seconds
from slurm_robust.report.summary import summarize
from slurm_robust.util.text import as_json

STYLES = {Standing.OPEN: "bold yellow", Standing.OVER: "green", Standing.ENDED: "bold red"}


class Row(Record):
    """One incident. ``steps_repeated`` is None where the script does not number its steps."""

    number: int
    t: float
    standing: Standing
    symptom: str
    detail: str
    blamed: str
    suspects: tuple[str, ...]
    done: str
    outcome: str
    detect_s: float
    localise_s: float | None
    recover_s: float | None
    steps_repeated: int | None


class Listing(Record):
    """All that ``--json`` prints. ``job`` is its state in words; ``left_out``: older ones, by ``--last``."""

    job_id: int
    job: str
    incidents: tuple[Row, ...]
    left_out: int = 0


def main(name: str, *, json: bool, last: int | None, job_dir: str | None) -> int:
    """Print the incidents of a job. Raises ``NoSuchJob``, ``JournalDamaged``."""
    _, events, slurm = load(name, job_dir)
    found = listing(events, last, job_in_words(events, slurm))
    if json:
        print(as_json(found))
    else:
        Screen().print(render(found))
    return 0


def listing(events: Sequence[ev.AnyEvent], last: int | None, job: str) -> Listing:
    """The newest ``last`` incidents of a journal, or all of them. ``job``: how it is."""
    every = stories(events)
    chosen = every[-last:] if last is not None else every
    return Listing(
        job_id=next((e.job_id for e in events if isinstance(e, ev.RunStarted)), 0),
        job=job,
        incidents=tuple(_row(story) for story in chosen),
        left_out=len(every) - len(chosen),
    )


def _row(story: Story) -> Row:
    summary = story.summary
    return Row(
        number=story.number,
        t=summary.t,
        standing=story.standing,
        symptom=summary.symptom,
        detail=summary.detail,
        blamed=words.blamed(story),
        suspects=story.suspects,
        done=words.done(story),
        outcome=words.outcome(story),
        detect_s=summary.detect_s,
        localise_s=summary.localise_s,
        recover_s=summary.recover_s,
        steps_repeated=story.steps,
    )


def render(found: Listing) -> RenderableType:
    """The whole screen."""
    left_out = f" ({count(found.left_out, 'older one')} not shown)" if found.left_out else ""
    title = Text(f"job {found.job_id} ({one_line(found.job)}): ", style="bold")
    if not found.incidents:
        return title.append("no incident", style="")
    title.append(f"{count(len(found.incidents), 'incident')}{left_out}")
    return Group(title, _table(found.incidents))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=False, padding=0)
    table.add_column("#", justify="right", no_wrap=True)
    for name in ("when", "symptom", "blamed", "done"):
        table.add_column(name, overflow="fold")
    for name in ("detect\ns", "localise\ns", "recover\ns", "steps\nagain"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        done = Text(row.done or "-")
        if row.standing is not Standing.OVER:
            open_or_ended = row.outcome if row.standing is Standing.OPEN else row.standing.value
            done.append(f"\n{open_or_ended}", style=STYLES[row.standing])
        table.add_row(
            str(row.number),
            time.strftime("%m-%d %H:%M:%S", time.localtime(row.t)),
            Text(row.symptom),
            Text(row.blamed),
            done,
            seconds(row.detect_s),
            seconds(row.localise_s),
            seconds(row.recover_s),
            "-" if row.steps_repeated is None else str(row.steps_repeated),
        )
    return table


# -- what both commands share ----------------------------------------------------------------------


def load(name: str, job_dir: str | None) -> tuple[JobDirectory, list[ev.AnyEvent], str]:
    """The job that a person named, and Slurm's state of it. Raises ``NoSuchJob``, ``JournalDamaged``."""
    slurm = make_slurm()
    directory = find(name, job_dir, slurm)
    events = load_events(directory)
    return directory, events, view_of(events, slurm).state


def job_in_words(events: Sequence[ev.AnyEvent], slurm: str) -> str:
    """How the job is: ``training; Slurm: RUNNING``. A job that Slurm ended never wrote that down."""
    phase = summarize(events, time.time()).phase
    return f"{phase}; Slurm: {slurm}" if slurm else phase
