"""The caller's own jobs in a folder of jobs, and the one that a command means if none is named."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.trainings.find import NoSuchJob, find, root_of, unreadable
from slurm_robust.trainings.folders import BegunJob, folders_in, own_folders
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.text import count

_MAX_ELSEWHERE = 20
"""Of no more jobs that Slurm has the folder is looked for elsewhere."""


class OwnJobs(Record):
    """The jobs among which one is meant."""

    here: tuple[BegunJob, ...]
    """The newest journal first."""
    running: tuple[BegunJob, ...]
    """Those of them that Slurm has, the newest id first."""
    inside: str = ""
    """The job in which the command runs, if it is one with a folder."""


def own_jobs(job_dir: str | None, environ: Mapping[str, str], slurm: SlurmClient | None = None) -> OwnJobs:
    """Return the caller's jobs in ``job_dir``, else in ``srobust-jobs`` here, else where Slurm has them.

    Slurm is asked once, if there is more than one; if it does not answer, none is known to run.
    """
    slurm = slurm or make_slurm()
    here = own_folders(root_of(job_dir))
    inside = environ.get("SLURM_JOB_ID", "")
    if inside and _folder_of(inside, job_dir, slurm) is not None:
        return OwnJobs(here=tuple(here), running=(), inside=inside)
    if len(here) == 1:
        return OwnJobs(here=tuple(here), running=())
    active = _active(slurm)
    if not here and not job_dir:
        elsewhere = (_folder_of(str(job_id), None, slurm) for job_id in active[:_MAX_ELSEWHERE])
        here = [folder for folder in elsewhere if folder is not None]
    running = sorted((f for f in here if f.job_id in active), key=lambda f: f.job_id, reverse=True)
    return OwnJobs(here=tuple(here), running=tuple(running))


def _folder_of(job_id: str, job_dir: str | None, slurm: SlurmClient) -> BegunJob | None:
    try:
        path = find(job_id, job_dir, slurm).path
        info = JobDirectory(path).journal.stat()
    except (NoSuchJob, OSError):
        return None
    return BegunJob(path=path, changed=info.st_mtime, owner=info.st_uid)


def _active(slurm: SlurmClient) -> list[int]:
    """Return the ids of the caller's jobs that have not ended, the newest first; none if Slurm is silent."""
    uid = os.geteuid()
    try:
        jobs = slurm.jobs(None if uid == 0 else pwd.getpwuid(uid).pw_name)
    except (SlurmError, KeyError):
        return []
    return sorted((job.job_id for job in jobs if not job.is_finished), reverse=True)


def meant(jobs: OwnJobs) -> tuple[str, str] | None:
    """Return the job that is meant if none is named, and why; None if there is none. Pure."""
    if jobs.inside:
        return jobs.inside, "in which this command runs"
    if len(jobs.running) == 1 and len(jobs.here) > 1:
        return jobs.running[0].name, f"the only one of {count(len(jobs.here), 'job')} here that has not ended"
    if jobs.running:
        return jobs.running[0].name, f"the newest of {count(len(jobs.running), 'running job')} here"
    if not jobs.here:
        return None
    only = "your only job here" if len(jobs.here) == 1 else f"the newest of {len(jobs.here)} jobs here"
    return jobs.here[0].name, only


def named_default(jobs: OwnJobs, job_dir: str | None, *, or_all: bool = False) -> str:
    """Return the job that a command means if none is named, and say which. Raises :class:`NoSuchJob`.

    ``or_all``: the command takes ``--all`` in place of a job.
    """
    found = meant(jobs)
    if found is None:
        raise no_job(job_dir, or_all=or_all)
    print(f"srobust: job {found[0]}, {found[1]}", file=sys.stderr, flush=True)
    return found[0]


def no_job(job_dir: str | None, *, or_all: bool = False) -> NoSuchJob:
    """Return the error for a command without JOB if the caller has no job."""
    root = root_of(job_dir)
    try:
        folders_in(root)
    except FileNotFoundError:
        text = f"no job is named, and there is no folder {root}"
    except OSError as error:
        return unreadable(root, error)
    else:
        text = f"no job is named, and none of yours is in {root}"
    fix = "name a job, or --all" if or_all else "name a job by its id or folder"
    fix += "; or give --job-dir as 'srobust run' had it"
    return NoSuchJob(text, fix=fix, code=ExitCode.USAGE)
