"""A plan of a job of one node, for tests of what reads and writes plans."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import RunPlan
from slurm_robust.model.job import CommandKind

_PLAN = RunPlan(
    run_id="7-x",
    job_id=7,
    kind=CommandKind.SCRIPT,
    command=("train.py",),
    cwd="/",
    slots=1,
    spares=0,
    nproc_per_node=1,
    restart_count=0,
    nodes=("n1",),
    config=JobConfig(),
)


def plan(**changes: object) -> RunPlan:
    """Return the plan of a script with one rank, but for ``changes``."""
    return structs.replace(_PLAN, **changes)
