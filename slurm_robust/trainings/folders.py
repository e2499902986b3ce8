"""The folders of the jobs that have begun, and those of them that are the caller's."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.model.training import ASIDE

MAX_LISTED = 8
"""An error lists the ids of no more jobs."""

_ID = re.compile(r"\d+")


class BegunJob(Record):
    """A job's folder that has a journal."""

    path: Path
    changed: float
    """When the journal was written last, in seconds since 1970."""
    owner: int

    @property
    def name(self) -> str:
        """The job as commands take it."""
        return self.path.name if self.path.name.isdecimal() else str(self.path)

    @property
    def job_id(self) -> int:
        """Slurm's id, 0 if the name of the folder does not begin with one."""
        found = _ID.match(self.path.name)
        return int(found[0]) if found else 0


def folders_in(root: Path) -> list[BegunJob]:
    """Return the folders of jobs that have begun, the newest journal first. Raises ``OSError``."""
    found = []
    for path in root.iterdir():
        try:
            info = JobDirectory(path).journal.stat()
        except OSError:
            continue  # no job's folder, another user's, or one that has just begun
        if info.st_size and ASIDE not in path.name:
            found.append(BegunJob(path=path, changed=info.st_mtime, owner=info.st_uid))
    return sorted(found, key=lambda folder: folder.changed, reverse=True)


def own_folders(root: Path) -> list[BegunJob]:
    """Return the caller's jobs in ``root``, all jobs if root asks, the newest journal first. Never raises."""
    try:
        found = folders_in(root)
    except OSError:
        return []
    return [folder for folder in found if os.geteuid() in (0, folder.owner)]


def listed(folders: Sequence[BegunJob], most: int = MAX_LISTED) -> str:
    """Return the newest jobs as an error names them: ``6, 5, 1``; "" for none. Pure."""
    names = [folder.path.name for folder in folders[:most]]
    return ", ".join(names) + (f" and {len(folders) - most} older" if len(folders) > most else "")
