"""The page on simulated lives: the values of its template, and the data of its charts. Pure.

Jinja2 is in the extra ``train``: what needs no page does not import this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.page.html import page, shares_view
from slurm_robust.simulator.compare import Compared, Comparison, best, conclusions, number, percent
from slurm_robust.simulator.curves import Band, band, histogram
from slurm_robust.simulator.figures import Estimate, LifeFigures
from slurm_robust.util.text import duration, one_line

TABLE_ROWS = 30
"""Lines of the table that stands for a curve."""

_ASSETS = Path(__file__).parent / "assets"
_CAUSES = "causes."
_COLUMNS = ("requeues", "standbys_used", "evicted_right", "gpu_hours")
_COUNTS = {
    "evicted_right": "broken nodes evicted",
    "evicted_wrong": "good nodes evicted",
    "standbys_used": "standbys used",
    "companions": "nodes lent",
    "requeues": "requeues for a fault",
    "given_up": "jobs given up",
}


def page_of(made: Comparison, lives: Sequence[LifeFigures], facts: Sequence[tuple[str, str]]) -> str:
    """Return the whole page; ``lives``: those under the spec's own settings."""
    what_if, charts = list(_what_if(made)), list(_charts(lives))
    causes = {name: one for name, one in made.own.figures.items() if name.startswith(_CAUSES)}
    values: dict[str, object] = {
        "title": made.own.name[:1].upper() + made.own.name[1:],
        "facts": facts,
        "said": conclusions(made),
        "tone": "good" if best(made.what_if) is not None else "plain",
        "parts": list(shares_view(_classes(lives))),
        "figures": list(_tiles(made)),
        "what_if": [one.view for one in what_if],
        "rows": [_row(one) for one in made.what_if],
        "charts": [one.view for one in charts],
        "causes": list(_bars({name.removeprefix(_CAUSES): one for name, one in causes.items()})),
        "counts": list(_bars({text: made.own.figures[name] for name, text in _COUNTS.items()})),
    }
    return page(_ASSETS, values, {"charts": {one.view["id"]: one.data for one in (*what_if, *charts)}})


def _classes(lives: Sequence[LifeFigures]) -> dict[TimeClass, int]:
    """Return the milliseconds of each class of time in a life, on the average."""
    found: dict[TimeClass, float] = {}
    for life in lives:
        for name, hours in life.classes.items():
            found[TimeClass(name)] = found.get(TimeClass(name), 0.0) + hours
    return {one: round(hours * 3.6e6 / len(lives)) for one, hours in found.items()}


def _tiles(made: Comparison) -> Iterator[dict[str, object]]:
    own = made.own.figures
    ettr = own["ettr"]
    about = "Effective training time ratio: the share of time in which steps were done for the first time."
    between = f"{100 * ettr.low:.1f} to {100 * ettr.high:.1f}"
    yield _tile("ETTR", f"{100 * ettr.mean:.2f}", "%", f"{about} With 95 % confidence {between} %.", between)
    if made.real is not None:
        yield _tile("in reality", f"{100 * made.real.ettr:.2f}", "%", "The ETTR that the job really had.")
    yield _tile("incidents", number(own["incidents"].mean), "", "In each life.")
    took, _, unit = duration(own["mttr_s"].mean).partition(" ")
    yield _tile("recovery", took, unit, "Mean time from a fault to the first new step.")
    evicted = own["evicted_right"].mean + own["evicted_wrong"].mean
    yield _tile("evictions", number(evicted), "", "In each life, of broken and of good nodes.")
    yield _tile("requeues", number(own["requeues"].mean), "", "For a fault, in each life.")
    yield _tile("lost", number(own["gpu_hours"].mean), "GPU-hours", "In each life, in all.")


def _tile(name: str, value: str, unit: str, about: str, note: str = "") -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "about": about, "note": note, "tone": {"value": ""}}


def _bars(figures: Mapping[str, Estimate]) -> Iterator[dict[str, object]]:
    """Yield a bar with its interval for each figure, in percent of the longest."""
    most = max((one.high for one in figures.values()), default=0.0) or 1.0
    for name, one in figures.items():
        yield {
            "name": name,
            "mean": number(one.mean),
            "interval": f"{number(one.low)} to {number(one.high)}",
            "middle": f"{number(one.p5)} to {number(one.p95)}",
            "percent": round(100 * one.mean / most, 2),
            "low": round(100 * one.low / most, 2),
            "high": round(100 * one.high / most, 2),
        }


def _row(one: Compared) -> dict[str, object]:
    found = one.together.figures
    ettr = found["ettr"]
    return {
        "name": ", ".join(f"{name}={value}" for name, value in one.settings.items()),
        "own": one.is_own,
        "ettr": percent(ettr.mean),
        "interval": f"{100 * ettr.low:.1f} to {percent(ettr.high)}",
        "gain": f"{100 * one.gain.mean:+.1f}",
        "others": [number(found[name].mean) for name in _COLUMNS],
    }


# -- charts ----------------------------------------------------------------------------------------------


class Chart(NamedTuple):
    """One chart of the page."""

    view: dict[str, object]
    """Its words, and the table that stands for it."""
    data: dict[str, object]
    """What the script draws."""


def _charts(lives: Sequence[LifeFigures]) -> Iterator[Chart]:
    """Yield the charts of the lives under the spec's own settings."""
    curves = [life.curve for life in lives]
    about = "The line is the mean of all lives; 90 % of them are in the band."
    yield _band("ettr", "ETTR since the start", about, band(curves, "ettr"), percent)
    if max(life.hours for life in lives) > 2:  # else it is much the same
        yield _band("hour", "ETTR of the hour before", about, band(curves, "hour"), percent)
    yield _distribution([life.ettr for life in lives])
    if any(any(curve.standbys) for curve in curves):
        found = band(curves, "standbys")
        yield _band("standbys", "Nodes that stand by", about, found, lambda value: f"{value:.1f}")


def _band(id: str, title: str, about: str, found: Band, shown: Callable[[float], str]) -> Chart:
    says = "No life trained."
    if found.hours:
        says = f"At the end {shown(found.mean[-1])} ({shown(found.low[-1])} to {shown(found.high[-1])})."
    places = range(0, len(found.hours), max(1, len(found.hours) // TABLE_ROWS))
    columns = (found.mean, found.low, found.high)
    return Chart(
        view={
            "id": id,
            "title": title,
            "about": about,
            "says": says,
            "columns": ("hours", "mean", "5 %", "95 %"),
            "rows": [(f"{found.hours[p]:.4g}", *(shown(column[p]) for column in columns)) for p in places],
        },
        data={
            "kind": "band",
            "x": found.hours,
            "mean": found.mean,
            "low": found.low,
            "high": found.high,
            "share": shown is percent,
        },
    )


def _distribution(values: Sequence[float]) -> Chart:
    edges, counts = histogram(values)
    lives = "1 life" if len(values) == 1 else f"{len(values):,} lives"
    bins = zip(edges, edges[1:], counts, strict=False)
    return Chart(
        view={
            "id": "lives",
            "title": "Lives by their ETTR",
            "about": "How many lives had which ETTR.",
            "says": f"{lives}, from {percent(min(values))} to {percent(max(values))}.",
            "columns": ("ETTR", "lives"),
            "rows": [(f"{percent(low)} to {percent(high)}", str(many)) for low, high, many in bins],
        },
        data={"kind": "bars", "edges": edges, "counts": counts, "share": True},
    )


def _what_if(made: Comparison) -> Iterator[Chart]:
    """Yield a chart for each set of keys that vary together."""
    series: dict[str, list[Compared]] = {}
    for one in made.what_if:
        series.setdefault(", ".join(one.settings), []).append(one)
    for place, (name, compared) in enumerate(series.items()):
        if len(compared) == 1:
            continue
        labels = [one_line(", ".join(one.settings.values())) for one in compared]
        found = [one.together.figures["ettr"] for one in compared]
        most, label = max(zip((one.mean for one in found), labels, strict=True), key=lambda one: one[0])
        yield Chart(
            view={
                "id": f"what-if-{place}",
                "title": f"ETTR by {one_line(name)}",
                "about": "The mean of all lives with its 95 % confidence; dashed: under its own settings.",
                "says": f"Highest with {label}: {percent(most)}.",
                "columns": (name, "ETTR", "95 % confidence"),
                "rows": [
                    (label, percent(one.mean), f"{percent(one.low)} to {percent(one.high)}")
                    for label, one in zip(labels, found, strict=True)
                ],
            },
            data={
                "kind": "points",
                "labels": labels,
                "mean": [one.mean for one in found],
                "low": [one.low for one in found],
                "high": [one.high for one in found],
                "line": made.own.figures["ettr"].mean,
                "share": True,
            },
        )
