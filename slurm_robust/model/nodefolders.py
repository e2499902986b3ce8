"""The folders that a job's agents make on a node, in memory and on its disk: their names.

``srobust-<uid>-<run id>``, and what it is for: ``-copies`` holds copies of checkpoints, which the job may go
on from after a requeue, ``-code`` the releases of its code from which ranks run. A run id begins with the
job's id, so root's hooks and the user's later jobs know whose a folder is. Any user may make such a name: its
owner has to be checked, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurm_robust.model.record import Record

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "srobust-"
COPIES = "-copies"
CODE = "-code"
REHEARSAL = "rehearsal"
"""In the agent's own folder: what a rehearsal leaves, and the release that it runs."""

# As text: re compiles it when it is first needed, which on most nodes is never.
_NAME = rf"{PREFIX}([0-9]{{1,10}})-([0-9]{{1,10}})-[A-Za-z0-9_.-]+"
# As a path in a text: a folder of agents, a release, one of the folders of which it has a copy.
_AGENTS = rf"(?:/[^\s'\"/]+){{1,12}}/{PREFIX}[0-9]{{1,10}}-[A-Za-z0-9_.-]+?"
_IN_A_RELEASE = rf"{_AGENTS}(?:{CODE}|/{REHEARSAL})/[0-9a-f]{{12}}/[^'\"\n/]+/"


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


def within_release(text: str) -> str:
    """Return ``text`` with each place in a release's copy on a node as it is below the copied folder.

    So ``train.py`` is the same place in all releases and on all nodes, and it says something to its owner.
    """
    return re.sub(_IN_A_RELEASE, "", text) if PREFIX in text else text
