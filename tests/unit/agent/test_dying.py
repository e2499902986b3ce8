"""Whether killed workers get further, by what /proc says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.agent.dying import DeathWatch


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


def test_nobody_dies(proc: Proc) -> None:
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


def test_this_kernels_own_files_are_understood() -> None:
    if "nr_foll_pin_released" not in Path("/proc/vmstat").read_text():
        pytest.skip("this kernel does not count what drivers let go")
    assert DeathWatch().still_s((os.getpid(),), 100.0) == 0.0
