"""The two halves of a requeue: what a dying batch script orders, and what a watcher sees through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.requeue import Clock, RequeueOutcome, RequeueRequest, StageOutcome, Until, carry_out


def requeue_without(
    client: SlurmClient,
    job_id: int,
    exclude: Sequence[str],
    *,
    until: Until = Until.EXCLUDED,
    unavailable: bool = False,
    timeout_s: float = 20.0,
    clock: Clock | None = None,
    report: Callable[[StageOutcome], None] = lambda outcome: None,
) -> RequeueOutcome:
    order = RequeueRequest(job_id=job_id, ending_run=0, exclude=tuple(exclude), until=until)
    return carry_out(client, order, unavailable=unavailable, timeout_s=timeout_s, clock=clock, report=report)


def watch_until_running(
    client: SlurmClient,
    job_id: int,
    *,
    exclude: Sequence[str] = (),
    until: Until = Until.RUNNING,
    timeout_s: float = 900.0,
    clock: Clock | None = None,
    report: Callable[[StageOutcome], None] = lambda outcome: None,
) -> RequeueOutcome:
    order = RequeueRequest(
        job_id=job_id, ending_run=0, exclude=tuple(exclude), until=until, may_requeue=False
    )
    return carry_out(client, order, timeout_s=timeout_s, clock=clock, report=report)
