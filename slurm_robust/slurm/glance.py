"""The two questions that hooks ask of Slurm about jobs, in the cheapest form that every release answers.

``squeue --json`` of a large cluster is megabytes, on each node, at each start of a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.hostlist import expand
from slurm_robust.slurm.process import CommandTimeout, run_command
from slurm_robust.slurm.records import TERMINAL_STATES

_RESTARTS = re.compile(r"(?:^|\s)Restarts=(\d+)(?:\s|$)")


class Glance(Record):
    """A job in squeue's words: its state, and the nodes that it has now."""

    state: str
    nodes: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good. Not so COMPLETING, which a job that is requeued is as well."""
        return self.state in TERMINAL_STATES


def glance(
    job_ids: Sequence[int], *, environ: Mapping[str, str], timeout_s: float
) -> dict[int, Glance] | None:
    """Those of the jobs that Slurm knows; None without an answer. ``environ`` has PATH and SLURM_CONF."""
    ids = ",".join(map(str, job_ids))
    out = _ask(["squeue", "-a", "-h", "-j", ids, "-t", "all", "-o", "%A %T %N"], environ, timeout_s)
    if out is None:
        return None
    found = {}
    for line in out.splitlines():
        job_id, _, rest = line.strip().partition(" ")
        state, _, nodes = rest.partition(" ")
        if job_id.isdecimal() and state:
            found[int(job_id)] = Glance(state=state, nodes=_expanded(nodes))
    return found


def restarts(job_id: int, *, environ: Mapping[str, str], timeout_s: float) -> int | None:
    """How often the job was requeued; None without an answer."""
    out = _ask(["scontrol", "-o", "show", "job", str(job_id)], environ, timeout_s)
    found = _RESTARTS.search(out or "")
    return int(found[1]) if found else None


def _ask(words: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str | None:
    try:
        done = run_command(words, timeout_s=timeout_s, env=environ)
    except (CommandTimeout, OSError):
        return None
    return done.stdout if done.exit_code == 0 else None


def _expanded(nodes: str) -> tuple[str, ...]:
    try:
        return tuple(expand(nodes.strip())) if nodes.strip() else ()
    except ValueError:
        return ()
