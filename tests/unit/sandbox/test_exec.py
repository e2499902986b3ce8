"""A command inside of a sandbox, without a terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_for

RUN = "import sys; from slurm_robust.cli.sandbox import run_whole; sys.exit(run_whole(sys.argv[1:]))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_that_a_command_has_started(number: signal.Signals) -> None:
    script = "sleep 60 & echo $!; wait; echo after"
    with subprocess.Popen(
        [sys.executable, "-c", RUN, "bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        sleeper = Path("/proc", program.stdout.readline().strip())
        assert sleeper.exists()
        program.send_signal(number)
        assert program.wait(30) == 128 + number
        wait_for(lambda: not sleeper.exists(), 30, "the command's child is gone")
        assert program.stdout.read() == ""


def test_the_exit_code_is_the_commands() -> None:
    done = subprocess.run([sys.executable, "-c", RUN, "sh", "-c", "exit 7"], check=False, timeout=60)
    assert done.returncode == 7
