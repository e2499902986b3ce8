"""Slurm's command lines as argument lists. Pure: nothing is run here."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from slurm_robust.slurm.need import Size
from slurm_robust.slurm.records import SlurmVersion
from slurm_robust.slurm.requests import ReservationRequest, StepRequest, SubmitRequest
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import one_line

# The JSON to ask a release for, from the first release that has it. Slurm drops each some releases later.
_DATA_PARSERS = (((26, 5), "v0.0.45"), ((25, 11), "v0.0.44"), ((24, 11), "v0.0.42"))

# Seconds since 1970 instead of local time without a zone in text output.
QUERY_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}

# The free text comes last: Slurm does not quote it.
NODE_COLUMNS = (
    ("NodeList", 256),
    ("PartitionName", 256),
    ("StateComplete", 256),
    ("User", 64),
    ("Timestamp", 32),
    ("CPUsState", 64),
    ("Reason", 1024),
)
EVENT_FIELDS = ("NodeName", "Start", "End", "State", "User", "Reason")
ACCOUNTING_FIELDS = ("JobIDRaw", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "NodeList")


def data_parser(version: SlurmVersion) -> str:
    """Return the JSON to ask for, as ``--json`` names it; empty before 24.11, as some commands lack it."""
    release = (version.major, version.minor)
    return next((name for first, name in _DATA_PARSERS if release >= first), "")


def _json(parser: str) -> tuple[str, ...]:
    return (f"--json={parser}",) if parser else ()


# -- reads ------------------------------------------------------------------------------------------


def version() -> list[str]:
    """Ask for the version: ``slurm-wlm 22.05.8`` or ``slurm 24.11.5``."""
    return ["sinfo", "--version"]


def now() -> list[str]:
    """Ask for the time by slurmctld's clock: ``sdiag output at Mon Nov 23 07:00:00 2026 (1795417200)``."""
    return ["sdiag"]


def show_nodes(names: Sequence[str] | None, *, parser: str) -> list[str]:
    """Ask for nodes, not with ``-o``: with one property group a line, a reason cannot pass for a field."""
    return ["scontrol", *_json(parser), "show", "node", *([fold(names)] if names else [])]


def show_node_state(name: str) -> list[str]:
    """Ask for text in fixed columns, the same in every release. For a single name sinfo asks for that node
    alone, while ``scontrol show node NAME`` loads the table of all nodes (both seen in sdiag of 22.05 and
    read in 26.05).
    """
    form = ",".join(f"{field}:{width}" for field, width in NODE_COLUMNS)
    return ["sinfo", "--all", "--noheader", "--Node", f"--nodes={name}", f"--Format={form}"]


def show_job(job_id: int, *, parser: str) -> list[str]:
    """Ask for a job; ``-d`` adds what is allocated on each node."""
    return ["scontrol", *_json(parser), "-d", "show", "job", str(job_id)]


def batch_script(job_id: int) -> list[str]:
    """Print the batch script to standard output; only the job's owner and operators get it."""
    return ["scontrol", "write", "batch_script", str(job_id), "-"]


def submit_line(job_id: int) -> list[str]:
    """Ask for the submit line: one line of text in every release."""
    return ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job_id}", "--format=SubmitLine"]


def show_jobs(user: str | None, *, parser: str) -> list[str]:
    """Ask for jobs in JSON, in every release. Before 24.11 it ignores filters and lists ended jobs too."""
    mode = f"--json={parser}" if parser else "--json"
    return ["squeue", mode, *([f"--user={user}"] if user else [])]


def show_steps(job_id: int, *, parser: str) -> list[str]:
    """Ask for the steps that slurmctld holds."""
    return ["scontrol", *_json(parser), "show", "step", str(job_id)]


def show_reservations(*, parser: str) -> list[str]:
    """Ask for all reservations."""
    return ["scontrol", *_json(parser), "show", "reservation"]


def show_topology() -> list[str]:
    """Ask for ``SwitchName=… Level=0 LinkSpeed=1 Nodes=…``; text in every release."""
    return ["scontrol", "show", "topology"]


def show_partitions() -> list[str]:
    """Ask for records of ``Name=value``: text in every release."""
    return ["scontrol", "show", "partition"]


def show_qos() -> list[str]:
    """Ask for text in every release: sacctmgr has no JSON before 23.02."""
    return ["sacctmgr", "--parsable2", "--noheader", "show", "qos", "format=Name,GraceTime,PreemptMode"]


def show_associations(cluster: str) -> list[str]:
    """Ask for text in every release: sacctmgr has no JSON before 23.02."""
    show = ["show", "association", f"cluster={cluster}", "format=Account,User"]
    return ["sacctmgr", "--parsable2", "--noheader", *show]


def show_config() -> list[str]:
    """Ask for lines ``Name = value``: text in every release."""
    return ["scontrol", "show", "config"]


def accounting(job_id: int) -> list[str]:
    """Ask for text in every release: 22.05's JSON says exit code 0 for jobs that failed."""
    return [
        "sacct",
        "--duplicates",
        "--parsable2",
        f"--jobs={job_id}",
        f"--format={','.join(ACCOUNTING_FIELDS)}",
    ]


def node_events(within_s: float) -> list[str]:
    """Ask for text in every release: sacctmgr has no JSON before 23.02."""
    return [
        "sacctmgr",
        "--parsable2",
        "show",
        "event",
        f"format={','.join(EVENT_FIELDS)}",
        f"start=now-{math.ceil(within_s)}",
    ]


def runs(within_s: float) -> list[str]:
    """Ask for every run of every job, without steps."""
    return [
        "sacct",
        "--allusers",
        "--allocations",
        "--duplicates",
        "--parsable2",
        f"--starttime=now-{math.ceil(within_s)}",
        "--endtime=now",
        f"--format={','.join(ACCOUNTING_FIELDS)}",
    ]


# -- writes -----------------------------------------------------------------------------------------


def requeue(job_id: int) -> list[str]:
    """End the run and put the job back into the queue."""
    return ["scontrol", "requeue", str(job_id)]


def release(job_id: int) -> list[str]:
    """Undo a hold."""
    return ["scontrol", "release", str(job_id)]


def update_job(job_id: int, field: str, value: str) -> list[str]:
    """Update a job: ``scontrol update jobid=7 ExcNodeList=n1``."""
    return ["scontrol", "update", f"jobid={job_id}", f"{field}={value}"]


def resize_job(job_id: int, size: Size) -> list[str]:
    """Resize a job: ``scontrol update jobid=7 NumNodes=4-5 NumTasks=5 NumCPUs=5``; they must agree."""
    return ["scontrol", "update", f"jobid={job_id}", *size.arguments()]


def drain(nodes: Sequence[str], reason: str) -> list[str]:
    """Drain nodes. Reasons are one line: line breaks become blanks."""
    return [
        "scontrol",
        "update",
        f"nodename={fold(nodes)}",
        "state=drain",
        f"reason={one_line(reason, None)}",
    ]


def resume(nodes: Sequence[str]) -> list[str]:
    """Undo a drain or a down."""
    return ["scontrol", "update", f"nodename={fold(nodes)}", "state=resume"]


def cancel(job_id: int, step_id: str | None, signal: str | None) -> list[str]:
    """Cancel or signal; ``--batch`` signals the batch script, for scancel takes no ``JOB.batch``."""
    if step_id == "batch":
        return ["scancel", "--batch", f"--signal={signal or 'KILL'}", str(job_id)]
    target = str(job_id) if step_id is None else f"{job_id}.{step_id}"
    return ["scancel", *([f"--signal={signal}"] if signal else []), target]


def create_reservation(request: ReservationRequest) -> list[str]:
    """Create a reservation. scontrol takes ``now`` from the clock of its own host."""
    minutes = "UNLIMITED" if request.duration_s is None else str(_minutes(request.duration_s))
    start = "now" if request.start_time is None else f"uts{int(request.start_time)}"
    command = ["scontrol", "create", "reservation", f"reservationname={request.name}"]
    command += [f"starttime={start}", f"duration={minutes}"]
    if request.nodes:
        command.append(f"nodes={fold(request.nodes)}")
    if request.node_count is not None:
        command.append(f"nodecnt={request.node_count}")
    for key, values in (("users", request.users), ("accounts", request.accounts), ("flags", request.flags)):
        if values:
            command.append(f"{key}={','.join(values)}")
    if request.partition:
        command.append(f"partition={request.partition}")
    return command


def delete_reservation(name: str) -> list[str]:
    """Delete by name."""
    return ["scontrol", "delete", f"reservationname={name}"]


def sbatch(request: SubmitRequest) -> list[str]:
    """Submit with ``sbatch --parsable …``, which prints the job id."""
    command = ["sbatch", "--parsable", "--requeue" if request.requeue else "--no-requeue"]
    options: tuple[tuple[str, str], ...] = (
        ("--job-name", request.name),
        ("--nodes", "" if request.nodes is None else str(request.nodes)),
        ("--partition", request.partition),
        ("--reservation", request.reservation),
        ("--time", "" if request.time_limit_s is None else str(_minutes(request.time_limit_s))),
        ("--output", request.output),
        ("--chdir", request.work_dir),
        ("--comment", one_line(request.comment, None)),
        ("--exclude", fold(request.excluded_nodes)),
        ("--nodelist", fold(request.required_nodes)),
        ("--gres", request.gres),
    )
    command += [f"{name}={value}" for name, value in options if value]
    command += ["--hold"] if request.hold else []
    command += ["--exclusive"] if request.exclusive else []
    command += request.options
    if request.wrap:
        # sbatch runs what --wrap holds with sh; a single argument counts as such a line.
        own = request.command
        return [*command, "--wrap", own[0] if len(own) == 1 else shlex.join(own)]
    return [*command, *request.command]


def srun(request: StepRequest) -> list[str]:
    """Run one task on each node of the request.

    Every option that an ``#SBATCH`` line of the user's could change by way of the environment is
    given here, besides :func:`step_environment` removing the variables:

    * ``--ntasks-per-node=1 --nodes --ntasks --nodelist``: one agent on each node named, no other;
    * ``--overlap``: neither waits for an older step that still holds the GPUs (also one that hangs
      with a dead node) nor takes them from it;
    * ``--no-kill``: a lost node does not end the step on the others;
    * ``--whole --mem=0``: all CPUs and memory of the job on the node; ``--gres``: all its GPUs;
    * ``--cpu-bind=none --mpi=none``: binding and wire-up are the workers' own business;
    * ``--kill-on-bad-exit=0 --wait=0``: the end of one agent never ends another;
    * ``--input=none``: srun must not read the batch script's standard input.
    """
    count = len(request.nodes)
    command = [
        "srun",
        f"--jobid={request.job_id}",
        f"--job-name={request.name}",
        f"--nodelist={','.join(request.nodes)}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=none",
        "--export=ALL",
        "--overlap",
        "--no-kill",
        "--whole",
        "--mem=0",
    ]
    if request.gpus_per_node is not None:
        command.append(f"--gres=gpu:{request.gpus_per_node}" if request.gpus_per_node else "--gres=none")
    return [*command, *request.options, *request.command]


def srun_job(request: SubmitRequest) -> list[str]:
    """Run ``srun`` as a job of its own, with one task, which ends with the command."""
    command = ["srun", "--ntasks=1", "--input=none", "--mpi=none", "--cpu-bind=none", "--quiet"]
    options: tuple[tuple[str, str], ...] = (
        ("--job-name", request.name),
        ("--nodes", "" if request.nodes is None else str(request.nodes)),
        ("--partition", request.partition),
        ("--reservation", request.reservation),
        ("--time", "" if request.time_limit_s is None else str(_minutes(request.time_limit_s))),
        ("--chdir", request.work_dir),
        ("--nodelist", fold(request.required_nodes)),
        ("--gres", request.gres),
    )
    command += [f"{name}={value}" for name, value in options if value]
    command += ["--exclusive"] if request.exclusive else []
    return [*command, *request.options, *request.command]


# Variables of Slurm that a step may inherit. All others that begin like Slurm's are removed, because
# srun reads dozens of them as options (SLURM_NTASKS*, SLURM_CPUS_PER_TASK, SLURM_TRES_PER_TASK,
# SLURM_GPUS_PER_TASK, SLURM_CPU_BIND*, SLURM_DISTRIBUTION, SLURM_MEM_PER_*, SLURM_EXACT, …) and each
# release adds some: what is not known to be harmless goes.
_KEPT = frozenset(
    {
        "SLURM_CONF",
        "SLURM_JWT",
        "SLURM_TIME_FORMAT",
        "SLURM_CLUSTER_NAME",
        "SLURM_RESTART_COUNT",
        "SLURM_SUBMIT_DIR",
        "SLURM_SUBMIT_HOST",
        "SLURM_JOB_ID",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_CPUS_PER_NODE",
        "SLURM_JOB_END_TIME",
        "SLURM_JOB_GID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_QOS",
        "SLURM_JOB_RESERVATION",
        "SLURM_JOB_START_TIME",
        "SLURM_JOB_UID",
        "SLURM_JOB_USER",
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
    }
)
_SLURMS = ("SLURM_", "SRUN_", "SLURMD_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")
_SPANK = ("SLURM_SPANK_", "_SLURM_SPANK_")


def step_environment(environ: Mapping[str, str], request: StepRequest) -> dict[str, str]:
    """Return srun's environment: ``environ`` without what would change the step, plus the request's."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_SLURMS) or name in _KEPT or name.startswith(_SPANK)
    }
    return {**kept, **request.environment}


def _minutes(seconds: float) -> int:
    return max(1, math.ceil(seconds / 60))
