"""Programs whose time and output have a bound."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from slurm_robust.util.bounded import Ended, run_bounded
from tests.waiting import wait_for


def run(script: str, limit_s: float = 20.0, *, errors: bool = True, own_session: bool = True) -> Ended:
    return run_bounded(
        ["/bin/sh", "-c", script], limit_s=limit_s, most_bytes=2**20, errors=errors, own_session=own_session
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
        ("echo good; echo bad >&2; exit 3", Ended(3, b"good\nbad\n")),
        ("kill -9 $$", Ended(-9, b"")),
        ("exec >&- 2>&-; exit 2", Ended(2, b"")),
        ("cat", Ended(0, b"")),
    ],
)
def test_a_program_that_ends(script: str, expected: Ended) -> None:
    assert run(script) == expected
    assert run(script, own_session=False) == expected


def test_only_the_end_of_much_output_is_kept_and_all_of_it_is_read() -> None:
    script = "import sys; sys.stdout.write('x' * 3_000_000 + 'end')"
    done = run_bounded([sys.executable, "-c", script], limit_s=30.0, most_bytes=1000)
    assert done == Ended(0, b"x" * 997 + b"end")


def test_errors_are_left_out_where_nobody_wants_them() -> None:
    assert run("echo good; echo bad >&2", errors=False) == Ended(0, b"good\n")


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
        run_bounded(["/absent"], limit_s=1.0, most_bytes=10)
    with pytest.raises(ValueError, match="null byte"):
        run_bounded(["/bin/echo", "\0"], limit_s=1.0, most_bytes=10)
