"""Copies on this node that are of no use any more, and that nothing else removes.

When Slurm ends it, an agent asks whether the job comes back. If it could not ask (killed, no answer), the
prolog of slurm_robust removes the copies. If the administrator has not installed that, the user's next job
does.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from slurm_robust.agent.code import remove_code
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.model.nodefolders import CODE, parse_folder_name
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.companion import OF_JOB
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.select import make_client

# Each costs slurmctld one question.
MAX_JOBS = 20
TIMEOUT_S = 5.0
# All agents of a job begin and end together: more questions a second would burden slurmctld.
ASKING_PER_S = 500


def job_is_over(
    environ: Mapping[str, str], make: Callable[[], SlurmClient] = lambda: make_client("cli", TIMEOUT_S)
) -> bool:
    """Return whether Slurm says that this run of the job is its last; False if it does not say.

    While its nodes are taken back a job that is requeued and one that has ended are both COMPLETING, but
    Slurm counts the restart immediately (measured on 22.05).
    """
    try:
        run = allocation_from_environment(environ)
        time.sleep(spread_s(environ, random.random()))
        job = make().job(run.job_id)
    except JobNotFound:
        return True
    except (SlurmError, CommandTimeout, OSError):
        return False
    # On a companion's node the number is that of the job to which it is lent.
    restarts = 0 if OF_JOB in environ else run.restart_count
    return job.restart_count == restarts and (job.is_completing or job.is_finished)


def spread_s(environ: Mapping[str, str], chance: float, questions: int = 1) -> float:
    """Return how long one node waits before it asks, so that the nodes of the job do not all ask together.

    ``chance`` is from 0 to 1. Returns 0 outside of a job.
    """
    try:
        nodes = len(allocation_from_environment(environ).nodes)
    except SlurmError:
        return 0.0
    return chance * nodes * questions / ASKING_PER_S


def remove_leftovers(
    own: Sequence[Path],
    notes: Notes,
    make: Callable[[], SlurmClient] = lambda: make_client("cli", TIMEOUT_S),
) -> threading.Thread | None:
    """Search beside ``own`` in a thread; None if nothing is there that Slurm would have to be asked about.

    ``own``: this job's folders of copies. Folders beside them of this user's agents are removed, with copies
    or what a killed agent left, but only if they are of other jobs that Slurm says are finished or unknown.
    """
    jobs = {named.job_id for path in own if (named := parse_folder_name(path.name))}
    beside = [path for base in {path.parent for path in own} if base.is_dir() for path in base.iterdir()]
    names = {path: named for path in beside if (named := parse_folder_name(path.name))}
    found = {
        path: named.job_id
        for path, named in names.items()
        if named.uid == os.getuid() and named.job_id not in jobs
    }
    if not found:
        return None
    sweep = partial(_sweep, found, notes, make)
    return notes.start_thread("leftovers", "removes what other jobs have left", sweep)


def _sweep(found: dict[Path, int], notes: Notes, make: Callable[[], SlurmClient]) -> None:
    try:
        time.sleep(spread_s(os.environ, random.random(), min(len(found), MAX_JOBS)))
        slurm = make()
        for path, job_id in list(found.items())[:MAX_JOBS]:
            if _is_gone(slurm, job_id):
                if path.name.endswith(CODE):
                    for note in remove_code(path, socket.gethostname()):
                        notes.say("leftovers", note, again_s=0.0)
                else:
                    shutil.rmtree(path, ignore_errors=True)
                text = f"removed {path.name} that job {job_id} had left in {path.parent}"
                notes.say("leftovers", text, again_s=0.0)
    except (SlurmError, CommandTimeout, OSError):
        return  # without an answer nothing is removed; the next job asks again


def _is_gone(slurm: SlurmClient, job_id: int) -> bool:
    try:
        return slurm.job(job_id).is_finished
    except JobNotFound:
        return True
