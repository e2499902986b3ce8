"""Gathers the facts: one function for each source. What cannot be seen is left out, and said."""

from __future__ import annotations

import os
import re
import resource
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata

from msgspec import structs

from slurm_robust.checkpoint import budget
from slurm_robust.config import nodefile
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.job import JobConfig
from slurm_robust.config.node import NodeConfig
from slurm_robust.doctor.code import ScriptCommand, missing, uncopied
from slurm_robust.doctor.facts import Facts, NodeFacts, Software, Unseen, Version
from slurm_robust.doctor.launchers import RunLine
from slurm_robust.doctor.shape import shape_of
from slurm_robust.hooks.times import HookTimes, read_times
from slurm_robust.kernel.host import Host
from slurm_robust.model.nodefolders import COPIES, SHARED_MEMORY, folder_name
from slurm_robust.model.record import Record
from slurm_robust.nodes.checks import clock
from slurm_robust.nodes.checks.infiniband import SYSFS as HCAS
from slurm_robust.slurm import options
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.clock import clock_offset
from slurm_robust.slurm.errors import JobNotFound, SlurmCommandError, SlurmError
from slurm_robust.slurm.records import SlurmJob, Terms
from slurm_robust.util import numa
from slurm_robust.util.proc import read_counters
from slurm_robust.wire.network import speeds

DRIVER = "/proc/driver/nvidia/version"
_PARAMETERS, _GPUS = "/proc/driver/nvidia/params", "/proc/driver/nvidia/gpus"
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_CUDA = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")


class DoctorRequest(Record):
    """What to look at: a batch script, or a job (of this environment unless ``job_id`` names another)."""

    script: str | None = None
    """Its text."""

    refused: str | None = None
    """What ``srobust run`` would say against its options in the script, "" for nothing."""

    hears: bool | None = None
    """Whether signals of Slurm reach ``srobust run`` in the script."""

    command: ScriptCommand | None = None
    """What ``srobust run`` in the script runs, if more than the shell knows it."""

    run: RunLine | None = None
    """``srobust run`` in the script, if its words are known."""

    unseen: tuple[str, ...] = ()
    """What is not known of the script."""

    job_id: int | None = None
    saved_s: float | None = None
    """How long a job took to put its newest step from memory on storage."""

    state_bytes: int | None = None
    configured: bool = False
    """Whether the job's settings were named."""


def gather(
    wanted: DoctorRequest, config: JobConfig, environ: Mapping[str, str], slurm: SlurmClient, host: Host
) -> tuple[Facts, tuple[str, ...]]:
    """Return the facts, and a sentence on each part that was not seen.

    Raises ``JobNotFound`` for a job that was named and is not there.
    """
    own = environ.get("SLURM_JOB_ID", "")
    inside = int(own) if own.isdecimal() and wanted.script is None else None
    job_id = wanted.job_id or inside
    ours = job_id in (None, inside)
    site, gpus_per_node, unseen = _site(
        slurm,
        job_id,
        environ if ours else {},
        named=wanted.job_id is not None,
        reserved=config.companions.reservation is not None,
    )
    submitted = site.options
    if wanted.script is not None:
        submitted = options.of_script(wanted.script, environ)
    elif job_id is None:
        unseen += ("the job: give a batch script or --job, or run it inside of the job",)
    code = absent = None
    if wanted.command is not None and submitted is not None:
        folder = os.path.abspath(submitted.given.get("chdir", ""))
        absent = missing(wanted.command, folder)
        code = uncopied(wanted.command, folder, config) if config.code.releases else None
    shape = None if wanted.script is None else shape_of(wanted.script)
    exports = shape.exports if shape is not None else {}
    given = {name: export.value for name, export in exports.items()}
    node = None
    if ours and inside and environ.get("SLURMD_NODENAME"):
        node = node_of(host, environ["SLURMD_NODENAME"])
    else:
        unseen += ("the job's node: inside of the job, 'srun srobust doctor' sees each",)
    if not ours:
        unseen += ("the environment of the job's ranks: run it inside of the job",)
    nodes = _nodes(site.job, submitted)
    is_inside = config.agents.is_contained
    if is_inside:
        unseen += ("the software in the job's container: run it in the image",)
    slots = config.nodes or (nodes - config.spares if nodes is not None else None)
    per_node = config.nproc_per_node or gpus_per_node
    if gpus_per_node is not None:
        gpus: bool | None = gpus_per_node > 0
    else:
        gpus = _gpus(site, submitted, outside=job_id is None and wanted.script is None)
    facts = structs.replace(
        site,
        config=config,
        configured=config if wanted.configured else None,
        refused=wanted.refused,
        hears=wanted.hears,
        shape=shape,
        run=wanted.run,
        missing=absent,
        uncopied=code,
        hook_times=hook_times(host),
        preemption=_terms(slurm, site, submitted),
        options=submitted,
        environ={k: v for k, v in {**environ, **given}.items() if v is not None} if ours else None,
        software=None if is_inside else software(host),
        node=node,
        gpus=gpus,
        nodes=nodes,
        ranks=slots * per_node if slots and per_node else None,
        saved_s=wanted.saved_s,
        state_bytes=wanted.state_bytes,
    )
    return facts, unseen + wanted.unseen


def _site(
    slurm: SlurmClient, job_id: int | None, environ: Mapping[str, str], *, named: bool, reserved: bool
) -> tuple[Facts, int | None, tuple[str, ...]]:
    """Return what Slurm says of the site and the job, the GPUs of a node of it, and what was not seen.

    It is not asked again after it gave no answer.
    """
    conf, ahead, made, job, submitted, gpus = None, None, None, None, None, None
    unseen: tuple[str, ...] = ()
    try:
        ahead = clock_offset(slurm)
        if environ.get("SLURM_PROCID", "0") != "0":
            # For a thousand tasks slurmctld would be asked a thousand times, with the same answers.
            return Facts(clock_s=ahead), None, ("Slurm but for its clock: task 0 of this step asks it",)
        conf = slurm.config()
        if job_id is not None:
            job = slurm.job(job_id)
            submitted = options.of_submission(slurm.submission(job_id), environ)
            gpus = min(slurm.allocation(job_id).gpus_per_node.values(), default=None)
        if reserved:
            made = tuple(reservation.name for reservation in slurm.reservations())
    except SlurmError as error:
        if named and isinstance(error, JobNotFound):
            raise
        fix = f"; fix: {error.fix}" if error.fix else ""
        unseen = (f"Slurm: {error.what if isinstance(error, SlurmCommandError) else error}{fix}",)
    site = Facts(slurm=conf, clock_s=ahead, reservations=made, job=job, options=submitted)
    return site, gpus, unseen


def hook_times(host: Host) -> dict[str, HookTimes] | None:
    """Return how long prologs and epilogs took here; None if this user cannot read the event log."""
    file = host.path(str(nodefile.FILE))
    try:
        config = nodefile.load(file) if nodefile.files(file) else NodeConfig()
    except InvalidSettings:
        config = NodeConfig()
    try:
        return read_times(host.path(config.paths.log), time.time())
    except OSError:
        return None


def _terms(slurm: SlurmClient, site: Facts, submitted: options.Options | None) -> Terms | None:
    """Return the terms by which the job is preempted; None if no job is, or they are not known."""
    try:
        if not site.preempts:
            return None
        given = submitted.given if submitted is not None else {}
        if site.decides == "QOS":
            name = site.job.qos if site.job is not None else given.get("qos", "")
            return next((terms for terms in slurm.qos() if terms.name == name), None)
        name = (site.job.partition if site.job is not None else given.get("partition", "")).partition(",")[0]
        every = slurm.partitions()
        return next((terms for terms in every if terms.name == name or (not name and terms.is_default)), None)
    except (Unseen, SlurmError):
        return None


def installed(name: str) -> str:
    """Return the release of a package of this Python, "" if it is not installed; nothing is imported."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def software(host: Host, release: Callable[[str], str] = installed) -> Software:
    """Return the releases of the environment that this program runs in, and of the machine's driver."""

    def first(names: Iterable[str]) -> Version:
        return _numbers(next(filter(None, map(release, names)), ""))

    torch = release("torch")
    tag = re.search(r"\+cu(\d+)(\d)$", torch)
    driver = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", host.read_or(DRIVER))
    return Software(
        torch=_numbers(torch),
        nccl=first(_NCCL),
        cuda=(int(tag[1]), int(tag[2])) if tag else first(_CUDA),
        driver=_numbers(driver[1]) if driver else (),
    )


def _numbers(version: str) -> Version:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def addresses_of(name: str) -> tuple[str, ...]:
    """Return what a host's name resolves to here; nothing for one that does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def node_of(host: Host, name: str) -> NodeFacts:
    """Return this node, from inside a job's step; ``name`` as Slurm calls it."""
    try:
        # What jobs of this user keep there already is what they have room for.
        ours = budget.held(SHARED_MEMORY.glob(f"{folder_name('*', COPIES)}/*"))
        rooms = budget.limits(SHARED_MEMORY, ours)
    except OSError:
        rooms = ()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        synchronised = clock.gather(host, NodeConfig()).synchronised
    except (OSError, RuntimeError):
        synchronised = None
    mode = re.search(r'^CoherentGPUMemoryMode: "(\w+)"$', host.read_or(_PARAMETERS), re.MULTILINE)
    return NodeFacts(
        rooms=rooms,
        gpu_memory=gpu_memory(host),
        memory_mode=mode[1] if mode else "",
        addresses=addresses_of(name),
        speeds=speeds(),
        interfaces=tuple(name for _, name in socket.if_nameindex()),
        hcas=host.names(HCAS),
        memlock=None if soft == resource.RLIM_INFINITY else soft,
        synchronised=synchronised,
    )


def gpu_memory(host: Host) -> int:
    """Return the bytes of GPUs' memory that the kernel counts as the node's: the driver names these nodes."""
    told = (host.read_or(f"{_GPUS}/{gpu}/numa_status") for gpu in host.names(_GPUS))
    nodes = {found[1] for text in told if (found := re.search(r"^Node:\s*(\d+)$", text, re.MULTILINE))}
    files = (host.path(f"{numa.NODES}/node{node}/meminfo") for node in nodes)
    return sum(read_counters(file, skip=2).get("MemTotal", 0) for file in files)


def _nodes(job: SlurmJob | None, submitted: options.Options | None) -> int | None:
    if job is not None and job.num_nodes:
        return job.num_nodes
    asked = submitted.given.get("nodes", "") if submitted is not None else ""
    return int(asked) if asked.isdecimal() else None


def _gpus(site: Facts, submitted: options.Options | None, *, outside: bool) -> bool | None:
    """Return whether a job that is not there yet asks for some, or, without a job, the site has some."""
    given = submitted.given if submitted is not None else {}
    if any(name in given for name in _GPU_OPTIONS) or "gpu" in given.get("gres", ""):
        return True
    if site.slurm is None:
        return None
    has_some = "gpu" in site.slurm.get("GresTypes", "").split(",")
    return has_some if outside or not has_some else None
