"""The report on a job for a terminal, and its tables as CSV. Pure."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from slurm_robust.ledger.classes import EFFECTIVE, NAMES
from slurm_robust.ledger.shares import PartShare, shares
from slurm_robust.ledger.summary import Lost
from slurm_robust.report.chapters import chapters_table
from slurm_robust.report.headline import PART_STYLES, LostRow, banner, figures, lost_rows, widths
from slurm_robust.report.hookseen import told
from slurm_robust.report.incident_table import incident_table
from slurm_robust.report.job_report import JobReport
from slurm_robust.report.nodelines import NodeLine
from slurm_robust.report.updates import update_table
from slurm_robust.terminal.console import MIN_WIDE, ByWidth, facts_table, plain_table, section
from slurm_robust.trainings.jobs import ChapterRow
from slurm_robust.util.hostlist import InvalidHostlist, expand
from slurm_robust.util.text import count, date_and_time, duration, one_line

MAX_INCIDENTS, MAX_NODES = 20, 10
"""Rows on the screen; ``--html``, ``--json`` and ``--csv`` have all."""

MAX_BAR = 100
"""Columns of the bar that shows where the time went."""


class CsvTable(str, Enum):
    """The tables that ``--csv`` prints."""

    INCIDENTS = "incidents"
    UPDATES = "updates"
    CLASSES = "classes"
    NODES = "nodes"
    STEPS = "steps"
    CHAPTERS = "chapters"


def facts(report: JobReport) -> list[tuple[str, str]]:
    """Return what the job is, and how it stands."""
    size = f"{count(report.slots, 'slot')}, {count(report.spares, 'spare')}, {count(report.ranks, 'rank')}"
    now = report.generations[-1].slots if report.generations else report.slots
    if now != report.slots:
        size = f"{count(now * report.ranks // max(1, report.slots), 'rank')} now; it began with {size}"
    until = f"{date_and_time(report.begin)} to {date_and_time(report.end)}"
    stands = banner(report)
    state = stands.text + (f": {stands.more}" if stands.more else "")
    job, of_all = "job", ""
    if len(report.chapters) > 1:
        job, of_all = "newest job", f", {len(report.chapters)} jobs; all of them are in what follows"
    every = [
        ("training", report.training + of_all),
        (job, f"{report.job_id}  {shlex.join(report.command)}".rstrip()),
        ("cluster", report.cluster),
        ("size", size),
        ("state", state),
        ("Slurm", report.slurm),
        ("period", f"{until} ({'ended' if report.ended else 'so far'})"),
    ]
    return [(name, one_line(value)) for name, value in every if value]


# -- the screen ------------------------------------------------------------------------------------


def render(report: JobReport) -> RenderableType:
    """Return the whole screen."""
    known = [*facts(report), *((figure.name, figure.text) for figure in figures(report))]
    parts: list[RenderableType] = [facts_table(known)]
    parts += [Text(one_line(f"note: {note}"), style="yellow") for note in report.notes]
    if len(report.chapters) > 1:
        parts += section("Jobs of the training", chapters_table(report.chapters))
    parts += section("Where the time went", TimeBar(shares(report.ledger.classes)), _classes(report))
    if report.ledger.causes:
        parts += section("Lost time by cause", _causes(report))
    if report.incidents:
        shown = report.incidents[-MAX_INCIDENTS:]
        title = "Incidents" + (f", the last {len(shown)}" if len(shown) < len(report.incidents) else "")
        parts += section(title, incident_table(report.job_id, [entry.row for entry in shown]))
    if report.updates:
        newest = report.updates[-MAX_INCIDENTS:]
        title = "Updates" + (f", the last {len(newest)}" if len(newest) < len(report.updates) else "")
        parts += section(title, update_table(newest))
    blamed = [line for line in report.nodes if line.incidents or line.evicted]
    if blamed:
        parts += section("Nodes that were blamed or evicted", _nodes(blamed, report))
    parts += told(report.seen)
    asked = one_line(report.training) if len(report.chapters) > 1 else report.job_id
    parts.append(
        Text(f"'srobust report {asked} --html FILE' has the timeline, the curves and the evidence", "dim")
    )
    return Group(*parts)


class TimeBar:
    """The parts of a job's time in one line, each as wide as its share, with its name if there is room."""

    def __init__(self, parts: tuple[PartShare, ...]) -> None:
        self.parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(0, min(MAX_BAR, options.max_width) - len(self.parts) - 1)
        line = Text("|", no_wrap=True, overflow="crop")
        wide = widths(tuple(one.share for one in self.parts), columns)
        for one, width in zip(self.parts, wide, strict=True):
            name = f"{one.part.value} {one.share:.0%}"
            shown = next((text for text in (name, one.part.value) if len(text) <= width), "")
            line.append(shown.center(width, "-" if not shown else " "), style=PART_STYLES[one.part])
            line.append("|")
        yield line
        each = (f"{one.part.value} {duration(one.ms / 1000)}" for one in self.parts)
        yield Text(", ".join(each), style="dim")


def _causes(report: JobReport) -> RenderableType:
    """Return the table of lost time; GPU hours are those of GPUs."""
    lost = report.ledger.lost
    columns = ("incidents", "lost", "node hours", *(("GPU hours",) if lost.gpu_hours else ()))
    table = plain_table("cause", *columns, right=columns)
    every = LostRow(cause="all", incidents=len(report.ledger.incidents), lost=lost)
    for row in (*lost_rows(report), every):
        cells = [str(row.incidents or "-"), duration(row.lost.ms / 1000), f"{row.lost.node_hours:,.1f}"]
        table.add_row(
            one_line(row.cause), *cells, *([f"{row.lost.gpu_hours:,.0f}"] if lost.gpu_hours else [])
        )
    return table


def _classes(report: JobReport) -> RenderableType:
    """Return the table of classes, with the names of others if there is room for them."""
    found = report.ledger
    columns, names_of_others = ("time", "share"), ("Google's goodput", "Meta's training time", "ByteRobust")
    narrow = plain_table("class", *columns, right=columns)
    wide = plain_table("class", *columns, *names_of_others, right=columns)
    for one, ms in sorted(found.classes.items(), key=lambda item: -item[1]):
        names = NAMES[one]
        style = "green" if one in EFFECTIVE else ""
        cells = (
            Text(one.value, style=style),
            duration(ms / 1000),
            f"{ms / max(1, found.wall_ms):.2%}",
        )
        narrow.add_row(*cells)
        wide.add_row(*cells, names.google, names.meta, names.paper)
    return ByWidth(MIN_WIDE, wide, narrow)


def names_of(report: JobReport) -> dict[int, str]:
    """Return the name by which a person asks for each incident."""
    return {entry.row.number: entry.row.name for entry in report.incidents}


def _nodes(lines: Sequence[NodeLine], report: JobReport) -> RenderableType:
    names = names_of(report)
    table = plain_table("nodes", "incidents", "lost", "evicted", right=("lost",))
    for line in lines[:MAX_NODES]:
        numbers = ", ".join(f"#{names.get(number, number)}" for number in line.incidents) or "-"
        lost = duration(line.lost.ms / 1000) if line.lost.ms else "-"
        table.add_row(one_line(line.nodes), numbers, lost, one_line(line.evicted) or "-")
    if len(lines) <= MAX_NODES:
        return table
    return Group(table, Text(f"and {len(lines) - MAX_NODES} more", style="dim"))


# -- CSV -------------------------------------------------------------------------------------------


def csv_text(report: JobReport, table: CsvTable) -> str:
    """Return one table, with a line of names first. Times are seconds since 1970."""

    def cell(value: object) -> object:
        """Return text that a spreadsheet takes for text: not for a formula, and in one line."""
        if not isinstance(value, str):
            return "" if value is None else value
        text = one_line(value)
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([map(cell, row) for row in _CSV[table](report)])
    return out.getvalue()


Rows = Iterator[Iterable[object]]


def _csv_incidents(report: JobReport) -> Rows:
    yield (
        *("incident", "t", "begin", "end", "symptom", "sign", "cause", "blamed", "nodes", "done", "status"),
        *("detect_s", "localise_s", "recover_s", "steps_repeated", "lost_s", "node_hours", "gpu_hours"),
    )
    for entry in report.incidents:
        row, cost = entry.row, entry.cost
        lost = cost.lost if cost is not None else Lost()
        yield (
            *(row.name, row.t, round(entry.begin, 3), round(entry.end, 3), row.symptom, row.signs[0]),
            *(cost.cause if cost is not None else "", row.blamed, " ".join(cost.nodes if cost else ())),
            *(row.done, row.status.value, row.detect_s, row.localise_s, row.recover_s, row.steps_repeated),
            *(lost.ms / 1000, round(lost.node_hours, 4), round(lost.gpu_hours, 3)),
        )


def _csv_updates(report: JobReport) -> Rows:
    yield (
        *(
            "update",
            "t",
            "release",
            "before",
            "when",
            "rollback",
            "user",
            "uid",
            "host",
            "message",
            "changes",
        ),
        *(
            "from_step",
            "discard_optimizer",
            "result",
            "why",
            "trial_s",
            "applied",
            "step",
            "recovery",
            "stopped_s",
            "judged",
            "incident",
        ),
    )
    for row in report.updates:
        yield (
            *(row.name, row.t, row.release, row.before, row.when.value, row.rollback),
            *(row.by.user, row.by.uid, row.by.host, row.message, "; ".join(row.changes)),
            *(row.from_step if row.from_step >= 0 else None, row.discard_optimizer, row.result.value),
            *(row.why, row.trial_s, row.applied, row.step if row.step >= 0 else None, row.recovery or None),
            *(row.stopped_s, row.judged, row.incident or None),
        )


def _csv_classes(report: JobReport) -> Rows:
    yield "class", "seconds", "share", "google", "meta", "byterobust"
    for one, ms in report.ledger.classes.items():
        names = NAMES[one]
        share = round(ms / max(1, report.ledger.wall_ms), 6)
        yield one.value, ms / 1000, share, names.google, names.meta, names.paper


def _csv_nodes(report: JobReport) -> Rows:
    names = names_of(report)
    yield "node", "slot_s", "standby_s", "incidents", "lost_s", "evicted", "given_back"
    for line in report.nodes:
        try:
            nodes = expand(line.nodes)
        except InvalidHostlist:
            nodes = (line.nodes,)
        lost_s = round(line.lost.ms / 1000 / max(1, len(nodes)), 3)
        numbers = " ".join(str(names.get(number, number)) for number in line.incidents)
        for node in nodes:
            yield node, line.slot_s, line.standby_s, numbers, lost_s, line.evicted, line.given_back


def _csv_steps(report: JobReport) -> Rows:
    names = ("t", "generation", "step", "step_s", "loss", "grad_norm")
    yield names
    yield from zip(*(getattr(report.progress, name) for name in names), strict=True)


def _csv_chapters(report: JobReport) -> Rows:
    names = ChapterRow.__struct_fields__
    yield names
    for row in report.chapters:
        yield [row.state.value if name == "state" else getattr(row, name) for name in names]


_CSV: dict[CsvTable, Callable[[JobReport], Rows]] = {
    CsvTable.INCIDENTS: _csv_incidents,
    CsvTable.UPDATES: _csv_updates,
    CsvTable.CLASSES: _csv_classes,
    CsvTable.NODES: _csv_nodes,
    CsvTable.STEPS: _csv_steps,
    CsvTable.CHAPTERS: _csv_chapters,
}
