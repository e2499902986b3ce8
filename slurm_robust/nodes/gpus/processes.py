"""Processes that hold GPUs."""

from __future__ import annotations

from slurm_robust.nodes.gpus.facts import GpuProcess
from slurm_robust.nodes.host import Host

_FLAGS = 6  # the place in /proc/PID/stat, counted from the state on
_PF_EXITING = 0x4
_SIGKILL = 1 << 8

MPS = "nvidia-cuda-mps"
"""How the names of its daemon and its servers begin."""


def process(host: Host, pid: int, memory_mb: int | None) -> GpuProcess:
    """A process by its number, with what ``/proc`` says of it."""
    stat = host.read_or(f"/proc/{pid}/stat")
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return GpuProcess(
        pid=pid,
        name=name,
        memory_mb=memory_mb,
        ending=_is_ending(host, pid, fields),
        uid=host.real_uid(fields[1] if name.startswith(MPS) and _is_of_mps(host, fields) else pid),
    )


def _is_of_mps(host: Host, stat: list[str]) -> bool:
    """Whether its parent is a daemon of MPS too, by its name."""
    return len(stat) > 1 and host.read_or(f"/proc/{stat[1]}/comm").startswith(MPS)


def _is_ending(host: Host, pid: int, stat: list[str]) -> bool:
    """Whether it is gone, on its way out, or has SIGKILL and is still held up in the kernel.

    What a process has registered with the driver goes back page by page: tens of seconds for a big one.
    """
    if stat[:1] in ([], ["Z"], ["X"]) or (len(stat) > _FLAGS and int(stat[_FLAGS]) & _PF_EXITING):
        return True
    lines = host.read_or(f"/proc/{pid}/status").splitlines()
    pending = [line.split()[1] for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(signals, 16) & _SIGKILL for signals in pending)
