"""Which checks agents run, and which not."""

from __future__ import annotations

from slurm_robust.agent.inspection.probes import GPU, KERNEL, NETWORK, NODE
from slurm_robust.config.node import NodeConfig
from slurm_robust.health.check import Context
from slurm_robust.health.registry import CHECKS
from slurm_robust.health.runner import choose

# What only root or a node without jobs can judge, and what does not change while a job runs.
NOT_FOR_JOBS = {
    *("gpu.count", "gpu.identity", "gpu.persistence", "gpu.leftovers"),
    *("memory.size", "memory.free", "memory.shm", "processes.zombies", "processes.leftovers"),
    *("processes.load", "services.running", "services.munge", "snapshots.stale"),
    *("drift.software", "drift.settings", "drift.hardware"),
}


def test_every_check_is_either_run_once_or_left_out_on_purpose() -> None:
    chosen = [
        check.name
        for only in (KERNEL, GPU, NETWORK, NODE)
        for check in choose(CHECKS, NodeConfig(), Context.PERIODIC, only)[0]
    ]
    assert len(chosen) == len(set(chosen))
    assert set(chosen) == {check.name for check in CHECKS} - NOT_FOR_JOBS


def test_every_pattern_finds_a_check() -> None:
    for pattern in (*KERNEL, *GPU, *NETWORK, *NODE):
        assert choose(CHECKS, NodeConfig(), Context.PERIODIC, [pattern])[0], pattern
