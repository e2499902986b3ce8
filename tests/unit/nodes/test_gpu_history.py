"""What GPUs' facts mean beside earlier ones and the baseline."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.kernel.recovery import Recovery
from slurm_robust.model.findings import Outcome
from slurm_robust.nodes.check import View
from slurm_robust.nodes.gpus.facts import GpuError, GpuFacts, Throttle
from tests.unit.nodes.host_files import NOW, view
from tests.unit.nodes.sample_gpus import (
    BUSY,
    EIGHT,
    FAIL,
    GOOD,
    HEALTHY,
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
    said,
)

SILENT = GpuFacts(stuck_in="nvmlInitWithFlags", took_s=3.0)


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (view(SILENT), UNKNOWN),
        (view(SILENT, (60.0, facts(*EIGHT))), UNKNOWN),
        (view(SILENT, (60.0, facts(*EIGHT)), (9.9, SILENT)), UNKNOWN),
        (view(SILENT, (60.0, facts(*EIGHT)), (10.0, SILENT)), FAIL),
        (view(SILENT, (60.0, facts(*EIGHT)), (14.0, SILENT), (5.0, SILENT)), FAIL),
        (view(SILENT, (60.0, SILENT), (30.0, facts(*EIGHT)), (5.0, SILENT)), UNKNOWN),
        (view(SILENT, (60.0, SILENT)), UNKNOWN),
        (view(SILENT, (60.0, msgspec.structs.replace(facts(*EIGHT), took_s=1.0)), (10.0, SILENT)), FAIL),
        (view(SILENT, (60.0, msgspec.structs.replace(facts(*EIGHT), took_s=1.1)), (10.0, SILENT)), UNKNOWN),
        (view(SILENT, (60.0, facts(*EIGHT)), (10.0, SILENT), boot_id="next"), UNKNOWN),
        (view(SILENT, baseline=facts(*EIGHT)), UNKNOWN),
        (view(SILENT, (10.0, SILENT), baseline=facts(*EIGHT)), FAIL),
        (view(SILENT, (10.0, SILENT), baseline=facts(gpu(persistence=False))), UNKNOWN),
    ],
    ids=[
        *("first", "once", "9.9 s", "10 s", "three times", "answered in between", "was silent"),
        *("1 s", "1.1 s", "last boot", "stays awake once", "stays awake", "may sleep"),
    ],
)
def test_a_driver_hangs_if_it_is_silent_twice_and_was_quick_or_stays_awake(
    seen: View[GpuFacts], outcome: Outcome
) -> None:
    (found,) = judge("lost", seen)
    assert found.outcome is outcome
    assert found.suggestion is (REBOOT if outcome is FAIL else NONE)
    assert found.value == "no answer to nvmlInitWithFlags in 3.0 s"
    assert judge("count", seen, count=8) == []
    assert judge("identity", seen) == []


def test_a_gpu_that_answers_with_errors_twice_is_broken() -> None:
    broken = facts(
        *EIGHT[:7], gpu(index=7, trouble=GpuError.ERRORS, error="nvmlDeviceGetName: Unknown Error")
    )
    doubt = "answers with errors, the next run decides: nvmlDeviceGetName: Unknown Error"
    for before in ((), ((9.9, broken),), ((60.0, broken), (30.0, facts(*EIGHT)), (5.0, broken))):
        assert said(judge("lost", view(broken, *before))[7:]) == (UNKNOWN, NONE, doubt)
    certain = "answers with errors at 0000:40:00.0: nvmlDeviceGetName: Unknown Error"
    found = judge("lost", view(broken, (10.0, broken)))
    assert said(found[7:]) == (FAIL, REBOOT, certain)
    assert {one.outcome for one in found[:7]} == {PASS}


# -- earlier samples and the baseline --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "field", "limit"),
    [("ecc", "corrected", 1000), ("nvlink", "link_errors", 100), ("pcie", "pcie_replays", 1000)],
)
def test_counters_count_what_is_new_within_the_hour(name: str, field: str, limit: int) -> None:
    def outcome(now: int, *before: tuple[float, int], boot_id: str = "b") -> Outcome:
        samples = [(age, facts(gpu(**{field: count}))) for age, count in before]
        found = judge(name, view(facts(gpu(**{field: now})), *samples, boot_id=boot_id))
        assert found[0].suggestion is (MONITOR if found[0].outcome is FAIL else NONE)
        return found[0].outcome

    assert outcome(7 + limit, (1800.0, 7)) is PASS
    assert outcome(8 + limit, (1800.0, 7)) is FAIL
    assert outcome(10**9) is PASS, "no earlier reading"
    assert outcome(10**9, (4000.0, 0), (60.0, 10**9)) is PASS, "before the hour"
    assert outcome(10**9, (60.0, 0), boot_id="next") is PASS, "before the boot"
    assert outcome(3, (60.0, 10**9)) is PASS, "the driver was loaded again"


def test_an_uncorrected_error_counts_for_an_hour_if_it_was_seen_to_happen() -> None:
    def found(now: int, *before: tuple[float, int], boot_id: str = "b", **limits: int) -> tuple[object, ...]:
        samples = [(age, facts(gpu(uncorrected=count))) for age, count in before]
        return said(judge("ecc", view(facts(gpu(uncorrected=now)), *samples, boot_id=boot_id), **limits))[:2]

    assert found(1, (60.0, 0)) == (FAIL, RESET)
    assert found(2, (3000.0, 1), (60.0, 2)) == (FAIL, RESET)
    assert found(1, (60.0, 0), max_volatile_uncorrected=1) == (PASS, NONE)
    # Contained: later jobs may have the node.
    assert found(1, (3700.0, 0), (3500.0, 1)) == (FAIL, MONITOR)
    assert found(1, (60.0, 1)) == (FAIL, MONITOR)
    assert found(1, (60.0, 0), boot_id="next") == (FAIL, MONITOR)
    assert found(0, (60.0, 5)) == (PASS, NONE)


def test_a_contained_error_asks_for_nothing_until_the_driver_does() -> None:
    contained = {"uncorrected": 1, "aggregate_uncorrected": 1, "remap_pending": True}
    for recovery, away in ((Recovery.NONE, []), (Recovery.DRAIN_AND_RESET, ["gpu.recovery"])):
        one = facts(gpu(recovery=recovery, **contained))
        seen = view(one, (60.0, one))
        found = [f for name in PER_GPU for f in judge(name.removeprefix("gpu."), seen)]
        assert [f.check for f in found if f.suggestion.keeps_jobs_away] == away


@given(st.lists(st.integers(0, 1000), max_size=6))
def test_falling_counters_are_no_errors(counts: list[int]) -> None:
    falling = sorted(counts, reverse=True)
    samples = [
        (60.0 * (len(falling) - place), facts(gpu(corrected=count))) for place, count in enumerate(falling)
    ]
    seen = view(facts(gpu(corrected=0)), *samples)
    assert said(judge("ecc", seen, max_corrected_per_hour=0)) == GOOD


def test_counters_of_another_gpu_are_not_compared() -> None:
    before = facts(gpu(corrected=0, uuid="GPU-old"))
    assert said(judge("ecc", view(facts(gpu(corrected=10**6)), (60.0, before)))) == GOOD


def test_links_that_were_up_earlier_or_at_the_baseline_are_missed() -> None:
    fewer = facts(gpu(links=(True,) * 17 + (False,)))
    lost = (FAIL, RESET, "17 of 18 NVLinks up, down: 17")
    assert said(judge("nvlink", view(fewer, (600.0, facts(HEALTHY))))) == lost
    assert said(judge("nvlink", view(fewer, baseline=facts(HEALTHY)))) == lost
    assert said(judge("nvlink", view(fewer, (600.0, facts(HEALTHY)), baseline=fewer))) == GOOD
    assert said(judge("nvlink", view(fewer))) == GOOD


def test_fewer_links_than_the_neighbours_are_a_hint() -> None:
    odd = msgspec.structs.replace(EIGHT[0], links=(True,) * 17 + (False,))
    found = judge("nvlink", view(facts(odd, *EIGHT[1:])))
    assert said(found[:1]) == (FAIL, MONITOR, "17 of 18 NVLinks up, down: 17")
    assert {one.outcome for one in found[1:]} == {PASS}


def test_pcie_is_compared_with_the_baseline() -> None:
    usual = facts(gpu(pcie_width=8, pcie_generation=4))
    assert said(judge("pcie", view(usual, baseline=usual))) == GOOD
    narrow = facts(gpu(pcie_width=4, pcie_generation=4))
    words = (FAIL, REPLACE, "PCIe x4 instead of x8; reseat the card")
    assert said(judge("pcie", view(narrow, baseline=usual))) == words
    slow = {"pcie_width": 8, "pcie_generation": 3}
    assert said(judge("pcie", view(facts(gpu(**slow)), baseline=usual)))[:2] == (FAIL, MONITOR)
    assert said(judge("pcie", view(facts(gpu(**slow, **BUSY)), baseline=usual)))[:2] == (FAIL, REBOOT)


def test_a_busy_gpu_that_brakes_twice_keeps_jobs_away() -> None:
    braked = facts(gpu(throttle=(Throttle.HW_THERMAL,), **BUSY))
    assert said(judge("throttle", view(braked, (60.0, facts(HEALTHY)))))[1] is MONITOR
    assert said(judge("throttle", view(braked, (60.0, braked))))[1] is REPLACE
    assert said(judge("throttle", view(braked, (600.0, braked), (60.0, facts(HEALTHY)))))[1] is MONITOR


def test_what_the_baseline_had_on_is_missed() -> None:
    off = facts(gpu(ecc_enabled=False, uncorrected=None, persistence=False))
    assert said(judge("ecc", view(off, baseline=facts(HEALTHY)))) == (FAIL, MONITOR, "ECC is off")
    assert said(judge("persistence", view(off, baseline=facts(HEALTHY))))[:2] == (FAIL, MONITOR)
    assert judge("persistence", view(off, baseline=off)) == []
    assert judge("persistence", view(off)) == []
    assert judge("persistence", view(off, baseline=facts(HEALTHY)), persistence=False) == []


@given(st.integers(-10, 10), st.sampled_from(["", "b", "next"]))
def test_judges_take_samples_of_any_time_and_boot(hours: int, boot_id: str) -> None:
    before = (View(at=NOW + 3600.0 * hours, boot_id=boot_id, facts=facts(*EIGHT)),)
    seen = View(facts=facts(*EIGHT), at=NOW, boot_id="b", before=before, baseline=facts())
    for name in PER_GPU:
        assert all(one.suggestion is not REBOOT for one in judge(name.removeprefix("gpu."), seen))
