"""Programs whose caller has closed their standard files, as ``>&-`` does."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLAN = "slurm_robust.cli checkpoint plan --params 7B --layout 2x8 --node-memory"


def run(program: str, closed: str) -> tuple[int, str, str]:
    """The exit code of ``program`` without the files that ``closed`` closes, and what it printed."""
    command = f"{sys.executable} -m {program} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (f"{PLAN} 2T", 0),
        (f"{PLAN} 60G", 1),
        (f"{PLAN} 2T --json", 0),
        ("slurm_robust.cli version", 0),
        ("slurm_robust.hooks.command --help", 0),
    ],
)
def test_a_program_without_standard_output_says_by_its_exit_code_what_it_found(
    program: str, code: int
) -> None:
    assert run(program, ">&-") == (code, "", "")


def test_a_program_without_any_standard_file_works() -> None:
    assert run(f"{PLAN} 60G", "<&- >&- 2>&-")[0] == 1


def test_a_closed_file_is_open_for_programs_that_are_started() -> None:
    child = "import subprocess, sys; sys.exit(subprocess.call(['sh', '-c', 'echo x']))"
    code = f"from slurm_robust.util.standard_files import open_standard_files as o; o(); {child}"
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" >&-', sys.executable, code], timeout=60, check=False)
    assert done.returncode == 0
