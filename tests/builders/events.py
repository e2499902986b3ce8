"""The first events of a journal, where a test does not care what is run."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId

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


_CONTINUED = ev.Continued(
    t=2.0,
    training="gpt",
    chapter=2,
    from_job=1,
    from_folder="/jobs/1",
    generation=3,
    sealed={1: 40, 2: 60},
    unsealed=(3,),
    banned=(CheckpointId(step=60, generation=2),),
    writers={1: 1, 2: 1, 3: 1},
    best_step=77,
    reports=True,
    slots=1,
    runs=("1-a",),
)


def continued(**changes: object) -> ev.Continued:
    """Goes on from job 1, whose third generation has no seal yet, but for ``changes``."""
    return structs.replace(_CONTINUED, **changes)


def allocation_taken(
    slots: tuple[str, ...] = ("n1",), spares: tuple[str, ...] = (), **changes: object
) -> ev.AllocationTaken:
    """Return the first run's allocation of these ``slots`` and ``spares``, but for ``changes``."""
    taken = ev.AllocationTaken(t=1.0, restart_count=0, nodes=(*slots, *spares), slots=slots, spares=spares)
    return structs.replace(taken, **changes)
