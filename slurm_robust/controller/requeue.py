"""Giving the job back to Slurm, in the order that works, from inside the job that ends by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_robust.controller.effects import RequeueAnswer, Said
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.requeue import Outcome, Stage, StageOutcome, requeue_without
from slurm_robust.slurm.requeue_plan import affordable, waiting_advice
from slurm_robust.slurm.watcher import arrange_watcher
from slurm_robust.util.hostlist import fold

Report = Callable[[str, bool, str], None]
Answer = Callable[[RequeueAnswer], None]


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
        start_now: bool,
    ) -> None:
        """``nodes``: those of the allocation, on which a watcher would be in the job's way."""
        self._slurm = slurm
        self._job_id = job_id
        self._restart_count = restart_count
        self._log = log
        self._nodes = tuple(nodes)
        self._start_now = start_now

    def ask(self, exclude: tuple[str, ...], report: Report, answer: Answer) -> None:
        """Requeue, exclude and start the watcher, within bounds; asked again it goes on where it was.

        ``answer`` is told what Slurm says, once more when all is done. Never raises for Slurm or files.
        """

        def tell(stage: StageOutcome) -> None:
            report(stage.stage.value, stage.ok, stage.detail)
            if stage.stage is Stage.REQUEUE and stage.ok:
                answer(RequeueAnswer(said=Said.TAKEN))

        try:
            exclude = self._affordable(exclude, report)
            outcome = requeue_without(
                self._slurm, self._job_id, exclude, ending_run=self._restart_count, report=tell
            )
        except (SlurmError, CommandTimeout, OSError) as error:
            answer(RequeueAnswer(said=Said.NOTHING, detail=str(error)))
            return
        if not outcome.ok:
            said = Said.REFUSED if outcome.final else Said.NOTHING
            answer(RequeueAnswer(said=said, detail=outcome.detail))
            return
        if self._start_now:
            self._watch(exclude, outcome, report)
        advice = waiting_advice(outcome.job) if outcome.job is not None else ""
        answer(RequeueAnswer(said=Said.DONE, detail=advice))

    def _affordable(self, exclude: tuple[str, ...], report: Report) -> tuple[str, ...]:
        """Without those whose exclusion would leave too few nodes for the job ever to start."""
        if not exclude:
            return exclude
        kept = affordable(exclude, self._slurm.nodes(), self._slurm.job(self._job_id))
        if given_up := set(exclude) - set(kept):
            text = f"{fold(given_up)} is not excluded: there would be too few nodes for the job to start"
            report("exclude nodes", True, text)
        return kept

    def _watch(self, exclude: tuple[str, ...], outcome: Outcome, report: Report) -> None:
        """Start the watcher; without one the job comes back as well, only later."""
        if outcome.job is not None and outcome.job.expedited:
            report("watcher", True, "none: the requeue is expedited")
            return
        try:
            which = arrange_watcher(
                self._slurm,
                self._job_id,
                ending_run=self._restart_count,
                exclude=exclude,
                keep_off=self._nodes,
                log=self._log,
            )
        except (SlurmError, CommandTimeout, OSError) as error:
            report("watcher", False, str(error))
        else:
            report("watcher", True, which)
