"""Makes the page: the template filled with text, the data of the charts, the styles and the scripts. Pure.

The page loads nothing and sends nothing: its Content-Security-Policy lets a browser run the scripts of this
package, by their hashes, and refuse everything else. All text of the job is escaped by the template, and is
data to the scripts.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.ledger.classes import EFFECTIVE, NAMES, TimeClass
from slurm_robust.ledger.summary import Lost
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.nodeseen import NodeSeen
from slurm_robust.model.startup import START_PHASES
from slurm_robust.report.chapters import step_text
from slurm_robust.report.hookseen import after, before, meanwhile
from slurm_robust.report.job_report import Generation, IncidentEntry, JobReport, PhaseFigures
from slurm_robust.report.job_text import facts, headline, names_of
from slurm_robust.report.nodelines import NodeLine
from slurm_robust.report.page.charts import chart_data, chart_views
from slurm_robust.trainings.jobs import ChapterRow
from slurm_robust.util.text import as_json, clock, count, date_and_time, duration, one_line, visible
from slurm_robust.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

MAX_INCIDENTS = 500
"""Incidents with their evidence on the page, the newest."""

MAX_ENTRIES = 200
"""Lines of one incident's timeline."""

MAX_NODES, MAX_GENERATIONS, MAX_MARKS = 600, 1000, 500
"""Rows of tables; ``--json`` and ``--csv`` have all."""

MAX_SEEN, MAX_SEEN_LINES = 300, 20
"""Nodes that the hooks told something of, the newest; and lines of each cell. ``--json`` has all."""

LINE = 300
"""Characters of a line that a worker or a hook wrote."""

_ASSETS = Path(__file__).parent / "assets"
_DAY_S = 86_400.0


class NoJinja(SrobustError):
    """The page needs jinja2, which is an extra."""

    exit_code = ExitCode.REFUSED
    fix = "pip install 'slurm_robust[report]'"


def page_of(report: JobReport) -> str:
    """The whole page. Raises :class:`NoJinja`."""
    template = _template()
    from markupsafe import Markup  # part of jinja2

    style, script, license = _asset("page.css"), _asset("page.js"), _asset("uplot/LICENSE")
    uplot_style, uplot = _asset("uplot/uPlot.min.css"), _asset("uplot/uPlot.iife.min.js")
    return template.render(
        **_view(report),
        data=Markup(_harmless(as_json(chart_data(report) | {"zone": _zone(report)}, indent=None))),
        styles={"uplot": Markup(uplot_style), "page": Markup(style)},
        scripts={"uplot": Markup(uplot), "page": Markup(script)},
        license=license,
        hashes={
            "styles": Markup(f"{_hash(uplot_style)} {_hash(style)}"),
            "scripts": Markup(f"{_hash(uplot)} {_hash(script)}"),
        },
    )


@cache
def _template() -> Template:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise NoJinja("the page needs jinja2, which is not installed") from error
    loader = FileSystemLoader(_ASSETS)
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_finalize, loader=loader)
    return environment.get_template("page.html.j2")


def _finalize(value: object) -> object:
    """What a placeholder shows: a job's text never has a character that a reader cannot see."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _harmless(json: str) -> str:
    """JSON that ends no script and begins no comment, whatever its strings hold."""
    return json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _zone(report: JobReport) -> list[tuple[float, int]]:
    """By how many seconds local time is ahead of UTC, and since when: summer time comes and goes."""
    found = [(report.begin, time.localtime(report.begin).tm_gmtoff)]
    days = min(int((report.end - report.begin) / _DAY_S) + 2, 5000)
    for day in range(days):
        t = report.begin + day * _DAY_S
        ahead = time.localtime(t).tm_gmtoff
        if ahead != found[-1][1]:
            found.append((t, ahead))
    return found


# -- what the template shows -----------------------------------------------------------------------


def _view(report: JobReport) -> dict[str, Any]:
    is_training = len(report.chapters) > 1
    title = f"Training {one_line(report.training)}" if is_training else f"Job {report.job_id}"
    names = names_of(report)
    zone = time.localtime(report.end)
    shown = report.incidents[-MAX_INCIDENTS:]
    older = len(report.incidents) - len(shown)
    left_out, earlier = len(report.nodes) - MAX_NODES, len(report.seen) - MAX_SEEN
    return {
        "title": title,
        "subtitle": f"What its time went into. Made {date_and_time(report.made)}; times are {zone.tm_zone} "
        f"({_utc(zone.tm_gmtoff)}), by slurmctld's clock where it is known.",
        "facts": _facts(report),
        "notes": [one_line(note) for note in report.notes],
        "headline": headline(report),
        "sections": _SECTIONS,
        "charts": chart_views(report),
        "marks": [(date_and_time(m.t), m.kind, one_line(m.text)) for m in report.marks[-MAX_MARKS:]],
        "classes": list(_classes(report)),
        "causes": list(_causes(report)),
        "chapters": [_chapter(row) for row in report.chapters] if is_training else [],
        "incidents": [_incident(entry) for entry in reversed(shown)],
        "incident_count": len(report.incidents),
        "older": f"The {count(older, 'older one')} are in --json and --csv." if older else "",
        "nodes": [_node(line, {e.row.number for e in shown}, names) for line in report.nodes[:MAX_NODES]],
        "node_count": sum(line.count for line in report.nodes),
        "nodes_left_out": f"{left_out} more rows are in --json and --csv." if left_out > 0 else "",
        "seen": [_seen(one) for one in reversed(report.seen[-MAX_SEEN:])],
        "seen_left_out": f"The {count(earlier, 'earlier row')} are in --json." if earlier > 0 else "",
        "phases": list(_phases(report.generations)),
        "generations": [
            _generation(one, {e.row.number for e in shown}, names)
            for one in report.generations[-MAX_GENERATIONS:]
        ],
        "generation_count": len(report.generations),
        "generations_left_out": f" of {len(report.generations)}"
        if len(report.generations) > MAX_GENERATIONS
        else "",
        "noted": [(date_and_time(n.t), n.what, n.text) for n in reversed(report.noted)],
        "footer": f"Made by slurm_robust {__version__}. This file loads nothing and sends nothing.",
    }


_SECTIONS = (
    ("figures", "Figures"),
    ("curves", "Timeline and curves"),
    ("time", "Where the time went"),
    ("incidents", "Incidents"),
    ("nodes", "Nodes"),
    ("starts", "Starts"),
)


def _facts(report: JobReport) -> list[tuple[str, str]]:
    """The title of the page names the job; of a training the newest one is a fact."""
    is_one = len(report.chapters) < 2 and report.command
    command = [("command", one_line(" ".join(report.command)))] if is_one else []
    return [*command, *(fact for fact in facts(report) if fact[0] != "job")]


def _utc(seconds: int) -> str:
    sign = "-" if seconds < 0 else "+"
    return f"UTC{sign}{abs(seconds) // 3600:02d}:{abs(seconds) % 3600 // 60:02d}"


def _lost(lost: Lost) -> dict[str, str]:
    return {
        "took": duration(lost.ms / 1000),
        "node_hours": f"{lost.node_hours:,.1f}",
        "gpu_hours": f"{lost.gpu_hours:,.0f}",
    }


def _classes(report: JobReport) -> Iterator[dict[str, object]]:
    found = report.ledger
    for one, ms in sorted(found.classes.items(), key=lambda item: -item[1]):
        names = NAMES[one]
        waits = one in (TimeClass.QUEUED, TimeClass.REQUEUE_DELAY, TimeClass.BETWEEN, TimeClass.SUSPENDED)
        yield {
            "name": one.value,
            "took": duration(ms / 1000),
            "share": f"{ms / max(1, found.wall_ms):.2%}",
            "percent": round(100 * ms / max(1, found.wall_ms), 2),
            "kind": "good" if one in EFFECTIVE else "wait" if waits else "",
            "google": names.google,
            "meta": names.meta,
            "paper": names.paper,
        }


def _causes(report: JobReport) -> Iterator[dict[str, object]]:
    causes = report.ledger.causes
    numbers = Counter(cost.cause for cost in report.ledger.incidents)
    most = max((lost.ms for lost in causes.values()), default=0)
    for name, lost in causes.items():
        percent = round(100 * lost.ms / max(1, most), 2)
        yield {"name": one_line(name), "incidents": numbers[name], "lost": _lost(lost), "percent": percent}


def _chapter(row: ChapterRow) -> dict[str, str]:
    return {
        "job": one_line(row.job),
        "started": date_and_time(row.started) if row.started is not None else "-",
        "nodes": str(row.nodes or "-"),
        "steps": f"{step_text(row.from_step)} to {step_text(row.to_step)}",
        "incidents": str(row.incidents),
        "again": "-" if row.repeated is None else str(row.repeated),
        "ettr": f"{row.ettr:.1%}" if row.ettr is not None else "-",
        "how": one_line(row.how),
    }


def _incident(entry: IncidentEntry) -> dict[str, object]:
    row, cost, evidence = entry.row, entry.cost, entry.evidence
    more = len(entry.timeline) - MAX_ENTRIES
    timeline = [
        (clock(line.t), f"{line.after_s:.1f}", line.what, line.text) for line in entry.timeline[:MAX_ENTRIES]
    ]
    if more > 0:
        timeline.append(("", "", "", f"and {more} more"))
    files = "" if evidence is None else ", ".join(f"{n} ({s:,} B)" for n, s in evidence.files.items())
    return {
        "number": row.number,
        "name": row.name,
        "when": date_and_time(row.t),
        "seen": one_line(row.symptom),
        "cause": cost.cause if cost is not None else "",
        "lost": duration(cost.lost.ms / 1000) if cost is not None else "-",
        "status": "" if row.status is IncidentStatus.OVER else row.status.value,
        "facts": [(name, one_line(text)) for name, text in (*entry.facts.items(), *_cost(entry))],
        "timeline": timeline,
        "root": one_line(entry.root),
        "lines": "\n".join(one_line(line, LINE) for line in entry.lines) or "no output",
        "tests": [
            tuple(map(one_line, (t.test, t.outcome.value, t.nodes, t.text, t.value, t.limit)))
            for t in entry.tests[:MAX_ENTRIES]
        ],
        "heads": [] if evidence is None else list(evidence.heads.items()),
        "folder": "" if evidence is None else one_line(evidence.folder),
        "files": one_line(files, 4000),
    }


def _cost(entry: IncidentEntry) -> Iterator[tuple[str, str]]:
    if entry.cost is None:
        return
    lost = _lost(entry.cost.lost)
    yield "lost", f"{lost['took']} ({lost['node_hours']} node hours, {lost['gpu_hours']} GPU hours)"
    classes = sorted(entry.cost.classes.items(), key=lambda item: -item[1])
    yield "of that", ", ".join(f"{one.value} {duration(ms / 1000)}" for one, ms in classes)


def _node(line: NodeLine, shown: set[int], names: Mapping[int, str]) -> dict[str, object]:
    why = [one_line(line.evicted)] if line.evicted else []
    why += [f"given back: {one_line(line.given_back)}"] if line.given_back else []
    return {
        "nodes": one_line(line.nodes),
        "count": line.count,
        "slot": duration(line.slot_s) if line.slot_s else "-",
        "standby": duration(line.standby_s) if line.standby_s else "-",
        "incidents": [(number, names[number]) for number in line.incidents if number in shown],
        "lost": duration(line.lost.ms / 1000) if line.lost.ms else "-",
        "why": "; ".join(why),
    }


def _seen(seen: NodeSeen) -> dict[str, object]:
    return {
        "node": one_line(seen.node),
        "since": date_and_time(seen.prolog.at) if seen.prolog is not None else "not known",
        "until": date_and_time(seen.epilog.at),
        "told": [_few(found(seen)) for found in (before, meanwhile, after)],
    }


def _few(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    more = len(every) - MAX_SEEN_LINES
    shown = [one_line(line, LINE) for line in every[:MAX_SEEN_LINES]]
    return [*shown, f"and {more} more in --json"] if more > 0 else shown


def _phases(generations: Sequence[Generation]) -> Iterator[dict[str, object]]:
    every: dict[str, list[tuple[PhaseFigures, int]]] = defaultdict(list)
    for one in generations:
        for figures in one.phases:
            every[figures.phase].append((figures, one.number))
    medians = {name: median(figures.median_s for figures, _ in found) for name, found in every.items()}
    most = max(medians.values(), default=0.0)
    order = {name: place for place, name in enumerate(START_PHASES)}
    for name in sorted(every, key=lambda name: order.get(name, len(order))):
        figures, number = max(every[name], key=lambda one: one[0].slowest_s)
        yield {
            "phase": one_line(name),
            "starts": len(every[name]),
            "median": f"{medians[name]:.2f}",
            "percent": round(100 * medians[name] / most, 2) if most else 0,
            "longest": f"{figures.slowest_s:.2f}",
            "where": one_line(f"{figures.slowest or 'a node'}, generation {number}"),
            "what": START_PHASES.get(name, ""),
        }


def _generation(one: Generation, shown: set[int], names: Mapping[int, str]) -> Mapping[str, object]:
    slowest = max(one.phases, key=lambda phase: phase.slowest_s, default=None)
    return {
        "number": one.number,
        "run": one.run,
        "launched": date_and_time(one.launched),
        "incident": one.incident if one.incident in shown else 0,
        "name": names.get(one.incident, ""),
        "restored": one_line(one.restored) or "-",
        "took": f"{one.took_s:.1f} s" if one.took_s is not None else "-",
        "longest": one_line(f"{slowest.phase} {slowest.slowest_s:.1f} s on {slowest.slowest}")
        if slowest
        else "",
    }
