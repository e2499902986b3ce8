"""Removes copies that earlier jobs of the same user left in this node's memory.

A cancelled job cannot know whether it comes back, so its agents leave its copies. Where the administrator
has installed the prolog of slurm_robust that removes them; elsewhere the user's next job does.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from slurm_robust.checkpoint.memory import SHARED_MEMORY
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.slurm.select import make_client

# Each costs slurmctld one question.
MOST = 20


def remove_leftovers(
    own: Path,
    note: Callable[[str], None],
    base: Path = SHARED_MEMORY,
    make: Callable[[], SlurmClient] = lambda: make_client("cli"),
) -> threading.Thread | None:
    """Look through ``base`` in a thread; None if nothing is there that Slurm would have to be asked about.

    Only folders of this user, never ``own``, and only of jobs that Slurm says are finished or unknown.
    """
    pattern = re.compile(rf"srobust-{os.getuid()}-(\d+)-[\w.-]+-copies")
    found = {p: int(m[1]) for p in base.iterdir() if (m := pattern.fullmatch(p.name)) and p != own}
    if not found:
        return None
    thread = threading.Thread(target=_sweep, args=(found, note, make), name="srobust-leftovers", daemon=True)
    thread.start()
    return thread


def _sweep(found: dict[Path, int], note: Callable[[str], None], make: Callable[[], SlurmClient]) -> None:
    try:
        slurm = make()
        for path, job_id in list(found.items())[:MOST]:
            if _is_gone(slurm, job_id):
                shutil.rmtree(path, ignore_errors=True)
                note(f"removed copies that job {job_id} had left in {path.parent}")
    except (SlurmError, OSError):
        return  # without an answer nothing is removed; the next job asks again


def _is_gone(slurm: SlurmClient, job_id: int) -> bool:
    try:
        return slurm.job(job_id).is_finished
    except JobNotFound:
        return True
