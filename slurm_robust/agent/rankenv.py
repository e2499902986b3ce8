"""What a worker gets: its environment, as torchrun would set it, and the CPUs and memory beside its GPU.

Eight ranks that float over two sockets fill their snapshot buffers wherever a thread happens to run, and
copies to the far socket are slower (10 to 30 % reported).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from slurm_robust.kernel import pci
from slurm_robust.kernel.host import Host
from slurm_robust.model.copies import Tier
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.record import Record
from slurm_robust.slurm.companion import settings_of_borrower
from slurm_robust.util import numa
from slurm_robust.wire.messages import Launch, Rehearse
from slurm_robust.worker.environment import CODE, REHEARSAL, RELEASE, Fitting, WorkerEnvironment
from slurm_robust.worker.spawning import RankProgram, Spawn, WorkerSpec
from slurm_robust.worker.torchrun import torchrun

# torchrun sets its limit here; ours depends on the fault and is the controller's business.
_NO_LIMIT = str(2**31 - 1)
# A rehearsal meets no other rank.
_NOBODYS_PORT = 29500


def build_spawn(
    spec: JobSpec,
    job: JobDirectory,
    launch: Launch,
    folder: Path,
    memory: str = "",
    program: RankProgram | None = None,
) -> Spawn:
    """Return the order to start the workers of ``launch``; ``folder`` is the generation's runtime folder.

    ``memory``: the folder of copies in this node's memory, "" for none. ``program``: of the release.
    """
    program = program or RankProgram(command_kind=spec.kind, command=spec.command)
    added = release_env(program, launch.release, spec.cwd)
    count = len(launch.ranks)
    bound = (NOWHERE,) * count
    if spec.numa_binding:
        bound = bindings(count, os.environ, os.sched_getaffinity(0))
    return Spawn(
        generation=launch.generation,
        command_kind=program.command_kind,
        command=program.command,
        cwd=spec.cwd,
        workers=tuple(
            _worker(spec, job, launch, local, folder, memory, bound[local], added) for local in range(count)
        ),
        code=program.code,
        env=program.env,
    )


def release_env(program: RankProgram, release: str, cwd: str) -> dict[str, str]:
    """Return what ranks get because they run a release; nothing without one."""
    if not release:
        return {}
    found = {**program.env, RELEASE: release}
    if program.code is not None:
        inherited = program.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        found |= {
            "PYTHONPATH": program.code.python_path(inherited, sys.path, cwd),
            CODE: program.code.place,
        }
    return found


def rehearsal_env(spec: JobSpec, slots: int) -> dict[str, str]:
    """Return what the first rank of the last of ``slots`` nodes gets that do not exist.

    Not rank 0 if there is another: that one writes what all ranks have in common.
    """
    slot, nproc = slots - 1, spec.nproc_per_node
    launch = Launch(
        epoch=0,
        generation=0,
        ranks=tuple(range(slot * nproc, slots * nproc)),
        world_size=slots * nproc,
        slot=slot,
        slots=slots,
        master_addr="127.0.0.1",
        master_port=_NOBODYS_PORT,
    )
    return {
        **_torchrun_of(launch, 0),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": _NO_LIMIT,
        "TORCHELASTIC_RUN_ID": spec.run_id,
        **(_slurm(launch, 0) if "SLURM_PROCID" in os.environ else {}),
        # As the zygote does for its forks.
        **({"OMP_NUM_THREADS": "1"} if nproc > 1 and "OMP_NUM_THREADS" not in os.environ else {}),
        REHEARSAL: "1",
    }


def fitting_env(spec: JobSpec, job: JobDirectory, order: Rehearse) -> dict[str, str]:
    """Return what tells a rehearsal which checkpoint it has to fit, nothing if that is none."""
    if order.checkpoint is None:
        return {}
    return Fitting(
        checkpoint=order.checkpoint,
        job_dir=str(job.path),
        run_id=spec.run_id,
        places=spec.tier_places(job),
        earlier=spec.earlier,
        discard_optimizer=order.discard_optimizer,
    ).to_env()


def record_path(folder: Path, rank: int) -> Path:
    """Return the step record of ``rank`` in a generation's runtime folder."""
    return folder / f"rank-{rank:05d}.rec"


def outside_path(folder: Path) -> Path:
    """Return the file in which rank 0 leaves the code that it reads outside of its release."""
    return folder / "outside.json"


def modules_path(folder: Path) -> Path:
    """Return the file in which rank 0 leaves the names of the modules that it has imported."""
    return folder / "modules.json"


def restore_tier(launch: Launch, rank: int) -> Tier:
    """Return the tier in which a worker finds the parts that it restores.

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
    added: dict[str, str],
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
        restore_layout=launch.restore_layout,
        copies=memory,
        restore_tier=restore_tier(launch, rank),
        earlier=spec.earlier,
        release=launch.release,
        discard_optimizer=launch.discard_optimizer,
    )
    return WorkerSpec(
        rank=rank,
        env={
            **_torchrun_of(launch, local),
            "TORCHELASTIC_RESTART_COUNT": str(launch.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": _NO_LIMIT,
            "TORCHELASTIC_RUN_ID": spec.run_id,
            **(_slurm(launch, local) if "SLURM_PROCID" in os.environ else {}),
            **settings_of_borrower(os.environ),
            "TORCHELASTIC_ERROR_FILE": str(folder / f"rank-{rank:05d}.torchelastic.json"),
            **added,
            **own.to_env(),
        },
        out=str(job.worker_log(launch.generation, rank, "out")),
        err=str(job.worker_log(launch.generation, rank, "err")),
        error=str(folder / f"rank-{rank:05d}.error.json"),
        record=record,
        cpus=bound.cpus,
        memory_node=bound.node,
        modules=str(modules_path(folder)) if rank == 0 and spec.learn else "",
        outside=str(outside_path(folder)) if rank == 0 and launch.release else "",
    )


def _torchrun_of(launch: Launch, local: int) -> dict[str, str]:
    return torchrun(
        launch.ranks[local],
        local,
        len(launch.ranks),
        slot=launch.slot,
        slots=launch.slots,
        world_size=launch.world_size,
        address=launch.master_addr,
        port=launch.master_port,
    )


def _slurm(launch: Launch, local: int) -> dict[str, str]:
    """Return Slurm's variables of a task as if each worker were one; the agent's own say one task per node.

    Otherwise scripts that take their rank from Slurm would see as many ranks as nodes, each the first of its
    node. Lists of nodes stay the allocation's.
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


class Binding(Record):
    """The place of a rank on its node."""

    cpus: tuple[int, ...] = ()  # it runs on these, or on all if empty
    node: int = -1  # the NUMA node whose memory it takes first, -1 for any


NOWHERE = Binding()


def bindings(
    count: int, environ: Mapping[str, str], allowed: Collection[int], host: Host | None = None
) -> tuple[Binding, ...]:
    """Read the ``allowed`` CPUs of the NUMA node of each GPU by sysfs, for ``count`` local ranks.

    Rank i has the i-th GPU, as under torchrun. A rank gets :data:`NOWHERE` if that says nothing: there are
    not as many GPUs as ranks, its GPU's node is not known (a virtual machine), or none of that node's CPUs
    are the job's. All ranks get it if some would have less than half of their share of the job's CPUs.
    """
    host = host or Host()
    # The GPUs' addresses in the order of CUDA and HIP: that of the bus if all GPUs are equal
    gpus = [
        device.address
        for device in pci.devices(host)
        if device.kind[:2] in (pci.DISPLAY, pci.ACCELERATOR) and device.vendor in (pci.NVIDIA, pci.AMD)
    ]
    order = _order(environ.get("CUDA_VISIBLE_DEVICES"), len(gpus))
    if len(order) != count:
        return (NOWHERE,) * count
    found = tuple(_beside(host, gpus[index], frozenset(allowed)) for index in order)
    ranks = Counter(binding.node for binding in found)
    is_fair = all(2 * len(b.cpus) / ranks[b.node] >= len(allowed) / count for b in found if b.cpus)
    return found if is_fair else (NOWHERE,) * count


def _order(visible: str | None, count: int) -> tuple[int, ...]:
    """Return the GPUs that a process sees, first to last; none if names do not say which these are."""
    if visible is None:
        return tuple(range(count))
    names = [name.strip() for name in visible.split(",")]
    order = tuple(int(name) for name in names if name.isdecimal() and int(name) < count)
    # Inside a cgroup numbers begin at 0 again, so a part of the GPUs may be any of them.
    return order if len(order) == len(names) == len(set(order)) == count else ()


def _beside(host: Host, address: str, allowed: frozenset[int]) -> Binding:
    folder = f"{pci.DEVICES}/{address}"
    node = host.number(f"{folder}/numa_node")
    cpus = numa.parse_list(host.read_or(f"{folder}/local_cpulist")) & allowed
    # With all CPUs on that node the kernel takes its memory anyway.
    if node is None or node < 0 or not cpus or cpus == allowed:
        return NOWHERE
    return Binding(cpus=tuple(sorted(cpus)), node=node)


def find_shortage(environ: Mapping[str, str], usable_cpus: int, all_cpus: int) -> list[str]:
    """Return what this step lacks of all that the job holds on the node, as notes for the journal. Pure.

    Newer Slurm gives a task less by default. ``usable_cpus`` is what the kernel lets this process use,
    ``all_cpus`` what the node has: a Slurm whose configuration has more CPUs than there are (a test cluster)
    must not lead to a note.
    """
    notes = []
    granted = min(_number(environ.get("SLURM_CPUS_ON_NODE")), all_cpus)
    if usable_cpus < granted:
        notes.append(
            f"workers may use {usable_cpus} of the {granted} CPUs that the job holds here: "
            "start agents with --exact off, --cpu-bind=none and --cpus-per-task as in the sbatch template"
        )
    gpus = _number(environ.get("SLURM_GPUS_ON_NODE"))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    seen = gpus if visible is None else len([name for name in visible.split(",") if name.strip()])
    if seen < gpus:
        notes.append(
            f"workers see {seen} of the {gpus} GPUs that the job holds here "
            f"(CUDA_VISIBLE_DEVICES={visible}): start agents with the job's whole --gres"
        )
    return notes


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
