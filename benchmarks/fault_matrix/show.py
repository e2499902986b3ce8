"""The matrix for people, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from benchmarks import common
from benchmarks.fault_matrix.confusion import COLUMNS, NOBODY, THE_NODE, figures, marks, table
from benchmarks.fault_matrix.outcomes import Outcome
from benchmarks.fault_matrix.run import Ending


def print_mode(console: Console, mode: str, outcomes: Sequence[Outcome], endings: Sequence[Ending]) -> None:
    """Three tables: the cases, the confusion, the trainings."""
    console.print(_cases(mode, outcomes))
    console.print(_confusion(mode, outcomes))
    sums = figures(outcomes)
    console.print(
        f"{sums.right} of {sums.cases} right; root right in {sums.root[0]} of {sums.root[1]}; in time "
        f"{sums.in_time[0]} of {sums.in_time[1]}; innocents {sums.innocents}; "
        f"over-evicted {sums.over_evictions}; "
        f"medians: detected {_seconds(sums.detect_s)}, placed {_seconds(sums.place_s)}, "
        f"decided {_seconds(sums.decide_s)}"
    )
    for ending in endings:
        end = (
            f"code {ending.code}" if ending.code is not None else f"ended from outside {ending.why}".rstrip()
        )
        weights = f", {ending.equal} of {ending.steps} steps bitwise equal" if ending.steps else ""
        console.print(f"training with {', '.join(ending.cases)}: {end}{weights}")


def as_json(found: Outcome) -> dict[str, object]:
    """The outcome with its marks."""
    return {**asdict(found), "marks": {**asdict(marks(found)), "right": marks(found).right}}


def _cases(mode: str, outcomes: Sequence[Outcome]) -> Table:
    columns = ("fault", "on", "seen", "after s", "limit", "placed s", "decided s", "blamed", "actions", "")
    made = common.table(f"Fault matrix, {mode} mode", *columns)
    for found in outcomes:
        mark = marks(found)
        limit = found.expected.detect_s
        made.add_row(
            found.case,
            f"{found.rank}/{found.node}",
            found.symptom.value if found.symptom else "-",
            _seconds(found.detect_s),
            f"{limit:g}" if limit else "-",
            _seconds(found.place_s),
            _seconds(found.decide_s),
            ",".join(found.blamed) or "nobody",
            ", ".join(found.actions) or "-",
            ("right" if mark.right else "WRONG") + (", LATE" if mark.in_time is False else ""),
        )
    return made


def _confusion(mode: str, outcomes: Sequence[Outcome]) -> Table:
    counts = table(outcomes)
    made = common.table(f"Blamed, {mode} mode (rows: expected)", "", *COLUMNS)
    for row in (THE_NODE, NOBODY):
        made.add_row(row, *(str(counts.get((row, found), 0)) for found in COLUMNS))
    return made


def _seconds(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else "-"
