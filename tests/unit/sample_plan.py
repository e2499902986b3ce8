"""A plan of a job of one node, for tests of what reads and writes plans."""

from __future__ import annotations

from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import RunPlan
from slurm_robust.model.job import CommandKind


def plan(run_id: str = "7-x") -> RunPlan:
    return RunPlan(
        run_id=run_id,
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
