"""Memory: its size, what is free, and its errors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import MemoryLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome, Suggestion
from slurm_robust.nodes.checks import memory
from slurm_robust.nodes.checks.memory import Controller, MemoryFacts
from tests.machines import MACHINES
from tests.unit.nodes.host_files import only, plant, view

CONFIG = NodeConfig()
MEMINFO = """MemTotal:       2113548288 kB
MemFree:        1900000000 kB
MemAvailable:   2000000000 kB
Shmem:             1048576 kB
HugePages_Total:      10
Hugepagesize:       2048 kB
VmallocUsed:     no number"""


def test_memory_is_read_in_mib(tmp_path: Path) -> None:
    host = plant(tmp_path, {"/proc/meminfo": MEMINFO.replace("no number", "7"), "/dev/shm/file": "x"})
    facts = memory.gather(host, CONFIG)
    assert (facts.total, facts.available, facts.shared, facts.huge) == (2064012, 1953125, 1024, 20)
    assert facts.shm_total is not None
    files = {"/proc/meminfo": MEMINFO.replace("no number", "7") + "\nHugetlb: 1048576 kB"}
    assert memory.gather(plant(tmp_path / "newer", files), CONFIG).huge == 1024


def test_memory_that_is_not_reported_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="meminfo"):
        memory.gather(Host(tmp_path), CONFIG)
    with pytest.raises(RuntimeError, match="MemAvailable"):
        memory.gather(plant(tmp_path, {"/proc/meminfo": "MemTotal: 7 kB"}), CONFIG)


@pytest.mark.parametrize(("before", "now"), [("gb200", "gb200-cdmm"), ("gb200-cdmm", "gb200")])
def test_memory_of_gpus_comes_and_goes(before: str, now: str) -> None:
    """Their driver is not loaded yet, or in the other mode."""
    baseline, facts = (memory.gather(Host(MACHINES / name), CONFIG) for name in (before, now))
    assert only(memory.judge_size(view(facts, baseline=baseline), CONFIG)).outcome is Outcome.PASS


def test_memory_of_gpus_hides_no_module_that_is_gone() -> None:
    facts = memory.gather(Host(MACHINES / "gb200"), CONFIG)
    less = msgspec.structs.replace(facts, total=facts.total - 489795)  # one Grace
    assert only(memory.judge_size(view(less, baseline=facts), CONFIG)).outcome is Outcome.FAIL


def test_a_baseline_of_a_release_that_counted_memory_of_gpus_still_fits() -> None:
    facts = memory.gather(Host(MACHINES / "gb200"), CONFIG)
    older = MemoryFacts(total=facts.total, available=1)
    assert only(memory.judge_size(view(facts, baseline=older), CONFIG)).outcome is Outcome.PASS


def test_what_holds_the_memory_of_the_host_shows_beside_idle_gpus() -> None:
    facts = memory.gather(Host(MACHINES / "gb200"), CONFIG)
    held = msgspec.structs.replace(facts, available=facts.available // 3)
    found = only(memory.judge_free(view(held, job_gone=True), CONFIG))
    assert (found.outcome, found.value) == (Outcome.FAIL, "31% available")
    assert only(memory.judge_free(view(facts, job_gone=True), CONFIG)).outcome is Outcome.PASS


def test_memory_of_the_real_machine_is_read() -> None:
    facts = memory.gather(Host(), CONFIG)
    assert 0 < facts.available <= facts.total
    assert all(not found.text for found in memory.judge_size(view(facts), CONFIG))


@pytest.mark.parametrize(
    ("total", "least", "baseline", "outcome"),
    [
        (1000, None, None, Outcome.PASS),
        (1000, 1000, None, Outcome.PASS),
        (999, 1000, None, Outcome.FAIL),
        (970, None, 1000, Outcome.PASS),
        (969, None, 1000, Outcome.FAIL),
        (500, 400, 1000, Outcome.PASS),
        (2000, None, 1000, Outcome.PASS),
    ],
)
def test_the_size_of_memory_is_judged_by_limit_and_baseline(
    total: int, least: int | None, baseline: int | None, outcome: Outcome
) -> None:
    config = NodeConfig(memory=MemoryLimits(min_total_mb=least))
    recorded = MemoryFacts(total=baseline, available=0) if baseline else None
    found = only(memory.judge_size(view(MemoryFacts(total=total, available=1), baseline=recorded), config))
    assert found.outcome is outcome
    assert found.suggestion.keeps_jobs_away is (outcome is Outcome.FAIL)


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (MemoryFacts(total=1000, available=500), Outcome.PASS),
        (MemoryFacts(total=1000, available=499), Outcome.FAIL),
        (MemoryFacts(total=1000, available=400, shared=100), Outcome.PASS),
        (MemoryFacts(total=1000, available=300, huge=400), Outcome.PASS),
        (MemoryFacts(total=1000, available=299, huge=400), Outcome.FAIL),
        (MemoryFacts(total=1000, available=0, huge=1000), Outcome.FAIL),
    ],
)
def test_free_memory_counts_where_no_job_runs(facts: MemoryFacts, outcome: Outcome) -> None:
    assert only(memory.judge_free(view(facts, job_gone=True), CONFIG)).outcome is outcome
    for gone in (False, None):
        assert list(memory.judge_free(view(facts, job_gone=gone), CONFIG)) == []


@pytest.mark.parametrize(
    ("free", "outcome"), [(100, Outcome.PASS), (99, Outcome.FAIL), (0, Outcome.FAIL), (1000, Outcome.PASS)]
)
def test_shared_memory_that_is_left_over_is_worth_attention(free: int, outcome: Outcome) -> None:
    facts = MemoryFacts(total=2000, available=2000, shm_total=1000, shm_free=free)
    found = only(memory.judge_shm(view(facts, job_gone=True), CONFIG))
    assert found.outcome is outcome
    assert not found.suggestion.keeps_jobs_away
    assert list(memory.judge_shm(view(facts), CONFIG)) == []
    assert list(memory.judge_shm(view(MemoryFacts(total=1, available=1), job_gone=True), CONFIG)) == []


def test_memory_controllers_are_read_with_the_worst_module(tmp_path: Path) -> None:
    mc = "/sys/devices/system/edac/mc"
    host = plant(
        tmp_path,
        {
            f"{mc}/mc0/ce_count": "0",
            f"{mc}/mc0/ue_count": "0",
            f"{mc}/mc0/dimm0/dimm_label": "A1",
            f"{mc}/mc1/ce_count": "12",
            f"{mc}/mc1/ue_count": "1",
            f"{mc}/mc1/dimm0/dimm_label": "B1",
            f"{mc}/mc1/dimm0/dimm_ce_count": "11",
            f"{mc}/mc1/dimm1/dimm_label": "B2",
            f"{mc}/mc1/dimm1/dimm_ce_count": "1",
            f"{mc}/mc1/dimm1/dimm_ue_count": "1",
            f"{mc}/power/control": "auto",
            "/proc/meminfo": "MemTotal: 7 kB\nMemAvailable: 7 kB",
        },
    )
    assert memory.gather(host, CONFIG).controllers == {
        "mc0": Controller(),
        "mc1": Controller(corrected=12, uncorrected=1, worst="B2"),
    }
    assert list(memory.judge_ecc(view(MemoryFacts(total=1, available=1)), CONFIG)) == []


def errors(corrected: int, uncorrected: int = 0) -> MemoryFacts:
    controller = Controller(corrected=corrected, uncorrected=uncorrected, worst="A1")
    return MemoryFacts(total=1, available=1, controllers={"mc0": controller})


@pytest.mark.parametrize(
    ("uncorrected", "suggestion"), [(0, Suggestion.NONE), (1, Suggestion.REBOOT), (2, Suggestion.REPLACE)]
)
def test_uncorrected_errors(uncorrected: int, suggestion: Suggestion) -> None:
    found = only(memory.judge_ecc(view(errors(5, uncorrected)), CONFIG))
    assert found.suggestion is suggestion
    assert found.outcome is (Outcome.FAIL if uncorrected else Outcome.PASS)


@pytest.mark.parametrize(
    ("before", "now", "fails"),
    [
        ([(1800.0, 1000)], 1100, False),
        ([(1800.0, 1000)], 1101, True),
        ([(4000.0, 0)], 5000, False),  # nobody knows in which hour
        ([(4000.0, 0), (3500.0, 900)], 950, False),
        ([(1800.0, 1000)], 50, False),  # counters were set back
        ([], 10_000, False),
    ],
)
def test_corrected_errors_count_by_the_hour(before: list[tuple[float, int]], now: int, fails: bool) -> None:
    past = [(age, errors(count)) for age, count in before]
    found = only(memory.judge_ecc(view(errors(now), *past), CONFIG))
    assert (found.outcome is Outcome.FAIL) is fails
    assert not found.suggestion.keeps_jobs_away
    other_boot = only(memory.judge_ecc(view(errors(now), *past, boot_id="new"), CONFIG))
    assert other_boot.outcome is Outcome.PASS
