"""Giving the job back to Slurm, in the order that works, from inside the job that ends by it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.errors import JobFinished, JobNotFound, SlurmError
from slurm_robust.slurm.need import Need, segment_of
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.records import Allocation, SlurmJob, SlurmVersion
from slurm_robust.slurm.requeue import Clock, RequeueRequest, StageOutcome, SystemClock, Until, carry_out
from slurm_robust.slurm.requeue_plan import waiting_advice, wanted_of
from slurm_robust.slurm.select import make_client
from slurm_robust.slurm.watcher import arrange_watcher
from slurm_robust.util.hostlist import fold
from slurm_robust.util.output import say

Report = Callable[[str, bool, str], None]
Answer = Callable[[SlurmAnswer], None]


ORDERS_S = 20.0
"""How long Slurm is asked in one go, before the controller looks after the rest and asks again."""


class Requeuer:
    """Requeues one job. The dying run does what counts; a watcher that outlives it does the rest.

    When Slurm has taken it the job is pending (or completing) without the excluded nodes, so nothing is
    lost if everything of this job dies now; the watcher only spares it Slurm's two minutes of begin
    time and a hold after a failed prolog. An expedited job has no begin time, and needs no watcher.
    """

    def __init__(
        self,
        slurm: SlurmClient,
        job_id: int,
        restart_count: int,
        log: Path,
        *,
        nodes: Sequence[str] = (),
        need: Need | None = None,
        start_now: bool,
        revives: bool = False,
    ) -> None:
        """``nodes``: the nodes with which the run began; a watcher there would be in the job's way.

        ``need``: the number of nodes with which the job can go on, by default what it asks Slurm for;
        ``revives``: the run may have ended because its batch script was killed.
        """
        self._slurm = slurm
        self._job_id = job_id
        self._restart_count = restart_count
        self._log = log
        self._nodes = tuple(nodes)
        self._need = need
        self._start_now = start_now
        self._revives = revives

    def ask(
        self,
        exclude: tuple[str, ...],
        report: Report,
        answer: Answer,
        *,
        holders: tuple[str, ...] = (),
        pins: tuple[str, ...] = (),
    ) -> None:
        """Requeue, exclude nodes and start the watcher, within bounds; called again, go on from there.

        ``exclude``, ``holders`` and ``pins`` are as in :class:`~slurm_robust.slurm.requeue.RequeueRequest`.
        ``answer`` gets what Slurm says, again when all is done. Never raises for Slurm or files.
        """
        order = RequeueRequest(
            job_id=self._job_id,
            ending_run=self._restart_count,
            exclude=exclude,
            need=self._need,
            holders=holders,
            pins=pins,
            until=Until.EXCLUDED,
            revives=self._revives,
        )
        with without_term():
            is_taken = is_watched = False

            def watch() -> None:
                nonlocal is_watched
                if self._start_now and not is_watched:
                    is_watched = self._watch(order, job, report)

            def report_stage(stage: StageOutcome) -> None:
                nonlocal is_taken
                report(stage.stage.value, stage.ok, stage.detail)
                if stage.ok and not is_taken:
                    # What follows the requeue proves it, too: the answer to its own command may be lost.
                    is_taken = True
                    answer(SlurmAnswer(said=RequeueStatus.TAKEN))
                    # Now, since this run may end before Slurm takes an exclusion, which a watcher repeats.
                    watch()

            try:
                job = self._slurm.job(self._job_id)
                self._say_what_is_short(order, job, report)
                outcome = carry_out(
                    self._slurm,
                    order,
                    unavailable=self._is_unavailable(job),
                    timeout_s=ORDERS_S,
                    report=report_stage,
                )
            except JobNotFound as error:
                answer(SlurmAnswer(said=RequeueStatus.REFUSED, detail=str(error)))
                return
            except (SlurmError, CommandTimeout, OSError) as error:
                answer(SlurmAnswer(said=RequeueStatus.NOTHING, detail=str(error)))
                return
            if not outcome.ok:
                said = RequeueStatus.REFUSED if outcome.final else RequeueStatus.NOTHING
                answer(SlurmAnswer(said=said, detail=outcome.detail))
                return
            watch()
            advice = waiting_advice(outcome.job) if outcome.job is not None else ""
            answer(SlurmAnswer(said=RequeueStatus.DONE, detail=advice))

    def _is_unavailable(self, job: SlurmJob) -> bool:
        """Return whether only a watcher can exclude nodes: the job was resized, which no slurmdbd records."""
        if job.expedited or set(job.nodes) == set(self._nodes):
            return False
        return not self._slurm.config().get("AccountingStorageType", "").endswith("/slurmdbd")

    def _say_what_is_short(self, order: RequeueRequest, job: SlurmJob, report: Report) -> None:
        """Name the nodes whose exclusion would leave too few for the job ever to start, and segments without
        room.
        """
        segment = segment_of(job, order.need)
        if not order.exclude and not segment:
            return
        topology = self._slurm.topology() if segment else ()
        wanted = wanted_of(order, (), job, self._slurm.nodes(), topology)
        texts = []
        if given_up := set(order.exclude) - set(wanted.exclude):
            are = "is" if len(given_up) == 1 else "are"
            few = f"no room for its segments of {segment} nodes" if topology else "too few nodes"
            texts.append(f"{fold(given_up)} {are} not excluded: there would be {few} for the job to start")
        if wanted.lack:
            fix = "it waits until nodes come back; fix: submit it with a smaller --segment"
            texts.append(f"{wanted.lack} on the nodes that respond and are not excluded: {fix}")
        for text in texts:
            report("exclude nodes", True, text)
            say(f"requeue: {text}")

    def _watch(self, order: RequeueRequest, job: SlurmJob, report: Report) -> bool:
        """Start the watcher; False if it did not start, and then the job comes back later."""
        if job.expedited:
            report("watcher", True, "none: the requeue is expedited")
            return True
        try:
            which = arrange_watcher(self._slurm, order, keep_off=self._nodes, log=self._log)
        except (SlurmError, CommandTimeout, OSError) as error:
            report("watcher", False, str(error))
            return False
        report("watcher", True, which)
        return True


@contextmanager
def without_term() -> Iterator[None]:
    """Let the commands of this thread survive the TERM of the requeue, which Slurm sends to them, too.

    They inherit the mask; each still has its time limit.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


SINCE = SlurmVersion(major=25, minor=11)
# For Slurm to answer: a restart of slurmctld takes a while, and KillWait may be running already.
PATIENCE_S, PAUSE_S = 60.0, 2.0
TIMEOUT_S = 10.0
# With these the job goes on, in its next run or under its other controller.
_GOES_ON = frozenset({ExitCode.SUCCESS, ExitCode.REQUEUED, ExitCode.OTHER_CONTROLLER})


def ending_for_good(run: Callable[[], int], environ: Mapping[str, str] = os.environ) -> int:
    """Return the exit code of ``run``, or its exception; take the requeue away before, if that is needed."""
    code: int | None = None
    try:
        code = run()
        return code
    finally:
        if code not in _GOES_ON:
            _forbid(environ)


def _forbid(environ: Mapping[str, str]) -> None:
    client = make_client("cli", TIMEOUT_S)
    try:
        allocation = allocation_from_environment(environ)
        if client.version() < SINCE:
            return
    except (SlurmError, CommandTimeout, OSError):
        return  # no job, or no Slurm
    forbid_requeue(client, allocation)


def forbid_requeue(client: SlurmClient, allocation: Allocation, clock: Clock | None = None) -> None:
    """Take the requeue away from this run of the job if it is expedited. Never raises for Slurm."""
    clock = clock or SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        try:
            job = client.job(allocation.job_id)
            if job.expedited and job.is_running and job.restart_count == allocation.restart_count:
                client.forbid_requeue(allocation.job_id)
            return
        except (JobNotFound, JobFinished):
            return
        except (SlurmError, CommandTimeout, OSError) as error:
            if clock.monotonic() >= deadline:
                say(
                    f"Slurm gave no answer within {PATIENCE_S:.0f} s ({error}). If this job was submitted "
                    "with --requeue=expedite, Slurm requeues and holds it (REQUEUE_HOLD): end it with "
                    f"scancel {allocation.job_id}"
                )
                return
        clock.sleep(PAUSE_S)
