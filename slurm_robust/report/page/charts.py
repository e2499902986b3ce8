"""What the charts of the page show: the data for the script, and the words and tables beside it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.ledger.classes import Part
from slurm_robust.report.curves import Values
from slurm_robust.report.headline import YOUNG_S
from slurm_robust.report.job_report import JobReport
from slurm_robust.report.lanes import Lane
from slurm_robust.report.nodelines import NodeActivity
from slurm_robust.util.text import count, date_and_time, one_line

MAX_LANES = 150
"""Lanes of the timeline."""

MAX_BARS = 40_000
"""Bars of all these together, and stages of the job."""

MAX_MARKS = 20_000
"""Incidents and generations that the charts mark."""

TABLE_ROWS = 40
"""Lines of the table that stands for a curve."""

_DOING = {doing: number for number, doing in enumerate(NodeActivity)}
_PARTS = {part: number for number, part in enumerate(Part)}


def chart_data(report: JobReport) -> dict[str, object]:
    """Return what the script draws."""
    left, lanes = MAX_BARS, []
    for lane in report.lanes[:MAX_LANES]:
        bars = lane.bars[-left:] if left else ()
        left -= len(bars)
        lanes.append(
            {
                "name": _lane_name(lane),
                "slot": bool(lane.count),
                "bars": [
                    [bar.begin, bar.end, _DOING[bar.doing], one_line(bar.nodes, 60), int(bar.evicted)]
                    for bar in bars
                ],
            }
        )
    found = report.ettr
    return {
        "begin": report.begin,
        "end": report.end,
        "parts": [part.value for part in Part],
        "stages": [[one.begin, one.end, _PARTS[one.part]] for one in report.stages[-MAX_BARS:]],
        "lanes": lanes,
        "ettr": {"t": found.t, "since_start": found.since_start}
        | ({"last_hour": found.last_hour} if _is_old(report) else {}),
        "progress": {
            "t": report.progress.t,
            "generation": report.progress.generation,
            "step": report.progress.step,
            "loss": report.progress.loss,
            "grad_norm": report.progress.grad_norm,
            "step_s": report.progress.step_s,
            "steps_s": steps_per_second(report),
            "pieces": pieces(report),
        },
        "marks": report.marks[-MAX_MARKS:],
        "restarts": [one.launched for one in report.generations[-MAX_MARKS:]],
        "incidents": [
            {
                "number": entry.row.number,
                "name": entry.row.name,
                "begin": entry.begin,
                "end": entry.end,
                "open": entry.row.status is IncidentStatus.OPEN,
                "text": one_line(f"{entry.row.symptom}, blamed: {entry.row.blamed}", 120),
            }
            for entry in sorted(report.incidents[-MAX_MARKS:], key=lambda entry: entry.begin)
        ],
    }


def pieces(report: JobReport) -> list[int]:
    """Return at which points a curve begins anew: training stopped before them."""
    found = report.progress
    idle = [stage for stage in report.stages if stage.part in (Part.IDLE, Part.QUEUE)]
    begins, place = [0] if found.t else [], 0
    for number in range(1, len(found.t)):
        before, t = found.t[number - 1], found.t[number]
        while place < len(idle) and idle[place].end <= before:
            place += 1
        stops = place < len(idle) and idle[place].begin >= before and idle[place].end <= t
        if stops or found.generation[number] != found.generation[number - 1]:
            begins.append(number)
    return begins


def steps_per_second(report: JobReport) -> list[float | None]:
    """Return completed steps per second since the point before, checkpoints and all else included."""
    found, begins = report.progress, set(pieces(report))
    rates: list[float | None] = []
    for number, t in enumerate(found.t):
        took = t - found.t[number - 1] if number not in begins else 0.0
        steps = found.step[number] - found.step[number - 1] if took > 0 else 0
        rates.append(float(f"{steps / took:.4g}") if steps > 0 else None)
    return rates


def chart_views(report: JobReport) -> list[dict[str, object]]:
    """Return the curves in their order, each with what it says in words and its table."""
    found = report.ettr
    places = _some(len(found.t))
    says = "Training has not begun."
    if found.t:
        says = f"{found.since_start[-1]:.2%} since the start."
        says += f" {found.last_hour[-1]:.2%} in the last hour." if _is_old(report) else ""
    about = "The share of time in which steps were done for the first time, since the job's first start"
    return [
        *_curves(report),
        {
            "id": "ettr",
            "title": "ETTR",
            "about": about + (", and in the hour before (dashed)." if _is_old(report) else "."),
            "says": says,
            "columns": ("time", "since the start", "last hour")[: 2 + _is_old(report)],
            "rows": [
                (date_and_time(found.t[p]), f"{found.since_start[p]:.2%}", f"{found.last_hour[p]:.2%}")[
                    : 2 + _is_old(report)
                ]
                for p in places
            ],
        },
    ]


def timeline_view(report: JobReport) -> dict[str, object]:
    """Return what the timeline says in words."""
    shown = f" {MAX_LANES} of {len(report.lanes)} lanes are shown." if len(report.lanes) > MAX_LANES else ""
    alike = any(lane.count > 1 for lane in report.lanes)
    return {
        "id": "timeline",
        "title": "Timeline",
        "about": "What the job did, and below it who held each slot and who stood by. "
        "Red bands are incidents, with their numbers; a red end of a bar is an eviction."
        + (" Slots that changed hands at the same moments share a lane." if alike else "")
        + shown,
        "says": ", ".join(
            (
                count(len(report.generations), "generation"),
                count(len(report.incidents), "incident"),
                count(sum(line.count for line in report.nodes), "node"),
            )
        )
        + ".",
        "columns": (),
        "rows": (),
    }


def _lane_name(lane: Lane) -> str:
    if not lane.count:
        return "standby"
    return f"slot {lane.slots}" if lane.count == 1 else f"{lane.count:,} slots"


def _is_old(report: JobReport) -> bool:
    return report.end - report.started >= YOUNG_S


def _curves(report: JobReport) -> list[dict[str, object]]:
    found = report.progress
    about = "Seconds a step, without checkpoints and announced phases."
    said = "As the script reports it."
    rates, rated = steps_per_second(report), "Completed steps per second, checkpoints included."
    return [
        _curve(report, "loss", "Loss", said, found.loss, lambda value: f"{value:.5g}"),
        _curve(report, "steps_s", "Throughput", rated, rates, lambda value: f"{value:.3g} steps/s"),
        _curve(report, "step_s", "Step time", about, found.step_s, lambda value: f"{value:.3g} s"),
        _curve(report, "grad_norm", "Gradient norm", said, found.grad_norm, lambda value: f"{value:.5g}"),
    ]


def _curve(
    report: JobReport, id: str, title: str, about: str, values: Values, shown: Callable[[float], str]
) -> dict[str, object]:
    known = [place for place, value in enumerate(values) if value is not None]
    numbers = [value for value in values if value is not None]
    says = "No step was measured." if id in ("step_s", "steps_s") else "The script reports none."
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
    about = about if numbers else ""
    return {"id": id, "title": title, "about": about, "says": says, "columns": columns, "rows": rows}


def _some(many: int) -> Sequence[int]:
    """Return places in equal distances, the first and the last among them."""
    if many <= TABLE_ROWS:
        return range(many)
    return [round(place * (many - 1) / (TABLE_ROWS - 1)) for place in range(TABLE_ROWS)]
