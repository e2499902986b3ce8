"""The caller's own jobs in a folder of jobs, and the one that a command means if none is named."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JOBS_FOLDER, JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.records import SlurmJob
from slurm_robust.trainings.find import NoSuchJob, find, root_of, unreadable
from slurm_robust.trainings.folders import BegunJob, folders_in, own_folders
from slurm_robust.trainings.slurmview import make_slurm

_MAX_FOLDERS = 20
"""Jobs that Slurm has are looked for in no more folders, those of the newest jobs first."""


class OwnJobs(Record):
    """The jobs among which one is meant."""

    here: tuple[BegunJob, ...]
    """The newest journal first."""
    running: tuple[BegunJob, ...]
    """Those that Slurm has, wherever they were submitted from, the newest id first."""
    inside: str = ""
    """The job in which the command runs, if it is one with a folder."""
    answers: bool = True
    """Slurm has said which jobs it has."""

    @property
    def all(self) -> tuple[BegunJob, ...]:
        """Those that Slurm has, then those that have ended here, each with the newest journal first."""
        have = {job.path for job in self.running}
        running = sorted(self.running, key=lambda job: job.changed, reverse=True)
        return (*running, *(job for job in self.here if job.path not in have))


def own_jobs(job_dir: str | None, environ: Mapping[str, str], slurm: SlurmClient | None = None) -> OwnJobs:
    """Return the caller's jobs in ``job_dir``, else in ``srobust-jobs`` here and wherever Slurm has some.

    If Slurm does not answer, none is known to run.
    """
    slurm = slurm or make_slurm()
    root = root_of(job_dir)
    here = own_folders(root)
    inside = environ.get("SLURM_JOB_ID", "")
    if inside and _folder_of(inside, job_dir, slurm) is not None:
        return OwnJobs(here=tuple(here), running=(), inside=inside)
    active = active_jobs(slurm)
    places = [root] if job_dir else list(dict.fromkeys((root, *folders_of(active or ()))))
    ids = {job.job_id for job in active or ()}
    found = [*here, *(folder for place in places[1:] for folder in own_folders(place))]
    running = sorted((f for f in found if f.job_id in ids), key=lambda f: f.job_id, reverse=True)
    return OwnJobs(here=tuple(here), running=tuple(running), answers=active is not None)


def _folder_of(job_id: str, job_dir: str | None, slurm: SlurmClient) -> BegunJob | None:
    try:
        path = find(job_id, job_dir, slurm).path
        info = JobDirectory(path).journal.stat()
    except (NoSuchJob, OSError):
        return None
    return BegunJob(path=path, changed=info.st_mtime, owner=info.st_uid)


def active_jobs(slurm: SlurmClient) -> list[SlurmJob] | None:
    """Return the caller's jobs that have not ended, the newest first; None if Slurm is silent."""
    uid = os.geteuid()
    try:
        jobs = slurm.jobs(None if uid == 0 else pwd.getpwuid(uid).pw_name)
    except (SlurmError, KeyError):
        return None
    return sorted((job for job in jobs if not job.is_finished), key=lambda job: job.job_id, reverse=True)


def folders_of(jobs: Iterable[SlurmJob]) -> list[Path]:
    """Return where the folders of jobs are by default: beside the place they were submitted from."""
    places = dict.fromkeys(Path(job.work_dir) / JOBS_FOLDER for job in jobs if job.work_dir)
    return [*places][:_MAX_FOLDERS]


def meant(jobs: OwnJobs) -> tuple[str, str] | None:
    """Return the job that is meant if none is named, and why; None if there is none. Pure."""
    if jobs.inside:
        return jobs.inside, "in which this command runs"
    if jobs.running:
        newest = jobs.running[0]
        why = "your only job that has not ended"
        if len(jobs.running) > 1:
            why = f"the newest of your {len(jobs.running)} jobs that have not ended"
        return newest.name, why + ("" if newest in jobs.here else f", in {newest.path.parent}")
    if not jobs.here:
        return None
    only = "your only job here" if len(jobs.here) == 1 else f"the newest of {len(jobs.here)} jobs here"
    return jobs.here[0].name, only


def looked(jobs: OwnJobs, job_dir: str | None) -> str:
    """Return where jobs were looked for, for those who miss one."""
    which = "jobs that have ended" if jobs.answers else "Slurm does not answer: all jobs"
    return f"{which} were looked for only in {root_of(job_dir)}"


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
