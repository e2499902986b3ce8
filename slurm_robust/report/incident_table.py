"""Incidents as a table: a row for each, which a screen of 80 columns shows in a few lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.evidence.incident_text import IncidentRow
from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.terminal.console import MIN_WIDE, ByWidth, ScreenTable, seconds
from slurm_robust.util.text import date_and_time, one_line

MAX_WHAT = 90
"""Characters of what was seen; the report on the incident has all of it."""

MAX_DONE = 80
"""Characters of what was done."""

MAX_BLAMED = 40

INCIDENT_STYLES = {
    IncidentStatus.OPEN: "bold yellow",
    IncidentStatus.OVER: "green",
    IncidentStatus.ENDED: "bold red",
}


def incident_table(job_id: int, rows: Sequence[IncidentRow], *, older: int = 0) -> RenderableType:
    """Return one row per incident, and the place of the reports; ``older``: incidents that are not shown."""
    wide, narrow = (ScreenTable(gap=0) for _ in range(2))
    for table in (wide, narrow):
        table.add_column("#", justify="right", no_wrap=True)
        table.add_column("when", no_wrap=True)
        for name in ("what", "blamed", "done"):
            table.add_column(name, overflow="fold")
    costs = ("lost\ns", "steps\nagain")
    for table, names in ((wide, ("detect\ns", "localise\ns", "recover\ns", costs[1])), (narrow, costs)):
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        when = date_and_time(row.t).partition("-")[2]
        blamed = row.blamed.partition(" (")[0]
        words = (row.name, when, Text(one_line(row.what, MAX_WHAT)), Text(one_line(blamed, MAX_BLAMED)))
        again = "-" if row.steps_repeated is None else str(row.steps_repeated)
        how_far = row.outcome if row.status is IncidentStatus.OPEN else row.status.value
        narrow.add_row(*words, _done(row, row.status.value), seconds(row.lost_s), again)
        durations = map(seconds, (row.detect_s, row.localise_s, row.recover_s))
        wide.add_row(*words, _done(row, how_far), *durations, again)
    hint = f"'srobust incident {job_id} N' prints the report on one of them"
    if rows and rows[0].job:
        hint = f"'srobust incident {rows[-1].name}' prints the report on the last of them"
    if older:
        hint += f", 'srobust incidents {job_id}' lists all"
    return Group(ByWidth(MIN_WIDE, wide, narrow), Text(hint, style="dim"))


def _done(row: IncidentRow, how_far: str) -> Text:
    done = Text(one_line(row.done, MAX_DONE) or "-")
    if row.status is not IncidentStatus.OVER:
        done.append(f"\n{how_far}", style=INCIDENT_STYLES[row.status])
    return done
