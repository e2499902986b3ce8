"""Entries and summaries of made-up jobs."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from slurm_robust.fleet.accept import JobEntry
from slurm_robust.model.jobsummary import FORMAT, IncidentSummary, JobSummary, NodeWork, SpooledSummary

DAY = 20_000
BEGIN = DAY * 86400.0  # 2024-10-04
HOUR = 3600.0
NODES = ("n1", "n2", "n3", "n4")


def incident(number: int = 1, **changes: Any) -> IncidentSummary:
    made = IncidentSummary(
        number=number,
        t=BEGIN + number * HOUR,
        symptom="crash",
        cause="node",
        nodes=("n2",),
        detail="GPU fell off the bus",
        recover_s=40.0,
        lost_node_s={"detecting": 100.0, "recovering": 300.0},
    )
    return structs.replace(made, **changes)


def entry(job_id: int = 7, **changes: Any) -> JobEntry:
    """A job of four nodes for twelve hours, with one incident."""
    made = JobEntry(
        cluster="alpha",
        job_id=job_id,
        submitted=int(BEGIN),
        uid=1001,
        user="alice",
        started=BEGIN,
        ended=BEGIN + 12 * HOUR,
        exit_code=0,
        wall_s=12 * HOUR,
        since_start_s=12 * HOUR,
        effective_s=11 * HOUR,
        nodes=4,
        generations=2,
        write_s=60.0,
        verified=True,
        work=(NodeWork(nodes=NODES, start=BEGIN, end=BEGIN + 12 * HOUR),),
        incidents=(incident(),),
    )
    return structs.replace(made, **changes)


def summary(**changes: Any) -> JobSummary:
    made = JobSummary(
        format=FORMAT,
        job_id=7,
        node="n1",
        t=BEGIN + 12 * HOUR,
        version="0.1.0",
        cluster="alpha",
        submitted=BEGIN - 60,
        started=BEGIN,
        ended=BEGIN + 12 * HOUR,
        exit_code=0,
        wall_s=12 * HOUR + 60,
        since_start_s=12 * HOUR,
        effective_s=11 * HOUR,
        nodes=4,
        generations=2,
        write_s=60.0,
        incidents=(incident(),),
        work=(NodeWork(nodes=NODES, start=BEGIN, end=BEGIN + 12 * HOUR),),
    )
    return structs.replace(made, **changes)


def spooled(said: JobSummary | None = None, **changes: Any) -> SpooledSummary:
    made = SpooledSummary(
        format=FORMAT,
        job_id=7,
        uid=1001,
        user="alice",
        cluster="alpha",
        node="n1",
        t=BEGIN + 12 * HOUR + 5,
        started=BEGIN,
        nodes="",
        summary=summary() if said is None else said,
    )
    return structs.replace(made, **changes)
