"""The app itself: by Textual's own pilot at 80×24, and once in a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from textual.pilot import Pilot

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.live_status import LiveNode, NodeState
from slurm_robust.report.top.app import JobPage, Rows, Top
from slurm_robust.report.top.feed import JobFeed
from tests.builders.live_statuses import live_node
from tests.unit.report.top.fake_folder import FakeFolder
from tests.waiting import HANG_S

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\u202e\ud7ff"


def text_of(app: Top) -> str:
    """What the terminal shows."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()[:height]
    return "\n".join("".join(segment.text for segment in line)[:width].rstrip() for line in lines)


async def until(pilot: Pilot[None], app: Top, part: str, without: str = "\0") -> str:
    """What is shown once it has ``part``, and not ``without`` below the line of columns."""
    end = time.monotonic() + HANG_S
    while part not in (text := text_of(app)) or without in text.partition("  s/step ")[2]:
        assert time.monotonic() < end, f"no {part!r}, or still {without!r}, in\n{text}"
        await pilot.pause(0.02)
    return text


def run(folders: list[FakeFolder], test: Callable[[Pilot[None], Top], Awaitable[None]]) -> None:
    """Run ``test`` with the app on a screen of 80×24; it looks at the jobs twenty times a second."""

    async def go() -> None:
        app = Top([JobFeed(folder.directory) for folder in folders], every_s=0.05)
        async with app.run_test(size=(80, 24)) as pilot:
            await test(pilot, app)

    asyncio.run(go())


@pytest.fixture
def folder(tmp_path: Path) -> FakeFolder:
    made = FakeFolder(tmp_path / "4711", nodes=1200)
    nodes = (
        *(live_node(slot) for slot in range(1199)),
        live_node(1199, state=NodeState.SILENT, heard_s=7.0),
        LiveNode(node="sp1", state=NodeState.STANDBY, why="rehearsed"),
    )
    made.show(t=time.time(), nodes=nodes, world=9600)
    return made


def test_top_shows_moves_sorts_and_filters(folder: FakeFolder) -> None:
    async def test(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "gpu0000")
        text = await until(pilot, app, "1,200: 1,199 training, 1 silent; standbys: 1 rehearsed")
        assert len(text.splitlines()) == 24
        await pilot.press("down", "down")
        await until(pilot, app, "gpu0002  slot 2, ranks 16-23")
        await pilot.press("end")
        await until(pilot, app, "sp1  no slot: standby")
        await pilot.press("pageup")
        await until(pilot, app, "gpu11", without="sp1  no slot")
        await pilot.press("w")
        await until(pilot, app, "gpu1199", without="gpu1198")
        await pilot.press("w", "s")
        await until(pilot, app, "sort: wrong first")
        await pilot.press("home")
        await until(pilot, app, "gpu1199  slot 1199")

    run([folder], test)


def test_top_follows_the_job_and_keeps_the_selected_node(folder: FakeFolder) -> None:
    async def test(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "gpu0000")
        await pilot.press("down")
        folder.show(t=time.time(), nodes=(live_node(1, phase="evaluation"), live_node(0)), step=2345)
        await until(pilot, app, "step 2,345")
        await until(pilot, app, "gpu0001  slot 1")
        await pilot.resize_terminal(132, 40)
        await until(pilot, app, "disk")

    run([folder], test)


def test_a_look_at_the_job_takes_back_no_key_that_was_just_pressed(folder: FakeFolder) -> None:
    """Whichever of the two messages comes first, that of the key or that of the look."""

    async def test(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "gpu0000")
        page = app.page
        assert isinstance(page, JobPage)
        rows = page.query_one("#nodes", Rows)
        for place in (1, 2):
            rows.action_move(1)
            page.redraw()
            assert rows.cursor == place
        page.action_wrong()
        page.redraw()
        await until(pilot, app, "gpu1199", without="gpu0002")

    run([folder], test)


def test_help_and_incidents_open_and_close(folder: FakeFolder) -> None:
    async def test(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "gpu0000")
        await pilot.press("question_mark")
        await until(pilot, app, "srobust top: help")
        await pilot.press("escape", "i")
        await until(pilot, app, "incidents of job 4711")
        await pilot.press("escape", "escape")
        await until(pilot, app, "gpu0000")
        await pilot.press("q")

    run([folder], test)


def test_a_filter_and_a_node_open_and_close(folder: FakeFolder) -> None:
    async def test(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "gpu0000")
        await pilot.press("slash", "1", "1", "9", "9")
        await until(pilot, app, "gpu1199", without="gpu0000")
        await pilot.press("enter", "enter")
        await until(pilot, app, "srobust top: node gpu1199")
        await until(pilot, app, "rank 9592 has written nothing")
        await pilot.press("escape")
        await until(pilot, app, "filter: 1199")
        await pilot.press("escape", "home")
        await until(pilot, app, "gpu0000")

    run([folder], test)


def test_several_jobs_are_a_list_of_which_one_opens(folder: FakeFolder, tmp_path: Path) -> None:
    other = FakeFolder(tmp_path / "4712")

    async def test(pilot: Pilot[None], app: Top) -> None:
        text = await until(pilot, app, "not live")
        assert "4711" in text
        await pilot.press("down", "enter")
        await until(pilot, app, "by the journal alone")
        await pilot.press("escape")
        await until(pilot, app, "srobust top: 2 jobs")

    run([folder, other], test)


def test_hostile_names_control_nothing(folder: FakeFolder) -> None:
    node = LiveNode(node=HOSTILE, state=NodeState.EVICTED, why=HOSTILE, alerts=(HOSTILE,))
    folder.show(t=time.time(), nodes=(node,), host=HOSTILE, stage_why=HOSTILE)

    async def test(pilot: Pilot[None], app: Top) -> None:
        text = await until(pilot, app, "evicted")
        assert all(line.isprintable() for line in text.splitlines())
        assert "[bold red]x[/]" in text

    run([folder], test)


# -- in a terminal ---------------------------------------------------------------------------------


class Terminal:
    """The command in a terminal of 80×24."""

    def __init__(self, words: list[str], environ: Mapping[str, str]) -> None:
        self.seen = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(words[0], words, dict(environ))
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def read_until(self, part: bytes) -> None:
        end = time.monotonic() + HANG_S
        while part not in self.seen:
            assert time.monotonic() < end, self.seen[-3000:]
            if select.select([self._fd], [], [], 0.1)[0]:
                self.seen += os.read(self._fd, 1 << 16)

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def end(self) -> int:
        """The exit code."""
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:
                break
            if not data:
                break
            self.seen += data
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(folder: FakeFolder, **environ: str) -> Terminal:
    words = [sys.executable, "-m", "slurm_robust.cli", "top", str(folder.directory.path)]
    return Terminal(
        words, {"TERM": "xterm-256color", "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environ}
    )


COLOR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)(?:;\d+)*m")


@pytest.mark.slow
def test_in_a_terminal_without_colors_it_starts_and_q_ends_it(folder: FakeFolder) -> None:
    terminal = start(folder, NO_COLOR="1")
    terminal.read_until(b"gpu0003")
    terminal.press(b"q")
    assert terminal.end() == 0
    assert not COLOR.search(terminal.seen)
    assert b"\x1b[?1049l" in terminal.seen  # the screen is given back


@pytest.mark.slow
def test_a_terminal_that_cannot_move_its_cursor_is_told_what_to_use(folder: FakeFolder) -> None:
    terminal = start(folder, TERM="dumb")
    assert terminal.end() == ExitCode.USAGE
    assert b"--watch" in terminal.seen
