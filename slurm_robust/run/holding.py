"""Waits until the job that took a training last, or the job to go on from, has let it go."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import another_job, minute
from slurm_robust.model.training import Chapter, TrainingDirectory
from slurm_robust.policy.holding import (
    ALIVE_S,
    COMPLETING_S,
    SILENT_S,
    Hold,
    is_left_behind,
    judge,
    judge_elsewhere,
)
from slurm_robust.run.preflight import check_alone
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.slurm.records import SlurmJob
from slurm_robust.trainings.earlier import earlier_job
from slurm_robust.trainings.slurmview import completing_advice
from slurm_robust.util.alone import Alone
from slurm_robust.util.output import say

ASK_EVERY_S = 2.0

ENDING_S = 30.0
"""A process whose run is over has ended by then: its controller has ended, and people have been told."""

TRY_EVERY_S = 1.0


class WaitClock(NamedTuple):
    """Time, and how to let it pass."""

    mono: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL = WaitClock()


class Applicant(NamedTuple):
    """Who asks: the cluster and the id of this job, and what it would go on with, in words."""

    slurm: SlurmClient
    cluster: str
    job_id: int
    what: str
    clock: WaitClock = REAL


def await_free(chapter: Chapter, directory: JobDirectory, asked: Applicant) -> None:
    """Return when the job of ``chapter``, whose folder is ``directory``, has ended for good.

    Raises :class:`PreflightError`: 76 when it holds the training, 69 when Slurm does not say; and
    ``JournalDamaged``, ``OSError``.
    """
    if chapter.job_id == asked.job_id and chapter.cluster in ("", asked.cluster):
        check_alone(directory)  # an earlier run of this job's script, or this one before it was started again
        return
    begun, told = asked.clock.mono(), False
    while True:
        hold, ended, job, answer = _look(chapter, directory, asked)
        waited_s = asked.clock.mono() - begun
        if hold is Hold.FREE or (hold is Hold.LEAVING and ended is not None and waited_s >= COMPLETING_S):
            return
        limit_s = {Hold.LEAVING: COMPLETING_S, Hold.UNKNOWN: SILENT_S, Hold.HELD: 0.0}[hold]
        if waited_s >= limit_s:
            raise _refusal(chapter, job, asked, answer)
        if not told:
            told = True
            why = f"does not say whether it has ended ({answer})" if answer else "is still ending it"
            advice = completing_advice(asked.slurm, job) if job is not None else ""
            say(
                f"{asked.what} was last held by job {chapter.job}; Slurm {why}: waiting up to {limit_s:.0f} s"
                + (f"; job {chapter.job} {advice}" if advice else "")
            )
        asked.clock.sleep(ASK_EVERY_S)


def check_not_held(chapter: Chapter, directory: JobDirectory, asked: Applicant) -> None:
    """Raise as :func:`await_free` if the job holds the training by now; asked once."""
    if chapter.job_id == asked.job_id and chapter.cluster in ("", asked.cluster):
        return
    hold, _, job, answer = _look(chapter, directory, asked)
    if hold is Hold.HELD:
        raise _refusal(chapter, job, asked, answer)


def _look(
    chapter: Chapter, directory: JobDirectory, asked: Applicant
) -> tuple[Hold, ev.RunEnded | None, SlurmJob | None, str]:
    """Return whether the job holds the training now; its end, Slurm's word, and why Slurm gives none."""
    # Its folder may be another job's by now, and its own be moved aside.
    found = earlier_job(directory, chapter.run_id)
    events = found.events if found is not None else []
    ended = found.end if found is not None else None
    if chapter.cluster not in ("", asked.cluster):
        newest = events[-1].t if events else chapter.t
        return judge_elsewhere(ended, newest, time.time()), ended, None, ""
    job, answer = _ask(asked.slurm, chapter.job_id)
    if job is not None and another_job(events, "", job.restart_count, job.submit_time):
        job = None  # it only has the same id
    hold = judge(chapter, ended, job, answers=not answer)
    if hold is Hold.LEAVING and job is not None and ended is not None and found is not None:
        with suppress(SlurmError):
            nodes = asked.slurm.nodes(job.nodes) if job.is_completing and job.nodes else ()
            hold = Hold.FREE if is_left_behind(job, nodes, found.state) else hold
    return hold, ended, job, answer


def await_kept(
    training: TrainingDirectory, run_id: str, timeout_s: float, clock: WaitClock = REAL
) -> tuple[Chapter, ...]:
    """Return the chapters, once the newest is this run's or that of a job that keeps the training.

    A job that has claimed it asks Slurm about the job before, and gives it back if that runs again. A job
    that has decided nothing after ``timeout_s`` may have died: its chapter counts. Raises ``OSError``.
    """
    begun, told = clock.mono(), False
    while True:
        chapters = training.read()
        if not chapters or chapters[-1].run_id == run_id or training.is_kept(chapters[-1]):
            return chapters
        if clock.mono() - begun >= timeout_s:
            return chapters
        if not told:
            told = True
            say(
                f"job {chapters[-1].job} is about to take training {training.name}, or to see that this job "
                f"runs again: waiting up to {timeout_s:.0f} s"
            )
        clock.sleep(TRY_EVERY_S)


def take_alone(alone: Alone, what: str, clock: WaitClock = REAL) -> None:
    """Keep every other start of ``what`` on this node out; 76 if there is one that does not end.

    Raises ``PreflightError``.
    """
    begun, told = clock.mono(), False
    while (owner := alone.take()) is not None:
        who = f", process {owner}" if owner else ""
        held = f"{what} is held by another 'srobust run' on this node{who}"
        if clock.mono() - begun >= ENDING_S:
            raise PreflightError(
                held,
                fix="wait for its end; of a training only one job may run at a time, and one start in a job",
                code=ExitCode.OTHER_CONTROLLER,
            )
        if not told:
            told = True
            say(f"{held}: waiting up to {ENDING_S:.0f} s for its end")
        clock.sleep(TRY_EVERY_S)


def is_free(chapter: Chapter, ended: ev.RunEnded | None, slurm: SlurmClient) -> bool:
    """Return whether the job has surely ended, asked once. ``ended``: as of :func:`judge`."""
    job, answer = _ask(slurm, chapter.job_id)
    return judge(chapter, ended, job, answers=not answer) is Hold.FREE


def _ask(slurm: SlurmClient, job_id: int) -> tuple[SlurmJob | None, str]:
    """Return Slurm's word on a job, None for one that it does not know; and why it gives none."""
    try:
        return slurm.job(job_id), ""
    except JobNotFound:
        return None, ""
    except SlurmError as error:
        return None, str(error) or type(error).__name__


def _refusal(chapter: Chapter, job: SlurmJob | None, asked: Applicant, answer: str) -> PreflightError:
    who = f"job {chapter.job}"
    if answer:
        return PreflightError(
            f"{asked.what} was last held by {who}, and Slurm does not say whether that has ended: {answer}",
            fix=f"submit again when 'scontrol show job {chapter.job}' answers",
            code=ExitCode.SLURM,
        )
    if job is None:
        return PreflightError(
            f"{asked.what} is held by {who} of cluster {chapter.cluster}, which cannot be asked from here; "
            f"it wrote to its journal within the last {ALIVE_S / 60:.0f} minutes",
            fix=f"wait for its end, or end it there: scancel {chapter.job}; then submit again",
            code=ExitCode.OTHER_CONTROLLER,
        )
    states = "+".join(sorted(job.states))
    if job.is_completing and not job.is_pending:  # it was cancelled, or it has ended
        advice = completing_advice(asked.slurm, job)
        return PreflightError(
            f"{asked.what} is held by {who}, {states}: Slurm is still ending it",
            fix=f"submit again with 'sbatch --dependency=afterany:{chapter.job} …', which waits for its end"
            + (f"; job {chapter.job} {advice}" if advice else ""),
            code=ExitCode.OTHER_CONTROLLER,
        )
    since = f" since {minute(job.start_time)}" if job.start_time and job.is_running else ""
    node = job.batch_host or chapter.node
    where = f" on node {node}" if node and not job.is_pending else ""
    reason = f" ({job.reason})" if job.is_pending and job.reason not in ("", "None") else ""
    later = "; it goes on by itself when Slurm starts it again" if job.is_pending else ""
    return PreflightError(
        f"{asked.what} is held by {who}{where}, {states}{reason}{since}{later}",
        fix=f"wait for its end (sbatch --dependency=afterany:{chapter.job} …), or end it: "
        f"scancel {chapter.job}",
        code=ExitCode.OTHER_CONTROLLER,
    )
