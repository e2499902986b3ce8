"""Records of Slurm: a job that runs, a node, a line of accounting."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.slurm.records import AccountingRow, SlurmJob, SlurmNode

_JOB = SlurmJob(job_id=7, name="train", user_name="alice", states=frozenset({"RUNNING"}))
_ROW = AccountingRow(job_id=7, step="", run=0, state="COMPLETED", exit_code=0, signal=0)


def job(**changes: object) -> SlurmJob:
    """Return a job of alice that runs, but for ``changes``."""
    return structs.replace(_JOB, **changes)


def accounting_row(**changes: object) -> AccountingRow:
    """Return sacct's row of a job that has ended well, but for ``changes``."""
    return structs.replace(_ROW, **changes)


def node(*states: str, name: str = "n1", **changes: object) -> SlurmNode:
    """Return a node in these ``states``, idle without any, but for ``changes``."""
    found = SlurmNode(name=name, address=name, states=frozenset(states or ("IDLE",)), partitions=("main",))
    return structs.replace(found, **changes)
