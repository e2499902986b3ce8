"""Kernel logs for tests, and what judges see and say of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.events import KernelFacts, summarise
from slurm_robust.kernel.kmsg import KernelRecord
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.nodes.check import View
from slurm_robust.nodes.checks import kernel
from slurm_robust.nodes.checks.kernel import window_s

BOOT = 1_700_000_000.0
CONFIG = NodeConfig()


def happened(
    *lines: tuple[float, str], now: float, facility: int = 0, config: NodeConfig = CONFIG
) -> KernelFacts:
    """What messages at times (seconds since the boot) amount to."""
    records = (
        KernelRecord(sequence=number, uptime_s=at, level=4, facility=facility, text=text)
        for number, (at, text) in enumerate(lines)
    )
    return summarise(
        records, BOOT, BOOT + now, lambda shape: window_s(shape, config), injected=config.kernel.injected
    )


def view(
    *lines: tuple[float, str],
    now: float = 10_000.0,
    gpus: tuple[str, ...] | None = None,
    config: NodeConfig = CONFIG,
    earlier: Iterable[KernelFacts] = (),
    earlier_boot: str = "boot",
    facility: int = 0,
    **facts: object,
) -> View[KernelFacts]:
    """What judges see ``now`` seconds after the boot, when the log holds ``lines``."""
    log = happened(*lines, now=now, facility=facility, config=config)
    before = tuple(View(at=BOOT + 1.0, boot_id=earlier_boot, facts=past) for past in earlier)
    read = structs.replace(log, gpus=gpus, **facts)
    return View(facts=read, at=BOOT + now, boot_id="boot", before=before)


def judged(check: str, seen: View[KernelFacts], config: NodeConfig = CONFIG) -> list[Finding]:
    """All findings of one check."""
    (found,) = (each for each in kernel.CHECKS if each.name == check)
    return list(found.judge(seen, config))


def failed(check: str, seen: View[KernelFacts], config: NodeConfig = CONFIG) -> list[Finding]:
    """Those that failed."""
    return [finding for finding in judged(check, seen, config) if finding.outcome is Outcome.FAIL]
