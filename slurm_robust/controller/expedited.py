"""A job submitted with ``--requeue=expedite`` whose batch script fails is requeued and held, for ever.

So before ``srobust run`` ends with another code than 0 it takes the requeue away from such a job, and Slurm
lets it end as FAILED with that code (measured on 26.05).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from slurm_robust.controller.output import say
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.errors import JobFinished, JobNotFound, SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.records import Allocation, SlurmVersion
from slurm_robust.slurm.requeue import Clock, SystemClock
from slurm_robust.slurm.select import make_client

SINCE = SlurmVersion(major=25, minor=11)
# For Slurm to answer: a restart of slurmctld takes a while, and KillWait may be running already.
PATIENCE_S, PAUSE_S = 60.0, 2.0
TIMEOUT_S = 10.0
# With these the job goes on, in its next run or under its other controller.
_GOES_ON = frozenset({ExitCode.SUCCESS, ExitCode.REQUEUED, ExitCode.OTHER_CONTROLLER})


def ending_for_good(run: Callable[[], int], environ: Mapping[str, str] = os.environ) -> int:
    """The exit code of ``run``, or its exception, with the requeue taken away before where that must be."""
    code: int | None = None
    try:
        code = run()
        return code
    finally:
        if code not in _GOES_ON:
            _forbid(environ)


def _forbid(environ: Mapping[str, str]) -> None:
    client = make_client("cli", TIMEOUT_S)
    try:
        allocation = allocation_from_environment(environ)
        if client.version() < SINCE:
            return
    except (SlurmError, CommandTimeout, OSError):
        return  # no job, or no Slurm
    forbid_requeue(client, allocation)


def forbid_requeue(client: SlurmClient, allocation: Allocation, clock: Clock | None = None) -> None:
    """Take the requeue away from this run of the job if it is expedited. Never raises for Slurm."""
    clock = clock or SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        try:
            job = client.job(allocation.job_id)
            if job.expedited and job.is_running and job.restart_count == allocation.restart_count:
                client.forbid_requeue(allocation.job_id)
            return
        except (JobNotFound, JobFinished):
            return
        except (SlurmError, CommandTimeout, OSError) as error:
            if clock.monotonic() >= deadline:
                say(
                    f"Slurm gave no answer within {PATIENCE_S:.0f} s ({error}). If this job was submitted "
                    "with --requeue=expedite, Slurm requeues and holds it (REQUEUE_HOLD): end it with "
                    f"scancel {allocation.job_id}"
                )
                return
        clock.sleep(PAUSE_S)
