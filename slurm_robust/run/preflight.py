"""Everything that can be wrong before the first worker starts, found in seconds and said clearly."""

from __future__ import annotations

import math
import os
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_robust.config.container import BadOption
from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import RunPlan, layout_of
from slurm_robust.jobdir import owner
from slurm_robust.model import events as ev
from slurm_robust.model.container import Container
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.events import AnyEvent
from slurm_robust.model.job import JOBS_FOLDER, CommandKind, JobDirectory
from slurm_robust.model.journal import fold, minute, read
from slurm_robust.model.layout import DoesNotDivide
from slurm_robust.model.state import JobState
from slurm_robust.policy.resharding import Sizes, fitting_nodes, sizes_of
from slurm_robust.slurm import options
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.environment import allocation_from_environment, array_task, time_limit
from slurm_robust.slurm.errors import NotInAllocation, SlurmError
from slurm_robust.slurm.process import CommandTimeout, lacking_commands
from slurm_robust.slurm.records import Allocation, SlurmJob
from slurm_robust.slurm.values import parse_number
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.wire.epochs import newest_epoch
from slurm_robust.wire.keys import create_keys, load_client
from slurm_robust.wire.messages import Ping
from slurm_robust.wire.sockets import ask, probe_ports
from slurm_robust.worker.lookup import missing, missing_module, mode_of

PING_TIMEOUT_S = 2.0


def check_command(kind: CommandKind, command: tuple[str, ...], cwd: Path) -> None:
    """Check that the script, module or program is there, as this node sees it. Raises PreflightError.

    The agents check it again, each on its node.
    """
    if kind is not CommandKind.SCRIPT:
        if kind is CommandKind.MODULE:
            found = missing_module(command[0], str(cwd))
        else:
            found = missing(kind, command, str(cwd))
        if found is not None:
            raise PreflightError(found.text, fix=found.fix, code=ExitCode.NO_INPUT)
        return
    script = cwd / command[0]
    mode = mode_of(script)
    if mode is None:
        return  # storage does not answer now; the agents check it again
    if not stat.S_ISREG(mode):
        raise PreflightError(
            f"script not found: {script}",
            fix=f"give the path of a Python file, relative to {cwd}; any other command goes after '--'",
            code=ExitCode.NO_INPUT,
        )
    if not os.access(script, os.R_OK):
        raise PreflightError(
            f"script not readable: {script}", fix=f"chmod u+r {script}", code=ExitCode.NO_INPUT
        )


def sizes(
    config: JobConfig, allocation: Allocation, before: int | None = None, *, later_run: bool = False
) -> tuple[Sizes, int]:
    """Return the slots and spares for this allocation, and processes per node. Raises PreflightError.

    ``before``: the slots of the run or job before, None for the first one of a training; ``later_run``: it
    was a run of this job.
    """
    have = len(allocation.nodes)
    found = sizes_of(have, nodes=config.nodes, spares=config.spares, before=before, later_run=later_run)
    slots = found.slots
    if slots < 1 or slots > have:
        asked = f"--nodes {config.nodes} " if config.nodes is not None else ""
        raise PreflightError(
            f"{asked}--spares {config.spares} needs {max(1, slots) + config.spares} nodes, "
            f"the allocation has {have} ({fold_nodes(allocation.nodes)})",
            fix=f"{_resize(max(1, slots) + config.spares, allocation, later_run=later_run)}, or with smaller "
            "numbers for --nodes and --spares of 'srobust run'",
            code=ExitCode.ALLOCATION,
        )
    gpus = min(allocation.gpus_per_node.values(), default=0)
    nproc = config.nproc_per_node or gpus or allocation.tasks_per_node or 1
    try:
        layout_of(config, slots, nproc)
    except DoesNotDivide as error:
        parallel = config.parallel
        given = {name: getattr(parallel, name) for name in ("tp", "cp", "ep", "pp")}
        names = ", ".join(f"parallel.{name}" for name, size in given.items() if size > 1)
        near = before if later_run and before is not None else slots
        fits = fitting_nodes(math.prod(given.values()), nproc, near)
        nearest = min(fits, key=lambda number: abs(number - near))
        if config.nodes is None:
            nodes = nearest if later_run else nearest + config.spares
            resize = _resize(nodes, allocation, later_run=later_run)
        else:
            resize = "submit a new job with another --nodes of 'srobust run'"
        raise PreflightError(
            f"{error} ({slots} nodes with {nproc} each)",
            fix=f"train on another number of nodes ({', '.join(map(str, fits))} fit): {resize}, or with "
            f"other values of {names} or --nproc-per-node",
            code=ExitCode.CONFIG,
        ) from error
    return found, nproc


def _resize(nodes: int, allocation: Allocation, *, later_run: bool) -> str:
    """Return how to give the job this number of nodes.

    Slurm keeps the script of a requeued job, with the options in it.
    Without its upper end NumNodes would keep that of the last update.
    """
    if not later_run:
        return f"submit with 'sbatch --nodes={nodes}'"
    job = allocation.job_id
    return (
        f"'scontrol requeue {job}', and while it is pending 'scontrol update JobId={job} "
        f"NumNodes={nodes}-{nodes} StartTime=now'; or submit a new job (of this training, or with --from "
        f"{job}) with 'sbatch --nodes={nodes}'"
    )


def job_directory(config: JobConfig, environ: Mapping[str, str], job_id: int, name: str) -> JobDirectory:
    """Return the job's folder: ``<root>/<job id>``, or ``<root>/<job id>.<name>``."""
    base = Path(environ.get("SLURM_SUBMIT_DIR") or os.getcwd())
    root = base / (config.job_dir or JOBS_FOLDER)
    return JobDirectory(root / (f"{job_id}.{name}" if name else str(job_id)))


def check_place(directory: JobDirectory, environ: Mapping[str, str], *, later_run: bool) -> tuple[str, ...]:
    """Check that no other user can exchange existing parts of the job directory. Raises PreflightError.

    Returns warnings: about a group that may write above its directory; and in a ``later_run`` of a job, which
    was accepted once, of all that is wrong there.
    """
    submitted = Path(environ.get("SLURM_SUBMIT_DIR") or os.getcwd())
    warnings = []
    try:
        owner.mend(directory.path)
        found = [owner.judge(folder, os.geteuid()) for folder in owner.folders(directory.path, submitted)]
    except OSError as error:
        raise _no_directory(directory, error) from error
    for one in filter(None, found):
        if one.is_job or not (later_run or one.is_chosen):
            raise PreflightError(one.text, fix=one.fix, code=ExitCode.JOB_DIR)
        warnings.append(f"{one.text}: {one.fix}")
    return tuple(warnings)


def make_directory(directory: JobDirectory) -> None:
    """Make the job directory, readable by its owner only. Raises PreflightError."""
    try:
        owner.make(directory.path)
    except OSError as error:
        raise _no_directory(directory, error) from error


def open_directory(directory: JobDirectory) -> None:
    """Make the job directory with its folders, readable by its owner only. Raises PreflightError."""
    make_directory(directory)
    try:
        for folder in (directory.epochs, directory.agents, directory.incidents):
            folder.mkdir(exist_ok=True, mode=0o700)
        probe = directory.path / f".probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
        create_keys(directory.keys)
    except OSError as error:
        raise _no_directory(directory, error) from error


def _no_directory(directory: JobDirectory, error: OSError) -> PreflightError:
    return PreflightError(
        f"job directory {directory.path} cannot be written: {error}",
        fix="give a folder on storage that all nodes share and you may write: --job-dir DIR, or job_dir "
        "in the configuration",
        code=ExitCode.JOB_DIR,
    )


def check_alone(directory: JobDirectory) -> None:
    """Check that no other controller lives on this job. Raises PreflightError if one answers."""
    newest = newest_epoch(directory.epochs)
    if newest is None:
        return
    hosts = newest.addresses or (newest.host,)
    if not probe_ports({host: (host, newest.port) for host in hosts}).taken:
        return  # no process listens there any more, and ZeroMQ would try for all of the time
    answer = ask(newest.endpoints, load_client(directory.keys), Ping(), timeout_s=PING_TIMEOUT_S)
    if answer is not None:  # of whatever version
        raise PreflightError(
            f"another controller holds this job: epoch {newest.epoch} on {newest.host}, pid {newest.pid}",
            fix="wait for it, or give this run a name of its own: srobust run --name NAME …",
            code=ExitCode.OTHER_CONTROLLER,
        )


def check_unbegun(directory: JobDirectory) -> None:
    """Check that no other start has written a journal while this one waited for its end.

    Raises :class:`PreflightError`, ``JournalDamaged``, ``OSError``.
    """
    if read(directory.journal):
        raise PreflightError(
            f"another 'srobust run' has begun in {directory.path} since this one looked",
            fix="give each run of a job a name of its own: srobust run --name NAME …",
            code=ExitCode.OTHER_CONTROLLER,
        )


def check_history(state: JobState, events: list[AnyEvent], command: tuple[str, ...]) -> int | None:
    """Return the exit code of a run that is over already, None for one that must start or go on.

    Raises PreflightError when the job directory belongs to another command.
    """
    if not events:
        return None
    before = getattr(events[0], "command", ())
    if tuple(before) != command:
        raise PreflightError(
            f"this job directory holds the run of another command: {' '.join(before)}",
            fix="give this run a name of its own: srobust run --name NAME …",
            code=ExitCode.USAGE,
        )
    return state.ended.code if state.ended is not None and state.ended.final else None


def make_plan(
    config: JobConfig,
    kind: CommandKind,
    command: tuple[str, ...],
    environ: Mapping[str, str],
    allocation: Allocation,
    run_id: str,
    job: SlurmJob | None = None,
    sized: tuple[Sizes, int] | None = None,
) -> RunPlan:
    """Put the checked pieces together. Raises PreflightError.

    ``job``: Slurm's view of it; ``sized``: the answer of :func:`sizes`, without it that for a first run.
    """
    found, nproc = sized or sizes(config, allocation)
    slots, spares = found.slots, found.spares
    return RunPlan(
        run_id=run_id,
        job_id=allocation.job_id,
        kind=kind,
        command=command,
        cwd=os.getcwd(),
        slots=slots,
        spares=spares,
        nproc_per_node=nproc,
        restart_count=allocation.restart_count,
        nodes=allocation.nodes[: slots + spares],
        config=config,
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        submitted=job.submit_time if job is not None else None,
        array_task=array_task(environ),
        time_limit_s=time_limit(environ),
        queued_s=job.queued_s if job is not None else None,
        eligible=job.eligible_time if job is not None else None,
        gpus=sum(allocation.gpus_per_node.values()),
        required=job.required_nodes if job is not None else None,
        requeues=job.requeue if job is not None else True,
        output=_own_output(),
        start=secrets.token_hex(8),
    )


def placement(
    slurm: SlurmClient, allocation: Allocation, job: SlurmJob | None, environ: Mapping[str, str]
) -> tuple[dict[str, str], int]:
    """Return Slurm's block of each node, and the size of the job's segments; nothing without topology/block.

    ``job``: Slurm's view of it. What Slurm does not say now is not known: slots are then in its order.
    """
    try:
        blocks = [one for one in slurm.topology() if one.is_block and not one.level]
        found = {node: one.name for one in blocks for node in one.nodes if node in allocation.nodes}
        if not found or job is None or job.segment:
            return found, job.segment if job is not None else 0
        given = options.of_submission(slurm.submission(allocation.job_id), environ).given
        told = environ.get("SLURM_JOB_SEGMENT_SIZE") or given.get("segment", "")  # of 25.11 on
        return found, parse_number(told) or 0
    except (SlurmError, CommandTimeout, OSError):
        return {}, 0


def _own_output() -> str:
    """Return the file that this process's output goes to, "" if that is no file."""
    try:
        return os.readlink("/proc/self/fd/1") if stat.S_ISREG(os.fstat(1).st_mode) else ""
    except OSError:
        return ""


def find_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return the allocation of this batch script. Raises PreflightError outside Slurm, and for a hetjob."""
    try:
        allocation = allocation_from_environment(environ)
    except NotInAllocation as error:
        raise PreflightError(str(error), fix=error.fix, code=ExitCode.ALLOCATION) from error
    components = environ.get("SLURM_HET_SIZE") or environ.get("SLURM_PACK_SIZE")
    if components:
        raise PreflightError(
            f"job {allocation.job_id} is heterogeneous ({components} components): its agents need one "
            "step on all nodes",
            fix="submit one job with nodes of one kind, without '#SBATCH hetjob' and ':' between options",
            code=ExitCode.ALLOCATION,
        )
    # Each of several tasks of a step would be a controller of the same job.
    step, tasks = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_STEP_NUM_TASKS", "")
    if step.isdecimal() and int(step) < _SPECIAL_STEPS and tasks.isdecimal() and int(tasks) > 1:
        raise PreflightError(
            f"srun has started 'srobust run' {tasks} times: it runs once, and starts what it needs on "
            "all nodes by itself",
            fix="write 'exec srobust run …' in the batch script, without srun; ranks per node are "
            "--nproc-per-node, else sbatch --ntasks-per-node",
            code=ExitCode.USAGE,
        )
    return allocation


_SPECIAL_STEPS = 0xFFFF_FFF0  # from here on Slurm's own numbers: of batch scripts, of salloc's shell


def check_slurm_commands(environ: Mapping[str, str]) -> None:
    """Refuse to begin if Slurm's commands cannot be started, as within most images of containers."""
    path = environ.get("PATH", "")
    lacking = lacking_commands(path)
    if lacking:
        raise PreflightError(
            f"{' and '.join(lacking)} cannot be found here (PATH is {path or 'empty'}), and 'srobust run' "
            "starts everything through Slurm",
            fix="where the batch script itself runs in a container (sbatch --container-image …), run srobust "
            "outside of it and its agents inside, as train-pyxis.sbatch does; otherwise put the folder of "
            "Slurm's commands on the PATH",
            code=ExitCode.REFUSED,
        )


def check_container(plan: RunPlan, directory: JobDirectory) -> None:
    """Make what the job's container has to mount. Raises PreflightError if it cannot be mounted."""
    try:
        if plan.container(directory).srun_options:  # elsewhere who writes there first makes it
            plan.storage(directory).mkdir(parents=True, exist_ok=True)
    except BadOption as error:
        raise _no_container(error) from error
    except OSError as error:
        raise _no_directory(directory, error) from error


def container_of_replay(config: JobConfig, folder: Path, cwd: str) -> Container:
    """Return how a replay that writes to ``folder`` gets into the job's container. Raises PreflightError."""
    try:
        return config.agents.container((str(folder),), (cwd,))
    except BadOption as error:
        raise _no_container(error) from error


def _no_container(error: BadOption) -> PreflightError:
    return PreflightError(f"agents.srun_options {error}", fix=error.fix, code=ExitCode.CONFIG)


ALIVE_S = 300.0  # a run of another cluster that wrote so lately may go on, whether it can be reached or not


def find_job(slurm: SlurmClient, job_id: int) -> SlurmJob | None:
    """Return Slurm's view of the job; None if Slurm does not answer."""
    try:
        return slurm.job(job_id)
    except SlurmError:
        return None


def move_aside(directory: JobDirectory, events: Sequence[ev.AnyEvent], how: str) -> str:
    """Give the folder of another job a name of its own; returns a text that says what was done.

    Raises :class:`PreflightError` when that job may still run, or the folder cannot be moved.
    """
    check_alone(directory)
    age_s = time.time() - events[-1].t
    ended = fold(events).ended
    may_run = ended is None or not ended.final
    if how.startswith("of cluster") and may_run and age_s < ALIVE_S:
        raise PreflightError(
            f"{directory.path} belongs to a job {how} that may still run (written {age_s:.0f} s ago)",
            fix="give each cluster a folder of its own: --job-dir DIR, or job_dir in the configuration",
            code=ExitCode.OTHER_CONTROLLER,
        )
    name = f"{directory.path.name}.old-{minute(events[0].t)}"
    target = directory.path.with_name(name)
    number = 2
    while target.exists():
        target, number = directory.path.with_name(f"{name}-{number}"), number + 1
    try:
        directory.path.rename(target)
    except OSError as error:
        raise PreflightError(
            f"{directory.path} belongs to another job ({how}) and cannot be moved aside: {error}",
            fix="move it away, or give this run a name of its own: srobust run --name NAME …",
            code=ExitCode.JOB_DIR,
        ) from error
    return f"{directory.path} held another job with this id ({how}); that is now {target}"
