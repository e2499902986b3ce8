"""Standard output for people and programs: the only place that makes a console and prints ``--json``."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    Group,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from slurm_robust.model.findings import Outcome
from slurm_robust.util.text import as_json, folded, one_line

WIDTH = 100
"""Columns if there is no terminal and COLUMNS is not set. Rows of tables are as long as they have to be."""

MIN_WIDTH = 40
"""A smaller COLUMNS counts as this: no table fits into less."""

STYLES = {Outcome.FAIL: "bold red", Outcome.UNKNOWN: "yellow", Outcome.PASS: "green"}
"""The color of an outcome in every table."""

T = TypeVar("T")


class Screen(Console):
    """A console that prints every string as plain text: no markup, no emoji, nothing that a terminal obeys.

    Views clean their text with :func:`~slurm_robust.util.text.one_line`, which reads better. What they miss
    is replaced here, after rich has laid it out.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(
            # What moves the cursor goes to the stream itself: rich puts a stream of its own before the one
            # that cleans all text, and looks behind one of them only.
            file=getattr(stream, "rich_proxied_file", stream),
            markup=False,
            emoji=False,
            highlight=False,
            width=None if stream.isatty() else _columns(),
        )
        if not self.is_terminal:
            self.push_render_hook(_Unpadded())

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of ``renderable``; only rich's own segments may control the terminal."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("".join(map(_shown, segment.text)), segment.style)


def _columns() -> int:
    """Return how wide an output is that is no terminal: as wide as its reader says."""
    given = os.environ.get("COLUMNS", "")
    is_number = given.isascii() and given.isdecimal() and len(given) < 6
    return max(int(given), MIN_WIDTH) if is_number and int(given) else WIDTH


class _Unpadded(RenderHook):
    """Leaves out the blanks with which rich fills the ends of lines: files and programs need none."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return all of ``renderables`` as one."""
        return [_WithoutTrailingBlanks(Group(*renderables))]


class _WithoutTrailingBlanks:
    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self._shown, options)):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                text, style, control = line.pop()
                line.append(Segment(text.rstrip(), style, control))
            yield from line
            yield Segment.line()


def _shown(char: str) -> str:
    # As wide as the layout assumed.
    return char if char.isprintable() or char == "\n" else "?" * cell_len(char)


def show(value: T, render: Callable[[T], RenderableType], *, json: bool) -> None:
    """Print ``value`` on standard output: rendered for a person, or as one JSON document.

    What ``render`` returns as a string is printed as it is: its lines may be longer than the screen.
    """
    shown = as_json(value) if json else render(value)
    if isinstance(shown, str):
        print(shown)
    else:
        screen = Screen()
        screen.print(shown, crop=screen.is_terminal)  # a line that was not folded for a program is whole


# -- pieces of a screen ----------------------------------------------------------------------------


def section(title: str, *parts: RenderableType) -> tuple[RenderableType, ...]:
    """Return an empty line, ``title`` in bold, and ``parts``."""
    return ("", Text(one_line(title), style="bold"), *parts)


def indented(text: str, style: str = "") -> RenderableType:
    """Return ``text``, two columns to the right."""
    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, 2), expand=False)


def facts_grid() -> Table:
    """Return an empty table of facts: names in bold, and values, which are folded everywhere."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def facts_table(facts: Iterable[tuple[str, str]], indent: str = "") -> Table:
    """Return a line for each fact, its name in bold."""
    table = facts_grid()
    for name, value in facts:
        table.add_row(indent + name, Text(value))
    return table


class ScreenTable(Table):
    """The one table of all screens: a head, and no lines between its rows.

    Where there is no terminal, a row is one line, whatever its length, for grep and diff.
    """

    def __init__(self, *, head: bool = True, gap: int | None = None) -> None:
        """Take the ``gap`` between columns beside that of the head's line."""
        usual = 1 if head else 2
        super().__init__(
            box=box.SIMPLE_HEAD if head else None,
            show_header=head,
            pad_edge=head,
            padding=(0, usual if gap is None else gap, 0, 0),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield from super().__rich_console__(console, options)
        elif self.columns:
            yield Text("\n".join(self._lines()), no_wrap=True, overflow="ignore")

    def _lines(self) -> Iterator[str]:
        heads = [[_in_a_line(column.header) for column in self.columns]] if self.show_header else []
        cells = zip(*([*map(_in_a_line, column.cells)] for column in self.columns), strict=True)
        rows = [*heads, *map(list, cells)]
        widths = [max(map(cell_len, column), default=0) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(map(_padded, row, widths, (column.justify for column in self.columns))).rstrip()


def _in_a_line(cell: RenderableType) -> str:
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return " ".join(text.split("\n"))


def _padded(text: str, width: int, justify: str) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if justify == "right" else text + blanks


def plain_table(*columns: str, right: Sequence[str] = ()) -> ScreenTable:
    """Return an empty table with a head; numbers stand on the ``right``."""
    table = ScreenTable()
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


class Paste:
    """A command to be pasted. What does not fit into a line goes on in the next one, as a shell takes it."""

    def __init__(self, command: str) -> None:
        self._command = one_line(command, None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [self._command]
        if console.is_terminal:
            lines = textwrap.wrap(
                self._command,
                max(MIN_WIDTH, options.max_width) - 2,
                break_long_words=False,
                break_on_hyphens=False,
            )
        for line in lines[:-1]:
            yield Text(f"{line} \\", style="bold", no_wrap=True, overflow="ignore")
        yield Text(lines[-1], style="bold", no_wrap=True, overflow="ignore")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(options.max_width, cell_len(self._command)))


class Wrapped:
    """A line that a terminal shows in as many as it needs, each after the first behind ``indent``.

    Where there is no terminal, it is one line.
    """

    def __init__(self, line: str, indent: str) -> None:
        self._line, self._indent = line, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            yield Text(self._line, no_wrap=True, overflow="ignore")
            return
        for line in folded(self._line, max(MIN_WIDTH, options.max_width), self._indent):
            yield Text(line, overflow="fold")


class ByWidth:
    """``wide`` on a screen of ``least`` columns or more, and where there is none; else ``narrow``."""

    def __init__(self, least: int, wide: RenderableType, narrow: RenderableType) -> None:
        self.least, self.wide, self.narrow = least, wide, narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.narrow if console.is_terminal and options.max_width < self.least else self.wide


MIN_WIDE = 120
"""Columns of a screen that has room for a table and for sentences in its last column."""


def told_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: Sequence[str] = ()
) -> RenderableType:
    """Return a table with sentences in its last column.

    On a narrow screen they stand below, after the first one.
    """
    wide, narrow = plain_table(*columns, right=right), plain_table(*columns[:-1], right=right)
    below = Table.grid(padding=(0, 2))
    for _ in range(2):
        below.add_column(overflow="fold")
    for row in rows:
        wide.add_row(*row)
        narrow.add_row(*row[:-1])
        below.add_row(Text.assemble(" ", row[0]), row[-1])
    return ByWidth(MIN_WIDE, wide, Group(narrow, below))


def seconds(value: float | None) -> str:
    """Return a duration for a table: ``1.2``, ``-`` when unknown."""
    return "-" if value is None else f"{value:.1f}"


# -- what takes long -------------------------------------------------------------------------------

LATE_S = 2.0
"""A command that takes longer shows what it does."""

BYTES = "bytes"


class _RateColumn(ProgressColumn):
    """``12.3 parts/s``."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the rate so far."""
        return Text(f"{task.speed:.3g} {self._unit}/s" if task.speed is not None else "")


class Bar:
    """How far a command is: on standard error, if that is a terminal, from :data:`LATE_S` on

    It is gone when the command has ended, and never among what a script reads. One at a time, and nothing
    else may be printed meanwhile.
    """

    def __init__(self, what: str, total: float | None = None, unit: str = "", *, quiet: bool = False) -> None:
        """Take ``total``, the number of ``unit`` (a plural, or :data:`BYTES`); None if not known."""
        console = Screen(stderr=True)
        columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
        if total is None:
            columns = [SpinnerColumn(), *columns, TimeElapsedColumn()]
        elif unit == BYTES:
            columns += [BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
        else:
            columns += [BarColumn(), MofNCompleteColumn(), _RateColumn(unit), TimeRemainingColumn()]
        self._is_shown = not quiet and console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        self._task = self._progress.add_task(one_line(what), total=total)
        self._timer = threading.Timer(LATE_S, self._progress.start)
        self._timer.daemon = True

    def __enter__(self) -> Bar:
        if self._is_shown:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._is_shown:
            self._timer.join()
            self._progress.stop()

    def advance(self, by: float = 1.0) -> None:
        """Count this much more as done. Works from any thread."""
        self._progress.advance(self._task, by)

    def say(self, what: str) -> None:
        """Show what is done now. Works from any thread."""
        self._progress.update(self._task, description=one_line(what))


def track(things: Sequence[T], what: str, unit: str, *, quiet: bool = False) -> Iterator[T]:
    """Yield ``things``, one after the other, with a :class:`Bar` that counts them."""
    with Bar(what, len(things), unit, quiet=quiet) as bar:
        for thing in things:
            yield thing
            bar.advance()
