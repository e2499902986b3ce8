"""Which rank of which job a process is that the kernel's log names, as long as it lives."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_robust.kernel.host import Host
from slurm_robust.kernel.kmsg import KernelEvent

_MAX_PROCESSES = 16
_NAMES = {"SLURM_JOB_ID": "job", "RANK": "rank", "SLURM_PROCID": "rank"}
_TICK_S = 0.01  # USER_HZ, which /proc/PID/stat counts in, is 100 on all machines that have these GPUs


def owners(host: Host, events: Iterable[KernelEvent], boot_at: float) -> dict[str, str]:
    """Return ``python3 of job 4711, rank 5``, by process id, of the newest processes that events name.

    Without a process that has the name and is older than the message there is no entry: the number may be
    another's by now, and an ended one has no environment any more.
    """
    named = [(pid, event) for event in events if event.process for pid in event.pids]
    found = {str(pid): _owner(host, pid, event, boot_at) for pid, event in named[-_MAX_PROCESSES:]}
    return {pid: owner for pid, owner in found.items() if owner}


def _owner(host: Host, pid: int, event: KernelEvent, boot_at: float) -> str:
    name, _, rest = host.read_or(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")
    fields = rest.split()
    if re.sub(r"[^\w.:+-]", "", name) != event.process or len(fields) < 20:
        return ""
    if boot_at + int(fields[19]) * _TICK_S > event.last_at + 1.0:
        return ""
    values: dict[str, str] = {}
    for pair in host.read_or(f"/proc/{pid}/environ").split("\0"):
        key, _, value = pair.partition("=")
        if key in _NAMES and value.isdecimal() and len(value) < 12:
            values.setdefault(_NAMES[key], value)
    job = f" of job {values['job']}" if "job" in values else ""
    rank = f", rank {values['rank']}" if "rank" in values else ""
    return f"{event.process}{job}{rank}" if job or rank else ""
