"""What a controller tells agents of a job: one script on one node, but for what a test names."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model.job import CommandKind, JobSpec
from slurm_robust.wire.messages import Launch

_SPEC = JobSpec(
    run_id="r", job_id=7, kind=CommandKind.SCRIPT, command=("train.py",), cwd="/", nproc_per_node=1
)
_LAUNCH = Launch(
    epoch=1, generation=1, ranks=(0,), world_size=1, slot=0, slots=1, master_addr="127.0.0.1", master_port=1
)


def job_spec(**changes: object) -> JobSpec:
    """Return the spec of a script with one rank on each node, but for ``changes``."""
    return structs.replace(_SPEC, **changes)


def launch(**changes: object) -> Launch:
    """Return the order to launch one rank, but for ``changes``."""
    return structs.replace(_LAUNCH, **changes)
