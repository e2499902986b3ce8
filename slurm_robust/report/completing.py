"""Why a job that was requeued is COMPLETING for so long: Slurm waits for nodes that do not answer."""

from __future__ import annotations

from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.records import Job
from slurm_robust.util.hostlist import fold


def completing_advice(slurm: SlurmClient, job: Job) -> str:
    """What a COMPLETING job waits for and what ends it; "" for any other, and where Slurm does not tell."""
    if not job.is_completing or not job.nodes:
        return ""
    try:
        silent = [n.name for n in slurm.nodes(job.nodes) if not n.responding and not n.is_down]
        timeout = slurm.config().get("SlurmdTimeout", "").removesuffix("ec")  # "300 sec"
    except SlurmError:
        return ""
    if not silent:
        return ""
    what = f"node{'s' if len(silent) > 1 else ''} {fold(silent)}"
    limit = f" (SlurmdTimeout={timeout})" if timeout else ""
    return (
        f"waits for Slurm to give up {what}{limit}; an administrator can do it at once: "
        f"scontrol update nodename={fold(silent)} state=down reason=dead"
    )
