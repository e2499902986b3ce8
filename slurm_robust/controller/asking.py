"""Asks Slurm why it ends this run: a preemption and a requeue send the same signal as a cancellation.

slurmctld says whether the run goes on and whether the job is queued again, but hardly ever who wanted that:
of a preemption without ``GraceTime`` it keeps nothing. slurmstepd says it, in the output of the steps that it
ends; so does slurmdbd, a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from slurm_robust.policy.leaving import Sentence
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.requeue import Clock, SystemClock
from slurm_robust.slurm.step_output import NODE_FAILURE, PREEMPTION

FOR_S = 2.5
EVERY_S = 0.25

BOOKS_AFTER_S = 0.5
"""slurmstepd's words come within this time, if they come at all; then slurmdbd is asked."""

_STATES = {PREEMPTION: "PREEMPTED", NODE_FAILURE: "NODE_FAIL"}
_OVER = frozenset({"PREEMPTED", "REQUEUED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "FAILED", "COMPLETED"})


class Asking:
    """Asks about one run of a job. Use it in a thread: it waits for answers, and :data:`FOR_S` besides."""

    def __init__(
        self,
        slurm: SlurmClient,
        job_id: int,
        run: int,
        told: Callable[[], str | None],
        clock: Clock | None = None,
    ) -> None:
        """``run``: its restart count; ``told``: what slurmstepd says of the end of the newest steps."""
        self._slurm = slurm
        self._job_id = job_id
        self._run = run
        self._told = told
        self._clock = clock or SystemClock()

    def sentences(self, now: float) -> Iterator[Sentence | None]:
        """Yield what Slurm says, first what may change yet, then what is certain; None: slurmctld does not
        answer. Raises nothing.

        ``now``: slurmctld's time.
        """
        try:
            job = self._slurm.job(self._job_id)
        except (SlurmError, CommandTimeout, OSError):
            said = None
        else:
            said = Sentence(
                running=job.is_running,
                preempted=job.preempt_time is not None,
                left_s=max(0.0, job.end_time - now) if job.end_time is not None else None,
                requeued=job.restart_count > self._run and not job.is_finished,
            )
            if said.running or said.preempted:
                yield said
                return
        yield said if said is None else structs.replace(said, certain=False)
        why = self._why()
        if why == "PREEMPTED":
            yield structs.replace(said or Sentence(running=False), preempted=True)
        elif said is not None:
            yield structs.replace(said, node_fail=why == "NODE_FAIL")

    def _why(self) -> str:
        """Return the state in which the run ends by slurmstepd's words, else by slurmdbd's; "" for others."""
        begun = self._clock.monotonic()
        while (waited_s := self._clock.monotonic() - begun) < FOR_S:
            if (why := self._told()) is not None:
                return _STATES.get(why, "")
            if waited_s >= BOOKS_AFTER_S and (state := self._in_the_books()):
                return state
            self._clock.sleep(EVERY_S)
        return ""

    def _in_the_books(self) -> str:
        """Return how slurmdbd says that the run has ended, "" if it does not say."""
        try:
            rows = self._slurm.accounting(self._job_id)
        except (SlurmError, CommandTimeout, OSError):
            return ""
        ends = (row.state for row in rows if not row.step and row.run == self._run and row.state in _OVER)
        return next(ends, "")
