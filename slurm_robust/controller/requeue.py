"""Giving the job back to Slurm, in the order that works, from inside the job that ends by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurm_robust.model.errors import SrobustError
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.requeue import StageOutcome, requeue_without
from slurm_robust.slurm.watcher import arrange_watcher

Report = Callable[[str, bool, str], None]


class RequeueRefused(SrobustError):
    """Slurm does not requeue the job."""


class Requeuer:
    """Requeues one job. The dying run does what counts; a watcher that outlives it does the rest.

    After :meth:`begin` the job is pending (or completing) without the excluded nodes, so nothing is
    lost if everything of this job dies now; the watcher only spares it Slurm's two minutes of begin
    time and a hold after a failed prolog.
    """

    def __init__(
        self, slurm: SlurmClient, job_id: int, restart_count: int, log: Path, *, start_now: bool
    ) -> None:
        self._slurm = slurm
        self._job_id = job_id
        self._restart_count = restart_count
        self._log = log
        self._start_now = start_now

    def begin(self, exclude: tuple[str, ...], report: Report) -> None:
        """Requeue and exclude, then start the watcher. Raises :class:`RequeueRefused`."""

        def tell(stage: StageOutcome) -> None:
            report(stage.stage.value, stage.ok, stage.detail)

        outcome = requeue_without(
            self._slurm, self._job_id, exclude, ending_run=self._restart_count, report=tell
        )
        if not outcome.ok:
            raise RequeueRefused(outcome.detail)
        if self._start_now:
            self._watch(exclude, report)

    def _watch(self, exclude: tuple[str, ...], report: Report) -> None:
        """Start the watcher; without one the job comes back as well, only later."""
        try:
            which = arrange_watcher(
                self._slurm,
                self._job_id,
                ending_run=self._restart_count,
                exclude=exclude,
                log=self._log,
            )
        except (SlurmError, CommandTimeout, OSError) as error:
            report("watcher", False, str(error))
        else:
            report("watcher", True, which)
