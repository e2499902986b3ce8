"""Spare CPUs are those that were idle, and each process takes its share of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.util.proc import cpu_idle_s
from slurm_robust.util.spare_cpus import SpareCpus

TICKS = os.sysconf("SC_CLK_TCK")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def idle(proc: Path, **seconds: float) -> None:
    """Write the counters of these CPUs; a sixth of what is idle waits for a disk."""
    rows = [
        f"{cpu} 7 7 7 {int(s * TICKS * 5 / 6)} {int(s * TICKS / 6)} 7 7 0 0 0" for cpu, s in seconds.items()
    ]
    (proc / "stat").write_text("\n".join(["cpu 1 1 1 999999 1 1 1 0 0 0", *rows, "intr 5 5", ""]))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def cpus(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """The CPUs of this process and of its parent, of 12 that there are."""
    found = {0: {0, 1, 10}, os.getppid(): {0, 1, 10}}
    monkeypatch.setattr(os, "sched_getaffinity", found.__getitem__)
    return found


def test_only_the_time_of_ones_own_cpus_counts(tmp_path: Path) -> None:
    idle(tmp_path, cpu0=6, cpu1=12, cpu10=18, cpu11=600)
    assert cpu_idle_s({0, 1, 10}, tmp_path) == pytest.approx(36, abs=0.1)
    assert cpu_idle_s({0}, tmp_path / "nothing") == 0


def test_ranks_share_the_cpus_that_were_idle(tmp_path: Path, clock: Clock) -> None:
    idle(tmp_path, cpu0=0, cpu1=0, cpu10=0)
    alone, one_of_two = (SpareCpus(n, tmp_path, clock) for n in (1, 2))
    assert alone.count() == 0  # not known yet
    clock.now += 6
    idle(tmp_path, cpu0=6, cpu1=6, cpu10=3)
    assert alone.count() == pytest.approx(2.5, abs=0.01)
    assert one_of_two.count() == pytest.approx(1.25, abs=0.01)


def test_ranks_on_other_cpus_do_not_count(tmp_path: Path, clock: Clock, cpus: dict[int, set[int]]) -> None:
    cpus[os.getppid()] = {0, 1, 2, 3, 10, 11}
    idle(tmp_path, cpu0=0, cpu1=0, cpu10=0)
    one_of_two_on_this_half = SpareCpus(4, tmp_path, clock)
    clock.now += 6
    idle(tmp_path, cpu0=6, cpu1=6, cpu10=6)
    assert one_of_two_on_this_half.count() == pytest.approx(1.5, abs=0.01)


def test_busy_cpus_are_not_spare_any_more(tmp_path: Path, clock: Clock) -> None:
    idle(tmp_path, cpu0=0, cpu1=0, cpu10=0)
    spare = SpareCpus(1, tmp_path, clock)
    clock.now += 6
    idle(tmp_path, cpu0=6, cpu1=6, cpu10=6)
    assert spare.count() == pytest.approx(3, abs=0.01)
    clock.now += 0.1  # the counters are too coarse for so little
    assert spare.count() == pytest.approx(3, abs=0.01)
    clock.now += 6
    assert spare.count() == 0
