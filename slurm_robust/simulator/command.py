"""``srobust simulate``: plays a spec, or a real job again, and shows what the lives amount to."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.libraries import need
from slurm_robust.model.record import Record
from slurm_robust.page.write import STDOUT, write_page
from slurm_robust.simulator.compare import Comparison, comparison, conclusions, number, percent
from slurm_robust.simulator.figures import Estimate, LifeFigures, Together
from slurm_robust.simulator.like import Likeness
from slurm_robust.simulator.runs import play
from slurm_robust.simulator.spec import Spec
from slurm_robust.simulator.spread import seconds
from slurm_robust.simulator.what_if import variations
from slurm_robust.terminal.console import Bar, ScreenTable, Wrapped, facts_table, section, show
from slurm_robust.util.text import count, duration, one_line

_PERCENT = 100.0


class SimulationRequest(Record):
    """What was asked for."""

    spec: Spec
    name: str
    likeness: Likeness | None = None
    """Of the real job that is played again."""
    what_if: tuple[str, ...] = ()
    seeds: int | None = None
    processes: int = 0
    lives: Path | None = None
    html: Path | None = None
    json: bool = False
    csv: bool = False


def main(wish: SimulationRequest) -> int:
    """Play, and print the figures; 0. Raises ``InvalidSettings``, ``OtherLives``."""
    if wish.html is not None:
        need("jinja2", "srobust simulate --html")
    spec = wish.spec
    others = variations(spec, wish.what_if)
    specs = [spec, *(one.spec for one in others if one.spec != spec)]
    number = wish.seeds or spec.seeds
    played: list[list[LifeFigures]] = [[] for _ in specs]
    try:
        with Bar("simulating", number * len(specs), "lives", quiet=wish.json or wish.csv) as bar:
            for place, one in play(specs, number, wish.processes, wish.lives):
                played[place].append(one)
                bar.advance()
    except KeyboardInterrupt:
        print(f"srobust: {_kept(played, number, wish.lives)}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    for lives in played:
        lives.sort(key=lambda one: one.seed)
    rest = iter(played[1:])
    compared = [(one, next(rest) if one.spec != spec else played[0]) for one in others]
    if wish.csv:
        sys.stdout.write(csv_of([("", played[0]), *((str(one), lives) for one, lives in compared)]))
        return 0
    made = comparison(spec.name or wish.name, spec.fidelity, played[0], compared, wish.likeness)
    if wish.html is not None:
        told = [("simulated", _what(made, spec)), ("at most", duration(seconds(spec.time))), *_basis(made)]
        _write(wish.html, _page(made, played[0], told), quiet=wish.json)
        if not wish.json:
            return 0
    if made.real is None and not made.what_if:
        show(made.own, lambda own: text_of(own, spec), json=wish.json)
    else:
        show(made, lambda found: comparison_text(found, spec), json=wish.json)
    return 0


def _page(made: Comparison, lives: Sequence[LifeFigures], told: Sequence[tuple[str, str]]) -> str:
    from slurm_robust.simulator.page.page import page_of

    return page_of(made, lives, told)


def _write(path: Path, page: str, *, quiet: bool) -> None:
    """Write the page, or print it if ``path`` is ``-``. Raises ``CannotWrite``."""
    if path == STDOUT:
        print(page, end="")
        return
    written, size = write_page(path, page, "simulation.html")
    if not quiet:
        print(f"wrote {written} ({size / 1e6:.1f} MB): open it in a browser, or send it as one file")


def _kept(played: Sequence[Sequence[LifeFigures]], number: int, lives: Path | None) -> str:
    """Return what became of the lives that were played until Ctrl-C."""
    done, of = sum(map(len, played)), f"{number * len(played):,} lives"
    if lives is None:
        return f"interrupted after {done:,} of {of}; with --lives FILE those that are done are kept"
    return f"interrupted: {lives} has {done:,} of {of}; the same command goes on from there"


def csv_of(played: Iterable[tuple[str, Sequence[LifeFigures]]]) -> str:
    """Return a line for each life; what it has by cause or class is a column of its own."""
    rows = [{"what_if": name, **_flat(one)} for name, lives in played for one in lives]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval=0, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _flat(one: LifeFigures) -> dict[str, object]:
    values = msgspec.to_builtins(one)
    del values["curve"]  # no figure
    nested = {name: value for name, value in values.items() if isinstance(value, dict)}
    flat = {name: value for name, value in values.items() if name not in nested}
    return flat | {f"{name}.{key}": value for name, inner in nested.items() for key, value in inner.items()}


# -- text ------------------------------------------------------------------------------------------------


def text_of(made: Together, spec: Spec) -> RenderableType:
    """Return the figures as a person reads them."""
    facts = [
        ("simulated", f"{one_line(made.name)}: {_job_of(spec)}, {spec.time}; {_lives_of(made)}"),
        ("ETTR", _interval(made.figures["ettr"], percent=True)),
        ("incidents", _interval(made.figures["incidents"])),
    ]
    return Group(facts_table(facts), *_tables(made))


def comparison_text(made: Comparison, spec: Spec) -> RenderableType:
    """Return what other settings bring, and how well a replay agrees with reality."""
    own, real = made.own, made.real
    ettr = _interval(own.figures["ettr"], percent=True)
    incidents = f"{own.figures['incidents'].mean:.1f}"
    told = [
        ("replayed" if real is not None else "simulated", f"{one_line(own.name)}: {_what(made, spec)}"),
        ("ETTR", f"under its own settings {ettr}" + (f", in reality {percent(real.ettr)}" if real else "")),
        ("incidents", incidents + (f", in reality {real.incidents}" if real is not None else "")),
        *_basis(made),
    ]
    parts: list[RenderableType] = [facts_table(told)]
    if made.what_if:
        parts += section("with other settings", _what_if_table(made))
    else:
        parts += _tables(own)
    if notes := conclusions(made):
        parts += ["", *(Wrapped(one, "  ") for one in notes)]
    return Group(*parts)


def _what(made: Comparison, spec: Spec) -> str:
    return f"{_job_of(spec)}; {_lives_of(made.own)}"


def _basis(made: Comparison) -> list[tuple[str, str]]:
    """Return what a replay rests on."""
    found = [("assumed", ", ".join(made.assumed)), ("left out", "; ".join(made.left_out))]
    return [(name, text) for name, text in found if text]


def _what_if_table(made: Comparison) -> ScreenTable:
    table = ScreenTable()
    table.add_column("settings", overflow="fold")
    for column in ("ETTR", "95 %", "gain", "requeues", "standbys", "GPU-h lost"):
        table.add_column(column, justify="right")
    for one in made.what_if:
        found = one.together.figures
        ettr = found["ettr"]
        table.add_row(
            ", ".join(f"{name}={value}" for name, value in one.settings.items()) + " (own)" * one.is_own,
            percent(ettr.mean),
            f"{_PERCENT * ettr.low:.1f} to {_PERCENT * ettr.high:.1f}",
            f"{_PERCENT * one.gain.mean:+.1f}",
            *(number(found[name].mean) for name in ("requeues", "standbys_used", "gpu_hours")),
        )
    return table


def _tables(made: Together) -> list[RenderableType]:
    table = ScreenTable()
    table.add_column("in each life")
    for column in ("mean", "95 % confidence", "5 % to 95 % of lives"):
        table.add_column(column, justify="right")
    for name, text in _ROWS.items():
        one = made.figures[name]
        table.add_row(text, number(one.mean), _range(one.low, one.high), _range(one.p5, one.p95))
    lost = ScreenTable()
    lost.add_column("lost by")
    lost.add_column("GPU-hours", justify="right")
    lost.add_column("95 % confidence", justify="right")
    for name, one in made.figures.items():
        kind, _, key = name.partition(".")
        if kind == "causes":
            lost.add_row(Text(key), number(one.mean), _range(one.low, one.high))
    return [*section("figures", table), *section("GPU-hours by cause of the incident", lost)]


_ROWS = {
    "evicted_right": "broken nodes evicted",
    "evicted_wrong": "good nodes evicted",
    "standbys_used": "standbys used",
    "companions": "nodes lent",
    "requeues": "requeues for a fault",
    "given_up": "jobs given up",
    "jobs": "jobs submitted",
    "mttr_s": "mean time to recovery, s",
    "was_s": "scheduling time of evictions, s",
    "gpu_hours": "GPU-hours lost",
}


def _job_of(spec: Spec) -> str:
    faults = sum(source.after is not None for source in spec.faults)
    given = f", {count(faults, 'fault')}" if faults else ""
    return f"{count(spec.job.nodes, 'node')}, {count(spec.job.spares, 'standby')}{given}"


def _lives_of(made: Together) -> str:
    lives = "1 life" if made.lives == 1 else f"{made.lives:,} lives"
    return f"{lives}, fidelity {made.fidelity}"


def _interval(one: Estimate, *, percent: bool = False) -> str:
    factor, unit, digits = (_PERCENT, " %", 2) if percent else (1.0, "", 1)
    low, mean, high = (f"{factor * value:.{digits}f}" for value in (one.low, one.mean, one.high))
    return f"{mean}{unit} (95 %: {low} to {high}{unit})"


def _range(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"
