"""GPUs for tests of judges, and short words for what is said of them."""

from __future__ import annotations

from typing import Any

import msgspec

from slurm_robust.config.node import GpuLimits, NodeConfig
from slurm_robust.kernel.recovery import Recovery
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import View
from slurm_robust.nodes.checks.gpu import CHECKS, GPUS
from slurm_robust.nodes.gpus.facts import Gpu, GpuFacts

FAIL, PASS, UNKNOWN = Outcome.FAIL, Outcome.PASS, Outcome.UNKNOWN
NONE, MONITOR, RESET = Suggestion.NONE, Suggestion.MONITOR, Suggestion.RESET
REBOOT, REPLACE = Suggestion.REBOOT, Suggestion.REPLACE
GOOD = (PASS, NONE, "")
BUSY = {"idle": False, "utilization": 95, "sm_clock": 1800}

HEALTHY = Gpu(
    index=3,
    bus="0000:40:00.0",
    uuid="GPU-3",
    name="NVIDIA H200",
    ecc_enabled=True,
    corrected=0,
    uncorrected=0,
    aggregate_uncorrected=0,
    sram_threshold_exceeded=False,
    remapped_corrected=0,
    remapped_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    retired_pages=0,
    retired_pending=False,
    recovery=Recovery.NONE,
    links=(True,) * 18,
    link_errors=0,
    fabric="completed",
    clique="11111111-1111-1111-1111-111111111111/1",
    pcie_width=16,
    pcie_max_width=16,
    pcie_generation=5,
    pcie_max_generation=5,
    pcie_replays=0,
    temperature_c=35.0,
    slowdown_c=89.0,
    memory_temperature_c=40.0,
    memory_max_c=105.0,
    throttle=(),
    idle=True,
    utilization=0,
    sm_clock=345,
    max_sm_clock=1980,
    application_clock=1980,
    persistence=True,
)
JUDGES = {check.name: check.judge for check in CHECKS}


def gpu(**changes: Any) -> Gpu:
    return msgspec.structs.replace(HEALTHY, **changes)


def facts(*gpus: Gpu, **more: Any) -> GpuFacts:
    return GpuFacts(gpus=gpus, took_s=0.01, **more)


def node(count: int) -> tuple[Gpu, ...]:
    return tuple(gpu(index=i, uuid=f"GPU-{i}", bus=f"0000:{i + 16:02x}:00.0") for i in range(count))


def judge(name: str, seen: View[Any], **limits: Any) -> list[Finding]:
    return list(JUDGES[f"gpu.{name}"](seen, NodeConfig(gpu=GpuLimits(**limits))))


def said(found: list[Finding]) -> tuple[Outcome, Suggestion, str]:
    (one,) = found
    return one.outcome, one.suggestion, one.text


EIGHT = node(8)
PER_GPU = [check.name for check in CHECKS if check.source is GPUS]
