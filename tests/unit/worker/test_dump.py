"""What a worker prepares for its agent; what becomes of it is shown in tests/unit/agent/stacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.worker.dump import DUMP_SIGNAL
from tests.forked_python import run_python
from tests.waiting import wait_for

PREPARE = "import os, sys\nfrom slurm_robust.worker import dump\ndump.prepare(sys.argv[1])\n"


def run(code: str, record: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(record)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def run_fork(code: str, record: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same in a fork with PyTorch, where the interpreter's own end is not looked at."""
    return run_python("-c", code, record, env={**os.environ, **environ})


def test_the_signal_has_all_calls_written_beside_the_record(tmp_path: Path) -> None:
    code = PREPARE + "def f(): os.kill(os.getpid(), dump.DUMP_SIGNAL)\nf()\nf()\n"
    found = run(code, tmp_path / "rank-00000.rec")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert (tmp_path / "rank-00000.stacks").read_text().count(" in f\n") == 2


def test_the_dump_signal_is_a_real_time_signal_that_programs_rarely_use() -> None:
    assert signal.SIGRTMIN + 8 < DUMP_SIGNAL <= signal.SIGRTMAX


def test_a_fork_has_the_handler_and_a_program_has_not(tmp_path: Path) -> None:
    code = PREPARE + (
        "if os.fork() == 0:\n"
        "    os.kill(os.getpid(), dump.DUMP_SIGNAL)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
        "os.execv('/bin/sh', ['sh', '-c', f'kill -{int(dump.DUMP_SIGNAL)} $$'])\n"
    )
    found = run(code, tmp_path / "rank-00000.rec")
    assert (found.stdout, found.returncode) == ("0\n", -DUMP_SIGNAL)
    assert "<module>" in (tmp_path / "rank-00000.stacks").read_text()


def test_a_worker_that_cannot_prepare_says_so_and_trains(tmp_path: Path) -> None:
    found = run(PREPARE + "print('trains')\n", tmp_path / "missing" / "rank-00000.rec")
    assert (found.returncode, found.stdout) == (0, "trains\n")
    assert "a hang of this rank will leave less evidence" in found.stderr


def test_permission_to_trace_harms_nothing(tmp_path: Path) -> None:
    code = PREPARE + (
        "dump.allow_tracing(os.getppid())\n"
        "if os.fork() == 0: os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    found = run(code, tmp_path / "rank-00000.rec")
    assert (found.returncode, found.stdout, found.stderr) == (0, "3\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "serves"), [("2", True), ("1", False)])
def test_the_recorder_is_served_silently_where_there_are_collectives(
    world: str, serves: bool, tmp_path: Path
) -> None:
    """Also the end of such a process, and of a fork of it that tears the interpreter down, is a quiet one."""
    code = (
        "import warnings, torch\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # of Python 3.12 at a fork beside threads
        + PREPARE
        + (
            "print(os.path.exists(sys.argv[1].replace('.rec', '.sock')), flush=True)\n"
            "if os.fork() == 0: sys.exit(0)\n"
            "os.wait()\n"
            "print('also on stderr', file=sys.stderr)\n"
        )
    )
    if serves:
        found = run(code, tmp_path / "rank-00000.rec", WORLD_SIZE=world)
    else:
        found = run_fork(code, tmp_path / "rank-00000.rec", WORLD_SIZE=world)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{serves}\n", "also on stderr\n")


@pytest.mark.slow
def test_a_path_too_long_for_a_socket_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    found = run_fork("import torch\n" + PREPARE, folder / "rank-00000.rec", WORLD_SIZE="2")
    assert (found.returncode, found.stderr) == (0, "")
    assert wait_for(lambda: [file.name for file in folder.iterdir()]) == ["rank-00000.stacks"]
