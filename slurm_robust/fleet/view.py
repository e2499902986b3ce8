"""``srobust fleet`` and ``srobust incidents --all``: the index as a person or a program reads it."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.fleet.answers import (
    FleetIncidentRow,
    FleetReport,
    GroupRow,
    IncidentFilter,
    NodeRow,
    TrainingReport,
    TrainingRow,
)
from slurm_robust.fleet.opening import open_index
from slurm_robust.policy.spares import Measured
from slurm_robust.terminal.console import ScreenTable, facts_table, seconds, section, show
from slurm_robust.util.text import count, date_and_time, duration, one_line

UNKNOWN = "(not known)"

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def show_training(url: str, name: str, since: float, *, json: bool) -> int:
    """Print the jobs of the trainings of one name; 0. Raises as :func:`show_fleet`."""
    with open_index(url) as index:
        from slurm_robust.fleet import queries

        found = index.read(lambda connection: queries.training_report(connection, name, since))
    show(found, partial(training_text, name), json=json)
    return 0


def show_fleet(url: str, since: float, *, json: bool) -> int:
    """Print the report; 0. Raises the errors of :mod:`slurm_robust.fleet.errors`."""
    with open_index(url) as index:
        from slurm_robust.fleet import queries  # needs SQLAlchemy, as opening has found it

        until = time.time()
        found = index.read(lambda connection: queries.report(connection, since, until))
    show(found, fleet_text, json=json)
    return 0


def show_incidents(url: str, wanted: IncidentFilter, *, json: bool, as_csv: bool = False) -> int:
    """Print incidents of all jobs, the newest first; 0. Raises as :func:`show_fleet`."""
    with open_index(url) as index:
        from slurm_robust.fleet import queries

        found = index.read(lambda connection: queries.incidents(connection, wanted))
    if as_csv:
        write_csv(found)
    else:
        show(found, lambda rows: incidents_text(rows, wanted.limit), json=json)
    return 0


# -- incidents ----------------------------------------------------------------------------------------------


def incidents_text(rows: Sequence[FleetIncidentRow], limit: int) -> RenderableType:
    """Return a table, and whether there may be more."""
    if not rows:
        return "no incident in the fleet index is like that"
    table = ScreenTable()
    for name in ("when", "job", "user", "n", "symptom", "cause", "nodes"):
        table.add_column(name, overflow="fold" if name == "nodes" else "ellipsis", no_wrap=name != "nodes")
    table.add_column("lost", justify="right", no_wrap=True)
    table.add_column("recovery", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for row in rows:
        table.add_row(
            date_and_time(row.t),
            one_line(f"{row.cluster + '/' if row.cluster else ''}{row.array_task or row.job_id}"),
            one_line(row.user),
            str(row.number),
            one_line(row.symptom),
            row.cause,
            one_line(row.nodes),
            f"{row.lost_node_hours:.2f}",
            seconds(row.recover_s),
            one_line(row.detail),
        )
    more = f"; there may be more than {limit}: --limit, --since" if len(rows) >= limit else ""
    return Group(
        table, Text(f"{count(len(rows), 'incident')}, lost in node-hours, recovery in seconds{more}")
    )


def write_csv(rows: Iterable[FleetIncidentRow]) -> None:
    """Write to standard output. No text of a user is a formula for a spreadsheet."""
    names = FleetIncidentRow.__struct_fields__
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(names)
    for row in rows:
        out.writerow([_cell(getattr(row, name)) for name in names])


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


# -- trainings ----------------------------------------------------------------------------------------------


def training_text(name: str, found: TrainingReport) -> RenderableType:
    """Render each training of that name with its jobs."""
    if not found.trainings:
        return f"no job in the fleet index is of a training {one_line(name)}, at least since --since"
    parts: list[RenderableType] = [_trainings(found.trainings)]
    for one, jobs in zip(found.trainings, found.jobs, strict=True):
        table = _table("job", "started", "ended", "code", "nodes", "incidents", "ETTR")
        for job in jobs:
            table.add_row(
                one_line(job.array_task) or str(job.job_id),
                date_and_time(job.started),
                date_and_time(job.ended) if job.ended is not None else "-",
                "-" if job.exit_code is None else str(job.exit_code),
                str(job.nodes),
                str(job.incidents),
                "-" if job.ettr is None else f"{job.ettr:.1%}",
            )
        parts += section(f"jobs of {one.training} of {one.user}", table)
    return Group(*parts)


def _trainings(rows: Sequence[TrainingRow]) -> ScreenTable:
    names = ("jobs", "last seen", "node-hours", "ETTR", "incidents", "lost node-hours")
    table = _table("training", "user", *names, left=2)
    for row in rows:
        table.add_row(
            one_line(row.training),
            one_line(row.user),
            str(row.jobs),
            date_and_time(row.last),
            f"{row.node_hours:,.0f}",
            "-" if row.ettr is None else f"{row.ettr:.1%}",
            str(row.incidents),
            f"{row.lost_node_hours:,.1f}",
        )
    return table


# -- the fleet ----------------------------------------------------------------------------------------------


def fleet_text(found: FleetReport) -> RenderableType:
    """Return the whole report."""
    totals = found.totals
    if not totals.jobs:
        return f"no job in the fleet index has worked since {date_and_time(found.since)}"
    unverified = (
        f", {totals.unverified} of them not verified by Slurm's accounting" if totals.unverified else ""
    )
    facts = [
        ("since", date_and_time(found.since)),
        ("jobs", f"{totals.jobs:,}{unverified}"),
        ("work", f"{totals.node_hours:,.0f} node-hours"),
        ("ETTR", "-" if totals.ettr is None else f"{totals.ettr:.1%}"),
        ("incidents", f"{totals.incidents:,}, which cost {totals.lost_node_hours:,.1f} node-hours"),
        ("recovery", f"{seconds(totals.recover_s)} s from the decision to the first new step, on average"),
    ]
    table = _table("cause", "incidents", "lost node-hours", "recovery s", "per node-day", "95 %")
    for row in found.causes:
        table.add_row(
            row.cause,
            str(row.incidents),
            f"{row.lost_node_hours:,.1f}",
            seconds(row.recover_s),
            *rate_cells(row.per_node_day),
        )
    return Group(
        facts_table(facts),
        *section("by cause", table),
        *section("by type of node", _groups(found.types, "type")),
        *section("by rack", _groups(found.racks, "rack")),
        *section("nodes with most failures", nodes_table(found.worst)),
        *(section("trainings with most work", _trainings(found.trainings)) if found.trainings else ()),
        *_advice(found),
    )


def _groups(rows: Sequence[GroupRow], title: str) -> ScreenTable:
    table = _table(title, "nodes", "node-hours", "failed", "network", "MTTF h", "per node-day", "95 %")
    for row in rows:
        table.add_row(
            one_line(row.name) or UNKNOWN,
            str(row.nodes),
            f"{row.node_hours:,.0f}",
            str(row.failures),
            str(row.network),
            "-" if row.mttf_hours is None else f"{row.mttf_hours:,.0f}",
            *rate_cells(row.per_node_day),
        )
    return table


def nodes_table(rows: Sequence[NodeRow]) -> ScreenTable:
    """Return the nodes with their rates."""
    table = _table(
        "node", "type", "rack", "node-hours", "failed", "network", "per node-day", "95 %", "x others", left=3
    )
    for row in rows:
        table.add_row(
            one_line(row.node),
            one_line(row.type),
            one_line(row.rack),
            f"{row.node_hours:,.0f}",
            str(row.failures),
            str(row.network),
            *rate_cells(row.per_node_day),
            "-" if row.ratio is None else f"{row.ratio:.1f}",
        )
    return table


def rate_cells(rate: Measured | None) -> tuple[str, str]:
    """Return the rate and its interval."""
    return ("-", "-") if rate is None else (f"{rate.rate:.4f}", f"{rate.low:.4f} - {rate.high:.4f}")


def _advice(found: FleetReport) -> tuple[RenderableType, ...]:
    if not found.advice:
        return ()
    table = _table("job of", "time to incident", "checkpoint to storage every")
    for one in found.advice:
        table.add_row(count(one.nodes, "node"), duration(one.mtbf_s), duration(one.every_s))
    return section("how often to write a checkpoint (Daly)", table)


def _table(*names: str, left: int = 1) -> ScreenTable:
    table = ScreenTable()
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    return table
