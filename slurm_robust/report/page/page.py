"""The page of a report: the values of its template, and the data of its charts. Pure.

Jinja2 is in the extra ``train``: what needs no page does not import this.
"""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from markupsafe import Markup  # part of jinja2

from slurm_robust.evidence.updates import cost, result, who, wish
from slurm_robust.ledger.classes import NAMES, PARTS, Part
from slurm_robust.model.startup import START_PHASES
from slurm_robust.page.html import page, shares_view, style_of
from slurm_robust.report.chapters import step_text
from slurm_robust.report.headline import banner, figures, lost_rows
from slurm_robust.report.hookseen import after, before, meanwhile
from slurm_robust.report.job_report import Generation, JobReport, PhaseFigures
from slurm_robust.report.job_text import facts, names_of
from slurm_robust.report.page.charts import chart_data, chart_views, timeline_view
from slurm_robust.util.text import one_line

MAX_SEEN, MAX_SEEN_LINES = 300, 20
"""Nodes that the hooks told something of, the newest; and lines of each cell. ``--json`` has all."""

_BOUNDS = {
    # Incidents with their evidence on the page, the newest, and lines of one incident's timeline.
    "incidents": 500,
    # Incidents that are not folded away, the newest.
    "newest": 20,
    "entries": 200,
    # Rows of tables; --json and --csv have all.
    "nodes": 600,
    "generations": 1000,
    "marks": 500,
    "seen": MAX_SEEN,
    "seen_lines": MAX_SEEN_LINES,
    # Characters of a line that a worker or a hook wrote.
    "line": 300,
}

_ASSETS = Path(__file__).parent / "assets"
_FILTERS: dict[str, Callable[..., object]] = {
    "breakable": lambda name: Markup("_<wbr>").join(name.split("_")),  # it may break after each underscore
    "cost": cost,
    "files": lambda files: ", ".join(f"{name} ({size:,} B)" for name, size in files.items()),
    "result": result,
    "step": step_text,
    "who": who,
    "wish": wish,
}
_DAY_S = 86_400.0


def page_of(report: JobReport) -> str:
    """Return the whole page."""
    is_training = len(report.chapters) > 1
    shown = report.incidents[-_BOUNDS["incidents"] :]
    values: dict[str, object] = {
        "report": report,
        "title": f"Training {one_line(report.training)}" if is_training else f"Job {report.job_id}",
        # The title names the job; of a training the newest one is a fact.
        "facts": [
            *([("command", shlex.join(report.command))] if report.command and not is_training else []),
            *(fact for fact in facts(report) if fact[0] not in ("job", "state")),
        ],
        "banner": banner(report),
        "figures": figures(report),
        "parts": list(shares_view(report.ledger.classes)),
        "timeline": timeline_view(report),
        "charts": chart_views(report),
        "classes": sorted(report.ledger.classes.items(), key=lambda item: -item[1]),
        "part_of": {one: style_of(part) for one, part in PARTS.items()},
        "classes_of_others": NAMES,
        "lost_rows": lost_rows(report),
        "is_training": is_training,
        "incidents": shown,
        "shown": {entry.row.number for entry in shown},
        "names": names_of(report),
        "phases": list(_phases(report.generations)),
        "told": (before, meanwhile, after),
        "zone": time.localtime(report.end),
        "most": _BOUNDS,
    }
    data = chart_data(report) | {"zone": _zone(report), "styles": list(map(style_of, Part))}
    return page(_ASSETS, values, data, _FILTERS)


def _zone(report: JobReport) -> list[tuple[float, int]]:
    """Return by how many seconds local time is ahead of UTC, and since when: summer time comes and goes."""
    found = [(report.begin, time.localtime(report.begin).tm_gmtoff)]
    days = min(int((report.end - report.begin) / _DAY_S) + 2, 5000)
    for day in range(days):
        t = report.begin + day * _DAY_S
        ahead = time.localtime(t).tm_gmtoff
        if ahead != found[-1][1]:
            found.append((t, ahead))
    return found


def _phases(generations: Sequence[Generation]) -> Iterator[dict[str, object]]:
    every: dict[str, list[tuple[PhaseFigures, int]]] = defaultdict(list)
    for one in generations:
        for measured in one.phases:
            every[measured.phase].append((measured, one.number))
    medians = {name: median(each.median_s for each, _ in found) for name, found in every.items()}
    most = max(medians.values(), default=0.0)
    order = {name: place for place, name in enumerate(START_PHASES)}
    for name in sorted(every, key=lambda name: order.get(name, len(order))):
        longest, number = max(every[name], key=lambda one: one[0].slowest_s)
        yield {
            "phase": name,
            "starts": len(every[name]),
            "median": medians[name],
            "percent": round(100 * medians[name] / most, 2) if most else 0,
            "longest": longest.slowest_s,
            "where": f"{longest.slowest or 'a node'}, generation {number}",
            "what": START_PHASES.get(name, ""),
        }
