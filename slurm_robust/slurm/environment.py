"""The allocation as the environment of a batch script states it."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.slurm.errors import NotInAllocation
from slurm_robust.slurm.records import Allocation
from slurm_robust.util.hostlist import InvalidHostlist, expand


def allocation_from_environment(environ: Mapping[str, str]) -> Allocation:
    """Return what the variables ``SLURM_*`` of ``environ`` say. No process is started.

    They are those of the moment at which the batch script (or step) was started. After a
    lost node, a shrink or an expansion they are stale: ask :meth:`SlurmClient.allocation` then.
    GPUs are known for this node only (SLURM_GPUS_ON_NODE) and taken to be the same on the others;
    ``client.allocation`` knows better. Raises :class:`NotInAllocation`.
    """
    job_id = _number(environ, "SLURM_JOB_ID")
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if job_id is None or not nodelist:
        missing = "SLURM_JOB_ID" if job_id is None else "SLURM_JOB_NODELIST"
        raise NotInAllocation(f"not inside a Slurm job: {missing} is not set")
    try:
        nodes = expand(nodelist)
    except InvalidHostlist as error:
        raise NotInAllocation(f"SLURM_JOB_NODELIST: {error}") from error
    gpus = _gpus(environ)
    return Allocation(
        job_id=job_id,
        nodes=nodes,
        gpus_per_node=dict.fromkeys(nodes, gpus),
        # The batch script runs on the first node of the list; in a step this is only a guess.
        batch_host=environ.get("SLURM_JOB_FIRST_NODE", "") or nodes[0],
        restart_count=_number(environ, "SLURM_RESTART_COUNT") or 0,
        end_time=_time(environ, "SLURM_JOB_END_TIME"),
        tasks_per_node=_number(environ, "SLURM_NTASKS_PER_NODE") or 0,
    )


def time_limit(environ: Mapping[str, str]) -> float | None:
    """Return how long this run of the job may take, in seconds; None if Slurm does not say (before 22.05)."""
    begin, end = _time(environ, "SLURM_JOB_START_TIME"), _time(environ, "SLURM_JOB_END_TIME")
    return end - begin if begin is not None and end is not None and end > begin else None


def array_task(environ: Mapping[str, str]) -> str:
    """Return the id that squeue shows for a task of a job array (``38_1``), "" for any other job."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else ""


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        raise NotInAllocation(f"{name}={value!r} is not a number") from None


def _time(environ: Mapping[str, str], name: str) -> float | None:
    value = _number(environ, name)
    return float(value) if value else None


def _gpus(environ: Mapping[str, str]) -> int:
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if count.isdecimal():
        return int(count)
    return len([gpu for gpu in environ.get("SLURM_JOB_GPUS", "").split(",") if gpu])
