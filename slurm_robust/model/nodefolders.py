"""The folders that a job's agents make on a node, in memory and on its disk: their names.

``srobust-<uid>-<run id>``, and what it is for: ``-copies`` holds copies of checkpoints, which the job may go
on from after a requeue. A run id begins with the job's id, so root's hooks and the user's later jobs know
whose a folder is. Any user may make such a name: its owner has to be checked, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurm_robust.model.record import Record

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "srobust-"
COPIES = "-copies"

# As text: re compiles it when it is first needed, which on most nodes is never.
_NAME = rf"{PREFIX}([0-9]{{1,10}})-([0-9]{{1,10}})-[A-Za-z0-9_.-]+"


class JobFolder(Record):
    """What the name of a folder says."""

    uid: int
    job_id: int
    has_copies: bool
    """Whether the job may go on from what is in it after a requeue."""


def folder_name(run_id: str, what: str = "") -> str:
    """Return the name of this user's folder for a run; ``what`` follows it, as :data:`COPIES`."""
    return f"{PREFIX}{os.getuid()}-{run_id}{what}"


def parse_folder_name(name: str) -> JobFolder | None:
    """Parse what :func:`folder_name` gives; None for any other name."""
    match = re.fullmatch(_NAME, name)
    if match is None:
        return None
    return JobFolder(uid=int(match[1]), job_id=int(match[2]), has_copies=name.endswith(COPIES))
