"""sacct's rows of a job, set against the runs that its journal knows."""

from __future__ import annotations

from slurm_robust.ledger.accounting import Accounted, AccountedRun, accounted, ends_of
from slurm_robust.slurm.records import AccountingRow
from tests.builders import records
from tests.unit.ledger.journals import Journal, at


def row(run: int, state: str, submit: float, start: float | None, end: float | None) -> AccountingRow:
    return records.accounting_row(
        run=run,
        state=state,
        submit_time=at(submit),
        eligible_time=at(submit + 1),
        start_time=None if start is None else at(start),
        end_time=None if end is None else at(end),
    )


JOURNAL = Journal().controller(64).allocation(65, queued_s=60)
JOURNAL.controller(306).allocation(307, 1, submitted=101, queued_s=199)
FIRST = AccountedRun(run=0, submitted=at(0), eligible=at(1), started=at(60), ended=at(100))
SECOND = AccountedRun(run=1, submitted=at(101), eligible=at(102), started=at(300), ended=None)


def test_each_run_has_its_times() -> None:
    rows = (row(0, "REQUEUED", 0, 60, 100), row(1, "RUNNING", 101, 300, None))
    step = AccountingRow(job_id=7, step="batch", run=0, state="COMPLETED", exit_code=0, signal=0)
    found = accounted((rows[0], step, rows[1]), JOURNAL.events)
    assert found == Accounted(runs=(FIRST, SECOND))
    assert ends_of(found.runs) == {0: at(100)}


def test_rows_of_a_run_that_gave_nodes_back_are_one_run() -> None:
    rows = (row(0, "RESIZING", 0, 60, 80), row(0, "REQUEUED", 0, 80, 100), row(1, "RUNNING", 101, 300, None))
    assert accounted(rows, JOURNAL.events).runs == (FIRST, SECOND)


def test_slurmdbd_may_have_lost_the_first_runs() -> None:
    assert accounted((row(0, "RUNNING", 101, 300, None),), JOURNAL.events) == Accounted(
        runs=(SECOND,), lost=1
    )


def test_older_jobs_of_the_same_id_do_not_count() -> None:
    old = row(0, "COMPLETED", -5000, -4000, -3000)
    rows = (old, row(1, "REQUEUED", 0, 60, 100), row(2, "RUNNING", 101, 300, None))
    assert accounted(rows, JOURNAL.events).runs == (FIRST, SECOND)
    assert accounted((old,), JOURNAL.events) == Accounted(another_job=True)


def test_a_journal_that_knows_no_submit_time_takes_the_rows_as_they_are() -> None:
    journal = Journal().controller(64).allocation(65, submitted=None)
    assert accounted((row(0, "REQUEUED", 0, 60, 100),), journal.events).runs == (FIRST,)
    assert accounted((), journal.events) == Accounted()
