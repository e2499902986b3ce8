"""Whether killed workers get further, by what /proc says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.agent.deaths import DeathWatch, OomKills


class Proc:
    """A /proc with the memory of processes and the count of pages that drivers have let go."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def memory(self, pid: int, pages: int) -> None:
        (self.path / str(pid)).mkdir(exist_ok=True)
        (self.path / str(pid) / "statm").write_text(f"{pages + 100} {pages} 7 1 0 {pages} 0\n")

    def released(self, pages: int) -> None:
        (self.path / "vmstat").write_text(
            f"nr_foll_pin_acquired 900000\nnr_foll_pin_released {pages}\npgpgin 1\n"
        )


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    proc = Proc(tmp_path)
    proc.released(1000)
    for pid in (7, 8):
        proc.memory(pid, 500)
    return proc


def test_without_dying_workers_nothing_stands_still(proc: Proc) -> None:
    assert DeathWatch(proc.path).still_s((), 100.0) is None


def test_standing_still_is_counted_from_the_first_reading(proc: Proc) -> None:
    watch = DeathWatch(proc.path)
    assert [watch.still_s((7, 8), now) for now in (100.0, 101.0, 140.0)] == [0.0, 1.0, 40.0]


def test_pages_that_a_driver_lets_go_are_movement(proc: Proc) -> None:
    watch = DeathWatch(proc.path)
    watch.still_s((7, 8), 100.0)
    proc.released(1001)
    assert watch.still_s((7, 8), 120.0) == 0.0
    assert watch.still_s((7, 8), 121.0) == 1.0


def test_memory_that_shrinks_and_a_worker_that_ends_are_movement(proc: Proc) -> None:
    watch = DeathWatch(proc.path)
    watch.still_s((7, 8), 100.0)
    proc.memory(7, 499)
    assert watch.still_s((7, 8), 110.0) == 0.0
    assert watch.still_s((7,), 120.0) == 0.0
    assert watch.still_s((7,), 125.0) == 5.0


def test_the_next_death_is_counted_anew(proc: Proc) -> None:
    watch = DeathWatch(proc.path)
    watch.still_s((7, 8), 100.0)
    watch.still_s((), 101.0)
    assert watch.still_s((7, 8), 200.0) == 0.0


def test_a_kernel_that_does_not_count_says_nothing(proc: Proc) -> None:
    (proc.path / "vmstat").write_text("pgpgin 1\n")
    assert DeathWatch(proc.path).still_s((7, 8), 100.0) is None
    (proc.path / "vmstat").unlink()
    assert DeathWatch(proc.path).still_s((7, 8), 100.0) is None


def test_a_worker_that_is_gone_holds_nothing(proc: Proc) -> None:
    watch = DeathWatch(proc.path)
    assert watch.still_s((7, 99), 100.0) == 0.0
    assert watch.still_s((7, 99), 101.0) == 1.0


def test_the_files_of_the_running_kernel_are_understood() -> None:
    if "nr_foll_pin_released" not in Path("/proc/vmstat").read_text():
        pytest.skip("this kernel does not count what drivers let go")
    assert DeathWatch().still_s((os.getpid(),), 100.0) == 0.0


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


def test_a_container_does_not_show_whose_limit_was_hit(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    oom = OomKills(tmp_path, tmp_path)
    (tmp_path / "memory.events").write_text("oom 0\noom_kill 0\n")
    oom.begin()
    (tmp_path / "memory.events").write_text("oom 0\noom_kill 1\n")
    assert "which the container does not show" in oom.reason()


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
from slurm_robust.agent.deaths import OomKills
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


def test_a_kill_by_the_real_kernel_for_want_of_memory_is_explained(real_cgroup: Path) -> None:
    command = [sys.executable, "-c", GREEDY, str(real_cgroup)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "-9 out of memory in the job's cgroup (limit 0.1 GB)\n"
