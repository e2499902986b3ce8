"""The environment of one worker: what torchrun would give it, and what this library's half reads."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from importlib import metadata
from pathlib import Path

from slurm_robust.agent.numa import Binding, bindings_here
from slurm_robust.model.copies import Tier
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.util.text import version_numbers
from slurm_robust.wire.messages import Launch
from slurm_robust.worker.environment import WorkerEnvironment
from slurm_robust.worker.spawning import Spawn, WorkerSpec

RECORDER_ENTRIES = "2000"
"""Operations that the flight recorder keeps: more than the 1,000 or so that a host gets ahead of its GPU."""

_BUFFER, _OLD_BUFFER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
# The first release of torch that knows the new name; it warns of the old one.
_KNOWS_BUFFER = (2, 9)

# torchrun sets its limit here; ours depends on the fault and is the controller's business.
_NO_LIMIT = str(2**31 - 1)


def build_spawn(spec: JobSpec, job: JobDirectory, launch: Launch, folder: Path, memory: str = "") -> Spawn:
    """The order to start the workers of ``launch``; ``folder`` is the generation's runtime folder.

    ``memory``: the folder of copies in this node's memory, "" for none.
    """
    count = len(launch.ranks)
    bound = bindings_here(count) if spec.numa_binding else (Binding(),) * count
    return Spawn(
        generation=launch.generation,
        command_kind=spec.kind,
        command=spec.command,
        cwd=spec.cwd,
        workers=tuple(
            _worker(spec, job, launch, local, folder, memory, bound[local]) for local in range(count)
        ),
    )


def prepare_inherited(environ: MutableMapping[str, str], torch: tuple[int, ...] | None = None) -> None:
    """Change the agent's environment into what all workers should inherit; what the user has set stays.

    ``torch`` is its release, None where that is not known.
    """
    # Left over from a torchrun around us; with it rank 0 would wait for a store that nobody serves.
    environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    # The agent's own process: a worker has another one.
    environ.pop("SLURM_TASK_PID", None)
    # Distinguishes "started" from "scheduled", so that a GPU that hangs is seen although its host ran ahead.
    environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")
    if _BUFFER not in environ and _OLD_BUFFER not in environ:
        environ[_BUFFER] = RECORDER_ENTRIES
        if torch is None or torch < _KNOWS_BUFFER:
            environ[_OLD_BUFFER] = RECORDER_ENTRIES


def torch_release() -> tuple[int, ...] | None:
    """The release of torch that this Python would import, as (2, 13), without importing it."""
    try:
        return version_numbers(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return None


def record_path(folder: Path, rank: int) -> Path:
    """The step record of ``rank`` in a generation's runtime folder."""
    return folder / f"rank-{rank:05d}.rec"


def restore_tier(launch: Launch, rank: int) -> Tier:
    """Where a worker finds the parts that it restores.

    A copy in this node's memory is found there, whichever agent wrote it; one that comes from another node
    appears there.
    """
    source = next((s for s in launch.sources if s.rank == rank), None)
    if source is None:
        return Tier.STORAGE
    if source.address:
        return Tier.PEER
    return Tier.MEMORY if source.tier.in_memory else source.tier


def _worker(
    spec: JobSpec,
    job: JobDirectory,
    launch: Launch,
    local: int,
    folder: Path,
    memory: str,
    bound: Binding,
) -> WorkerSpec:
    rank = launch.ranks[local]
    record = str(record_path(folder, rank))
    own = WorkerEnvironment(
        job_dir=str(job.path),
        run_id=spec.run_id,
        generation=launch.generation,
        record=record,
        places=spec.tier_places(job),
        restore=launch.restore,
        layout=launch.layout,
        copies=memory,
        restore_tier=restore_tier(launch, rank),
    )
    return WorkerSpec(
        rank=rank,
        env={
            **_torchrun(spec, launch, local),
            **(_slurm(launch, local) if "SLURM_PROCID" in os.environ else {}),
            "TORCHELASTIC_ERROR_FILE": str(folder / f"rank-{rank:05d}.torchelastic.json"),
            **own.to_env(),
        },
        out=str(job.worker_log(launch.generation, rank, "out")),
        err=str(job.worker_log(launch.generation, rank, "err")),
        error=str(folder / f"rank-{rank:05d}.error.json"),
        record=record,
        cpus=bound.cpus,
        memory_node=bound.node,
    )


def _torchrun(spec: JobSpec, launch: Launch, local: int) -> dict[str, str]:
    rank = str(launch.ranks[local])
    return {
        "RANK": rank,
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(len(launch.ranks)),
        "GROUP_RANK": str(launch.slot),
        "GROUP_WORLD_SIZE": str(launch.slots),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": str(launch.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": str(launch.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(launch.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": _NO_LIMIT,
        "TORCHELASTIC_RUN_ID": spec.run_id,
    }


def _slurm(launch: Launch, local: int) -> dict[str, str]:
    """Slurm's variables of a task, as if each worker were one; the agent's own are those of one task per
    node.

    Scripts that take their rank from Slurm would else believe in as many ranks as nodes, each the first of
    its node. Lists of nodes stay the allocation's.
    """
    count = str(len(launch.ranks))
    world, slots = str(launch.world_size), str(launch.slots)
    per_node = count if launch.slots == 1 else f"{count}(x{slots})"
    return {
        "SLURM_PROCID": str(launch.ranks[local]),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(launch.slot),
        "SLURM_GTIDS": ",".join(map(str, launch.ranks)),
        "SLURM_NTASKS": world,
        "SLURM_NPROCS": world,
        "SLURM_STEP_NUM_TASKS": world,
        "SLURM_NNODES": slots,
        "SLURM_STEP_NUM_NODES": slots,
        "SLURM_NTASKS_PER_NODE": count,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
    }
