"""The networks of the benchmark of copies over several connections: they go with it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import common
from tests.users import as_root
from tests.waiting import wait_for

_RUN = """
import subprocess, sys
from benchmarks.peer_streams import joined
from benchmarks.scratch import cleanly
def main():
    with joined("unlimited", 1.0, 0.0, has_netem=True) as (one, other):
        cat = subprocess.Popen(one.inside("sh", "-c", "echo; exec cat"), stdout=subprocess.PIPE)
        cat.stdout.readline()
        print(one.pid, other.pid, cat.pid, flush=True)
        cat.wait()
sys.exit(cleanly(main))
"""


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_networks_and_what_runs_in_them_end_with_the_benchmark(number: signal.Signals) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _RUN], cwd=common.ROOT, stdin=pipe, stdout=pipe, text=True
    ) as run:
        try:
            assert run.stdout is not None
            pids = run.stdout.readline().split()
            assert len({os.readlink(f"/proc/{pid}/ns/net") for pid in pids}) == 2
            run.send_signal(number)
            wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10.0)
        finally:
            run.kill()
