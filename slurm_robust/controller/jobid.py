"""A job id that comes again: slurmctld lost its state, or two clusters share a home. It is another job."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slurm_robust.controller import preflight
from slurm_robust.controller.preflight import PreflightError
from slurm_robust.model import events as ev
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold, minute
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError

ALIVE_S = 300.0  # a run of another cluster that wrote so lately may go on, whether it can be reached or not


def submit_time(slurm: SlurmClient, job_id: int) -> float | None:
    """When the job was submitted or last requeued; None where Slurm does not say."""
    try:
        return slurm.job(job_id).submit_time
    except SlurmError:
        return None


def move_aside(directory: JobDirectory, events: Sequence[ev.AnyEvent], how: str) -> str:
    """Give the folder of another job a name of its own; returns what was done, in words.

    Raises :class:`PreflightError` when that job may still run, or the folder cannot be moved.
    """
    preflight.check_alone(directory)
    age_s = time.time() - events[-1].t
    ended = fold(events).ended
    may_run = ended is None or not ended.final
    if how.startswith("of cluster") and may_run and age_s < ALIVE_S:
        raise PreflightError(
            f"{directory.path} belongs to a job {how} that may still run (written {age_s:.0f} s ago)",
            fix="give each cluster a folder of its own: --job-dir DIR, or job_dir in the configuration",
            code=ExitCode.OTHER_CONTROLLER,
        )
    name = f"{directory.path.name}.old-{minute(events[0].t)}"
    target = directory.path.with_name(name)
    number = 2
    while target.exists():
        target, number = directory.path.with_name(f"{name}-{number}"), number + 1
    try:
        directory.path.rename(target)
    except OSError as error:
        raise PreflightError(
            f"{directory.path} belongs to another job ({how}) and cannot be moved aside: {error}",
            fix="move it away, or give this run a name of its own: srobust run --name NAME …",
            code=ExitCode.JOB_DIR,
        ) from error
    return f"{directory.path} held another job with this id ({how}); that is now {target}"
