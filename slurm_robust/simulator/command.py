"""``srobust simulate``: plays a spec, and shows what its lives amount to."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.simulator.figures import Estimate, LifeFigures, Together, together
from slurm_robust.simulator.runs import play
from slurm_robust.simulator.shipped import located
from slurm_robust.simulator.spec import Spec, read
from slurm_robust.terminal.console import Bar, ScreenTable, facts_table, section, show
from slurm_robust.util.text import count, one_line

_PERCENT = 100.0


def main(
    path: Path, *, seeds: int | None, processes: int, lives: Path | None, json: bool, as_csv: bool
) -> int:
    """Play, and print the figures; 0."""
    spec = read(located(path))
    number = seeds or spec.seeds
    played: list[LifeFigures] = []
    with Bar("simulating", number, "lives", quiet=json or as_csv) as bar:
        for one in play(spec, number, processes, lives):
            played.append(one)
            bar.advance()
    played.sort(key=lambda one: one.seed)
    if as_csv:
        sys.stdout.write(csv_of(played))
        return 0
    found = together(spec.name or path.stem, spec.fidelity, played)
    show(found, lambda made: text_of(made, spec), json=json)
    return 0


def csv_of(played: Sequence[LifeFigures]) -> str:
    """Return a line for each life; what it has by cause or class is a column of its own."""
    rows = [_flat(one) for one in played]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval=0, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _flat(one: LifeFigures) -> dict[str, object]:
    values = msgspec.to_builtins(one)
    nested = {name: value for name, value in values.items() if isinstance(value, dict)}
    flat = {name: value for name, value in values.items() if name not in nested}
    return flat | {f"{name}.{key}": value for name, inner in nested.items() for key, value in inner.items()}


def text_of(made: Together, spec: Spec) -> RenderableType:
    """Return the figures as a person reads them."""
    job = spec.job
    what = f"{count(job.nodes, 'node')}, {count(job.spares, 'standby')}, {spec.time}"
    lives = "1 life" if made.lives == 1 else f"{made.lives:,} lives"
    facts = [
        (
            "simulated",
            f"{one_line(made.name)}: {what}; {lives}, fidelity {made.fidelity}",
        ),
        ("ETTR", _interval(made.figures["ettr"], percent=True)),
        ("incidents", _interval(made.figures["incidents"])),
    ]
    table = ScreenTable()
    table.add_column("in each life")
    for column in ("mean", "95 % confidence", "5 % to 95 % of lives"):
        table.add_column(column, justify="right")
    for name, text in _ROWS.items():
        one = made.figures[name]
        table.add_row(text, _number(one.mean), _range(one.low, one.high), _range(one.p5, one.p95))
    lost = ScreenTable()
    lost.add_column("lost by")
    lost.add_column("GPU-hours", justify="right")
    lost.add_column("95 % confidence", justify="right")
    for name, one in made.figures.items():
        kind, _, key = name.partition(".")
        if kind == "causes":
            lost.add_row(Text(key), _number(one.mean), _range(one.low, one.high))
    return Group(
        facts_table(facts), *section("figures", table), *section("GPU-hours by cause of the incident", lost)
    )


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


def _interval(one: Estimate, *, percent: bool = False) -> str:
    factor, unit, digits = (_PERCENT, " %", 2) if percent else (1.0, "", 1)
    low, mean, high = (f"{factor * value:.{digits}f}" for value in (one.low, one.mean, one.high))
    return f"{mean}{unit} (95 %: {low} to {high}{unit})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"
