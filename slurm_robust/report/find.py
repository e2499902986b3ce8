"""From what a person types (a job id, or a folder) to the job's directory and its facts."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_robust.controller.journal import read
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.events import AnyEvent
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.slurm.records import Job

DEFAULT_ROOT = "srobust-jobs"


class NoSuchJob(SrobustError):
    """No job directory with a journal was found."""

    exit_code = ExitCode.NO_INPUT


def ask_slurm(client: SlurmClient, job_id: int) -> Job | None:
    """The job as Slurm sees it, None when Slurm forgot it or does not answer."""
    try:
        return client.job(job_id)
    except (JobNotFound, SlurmError):
        return None


def find_directory(name: str, root: str | None, job: Job | None) -> JobDirectory:
    """The directory of job ``name``: a path, or a job id looked up below the likely roots.

    Looked for in ``root``, else in ``srobust-jobs`` here and in the folder from which Slurm says the
    job was submitted. Raises :class:`NoSuchJob` naming the places.
    """
    if not name.isdigit():
        places = [Path(name)]
    else:
        roots = [Path(root)] if root else [Path.cwd() / DEFAULT_ROOT]
        if not root and job is not None and job.work_dir:
            roots.append(Path(job.work_dir) / DEFAULT_ROOT)
        places = [r / name for r in dict.fromkeys(roots)]
        places += [p for r in dict.fromkeys(roots) if r.is_dir() for p in sorted(r.glob(f"{name}.*"))]
    for place in places:
        try:
            if JobDirectory(place).journal.exists():
                return JobDirectory(place)
        except PermissionError as denied:
            raise _closed(place) from denied
    missing = NoSuchJob(f"no journal of job {name} in {' or '.join(map(str, places))}")
    missing.fix = "give --job-dir as 'srobust run' had it, or the job's folder instead of its number"
    raise missing


def load_events(directory: JobDirectory) -> list[AnyEvent]:
    """The journal's events. Raises :class:`NoSuchJob` when it may not be read, ``JournalDamaged``."""
    try:
        return read(directory.journal)
    except PermissionError as error:
        raise _closed(directory.path) from error


def _closed(folder: Path) -> NoSuchJob:
    error = NoSuchJob(f"{folder} may not be read by uid {os.getuid()}")
    error.fix = "the job's owner and root can; its folder is closed to all others"
    return error
