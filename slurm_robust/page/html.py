"""Makes a page: a template with its values, beside the data of the charts, styles and scripts. Pure.

The page loads nothing and sends nothing: its Content-Security-Policy lets a browser run the scripts of this
package, by their hashes, and refuse everything else. All text of a job is escaped by the template, and is
data to the scripts. Jinja2 is in the extra ``train``: what needs no page does not import this.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup  # part of jinja2

from slurm_robust.ledger.classes import Part, TimeClass
from slurm_robust.ledger.shares import shares
from slurm_robust.util.text import as_json, clock, count, date_and_time, duration, one_line, visible
from slurm_robust.version import __version__

_ASSETS = Path(__file__).parent / "assets"
_FILTERS: dict[str, Callable[..., object]] = {
    "clock": clock,
    "count": count,
    "date": lambda t: date_and_time(t) if t is not None else "-",
    "duration": duration,
    "fmt": format,
    "line": one_line,
}


def page(
    assets: Path,
    values: Mapping[str, object],
    data: object,
    filters: Mapping[str, Callable[..., object]] = {},
) -> str:
    """Return a whole page by ``page.html.j2`` of ``assets``, which extends ``base.html.j2``.

    ``page.css`` and ``page.js`` there come after those that all pages have. The script finds ``data`` as JSON
    in the element ``data``.
    """
    template = _template(assets, tuple(filters.items()))
    style, script = (_text(_ASSETS / f"base.{end}") + _text(assets / f"page.{end}") for end in ("css", "js"))
    return template.render(
        **values,
        version=__version__,
        data=Markup(_harmless(as_json(data, indent=None))),
        style=Markup(style),
        script=Markup(script),
        hashes={"style": Markup(_hash(style)), "script": Markup(_hash(script))},
    )


@cache
def _template(assets: Path, filters: tuple[tuple[str, Callable[..., object]], ...]) -> Template:
    loader = FileSystemLoader([assets, _ASSETS])
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_finalize, loader=loader)
    environment.filters.update({**_FILTERS, **dict(filters)})
    return environment.get_template("page.html.j2")


def _finalize(value: object) -> object:
    """Return what a placeholder shows: a job's text never has a character that a reader cannot see."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _harmless(json: str) -> str:
    """Return JSON that ends no script and begins no comment, whatever its strings hold."""
    return json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def shares_view(classes: Mapping[TimeClass, int]) -> Iterator[dict[str, object]]:
    """Yield the parts of time for the bar of shares, each with its place on it in percent."""
    begin = 0.0
    for one in shares(classes):
        names = ", ".join(f"{each.value} {duration(ms / 1000)}" for each, ms in one.classes)
        yield {
            "id": style_of(one.part),
            "name": one.part.value,
            "begin": round(begin, 3),
            "percent": round(100 * one.share, 3),
            "share": f"{one.share:.1%}",
            "took": duration(one.ms / 1000),
            "classes": names,
        }
        begin += 100 * one.share


def style_of(part: Part) -> str:
    """Return the part as a class of styles."""
    return f"part-{part.name.lower().replace('_', '-')}"
