"""What takes long shows how far it is: on a terminal only, late, and gone at the end."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from slurm_robust.cli.main import visible_only
from slurm_robust.terminal import console
from slurm_robust.terminal.console import BYTES, Bar, Screen, track
from tests.waiting import wait_for


class Terminal(io.StringIO):
    """Standard error as a terminal that keeps what it gets."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "LATE_S", 0.0)
    return Terminal()


def test_a_bar_shows_bytes_and_their_rate(terminal: Terminal) -> None:
    with contextlib.redirect_stderr(terminal), Bar("verifying", 1e7, BYTES) as bar:
        bar.advance(5e6)
        wait_for(lambda: "5.0/10.0 MB" in terminal.getvalue())
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is empty again


def test_things_are_counted_with_their_rate(terminal: Terminal) -> None:
    with contextlib.redirect_stderr(terminal):
        for number in track(range(4), "exporting", "parts"):
            if number == 3:
                wait_for(lambda: "3/4" in terminal.getvalue() and "parts/s" in terminal.getvalue())


def test_what_nobody_can_count_says_what_it_does(terminal: Terminal) -> None:
    with contextlib.redirect_stderr(terminal), Bar("asking") as bar:
        bar.say("\x1b[2Jmore [bold]x[/]")
        wait_for(lambda: "more [bold]x[/]" in terminal.getvalue())
    assert "\x1b[2J" not in terminal.getvalue()


@pytest.mark.parametrize("shown", [lambda: Bar("asking"), lambda: Screen(stderr=True).status("asking")])
@pytest.mark.usefixtures("terminal")
def test_what_a_command_does_stays_in_one_line_of_a_real_terminal(
    shown: Callable[[], AbstractContextManager[object]],
) -> None:
    ours, theirs = pty.openpty()
    seen = b""
    with open(theirs, "w") as stderr, contextlib.redirect_stderr(stderr), visible_only(), shown():
        while seen.count(b"asking") < 3:
            seen += os.read(ours, 4096)
        print("\x07said\x1b]0;title\x07 meanwhile", file=sys.stderr)
        while b"meanwhile" not in seen:
            seen += os.read(ours, 4096)
    os.close(ours)
    assert seen.count(b"\r\x1b[2K") >= 2, seen
    assert b"asking?" not in seen
    assert not re.search(rb"\x07|\x1b\]0", seen), "what is printed meanwhile controls nothing"


def test_messages_break_between_words_where_a_terminal_is_too_narrow() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    told = "srobust: error: the job has no node left\n  fix: read 'srobust status 4711' for what it waits now"
    with open(theirs, "w") as stderr, contextlib.redirect_stderr(stderr), visible_only():
        print(told, file=sys.stderr)
        print("drill it, which costs a standby. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        seen = ""
        while "[y/N] " not in seen:
            seen += os.read(ours, 4096).decode()
    os.close(ours)
    assert seen.splitlines() == [
        "srobust: error: the job has no node left",
        "  fix: read 'srobust status 4711' for",
        "    what it waits now",
        "drill it, which costs a standby. Go on?",
        "  [y/N] ",
    ]


def test_nothing_is_shown_of_what_is_quick() -> None:
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal), Bar("quick"):
        pass
    assert terminal.getvalue() == ""
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.mark.usefixtures("terminal")
def test_nothing_is_shown_where_there_is_no_terminal(terminal: Terminal) -> None:
    plain = io.StringIO()
    with contextlib.redirect_stderr(plain), Bar("verifying", 10, BYTES) as bar:
        bar.advance(5)
    with contextlib.redirect_stderr(terminal), Bar("verifying", 10, BYTES, quiet=True) as bar:
        bar.advance(5)
    assert (plain.getvalue(), terminal.getvalue()) == ("", "")


def test_no_line_for_a_file_or_a_program_ends_with_blanks() -> None:
    out = io.StringIO()
    table = console.facts_table([("name", "a long value"), ("longer name", "b"), ("nothing", "")])
    with contextlib.redirect_stdout(out):
        console.show(Group(Text("head  "), "", table, console.indented("end")), lambda it: it, json=False)
    assert out.getvalue() == "head\n\nname         a long value\nlonger name  b\nnothing\n  end\n"


@pytest.mark.parametrize(
    ("given", "columns"), [("60", 60), ("7", 40), ("", 100), ("-1", 100), ("9" * 9, 100)]
)
def test_an_output_that_is_no_terminal_is_as_wide_as_its_reader_says(
    given: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", given)
    with contextlib.redirect_stdout(io.StringIO()):
        assert Screen().width == columns


def shown_table(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, columns: str) -> list[str]:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    table = console.told_table(
        ("#", "what"), [("7", Text("rank 3 " * 20)), ("12", "two\nlines")], right=("#",)
    )
    with contextlib.redirect_stdout(out):
        console.show(Group(Text("head"), table), lambda it: it, json=False)
    return out.getvalue().splitlines()


def test_a_row_of_a_table_is_one_line_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_table(monkeypatch, io.StringIO(), "80")
    assert shown == ["head", " #  what", f" 7  {'rank 3 ' * 20}".rstrip(), "12  two lines"]


def test_a_table_on_a_terminal_has_a_line_below_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_table(monkeypatch, Terminal(), "80")
    assert [line for line in shown if "─" in line]
    assert max(map(cell_len, shown)) <= 80
    assert len(shown) > 6


def test_a_line_that_is_wrapped_keeps_a_command_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    line = "fix: the job's owner writes 'scontrol update JobId=7' or another's"
    for out, shown in (
        (Terminal(), "fix: the job's owner writes\n     'scontrol update JobId=7' or\n     another's\n"),
        (io.StringIO(), f"{line}\n"),
    ):
        with contextlib.redirect_stdout(out):
            console.show(console.Wrapped(line, " " * 5), lambda it: it, json=False)
        assert out.getvalue() == shown


def test_all_tables_are_of_one_kind() -> None:
    """What draws a table by itself would draw it in a pipe, too."""
    package = Path(console.__file__).parents[1]
    drawn = re.compile(r"rich\.(table|rule|panel|columns|tree)\b|import box\b")
    found = [
        str(path.relative_to(package)) for path in package.rglob("*.py") if drawn.search(path.read_text())
    ]
    assert found == ["terminal/console.py"]
