"""Processes that hold GPUs."""

from __future__ import annotations

from slurm_robust.health.gpus.facts import GpuProcess
from slurm_robust.health.host import Host


def process(host: Host, pid: int, memory_mb: int | None) -> GpuProcess:
    """A process by its number, with what ``/proc`` says of it."""
    stat = host.read_or(f"/proc/{pid}/stat")
    name, _, rest = stat.partition("(")[2].rpartition(")")
    state = rest.split()[:1]
    return GpuProcess(pid=pid, name=name, memory_mb=memory_mb, ending=state in ([], ["Z"], ["X"]))
