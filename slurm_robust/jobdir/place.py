"""The job directory in its place.

``srobust run`` makes it before training begins, and nothing makes it again. A folder that is renamed or
removed while the job runs would otherwise come back with the umask's mode, with a part of what belongs to the
job, and in the way of the one that must be put back.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util.files import make_folder
from slurm_robust.util.ours import NotOurs, read_ours


class _Run(Record):
    run_id: str


# Made while there is one thread; see Record.
_runs = msgspec.json.Decoder(_Run)


class FolderGone(OSError):
    """The job's folder is not in its place, or another one is there."""

    def __init__(self, job: Path) -> None:
        super().__init__(errno.ENOENT, f"the job's folder {job} was moved or removed: put it back", str(job))

    def __str__(self) -> str:
        return str(self.strerror)


def check_in_place(job: Path, run_id: str) -> None:
    """Raise :class:`FolderGone` unless ``job`` is the folder of the run ``run_id``, or ``OSError``."""
    try:
        found = _runs.decode(read_ours(JobDirectory(job).spec)).run_id
    except (FileNotFoundError, NotADirectoryError, NotOurs, *UNREADABLE):
        found = ""
    if found != run_id:
        raise FolderGone(job)


def make_in_job(job: Path, run_id: str, folder: Path) -> None:
    """Make ``folder``: below the job's folder closed to others (0700), elsewhere as the umask says.

    Raises :class:`FolderGone` for the former if the job's folder is not in its place, or ``OSError``.
    """
    job, folder = Path(os.path.abspath(job)), Path(os.path.abspath(folder))
    if not folder.is_relative_to(job):
        make_folder(folder)
        return
    check_in_place(job, run_id)
    make_folder(folder, below=job)
