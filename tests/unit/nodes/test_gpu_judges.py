"""What GPUs' facts mean: both sides of every limit, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.check import CheckContext, View
from slurm_robust.nodes.checks import gpu as checks
from slurm_robust.nodes.gpus.facts import (
    AMD,
    Gpu,
    GpuError,
    GpuFacts,
    GpuProcess,
    GpuUse,
    Recovery,
    Throttle,
    Use,
)
from slurm_robust.nodes.gpus.leftovers import is_being_freed
from tests.unit.nodes.host_files import NOW, view
from tests.unit.nodes.sample_gpus import (
    BUSY,
    EIGHT,
    FAIL,
    GOOD,
    MONITOR,
    NONE,
    PASS,
    PER_GPU,
    REBOOT,
    REPLACE,
    RESET,
    UNKNOWN,
    facts,
    gpu,
    judge,
    node,
    said,
)

ONE_GPU = [
    ("lost", {}, {}, GOOD),
    ("lost", {"trouble": GpuError.LOST}, {}, (FAIL, REBOOT, "lost at 0000:40:00.0, fell off the bus")),
    ("lost", {"trouble": GpuError.RESET_REQUIRED}, {}, (FAIL, RESET, "needs a reset at 0000:40:00.0")),
    ("lost", {"trouble": GpuError.OTHER, "error": "No Permission"}, {}, (UNKNOWN, NONE, "No Permission")),
    (
        "lost",
        {"trouble": GpuError.ERRORS, "error": "Unknown Error"},
        {},
        (UNKNOWN, NONE, "answers with errors, the next run decides: Unknown Error"),
    ),
    ("lost", {"errors": ("nvmlDeviceGetSerial: Unknown Error",)}, {}, GOOD),
    ("ecc", {}, {}, GOOD),
    # Nobody knows that it is new, and the driver has contained it.
    ("ecc", {"uncorrected": 1}, {}, (FAIL, MONITOR, "uncorrected memory errors before: 1")),
    ("ecc", {"uncorrected": 1}, {"max_volatile_uncorrected": 1}, GOOD),
    ("ecc", {"aggregate_uncorrected": 1}, {}, (FAIL, MONITOR, "uncorrected errors in its life: 1")),
    ("ecc", {"aggregate_uncorrected": 1}, {"max_aggregate_uncorrected": 1}, GOOD),
    (
        "ecc",
        {"sram_threshold_exceeded": True, "uncorrected": 5},
        {},
        (FAIL, REPLACE, "SRAM errors above the maker's threshold"),
    ),
    ("ecc", {"ecc_enabled": False, "uncorrected": None}, {}, GOOD),
    ("ecc", {"corrected": 10**9}, {}, GOOD),
    ("remap", {}, {}, GOOD),
    ("remap", {"remapped_uncorrected": 8}, {}, GOOD),
    ("remap", {"remap_pending": True}, {}, (FAIL, MONITOR, "row remapping waits for a reset")),
    ("remap", {"remap_pending": True, "remap_failed": True}, {}, (FAIL, REPLACE, "row remapping failed")),
    ("retired_pages", {"retired_pages": 59}, {}, GOOD),
    ("retired_pages", {"retired_pages": 60}, {}, (FAIL, REPLACE, "60 retired pages")),
    ("retired_pages", {"retired_pages": 60, "vendor": AMD}, {}, GOOD),
    (
        "retired_pages",
        {"retired_pages": 1, "retired_pending": True},
        {},
        (FAIL, RESET, "page retirement waits for a reset"),
    ),
    ("recovery", {}, {}, GOOD),
    ("recovery", {"recovery": Recovery.RESET}, {}, (FAIL, RESET, "the driver wants: reset")),
    ("recovery", {"recovery": Recovery.REBOOT}, {}, (FAIL, REBOOT, "the driver wants: reboot")),
    (
        "recovery",
        {"recovery": Recovery.DRAIN_AND_RESET},
        {},
        (FAIL, RESET, "the driver wants: drain and reset"),
    ),
    (
        "recovery",
        {"recovery": Recovery.UNKNOWN},
        {},
        (UNKNOWN, NONE, "the driver wants a recovery that is not known here"),
    ),
    ("nvlink", {}, {"min_nvlinks": 18}, GOOD),
    (
        "nvlink",
        {"links": (True,) * 17 + (False,)},
        {"min_nvlinks": 18},
        (FAIL, RESET, "17 of 18 NVLinks up, down: 17"),
    ),
    ("nvlink", {"links": (True,) * 17}, {"min_nvlinks": 18}, (FAIL, RESET, "17 of 18 NVLinks up")),
    # One that this card does not have is not down.
    (
        "nvlink",
        {"links": (None, True, False)},
        {"min_nvlinks": 2},
        (FAIL, RESET, "1 of 2 NVLinks up, down: 2"),
    ),
    # A card without a bridge: all its links are down, and nobody says that it should be otherwise.
    ("nvlink", {"links": (False,) * 12, "fabric": None}, {}, GOOD),
    ("nvlink", {"fabric": None}, {}, GOOD),
    ("nvlink", {"fabric": "in progress"}, {}, (UNKNOWN, NONE, "NVLink fabric is being initialised")),
    (
        "nvlink",
        {"fabric": "not started"},
        {},
        (FAIL, RESET, "NVLink fabric: not started; see nvidia-fabricmanager"),
    ),
    ("pcie", {}, {"min_pcie_width": 16, "min_pcie_generation": 5}, GOOD),
    (
        "pcie",
        {"pcie_width": 8},
        {"min_pcie_width": 16},
        (FAIL, REPLACE, "PCIe x8 instead of x16; reseat the card"),
    ),
    ("pcie", {"pcie_width": 8}, {"min_pcie_width": 8}, GOOD),
    ("pcie", {"pcie_width": 8}, {}, (FAIL, MONITOR, "PCIe x8 instead of x16; reseat the card")),
    (
        "pcie",
        {"pcie_generation": 4},
        {"min_pcie_generation": 5},
        (FAIL, REBOOT, "PCIe generation 4 instead of 5"),
    ),
    # An idle GPU may slow its link down.
    ("pcie", {"pcie_generation": 1}, {}, GOOD),
    ("pcie", {"pcie_generation": 1, **BUSY}, {}, (FAIL, MONITOR, "PCIe generation 1 instead of 5")),
    ("throttle", {}, {}, GOOD),
    ("throttle", {"throttle": (Throttle.SW_THERMAL,)}, {}, (FAIL, MONITOR, "thermal limit")),
    ("throttle", {"throttle": (Throttle.POWER_BRAKE,)}, {}, (FAIL, REPLACE, "power brake")),
    ("throttle", {"throttle": (Throttle.POWER_BRAKE,), **BUSY}, {}, (FAIL, MONITOR, "power brake")),
    ("temperature", {"temperature_c": 87.0}, {}, GOOD),
    ("temperature", {"temperature_c": 88.0}, {}, (FAIL, REPLACE, "88 C; see to its cooling")),
    ("temperature", {"temperature_c": 88.0}, {"max_temperature_c": 88.0}, GOOD),
    ("temperature", {"temperature_c": 88.0, "slowdown_c": None}, {}, GOOD),
    ("temperature", {"temperature_c": 48.0, "slowdown_c": 0.0}, {}, GOOD),
    (
        "temperature",
        {"temperature_c": 49.0, "slowdown_c": 50.0},
        {},
        (FAIL, REPLACE, "49 C; see to its cooling"),
    ),
    ("temperature", {"memory_temperature_c": 103.0}, {}, GOOD),
    ("temperature", {"memory_temperature_c": 104.0}, {}, (FAIL, REPLACE, "memory 104 C; see to its cooling")),
    ("clocks", {}, {}, GOOD),
    ("clocks", {"utilization": 90, "sm_clock": 990}, {}, GOOD),
    ("clocks", {"utilization": 90, "sm_clock": 989}, {}, (FAIL, MONITOR, "works at 989 of 1980 MHz")),
    ("clocks", {"utilization": 89, "sm_clock": 345}, {}, GOOD),
    ("clocks", {"application_clock": 1200}, {}, GOOD),
    (
        "clocks",
        {"application_clock": 1200},
        {"application_clocks": True},
        (FAIL, MONITOR, "application clock 1200 of 1980 MHz"),
    ),
    ("clocks", {}, {"application_clocks": True}, GOOD),
    ("persistence", {}, {"persistence": True}, GOOD),
    (
        "persistence",
        {"persistence": False},
        {"persistence": True},
        (FAIL, MONITOR, "persistence mode is off; start nvidia-persistenced"),
    ),
]


@pytest.mark.parametrize(("name", "changes", "limits", "expected"), ONE_GPU, ids=str)
def test_one_gpu_by_itself(
    name: str, changes: dict[str, Any], limits: dict[str, Any], expected: tuple[Outcome, Suggestion, str]
) -> None:
    found = judge(name, view(facts(gpu(**changes))), **limits)
    assert said(found) == expected
    assert found[0].subject == "gpu3"
    assert found[0].source
    assert found[0].outcome is UNKNOWN or (found[0].value and found[0].check == f"gpu.{name}")


# -- what is not there, or does not say ------------------------------------------------------------


@pytest.mark.parametrize("name", PER_GPU)
def test_a_node_without_gpus_has_no_findings(name: str) -> None:
    assert judge(name.removeprefix("gpu."), view(facts())) == []


@pytest.mark.parametrize("name", sorted(set(PER_GPU) - {"gpu.lost", "gpu.count", "gpu.identity"}))
@pytest.mark.parametrize("mute", [Gpu(index=0), Gpu(index=0, trouble=GpuError.LOST)], ids=["mute", "lost"])
def test_a_gpu_that_says_nothing_has_not_failed(name: str, mute: Gpu) -> None:
    limits = {"min_nvlinks": 18, "min_pcie_width": 16, "persistence": True, "application_clocks": True}
    assert judge(name.removeprefix("gpu."), view(facts(mute)), **limits) == []


@pytest.mark.parametrize("name", PER_GPU)
def test_a_healthy_node_passes_everything(name: str) -> None:
    eight = facts(*node(8))
    found = judge(name.removeprefix("gpu."), view(eight, (300.0, eight), baseline=eight))
    assert found
    assert {one.outcome for one in found} == {PASS}


# -- count and identity ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "limits", "baseline", "expected"),
    [
        (facts(*EIGHT), {"count": 8}, None, GOOD),
        (facts(*EIGHT[1:]), {"count": 8}, None, (FAIL, REBOOT, "7 of 8 GPUs")),
        (facts(*EIGHT[1:]), {}, facts(*EIGHT), (FAIL, REBOOT, "7 of 8 GPUs, missing 0000:10:00.0")),
        (facts(*EIGHT[1:]), {"count": 7}, facts(*EIGHT), GOOD),
        (facts(), {"count": 8}, None, (FAIL, REBOOT, "0 of 8 GPUs")),
        (
            facts(*EIGHT),
            {"count": 4},
            None,
            (FAIL, MONITOR, "8 GPUs, 4 expected: correct gpu.count or record a new baseline"),
        ),
        (facts(*EIGHT), {}, None, GOOD),
        (facts(*EIGHT, on_bus=tuple(one.bus for one in EIGHT)), {}, None, GOOD),
        (
            facts(*EIGHT[1:], on_bus=tuple(one.bus for one in EIGHT)),
            {},
            None,
            (FAIL, MONITOR, "0000:10:00.0 on the PCI bus, but the driver does not list it"),
        ),
        # One that is lost does not tell where it was: it is listed all the same.
        (
            facts(Gpu(index=0, trouble=GpuError.LOST), *EIGHT[1:], on_bus=tuple(one.bus for one in EIGHT)),
            {},
            None,
            GOOD,
        ),
        (
            facts(fault="the driver does not start: x"),
            {},
            None,
            (FAIL, REBOOT, "the driver does not start: x"),
        ),
        (facts(unreadable="no library"), {}, None, (UNKNOWN, NONE, "no library")),
        (facts(unreadable="no library"), {"count": 8}, None, (UNKNOWN, NONE, "no library")),
        (
            facts(on_bus=("0000:10:00.0",)),
            {"count": 1},
            None,
            (FAIL, REBOOT, "0 of 1 GPUs, missing 0000:10:00.0"),
        ),
        (
            facts(on_bus=("0000:10:00.0",)),
            {},
            None,
            (UNKNOWN, NONE, "0000:10:00.0 on the PCI bus without a driver"),
        ),
    ],
)
def test_the_number_of_gpus_is_judged_by_limit_and_baseline(
    seen: GpuFacts, limits: dict[str, Any], baseline: GpuFacts | None, expected: tuple[Any, ...]
) -> None:
    assert said(judge("count", view(seen, baseline=baseline), **limits)) == expected


def test_another_card_is_reported_and_drains_nothing() -> None:
    exchanged = (*EIGHT[:7], gpu(index=7, uuid="GPU-new"))
    found = judge("identity", view(facts(*exchanged), baseline=facts(*EIGHT)))
    words = "GPUs are not those of the baseline: new GPU-new, gone GPU-7"
    assert said(found) == (FAIL, MONITOR, words)
    assert found[0].blame is Party.SITE


def test_a_missing_card_is_not_another_one() -> None:
    assert said(judge("identity", view(facts(*EIGHT[1:]), baseline=facts(*EIGHT)))) == GOOD
    assert judge("identity", view(facts(*EIGHT))) == []


# -- leftovers -------------------------------------------------------------------------------------


def leftovers(use: Use, job_gone: bool | None = True, **limits: Any) -> list[Finding]:
    seen = View(facts=GpuUse(gpus=(use,)), at=NOW, job_gone=job_gone)
    return judge("leftovers", seen, **limits)


DEAD = GpuProcess(pid=6, name="python", ending=True)
STRANGER = GpuProcess(pid=7, name="python")
DAEMON = GpuProcess(pid=8, name="nvidia-cuda-mps", uid=0)
FAKE = GpuProcess(pid=10, name="nvidia-cuda-mps", uid=1234)
NOBODY_KNOWS = GpuProcess(pid=11, name="dcgm")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (Use(index=0, memory_mb=512), GOOD),
        (
            Use(index=0, memory_mb=513),
            (UNKNOWN, NONE, "513 MiB in use by no process: is being freed, or stuck"),
        ),
        (
            Use(index=0, memory_mb=9000, processes=(DEAD,)),
            (UNKNOWN, NONE, "9000 MiB in use by what has ended: python (6): is being freed, or stuck"),
        ),
        (
            Use(index=0, memory_mb=9000, processes=(DEAD, STRANGER)),
            (FAIL, RESET, "left by a job: python (7); kill it"),
        ),
        (Use(index=0), GOOD),
        (
            Use(index=0, memory_mb=100, processes=(STRANGER,)),
            (FAIL, RESET, "left by a job: python (7); kill it"),
        ),
        (Use(index=0, memory_mb=900, processes=(DAEMON,)), GOOD),
        (
            Use(index=0, memory_mb=70000, processes=(FAKE,)),
            (FAIL, RESET, "left by a job: nvidia-cuda-mps (10); kill it"),
        ),
        (
            Use(index=0, memory_mb=900, processes=(NOBODY_KNOWS,)),
            (FAIL, RESET, "left by a job: dcgm (11); kill it"),
        ),
        (
            Use(index=0, memory_mb=1000, processes=(DAEMON, STRANGER)),
            (FAIL, RESET, "left by a job: python (7); kill it"),
        ),
        (
            Use(index=0, processes=(STRANGER,) * 5),
            (FAIL, RESET, "left by a job: python (7), python (7) and 3 more; kill it"),
        ),
        (
            Use(index=0, processes=(GpuProcess(pid=9, name="\x1b[2J\nü"),)),
            (FAIL, RESET, "left by a job: ?[2J ? (9); kill it"),
        ),
    ],
)
def test_what_is_left_on_gpus_without_a_job_is_judged(
    use: Use, expected: tuple[Outcome, Suggestion, str]
) -> None:
    assert said(leftovers(use)) == expected


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        # By age in seconds, oldest first; the last is of now.
        ([(60, 9000), (40, 9000), (20, 9000), (0, 9000)], FAIL),
        ([(59, 9000), (40, 9000), (20, 9000), (0, 9000)], UNKNOWN),
        ([(90, 9000), (60, 8000), (40, 8000), (20, 8000), (0, 8000)], FAIL),
        ([(60, 9000), (40, 9000), (20, 8900), (0, 8900)], UNKNOWN),
        ([(60, 40000), (40, 30000), (20, 20000), (0, 10000)], UNKNOWN),
        # Allocators of daemons breathe a little.
        ([(60, 9010), (40, 9000), (20, 8995), (0, 9000)], FAIL),
        # A job may have run in between, and left as much as the one before.
        ([(3600, 9000), (0, 9000)], UNKNOWN),
        ([(60, 9000), (0, 9000)], UNKNOWN),
        ([(60, 9000), (40, 0), (20, 9000), (0, 9000)], UNKNOWN),
        ([(40, 9000), (20, 9000), (0, 0)], PASS),
    ],
    ids=str,
)
def test_memory_that_nobody_holds_fails_once_it_has_not_become_less_for_a_minute(
    amounts: list[tuple[float, int]], expected: Outcome
) -> None:
    *before, (_, now) = ((age, GpuUse(gpus=(Use(index=0, memory_mb=mb),))) for age, mb in amounts)
    found = judge("leftovers", view(now, *before, job_gone=True))
    assert found[0].outcome is expected
    assert found[0].suggestion is (RESET if expected is FAIL else NONE)
    assert is_being_freed(found) is (expected is UNKNOWN)
    assert judge("leftovers", view(now, *before, job_gone=True, boot_id="next"))[0].outcome is not FAIL


def test_what_was_killed_and_does_not_end_fails_after_a_minute_too() -> None:
    use = GpuUse(gpus=(Use(index=0, memory_mb=9000, processes=(DEAD,)),))
    seen = view(use, (60.0, use), (40.0, use), (20.0, use), job_gone=True)
    words = "9000 MiB in use by what has ended: python (6), and no less for 60 s"
    assert said(judge("leftovers", seen)) == (FAIL, RESET, words)


@pytest.mark.parametrize("job_gone", [False, None])
def test_nothing_is_left_over_where_a_job_may_run(job_gone: bool | None) -> None:
    assert leftovers(Use(index=0, memory_mb=9000, processes=(STRANGER,)), job_gone) == []


# -- the table of checks ---------------------------------------------------------------------------


def test_use_is_never_taken_from_an_earlier_run() -> None:
    assert checks.GPU_USE.fresh_s == 0
    (check,) = [check for check in checks.CHECKS if check.source is checks.GPU_USE]
    assert CheckContext.PERIODIC not in check.contexts


def test_one_check_speaks_for_a_source_that_hangs() -> None:
    assert [check.name for check in checks.CHECKS if check.hangs] == ["gpu.lost"]
    assert all(len(check.explain) > 60 for check in checks.CHECKS)
