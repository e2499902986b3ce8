"""The updates of a job as a table, beside its incidents. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from slurm_robust.evidence.updates import cost, result, wish
from slurm_robust.model.updates import UpdateResult, UpdateRow
from slurm_robust.terminal.console import told_table
from slurm_robust.util.text import date_and_time, one_line

_STYLES = {
    UpdateResult.GOOD: "green",
    UpdateResult.WAITING: "bold yellow",
    UpdateResult.CANDIDATE: "bold yellow",
    UpdateResult.REFUSED: "bold red",
    UpdateResult.ROLLED_BACK: "bold red",
}


def update_table(rows: Sequence[UpdateRow]) -> RenderableType:
    """Return one line for each update, with what became of it last."""
    columns = ("#", "when", "release", "by", "stopped for", "what", "result")
    return told_table(columns, map(_cells, rows), right=("#",))


def _cells(row: UpdateRow) -> tuple[str | Text, ...]:
    return (
        row.name,
        date_and_time(row.t).partition("-")[2],
        one_line(row.release),
        one_line(row.by.user),
        cost(row) or "-",
        wish(row),
        Text(result(row), style=_STYLES.get(row.result, "")),
    )
