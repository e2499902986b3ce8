"""Which job got and gave back which nodes, as events, on slurmctld's host.

Slurm runs this as SlurmUser, who can write nothing that belongs to root. So these events have a file of their
own, in a folder ``slurmctld`` beside the log of the node's hooks, which must belong to that user.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping

import msgspec

from slurm_robust.config.node import NodeConfig, Paths
from slurm_robust.hooks.log import EventLog
from slurm_robust.hooks.sweep import number
from slurm_robust.kernel.host import node_name

_TEXTS = ("SLURM_JOB_NODELIST", "SLURM_JOB_USER", "SLURM_JOB_PARTITION", "SLURM_JOB_NAME")
_CODES = ("SLURM_JOB_EXIT_CODE2", "SLURM_JOB_DERIVED_EC")


def log_file(paths: Paths) -> str:
    """Return ``/var/log/slurm-robust/slurmctld/events.jsonl``."""
    folder, name = os.path.split(paths.log)
    return os.path.join(folder, "slurmctld", name)


def record(hook: str, config: NodeConfig, environ: Mapping[str, str]) -> None:
    """Write ``allocated`` or ``ended``; warn of nodes that we have drained. Never fails."""
    log = EventLog(msgspec.structs.replace(config.paths, log=log_file(config.paths)), node_name(environ))
    begins = hook == "prolog_slurmctld"
    facts: dict[str, object] = {
        name.removeprefix("SLURM_JOB_").lower(): environ.get(name, "")[:1000]
        for name in _TEXTS + (() if begins else _CODES)
    }
    job = number(environ, "SLURM_JOB_ID")
    facts |= {"job": job, "restarts": number(environ, "SLURM_JOB_RESTART_COUNT")}
    log.note("allocated" if begins else "ended", **facts)
    if begins:
        from slurm_robust.hooks.client import drained_by_us

        if drained := drained_by_us(config, environ.get("SLURM_JOB_NODELIST", "")):
            log.write("allocated_drained", job=job, nodes=drained)
