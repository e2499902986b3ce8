"""Whether the job that took a training last still has it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.state import JobState
from slurm_robust.model.training import Chapter
from slurm_robust.slurm.records import SlurmJob, SlurmNode

COMPLETING_S = 120.0
"""A job that Slurm is ending is waited for so long: hardly any epilog takes longer."""

SILENT_S = 60.0
"""Slurm that gives no answer is asked again for so long."""

ALIVE_S = 300.0
"""A job of another cluster that wrote to its journal so lately may go on, though it cannot be reached."""

_SAME_S = 1.0  # Slurm's own resolution
_ORDERED = (ExitCode.TERMINATED, ExitCode.INTERRUPTED)
_MAY_COME_BACK = (*_ORDERED, ExitCode.REQUEUED)


class Hold(Enum):
    """Whether a job has the training."""

    FREE = "free"  # it has ended for good
    LEAVING = "leaving"  # Slurm is ending it: it may be requeued, and its processes may still be there
    HELD = "held"
    UNKNOWN = "unknown"  # it cannot be found out now


def end_of(ended: ev.RunEnded | None) -> ev.RunEnded | None:
    """Return ``ended`` of a journal if the job does not go on: it ended for good, or was ordered to."""
    if ended is None or ended.requeued:
        return None
    return ended if ended.final or ended.code in _ORDERED else None


def judge(chapter: Chapter, ended: ev.RunEnded | None, job: SlurmJob | None, *, answers: bool) -> Hold:
    """Return whether the job of ``chapter`` holds the training.

    ``ended``: the end in its journal (:func:`end_of`); ``job``: Slurm's word, None if it knows no such job;
    ``answers``: whether Slurm gave one. If the script itself ended, that is final. An ordered end (by
    ``scancel`` or by a preemption, which requeues) is final only if Slurm says so, too.
    """
    if ended is not None and ended.code not in _MAY_COME_BACK:
        return Hold.FREE
    if not answers:
        return Hold.FREE if ended is not None else Hold.UNKNOWN
    if job is None or _is_another(chapter, job):
        return Hold.FREE
    if job.is_completing and not (job.is_finished and ended is not None):
        return Hold.LEAVING
    if job.is_finished:
        return Hold.FREE
    # Between its end and Slurm's notice of it a job counts as running.
    return Hold.LEAVING if job.is_running and ended is not None else Hold.HELD


def is_left_behind(job: SlurmJob, nodes: Iterable[SlurmNode], state: JobState) -> bool:
    """Return whether Slurm is still ending a run of ``job`` only on nodes that the job had given up.

    They do not respond, and training went on without them: nothing there counts any more. ``nodes``: those of
    the job; ``state``: by its journal. Slurm has not requeued the job, whose restarts it would have counted.
    """
    left = [node for node in nodes if "COMPLETING" in node.states]
    given_up = all(node.name in state.evicted and not node.responding for node in left)
    return bool(left) and given_up and job.restart_count <= max(0, state.restart_count)


def judge_elsewhere(ended: ev.RunEnded | None, newest: float, now: float) -> Hold:
    """Judge the same for a job of another cluster, whose Slurm cannot be asked.

    ``newest``: when the last event of its journal was written, and ``now``, in seconds since 1970.
    """
    return Hold.HELD if ended is None and now - newest < ALIVE_S else Hold.FREE


def _is_another(chapter: Chapter, job: SlurmJob) -> bool:
    """Return whether ``job`` only has the same id.

    A requeue sets the submit time of a job again, never back; one that was never requeued keeps its own.
    """
    if chapter.submitted is None or job.submit_time is None:
        return False
    later_s = job.submit_time - chapter.submitted
    return later_s < -_SAME_S or (later_s > _SAME_S and job.restart_count == 0)
