"""The GPUs as sources of checks: a hook that takes the facts from an earlier run imports no reader."""

from __future__ import annotations

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.nodes.gpus.facts import GpuFacts, GpuUse


def gather_gpus(host: Host, _config: NodeConfig) -> GpuFacts:
    """Return facts of all GPUs. Raises what goes wrong in reading them."""
    from slurm_robust.nodes.gpus import reading

    return reading.read_gpus(host)


def gather_use(host: Host, config: NodeConfig) -> GpuUse:
    """Use of all GPUs. Waits up to 2 s for memory that no living process holds: it is about to be freed."""
    from slurm_robust.nodes.gpus import reading

    return reading.read_use(host, config)
