"""The first event of a journal, where a test does not care what is run."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model import events as ev

_STARTED = ev.RunStarted(
    t=1.0,
    run_id="r",
    job_id=1,
    kind="script",
    command=("train.py",),
    cwd="/",
    slots=1,
    spares=0,
    nproc_per_node=1,
    version="0",
)


def run_started(**changes: object) -> ev.RunStarted:
    """A script on one node with one rank, but for ``changes``."""
    return structs.replace(_STARTED, **changes)
