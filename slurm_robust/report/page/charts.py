"""What the charts of the page show: the data for the script, and the words and tables beside it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_robust.report.curves import Values
from slurm_robust.report.job_report import JobReport
from slurm_robust.report.nodelines import NodeActivity
from slurm_robust.util.text import date_and_time, one_line

MAX_ROWS = 150
"""Nodes, or sets of nodes that are alike, on the timeline."""

MAX_PIECES = 40_000
"""Pieces of all these together."""

MAX_MARKS = 20_000
"""Incidents and generations that the charts mark."""

TABLE_ROWS = 40
"""Lines of the table that stands for a curve."""

NAME = 12
"""Characters of a name beside the timeline."""

_DOING = {doing: number for number, doing in enumerate(NodeActivity)}


def chart_data(report: JobReport) -> dict[str, object]:
    """Return what the script draws."""
    rows, left = [], MAX_PIECES
    # What most nodes did comes first.
    for line in sorted(report.nodes, key=lambda line: line.count == 1)[:MAX_ROWS]:
        pieces = line.pieces[-left:] if left else ()
        left -= len(pieces)
        rows.append(
            {
                "name": one_line(line.nodes, NAME) if line.count == 1 else f"{line.count} nodes",
                "title": one_line(line.nodes, 80) + (f" ({line.count} nodes)" if line.count > 1 else ""),
                "pieces": [[piece.begin, piece.end, _DOING[piece.doing]] for piece in pieces],
            }
        )
    return {
        "begin": report.begin,
        "end": report.end,
        "ettr": report.ettr,
        "progress": report.progress,
        "nodes": rows,
        "marks": report.marks[-MAX_MARKS:],
        "generations": [{"launched": one.launched} for one in report.generations[-MAX_MARKS:]],
        "incidents": [
            {
                "number": entry.row.number,
                "name": entry.row.name,
                "begin": entry.begin,
                "end": entry.end,
                "text": one_line(f"{entry.row.symptom}, blamed: {entry.row.blamed}", 120),
            }
            for entry in sorted(report.incidents[-MAX_MARKS:], key=lambda entry: entry.begin)
        ],
    }


def chart_views(report: JobReport) -> list[dict[str, object]]:
    """Return the charts in their order, each with what it says in words and its table."""
    rows = len(report.nodes)
    more = f", {MAX_ROWS} of {rows} rows" if rows > MAX_ROWS else ""
    found = report.ettr
    places = _some(len(found.t))
    says = "Training has not begun."
    if found.t:
        says = f"{found.since_start[-1]:.2%} since the start, {found.last_hour[-1]:.2%} in the last hour."
    return [
        {
            "id": "timeline",
            "title": "Timeline of the nodes",
            "about": f"Nodes that did the same are one row{more}; the table of nodes below has all of them.",
            "says": f"{len(report.generations)} generations, {len(report.incidents)} incidents, "
            f"{sum(line.count for line in report.nodes)} nodes.",
            "columns": (),
            "rows": (),
        },
        {
            "id": "ettr",
            "title": "ETTR",
            "about": "The share of time in which steps were done for the first time: since the job's first "
            "start, and in the hour before.",
            "says": says,
            "columns": ("time", "since the start", "last hour"),
            "rows": [
                (date_and_time(found.t[p]), f"{found.since_start[p]:.2%}", f"{found.last_hour[p]:.2%}")
                for p in places
            ],
        },
        *_curves(report),
    ]


def _curves(report: JobReport) -> list[dict[str, object]]:
    found = report.progress
    restarts = "Vertical lines are restarts; generations take turns in two colours."
    return [
        _curve(report, "loss", "Loss", restarts, found.loss, lambda value: f"{value:.5g}"),
        _curve(report, "grad_norm", "Gradient norm", restarts, found.grad_norm, lambda value: f"{value:.5g}"),
        _curve(
            report,
            "step_s",
            "Step time",
            "Seconds a step, without checkpoints and announced phases.",
            found.step_s,
            lambda value: f"{value:.3g} s",
        ),
    ]


def _curve(
    report: JobReport, id: str, title: str, about: str, values: Values, shown: Callable[[float], str]
) -> dict[str, object]:
    known = [place for place, value in enumerate(values) if value is not None]
    numbers = [value for value in values if value is not None]
    says = "The script reports none." if id != "step_s" else "No step was measured."
    if numbers:
        says = f"From {shown(min(numbers))} to {shown(max(numbers))}, at last {shown(numbers[-1])}."
    found = report.progress
    chosen = [known[place] for place in _some(len(known))]
    rows = [
        (date_and_time(found.t[p]), str(found.generation[p]), str(found.step[p]), shown(value))
        for p in chosen
        if (value := values[p]) is not None
    ]
    columns = ("time", "generation", "step", title.lower())
    return {"id": id, "title": title, "about": about, "says": says, "columns": columns, "rows": rows}


def _some(many: int) -> Sequence[int]:
    """Return places in equal distances, the first and the last among them."""
    if many <= TABLE_ROWS:
        return range(many)
    return [round(place * (many - 1) / (TABLE_ROWS - 1)) for place in range(TABLE_ROWS)]
