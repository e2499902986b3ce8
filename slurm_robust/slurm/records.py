"""What Slurm says about nodes, jobs, steps, reservations and switches, the same for every release.

Times are seconds since 1970, durations seconds, memory MiB; None means that Slurm gave no value.
Names of nodes are tuples, expanded, in the order in which Slurm lists them.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.model.record import Record

# Base states in which a job has ended for good (squeue(1), JOB STATE CODES). A job that is requeued
# from one of them is PENDING again and keeps its id.
TERMINAL_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)

# Base states in which a node takes jobs, and flags that change nothing about that (slurm.h, 22.05 to 26.05).
_TAKING = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_PLAIN = frozenset({"COMPLETING", "CLOUD", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "PERFCTRS"})
# Flags of a node that others have to themselves for now, and all other states in which it takes no job.
_KEPT = frozenset({"RESERVED", "MAINTENANCE", "PLANNED", "BLOCKED"})
_SHUT = frozenset(
    {"DOWN", "ERROR", "FUTURE", "UNKNOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "EXTERNAL"}
    | {"POWER_DOWN", "POWER_UP", "POWER_DRAIN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"}
    | {"REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCEL", "RESUME", "UNDRAIN"}
)
KNOWN_STATES = _TAKING | _PLAIN | _KEPT | _SHUT
"""Slurm's names for states of nodes. A later release may have others: no job is sent to such a node."""

OF_RESERVATION = frozenset({"RESERVED", "MAINTENANCE"})
"""Flags of a node in a reservation, whose own jobs it takes."""


class SlurmVersion(Record, order=True):
    """A release, say 22.05.8: major 22, minor 5, micro 8; comparable."""

    major: int
    minor: int
    micro: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02d}.{self.micro}"

    def same_series(self, other: SlurmVersion) -> bool:
        """Return whether both are of one series (24.11): libraries and daemons of one series match."""
        return (self.major, self.minor) == (other.major, other.minor)


class Gres(Record):
    """Generic resources of one kind: ``gpu:h200:8``."""

    name: str
    type: str
    """Empty when the site names none."""

    count: int


class SlurmNode(Record):
    """One node as slurmctld sees it."""

    name: str
    address: str
    states: frozenset[str]
    """Slurm's upper-case names without suffixes: one base state (IDLE, ALLOCATED, MIXED, DOWN, ERROR, FUTURE,
    UNKNOWN) and any flags (DRAIN, NOT_RESPONDING, RESERVED, COMPLETING, FAIL, MAINTENANCE, POWERED_DOWN,
    REBOOT_REQUESTED, …). Names are those of ``scontrol show node``; a later release may have others than
    :data:`KNOWN_STATES`."""

    reason: str = ""
    """May outlive its state (Slurm without accounting keeps it after a resume): judge by ``states``."""

    reason_user: str = ""
    reason_time: float | None = None
    cpus: int = 0
    allocated_cpus: int = 0
    gres: tuple[Gres, ...] = ()
    partitions: tuple[str, ...] = ()

    @property
    def is_down(self) -> bool:
        """slurmctld gave the node up (DOWN, ERROR).

        A node that only does not respond is not down yet: Slurm decides after SlurmdTimeout. A node that must
        leave (FAIL, which sinfo shows as FAILING) is not down either: its job runs on.
        """
        return bool(self.states & {"DOWN", "ERROR"})

    @property
    def is_drained(self) -> bool:
        """No new job will be started there (DRAIN is set, whether or not a job still runs)."""
        return "DRAIN" in self.states

    @property
    def is_leaving(self) -> bool:
        """It gives no new job a place, because a person or a program wants that (DRAIN, FAIL); a job that
        runs there goes on.
        """
        return bool(self.states & {"DRAIN", "FAIL"})

    @property
    def responding(self) -> bool:
        """slurmd answered lately.

        For 0.6 to 2 s after a resume (measured on 22.05, 24.11, 25.11 and 26.05) a healthy node is
        IDLE+NOT_RESPONDING, so one False is no sign of a dead node; False for longer than that is.
        """
        return "NOT_RESPONDING" not in self.states

    @property
    def hindrances(self) -> frozenset[str]:
        """The states that keep new jobs away: each one that is not known to let them in."""
        found = self.states - _TAKING - _PLAIN
        return found if found or self.states & _TAKING else frozenset({"UNKNOWN"})

    @property
    def usable(self) -> bool:
        """A job could be started there now or when the present one ends."""
        return self.usable_despite(frozenset())

    def usable_despite(self, allowed: frozenset[str]) -> bool:
        """Return the same with the flags ``allowed`` left out, such as :data:`OF_RESERVATION` to its jobs."""
        return bool(self.states & _TAKING) and self.hindrances <= allowed

    @property
    def is_idle(self) -> bool:
        """No job has it, nor is one of it still completing."""
        return "IDLE" in self.states and "COMPLETING" not in self.states

    def gpus(self) -> int:
        """Return number of GPUs configured."""
        return sum(g.count for g in self.gres if g.name == "gpu")


class SlurmJob(Record):
    """One job as slurmctld sees it."""

    job_id: int
    name: str
    user_name: str
    states: frozenset[str]
    """The base state (PENDING, RUNNING, …) and flags (COMPLETING, REQUEUE_HOLD, …). Releases before 23.02
    print COMPLETING *instead of* the base state in text, so ask the properties."""

    reason: str = ""
    """What ``scontrol`` shows: slurmctld's description with ``_`` for blanks if there is one
    (``launch_failed_requeued_held``), else that of squeue(1) (``BeginTime``, ``None``).
    """

    partition: str = ""
    qos: str = ""
    nodes: tuple[str, ...] = ()
    num_nodes: int = 0
    """For a requeued job Slurm still shows how many nodes its last run had; see ``least_nodes``."""

    least_nodes: int = 0
    """The fewest nodes that a pending job asks for; 0 if Slurm does not say."""

    num_tasks: int = 0
    tasks_per_node: int = 0
    """What ``--ntasks-per-node`` asks for, else 0."""

    segment: int = 0
    """What ``--segment`` asks for (topology/block), 0 for none; Slurm shows it from 25.05 on. Earlier ones
    tell it by the batch script and by slurmdbd only."""

    cpus_per_task: int = 1
    excluded_nodes: tuple[str, ...] = ()
    """What ``--exclude`` asks for."""

    required_nodes: tuple[str, ...] = ()
    """What ``--nodelist`` asks for."""

    batch_host: str = ""
    restart_count: int = 0
    priority: int = 0
    requeue: bool = False
    expedited: bool = False
    """Submitted with ``--requeue=expedite`` (25.11 on)."""

    submit_time: float | None = None
    eligible_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    preempt_time: float | None = None
    """When Slurm chose the job to make room for another one; its end follows after the ``GraceTime``."""

    time_limit_s: float | None = None
    reservation: str = ""
    comment: str = ""
    work_dir: str = ""
    stdout: str = ""

    @property
    def queued_s(self) -> float | None:
        """Time from its submission, or requeue, until its newest start; None if not known."""
        if self.submit_time is None or self.start_time is None:
            return None
        return max(0.0, self.start_time - self.submit_time)

    @property
    def held_nodes(self) -> tuple[str, ...]:
        """The nodes that it holds now; none before its start and after its end."""
        return self.nodes if not self.is_pending and not self.is_finished else ()

    @property
    def is_completing(self) -> bool:
        """Processes or epilogs of the last run are still there; the job can start nowhere yet."""
        return "COMPLETING" in self.states

    @property
    def is_pending(self) -> bool:
        """Waiting for its (next) start, and nothing of an earlier run is left."""
        return "PENDING" in self.states and not self.is_completing

    @property
    def is_running(self) -> bool:
        """It holds nodes and works on them."""
        return bool(self.states & {"RUNNING", "CONFIGURING", "SUSPENDED"}) and not self.is_completing

    def is_in_run(self, restart_count: int) -> bool:
        """Return whether the run with this restart count, and no later one, goes on."""
        return self.is_running and self.restart_count == restart_count

    @property
    def is_finished(self) -> bool:
        """Ended for good. A job that is completing before its next run is not finished."""
        return bool(self.states & TERMINAL_STATES) and not self.states & {
            "PENDING",
            "REQUEUED",
            "REQUEUE_HOLD",
            "SPECIAL_EXIT",
        }

    @property
    def has_lost_script(self) -> bool:
        """Slurm has ended it because a signal ended its batch script; it was not cancelled."""
        return self.reason == "JobLaunchFailure" and not self.is_running and not self.is_pending

    @property
    def held(self) -> bool:
        """Pending or about to be, with priority 0: it will not start until it is released."""
        return self.priority == 0 and not self.is_running and not self.is_finished

    @property
    def held_by_slurm(self) -> bool:
        """Held by slurmctld itself because a start failed (prolog error), not by a person."""
        failed_start = ("launch_failed", "prolog")
        return self.held and any(text in self.reason.lower() for text in failed_start)

    @property
    def held_by_administrator(self) -> bool:
        """Held by ``scontrol hold`` of an operator or administrator: its owner cannot release it."""
        return self.held and self.reason == "JobHeldAdmin"


class Submission(Record):
    """How a job was submitted, each "" if Slurm does not show it (no accounting, another user's job).

    ``line``: the command, whose quotes Slurm does not keep. ``script``: the batch script.
    """

    line: str = ""
    script: str = ""


class SlurmStep(Record):
    """One step that is known to slurmctld."""

    job_id: int
    step_id: str
    """``0``, ``batch``, ``extern``, …"""

    name: str
    nodes: tuple[str, ...]
    states: frozenset[str]


class Allocation(Record):
    """What a job holds now."""

    job_id: int
    nodes: tuple[str, ...]
    """In Slurm's order: task 0 runs on the first."""

    gpus_per_node: dict[str, int] = {}
    """The number of GPUs by node; 0 for one without GPUs."""

    batch_host: str = ""
    restart_count: int = 0
    end_time: float | None = None
    tasks_per_node: int = 0
    """What ``--ntasks-per-node`` of the submission says; 0 if it does not, or that is not known."""

    @classmethod
    def of(cls, job: SlurmJob, gpus: Mapping[str, int]) -> Allocation:
        """Return what ``job`` holds; a node that ``gpus`` leaves out counts as having none."""
        return cls(
            job_id=job.job_id,
            nodes=job.held_nodes,
            gpus_per_node={node: gpus.get(node, 0) for node in job.held_nodes},
            batch_host=job.batch_host,
            restart_count=job.restart_count,
            end_time=job.end_time,
        )


class Reservation(Record):
    """One reservation.

    REPLACE_DOWN may be missing: the JSON of releases before 25.11 does not have it. It changes nothing. If it
    was made for a number of nodes (without SPEC_NODES and STATIC_ALLOC, in JSON STATIC), Slurm replaces those
    that are down.
    """

    name: str
    nodes: tuple[str, ...]
    node_count: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partition: str = ""
    flags: frozenset[str] = frozenset()
    """Slurm's names (IGNORE_JOBS, SPEC_NODES, …)."""

    start_time: float | None = None
    end_time: float | None = None


class Terms(Record):
    """On which terms a partition or a QOS takes jobs."""

    name: str
    grace_s: int = 0
    """Time from Slurm's choice of a job to its end."""

    mode: str = ""
    """REQUEUE, CANCEL, SUSPEND or OFF; "" if PreemptMode of slurm.conf holds."""

    is_default: bool = False
    """For a partition: whether jobs that name none go there."""

    is_up: bool = True
    """For a partition: whether jobs start there."""

    max_time_s: float | None = None
    """For a partition: the longest time limit of its jobs; None if there is none."""


class AccountingRow(Record):
    """One line of ``sacct --duplicates``: one run of the job, or one step of it."""

    job_id: int
    step: str
    """Empty for the job itself."""

    run: int
    """Counts the runs of the job from 0, which is what SLURM_RESTART_COUNT was in that run as long as
    slurmdbd lost none."""

    state: str
    """The first name (``CANCELLED by 1000`` is CANCELLED); a run that was requeued is REQUEUED, NODE_FAIL or
    PREEMPTED; a job that lost or gave back a node gets a row RESIZING."""

    exit_code: int
    signal: int
    nodes: tuple[str, ...] = ()
    submit_time: float | None = None
    """When this run was queued: by its user, or by its requeue."""
    eligible_time: float | None = None
    """When it could first have started: after the begin time that a requeue sets."""
    start_time: float | None = None
    end_time: float | None = None


class NodeEvent(Record):
    """One line of ``sacctmgr show event``: a time in which the node could not be used, or only drained.

    Slurm begins a new event when the state changes within one, with the same reason.
    """

    node: str
    state: str
    """Slurm's names (``DOWN``, ``DRAIN``, ``IDLE``) without suffixes."""

    reason: str = ""
    user: str = ""
    start_time: float | None = None
    end_time: float | None = None
    """None while it lasts."""


class Switch(Record):
    """One switch of topology/tree, or one block of topology/block."""

    name: str
    level: int
    """0: a leaf switch, or a base block; blocks that join several are of level 1."""

    nodes: tuple[str, ...] = ()
    """The nodes of a switch of level 0; those of a block of any level."""

    is_block: bool = False
