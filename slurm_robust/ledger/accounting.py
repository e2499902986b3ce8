"""Slurm's accounting (sacct) of the runs of one job, set against the job's journal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.model import events as ev
from slurm_robust.model.record import Record
from slurm_robust.slurm.records import AccountingRow

_SECOND_S = 1.0  # Slurm's own resolution


class AccountedRun(Record):
    """One run of the Slurm job by Slurm's own account (sacct), in seconds since 1970; None: not known."""

    run: int
    """From 0, as SLURM_RESTART_COUNT was in it."""
    submitted: float | None = None
    eligible: float | None = None
    started: float | None = None
    ended: float | None = None


class Accounted(Record):
    """What slurmdbd has of the job of a journal."""

    runs: tuple[AccountedRun, ...] = ()
    another_job: bool = False
    """The rows are of another job with the same id, and do not count."""
    lost: int = 0
    """How many of the first runs slurmdbd has lost."""


def accounted(rows: Sequence[AccountingRow], events: Sequence[ev.AnyEvent]) -> Accounted:
    """Return the runs of the journal's job.

    slurmdbd may have lost runs, and after a reset of job ids it has older jobs of the same id as well. So the
    submit time, which each run has of its own, says which row belongs to which run of the journal.
    """
    found = _by_row(rows)
    known = {
        event.restart_count: event.submitted
        for event in events
        if isinstance(event, ev.AllocationTaken) and event.submitted is not None
    }
    if not found or not known:
        return Accounted(runs=tuple(found))
    shifts = {
        run - row.run
        for row in found
        for run, submitted in known.items()
        if row.submitted is not None and abs(row.submitted - submitted) <= _SECOND_S
    }
    if not shifts:
        return Accounted(another_job=True)
    shift = max(shifts)
    runs = tuple(
        AccountedRun(
            run=row.run + shift,
            submitted=row.submitted,
            eligible=row.eligible,
            started=row.started,
            ended=row.ended,
        )
        for row in found
        if row.run + shift >= 0
    )
    return Accounted(runs=runs, lost=min((run.run for run in runs), default=0))


def ends_of(runs: Sequence[AccountedRun]) -> dict[int, float]:
    """Return when each run ended, of the runs for which that is known."""
    return {run.run: run.ended for run in runs if run.ended is not None}


def _by_row(rows: Sequence[AccountingRow]) -> list[AccountedRun]:
    """Return a run for each; a job that lost or gave back a node has several rows of one run."""
    found: dict[int, AccountedRun] = {}
    for row in rows:
        if row.step:
            continue
        first = found.get(row.run)
        found[row.run] = AccountedRun(
            run=row.run,
            submitted=first.submitted if first is not None else row.submit_time,
            eligible=first.eligible if first is not None else row.eligible_time,
            started=first.started if first is not None else row.start_time,
            ended=row.end_time,
        )
    return list(found.values())
