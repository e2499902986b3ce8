"""What a controller leaves behind when its run ends: the job's summary, and a line in Slurm's job comment.

The job needs neither, so neither holds up its end: a thread does both, and is left behind if storage or Slurm
does not answer in time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from slurm_robust.ledger.summarise import COMMENT_TAG, comment_of, save, summary_of_job
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.util.output import say
from slurm_robust.util.threads import start_thread

CONCLUDE_S = 4.0
"""Slurm kills the batch script half a minute after its TERM, and the journal may need 10 s of that."""

HURRY_S = 1.0
"""The same before a requeue: the next run cannot begin before this one has ended, and does both again."""


def save_summary(directory: JobDirectory, events: Sequence[ev.AnyEvent], node: str) -> str:
    """Write ``summary.json``; what to write into the job's comment, "" for nothing. Raises ``OSError``."""
    compared = (event for event in reversed(events) if isinstance(event, ev.ClockCompared))
    ahead_s = next((event.ahead_s for event in compared), 0.0)  # of slurmctld's clock
    summary = summary_of_job(events, time.time() - ahead_s, node)
    if summary is None:
        return ""
    save(directory, summary)
    return comment_of(summary)


def conclude(
    directory: JobDirectory,
    events: Sequence[ev.AnyEvent],
    slurm: SlurmClient,
    job_id: int,
    node: str,
    *,
    comments: bool,
    limit_s: float,
) -> None:
    """Do both, within ``limit_s`` seconds. Raises nothing."""

    def work() -> None:
        try:
            text = save_summary(directory, events, node)
        except OSError as error:
            say(f"{directory.summary} could not be written: {error}")
            text = ""
        if text and comments:
            comment(slurm, job_id, text)

    start_thread("conclusion", work).join(limit_s)


def comment(slurm: SlurmClient, job_id: int, text: str) -> None:
    """Set the job's comment, unless it has one of another writer. Raises nothing."""
    try:
        before = slurm.job(job_id).comment.strip()
        if not before or before.startswith(COMMENT_TAG):
            slurm.set_comment(job_id, text)
    except SlurmError as error:
        if os.environ.get("SROBUST_DEBUG") == "1":
            say(f"the job's comment was not set: {error}")
