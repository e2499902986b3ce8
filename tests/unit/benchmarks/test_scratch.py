"""What ends a run of a benchmark: its folder in shared memory goes with it, now or before the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.scratch import PREFIX, scratch
from tests.users import NOBODY, as_root

_RUN = """
import signal, sys
from pathlib import Path
from benchmarks.scratch import cleanly, scratch
def main():
    with scratch("run", Path(sys.argv[1])) as folder:
        (folder / "data").touch()
        print(folder, flush=True)
        signal.pause()
sys.exit(cleanly(main))
"""


@contextmanager
def a_run(base: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """One that goes on until the block ends, and its folder."""
    words = [sys.executable, "-c", _RUN, str(base)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=common.ROOT, stdout=pipe, stderr=pipe, text=True) as run:
        try:
            assert run.stdout is not None
            yield run, Path(run.stdout.readline().strip())
        finally:
            run.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_signal_ends_a_run_with_its_folder_one_line_and_the_code_of_shells(
    number: signal.Signals, tmp_path: Path
) -> None:
    with a_run(tmp_path) as (run, folder):
        assert folder.is_dir()
        run.send_signal(number)
        _, error = run.communicate(timeout=30)
    assert (run.returncode, error) == (128 + number, f"ended by {number.name}\n")
    assert not folder.exists()


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_of_one_that_lives(tmp_path: Path) -> None:
    with a_run(tmp_path) as (living, kept), a_run(tmp_path) as (killed, left):
        killed.kill()
        killed.wait(30)
        assert (left / "data").exists()
        with scratch("next", tmp_path) as folder:
            assert sorted(tmp_path.iterdir()) == sorted((kept, folder))
            assert (kept / "data").exists()
        living.terminate()
        living.wait(30)
    assert list(tmp_path.iterdir()) == []


def test_only_folders_of_benchmarks_are_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    base, strange = tmp_path / "shm", tmp_path / "strange"
    for folder in (base, strange, base / "bench-of-others"):
        folder.mkdir()
        (folder / "data").touch()
    (base / f"{PREFIX}link").symlink_to(strange)
    with scratch("next", base):
        assert (strange / "data").exists()
        assert (base / "bench-of-others" / "data").exists()


@as_root
def test_a_folder_of_another_user_stays(tmp_path: Path) -> None:
    others = tmp_path / f"{PREFIX}others"
    others.mkdir()
    os.chown(others, NOBODY, NOBODY)
    with scratch("next", tmp_path):
        assert others.is_dir()
