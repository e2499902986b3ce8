"""All checks that there are."""

from __future__ import annotations

from slurm_robust.nodes.check import AnyCheck
from slurm_robust.nodes.checks import (
    clock,
    disks,
    drift,
    ethernet,
    gpu,
    imex,
    infiniband,
    kernel,
    memory,
    mounts,
    pressure,
    processes,
    services,
    snapshots,
)

CHECKS: tuple[AnyCheck, ...] = (
    *gpu.CHECKS,
    *imex.CHECKS,
    *infiniband.CHECKS,
    *ethernet.CHECKS,
    *mounts.CHECKS,
    *disks.CHECKS,
    *memory.CHECKS,
    *pressure.CHECKS,
    *processes.CHECKS,
    *clock.CHECKS,
    *kernel.CHECKS,
    *services.CHECKS,
    *snapshots.CHECKS,
    *drift.CHECKS,
)
