"""How long a job that has to end may save, what it waits for, and what to say of steps that are lost. Pure.

What is there goes to storage first; the job waits for a newer step only if time is left.
"""

from __future__ import annotations

from signal import SIGINT

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.record import Record
from slurm_robust.util.text import count

KILL_WAIT_S = 30.0
"""Slurm's default from SIGTERM to SIGKILL, if slurm.conf is not seen."""

MARGIN_S = 5.0
"""The part of that time that is kept for the journal, the agents' end and the job's summary."""

MIN_S = 2.0

GOODBYE_S = 15.0
"""Before the end of a run's time this is kept for the requeue: after it Slurm takes none."""

AGAIN_S = 1.0
"""Ctrl-C reaches all processes of a terminal's foreground together, and a script among them may pass it
on.
"""

ASKING_S = 10.0
"""So long Slurm is asked why it has told the agents to end, before their end counts as any other."""

TERM_NEWS_S = 1.0
"""A rank that SIGTERM ended may be the first sign of an order that all nodes get within this time."""

WORD_S = 3.0
"""So long after an order the end of the run waits for Slurm's word on it; saving waits for none."""

STAY_LEAST_S = 10.0
"""An agent that Slurm has told to end waits so long for its controller to say that it is needed: for the next
one, if it dies at the same order, or for one that stands still on a loaded host.
"""


class Orders:
    """Tells by the signals that order one process to end whether a second order has come. No clock.

    SIGTERM is one order however often it comes. Slurm sends it twice at a time limit, srun and batch scripts
    pass it on, and between the two is as long as a loaded node takes. Only people send SIGINT: by Ctrl-C, or
    by ``scancel --batch --signal=INT``. A SIGINT that comes after the order says that its sender does not
    want to wait.
    """

    def __init__(self) -> None:
        self._first: float | None = None

    def take(self, number: int, now: float) -> bool:
        """Take in signal ``number`` at the monotonic time ``now``; return whether it is a second order."""
        if self._first is None:
            self._first = now
            return False
        return number == SIGINT and now - self._first > AGAIN_S


def leave_s(kill_wait_s: float) -> float:
    """Return the seconds after SIGTERM in which everything must be saved, with this ``KillWait``."""
    return max(MIN_S, kill_wait_s - MARGIN_S)


def newer_s(left_s: float | None, checkpoint_s: float) -> float:
    """Return how long to wait for a step that is newer than what is there, at most half of the time left.

    ``left_s``: until the run's end, None if it is unknown; ``checkpoint_s``: ``timings.checkpoint_s``.
    """
    if left_s is None:
        return checkpoint_s
    return min(checkpoint_s, max(0.0, (left_s - GOODBYE_S) / 2))


def store_s(left_s: float | None, least_s: float, checkpoint_s: float) -> float:
    """Return how long storage is waited for at the end of a run's time.

    ``least_s``: if it is unknown how much time is left.
    """
    if left_s is None:
        return min(checkpoint_s, least_s)
    return min(checkpoint_s, max(MIN_S, left_s - GOODBYE_S))


SEE_TO_NODES = "see to these nodes"


class UnsavedSteps(Record):
    """Steps that only memory had and that did not get onto storage."""

    newest: int
    """The newest step that memory had."""
    stored: int
    """The newest step on storage that can be restored, -1 for none."""
    why: str
    """What went wrong, with the nodes."""
    waited_s: float
    for_time: bool = True
    """More time might have helped."""
    fix: str = SEE_TO_NODES
    """What else might have, beside less in memory; "" for nothing."""

    @property
    def steps(self) -> str:
        """``step 5``, ``steps 5 to 9``."""
        return _steps(self.stored + 1, self.newest)

    def describe(self, kill_wait_s: float | None, *, again: bool) -> str:
        """Describe it in a line. ``kill_wait_s``: given if Slurm's KillWait set the limit; ``again``: the job
        is requeued.
        """
        has = f"storage has step {self.stored}" if self.stored >= 0 else "storage has no step"
        fate = f"{_are(self.stored + 1, self.newest)} lost"
        if again:
            fate += " unless the next run gets the same nodes"
        lower = "lower checkpoint.every_s so that less is only in memory"
        if not self.for_time:
            fix = f"{self.fix}, or {lower}" if self.fix else lower
            return f"{has}; {self.steps} {fate}: {self.why}; fix: {fix}"
        limit = f" (KillWait={kill_wait_s:g})" if kill_wait_s is not None else ""
        more = (
            "the administrator raises KillWait" if limit else "submit with an earlier --signal=B:USR1@SECONDS"
        )
        return (
            f"{has}; {self.steps} {fate}: {self.why} after {count(round(self.waited_s), 'second')}{limit}; "
            f"fix: {more}, or {lower}"
        )


def unkept(newest: int, stored: int, local_stride: int) -> str:
    """Say which steps up to ``newest`` are lost of which no whole snapshot was there when the ranks ended.

    ``stored``: the newest step of which there was one, on storage now; ``local_stride``: of whose multiples
    snapshots were taken.
    """
    lost = _steps(stored + 1, newest)
    if local_stride > 1:
        why = f"snapshots were taken of multiples of {local_stride} only (checkpoint.max_blocked_share)"
        return f"{lost} {_are(stored + 1, newest)} lost: {why}"
    return f"{lost} {_are(stored + 1, newest)} lost: there was no whole snapshot when the ranks ended"


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _are(first: int, last: int) -> str:
    return "is" if first == last else "are"


class Sentence(Record):
    """What Slurm says of a run that it has told to end, or whose agents it has."""

    running: bool
    """The run goes on in Slurm's books."""
    preempted: bool = False
    """Slurm takes its nodes for another job."""
    left_s: float | None = None
    """Until the end of the run, None if Slurm does not say."""
    requeued: bool = False
    """The job is queued again: a next run follows."""
    node_fail: bool = False
    """Slurm has ended it since it gave up a node, or a node of it booted."""
    certain: bool = True
    """False: the cause of the end is not known yet, and another sentence follows."""


NODE_FAIL = "Slurm gave up a node of it, or the node booted (NODE_FAIL)"
"""Why Slurm ends a run that has lost a node."""


def explain(order: str, *, preempted: bool, requeued: bool, node_fail: bool = False) -> str:
    """Say why the run ends to which ``order`` came, by Slurm's word on it."""
    if preempted:
        return f"preempted by Slurm, which {'requeues' if requeued else 'cancels'} the job"
    if node_fail:
        return f"{'the job is requeued' if requeued else order}: {NODE_FAIL}"
    return f"the job is requeued ({order})" if requeued else order


def cancelled(code: int) -> str:
    """Return how a run that was ordered to end with this exit code is told of."""
    return "cancelled (Ctrl-C)" if code == ExitCode.INTERRUPTED else "cancelled (scancel, or Slurm ended it)"


def approaching(said: Sentence | None, warning_s: float) -> str:
    """Say why the run is near its end, "" if it is not: then the agents' step alone was cancelled.

    ``said``: None if Slurm gives no answer; then it is safer to save. ``warning_s``: how long before the
    end Slurm was asked to signal.
    """
    if said is None:
        return "Slurm has told the agents to end, and does not say why"
    if said.preempted:
        left = f", which ends it in {said.left_s:.0f} s" if said.left_s is not None else ""
        return f"preempted by Slurm{left}"
    if said.running and said.left_s is not None and said.left_s <= warning_s:
        return f"the time limit is {said.left_s:.0f} s away"
    return ""


WARNED_S = 300.0
"""A signal to all steps so long before the time limit is a warning of it (``--signal`` without ``B:``)."""
