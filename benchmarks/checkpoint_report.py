"""What each part of the checkpoint benchmark gives back, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from benchmarks.checkpoint_figures import Aim


@dataclass
class Part:
    """``facts`` go to the file; the rest is shown. ``notes`` say what could not be measured, and why."""

    facts: dict[str, object] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_facts(self) -> dict[str, object]:
        """All but the tables."""
        aims = [{**asdict(aim), "met": aim.met} for aim in self.aims]
        return {**self.facts, "aims": aims, "notes": self.notes}

    def show(self, console: Console) -> None:
        """Tables, then aims, then notes."""
        for shown in self.tables:
            console.print(shown)
        for aim in self.aims:
            console.print(aim.text(), style="green" if aim.met else "bold red", highlight=False)
        for note in self.notes:
            console.print(note, style="yellow", highlight=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column is a name."""
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        made.add_row(*row)
    return made
