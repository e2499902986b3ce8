"""From what a person types (a job id, or a folder) to the job's directory and its facts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurm_robust.controller.journal import read
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.events import AnyEvent, RunStarted, decode_event
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.slurm.records import Job
from slurm_robust.slurm.select import make_client

DEFAULT_ROOT = "srobust-jobs"

_ID = re.compile(r"(?P<job>\d+)(?:_(?P<task>\d+))?")
# What squeue and sacct show besides: components of heterogeneous jobs, tasks that wait, steps.
_LOOKS_LIKE_ID = re.compile(r"\d+\+\d+(\.\w+)?|\d+_\[.*\]|\d+(_\d+)?\.(\d+|batch|extern)")


class NoSuchJob(SrobustError):
    """No job directory with a journal was found."""

    exit_code = ExitCode.NO_INPUT


def find(name: str, root: str | None, client: SlurmClient | None = None) -> tuple[JobDirectory, Job | None]:
    """The folder of the job that a person named, and the job as Slurm sees it, if it does.

    ``name`` is a job id, the id of an array's task as squeue shows it (``38_1``), or a folder. Ids are
    looked up in ``root``, else in ``srobust-jobs`` here and in the folder from which Slurm says that the
    job was submitted. Raises :class:`NoSuchJob` naming the places.
    """
    number = _ID.fullmatch(name)
    if number is None and (_LOOKS_LIKE_ID.fullmatch(name) and not Path(name).exists()):
        raise _no_such_id(name)
    job = None
    if number is not None:
        client = client or make_client("cli", timeout_s=10.0)
        job = ask_slurm(client, int(number["job"]))
    directory = find_directory(name, root, job)
    if number is not None and number["task"] and client is not None:
        # Slurm knows a task that runs by an id of its own, which names its folder.
        job = ask_slurm(client, int(directory.path.name.partition(".")[0]))
    return directory, job


def ask_slurm(client: SlurmClient, job_id: int) -> Job | None:
    """The job as Slurm sees it, None when Slurm forgot it or does not answer."""
    try:
        return client.job(job_id)
    except (JobNotFound, SlurmError):
        return None


def find_directory(name: str, root: str | None, job: Job | None) -> JobDirectory:
    """The directory of job ``name``. Raises :class:`NoSuchJob` naming the places."""
    number = _ID.fullmatch(name)
    if number is None:
        places = [Path(name)]
    else:
        roots = [Path(root)] if root else [Path.cwd() / DEFAULT_ROOT]
        if not root and job is not None and job.work_dir:
            roots.append(Path(job.work_dir) / DEFAULT_ROOT)
        roots = list(dict.fromkeys(roots))
        places = [r / name for r in roots]
        places += [p for r in roots if r.is_dir() for p in sorted(r.glob(f"{name}.*"))]
        if number["task"]:
            places += [p for r in roots if r.is_dir() for p in _of_task(r, name)]
    for place in places:
        try:
            if JobDirectory(place).journal.exists():
                return JobDirectory(place)
        except PermissionError as denied:
            raise _closed(place) from denied
    missing = NoSuchJob(f"no journal of job {name} in {' or '.join(map(str, places))}")
    missing.fix = "give --job-dir as 'srobust run' had it, or the job's folder instead of its number"
    raise missing


def _of_task(root: Path, task: str) -> Iterator[Path]:
    """Folders below ``root`` whose run says that it is this task of an array, the newest first."""
    for folder in sorted(root.iterdir(), key=lambda path: path.name, reverse=True):
        try:
            with JobDirectory(folder).journal.open("rb") as file:
                first = decode_event(file.readline())
        except (OSError, msgspec.DecodeError):
            continue  # no job's folder, somebody else's, or one that is just begun
        if isinstance(first, RunStarted) and first.array_task == task:
            yield folder


def _no_such_id(name: str) -> NoSuchJob:
    if "+" in name:
        job_id = name.partition("+")[0]
        text = f"{name} is a component of heterogeneous job {job_id}, in which srobust does not run"
        error = NoSuchJob(text)
        error.fix = "submit the training as an ordinary job: one group of nodes, without '#SBATCH hetjob'"
    elif "[" in name:
        job_id = name.partition("_")[0]
        error = NoSuchJob(f"{name} stands for several tasks of array {job_id}")
        error.fix = f"give one of them as squeue shows it while it runs, like {job_id}_1"
    else:
        job_id = name.partition(".")[0]
        error = NoSuchJob(f"{name} is a step of job {job_id}")
        error.fix = f"give the job: {job_id}"
    return error


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
