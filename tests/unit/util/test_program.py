"""Programs whose time and output have a bound."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from slurm_robust.util.program import Ended, run_program
from tests.waiting import wait_for


def run(script: str, limit_s: float = 20.0, *, own_session: bool = True) -> Ended:
    return run_program(
        ["/bin/sh", "-c", script], limit_s=limit_s, max_bytes=2**20, own_session=own_session, stdin=b"given"
    )


def is_gone(pid: int) -> bool:
    """Dead, and maybe not reaped by whoever has it now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo good; echo bad >&2; exit 3", Ended(3, b"good\n", b"bad\n")),
        ("kill -9 $$", Ended(-9, b"")),
        ("exec >&- 2>&-; exit 2", Ended(2, b"")),
        ("cat", Ended(0, b"given")),
    ],
)
def test_a_program_that_ends(script: str, expected: Ended) -> None:
    assert run(script) == expected
    assert run(script, own_session=False) == expected


def test_only_the_end_of_much_output_is_kept_and_all_of_it_is_read() -> None:
    script = "import sys; sys.stdout.write('x' * 3_000_000 + 'end')"
    done = run_program([sys.executable, "-c", script], limit_s=30.0, max_bytes=1000)
    assert done == Ended(0, b"x" * 997 + b"end")


def test_errors_are_part_of_the_output_if_they_are_merged() -> None:
    command = ["/bin/sh", "-c", "echo 1; echo 2 >&2; echo 3"]
    assert run_program(command, limit_s=20.0, max_bytes=100, merge=True) == Ended(0, b"1\n2\n3\n")


def test_without_input_a_program_reads_its_end() -> None:
    assert run_program(["/bin/cat"], limit_s=20.0, max_bytes=100) == Ended(0, b"")


@pytest.mark.parametrize("leaves", ["tail -f /dev/null", "yes"])
@pytest.mark.parametrize("own", [True, False])
def test_what_a_program_leaves_behind_holds_up_nobody(own: bool, leaves: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    done = run(f"{leaves} & echo $! >{tmp_path}/pid", own_session=own)
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert done.code == 0
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("script", ["tail -f /dev/null & echo $!; wait", "yes & echo $! >&2; wait"])
def test_at_the_end_of_its_time_a_program_is_killed_with_its_children(
    script: str, own: bool, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    begun = time.monotonic()
    done = run(script.replace("echo $! >&2", f"echo $! >{note}"), 0.4, own_session=own)
    assert done.code is None
    assert time.monotonic() - begun < 10
    child = int(note.read_text() if note.exists() else done.output)
    wait_for(lambda: is_gone(child))


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        run_program(["/absent"], limit_s=1.0, max_bytes=10)
    with pytest.raises(ValueError, match="null byte"):
        run_program(["/bin/echo", "\0"], limit_s=1.0, max_bytes=10)
