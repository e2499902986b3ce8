"""Small programs that stand for workers without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.util.proc import read_process
from slurm_robust.worker.dump import STACKS_SUFFIX
from tests.waiting import wait_for

PREPARE = """
import os, signal, sys, threading
from slurm_robust.worker import dump
dump.prepare(sys.argv[1])
"""
# Waits until the test closes its end, and says so.
HANG = """
print("up", flush=True)
def hangs():
    sys.stdin.read()
hangs()
print("went on", flush=True)
"""


class Program:
    """A running program that hangs until its input ends."""

    def __init__(self, process: subprocess.Popen[str], file: Path) -> None:
        self._process = process
        self.pid = process.pid
        self.file = file

    def state(self) -> str:
        return state_of(self.pid)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def goes_on(self) -> bool:
        """Let it end; whether that is what it does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.line() == "went on" and self._process.wait(60) == 0


def state_of(pid: int) -> str:
    """The letter of its state; "" for a process that has ended."""
    found = read_process(pid)
    return found.state if found else ""


@contextmanager
def program(code: str, folder: Path) -> Iterator[Program]:
    """Python that runs ``code`` up to the line ``up``, and is killed at the end."""
    record = folder / "rank-00000.rec"
    command = [sys.executable, "-c", code, str(record)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            running = Program(process, record.with_suffix(STACKS_SUFFIX))
            assert running.line() == "up"
            wait_for(lambda: running.state() in ("S", "D", "T"), message="it hangs")
            yield running
        finally:
            process.kill()
