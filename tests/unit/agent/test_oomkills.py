"""What the kernel's counters say about kills for want of memory, in both versions of cgroups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.agent.oomkills import OomKills

STEP = "slurm/uid_1/job_7/step_0"


class Machine:
    """A job with a limit of 64 GB above its step, below an unlimited root."""

    def __init__(self, path: Path, version: int) -> None:
        self.version = version
        self.proc, self.cgroups = path / "proc", path / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        line = f"0::/{STEP}" if version == 2 else f"3:cpu,cpuacct:/x\n5:memory:/{STEP}\n0::/"
        (self.proc / "self" / "cgroup").write_text(line + "\n")
        self.root = self.cgroups if version == 2 else self.cgroups / "memory"
        self.write(STEP)
        self.write("slurm/uid_1/job_7", limit=64_000_000_000)
        self.oom = OomKills(self.proc, self.cgroups)

    def write(self, name: str, kills: int = 0, reached: int = 0, limit: int | None = None) -> None:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        if self.version == 2:
            (folder / "memory.events").write_text(f"low 0\nmax 9\noom {reached}\noom_kill {kills}\n")
            (folder / "memory.max").write_text("max\n" if limit is None else f"{limit}\n")
        else:
            (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
            (folder / "memory.failcnt").write_text(f"{reached}\n")
            (folder / "memory.limit_in_bytes").write_text(f"{limit or 9223372036854771712}\n")


@pytest.fixture(params=[1, 2])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_the_limit_that_was_hit_is_named(machine: Machine) -> None:
    machine.oom.begin()
    assert machine.oom.reason() == ""
    machine.write(STEP, kills=1)
    machine.write("slurm/uid_1/job_7", reached=40, limit=64_000_000_000)
    assert machine.oom.reason() == "out of memory in the job's cgroup (limit 64 GB)"
    machine.oom.begin()
    assert machine.oom.reason() == ""


def test_a_node_without_memory_is_not_the_jobs_limit(machine: Machine) -> None:
    machine.oom.begin()
    machine.write(STEP, kills=1)
    assert machine.oom.reason() == "out of memory on the node, below the job's own limit"


def test_a_limit_that_is_reached_without_a_kill_is_nothing(machine: Machine) -> None:
    machine.oom.begin()
    machine.write("slurm/uid_1/job_7", reached=40, limit=64_000_000_000)
    assert machine.oom.reason() == ""


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    oom = OomKills(tmp_path, tmp_path)
    oom.begin()
    assert oom.reason() == ""


@pytest.fixture
def real_cgroup() -> Iterator[Path]:
    """A memory cgroup of this machine, of 100 MB."""
    group = Path(f"/sys/fs/cgroup/memory/srobust-test-{os.getpid()}-{time.monotonic_ns()}")
    if os.getuid() or not (group.parent / "memory.oom_control").exists():
        pytest.skip("needs root and memory cgroups of version 1")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(100_000_000))
    yield group
    group.rmdir()


GREEDY = """
import os, sys
from pathlib import Path
from slurm_robust.agent.oomkills import OomKills
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
kills = OomKills()
kills.begin()
if (child := os.fork()) == 0:
    Path("/proc/self/oom_score_adj").write_text("1000")
    hoard = []
    while True:
        hoard.append(bytearray(b"x") * (8 << 20))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), kills.reason())
"""


def test_a_real_kill(real_cgroup: Path) -> None:
    command = [sys.executable, "-c", GREEDY, str(real_cgroup)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "-9 out of memory in the job's cgroup (limit 0.1 GB)\n"
