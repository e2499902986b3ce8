"""What a controller tells agents of a job: one script on one node, but for what a test names."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.config.job import DetectConfig
from slurm_robust.model.job import CommandKind, CopySpec, InspectionSpec, JobSpec
from slurm_robust.wire.messages import Launch

_COPIES = CopySpec(memory=True, peers=True, peer_bytes_s=0.0, network="", places={}, keep=2)
_SPEC = JobSpec(
    run_id="r",
    job_id=7,
    kind=CommandKind.SCRIPT,
    command=("train.py",),
    cwd="/",
    nproc_per_node=1,
    preload=(),
    heartbeat_s=1.0,
    beacon_s=0.0,
    takeover_s=0.0,
    kill_wait_s=180.0,
    checkpoint_dir="",
    earlier=(),
    copies=_COPIES,
    inspection=None,
    numa_binding=True,
    learn=True,
)
_LAUNCH = Launch(
    epoch=1, generation=1, ranks=(0,), world_size=1, slot=0, slots=1, master_addr="127.0.0.1", master_port=1
)


def job_spec(**changes: object) -> JobSpec:
    """Return the spec of a script with one rank on each node, but for ``changes``."""
    return structs.replace(_SPEC, **changes)


def copy_spec(**changes: object) -> CopySpec:
    """Return what agents do about copies, with those in memory and on peers, but for ``changes``."""
    return structs.replace(_COPIES, **changes)


def usual_inspection() -> InspectionSpec:
    """Return how often nodes are inspected without a configuration."""
    detect = DetectConfig()
    return InspectionSpec(
        kernel_s=detect.kernel_s, gpu_s=detect.gpu_s, network_s=detect.network_s, node_s=detect.node_s
    )


def launch(**changes: object) -> Launch:
    """Return the order to launch one rank, but for ``changes``."""
    return structs.replace(_LAUNCH, **changes)
