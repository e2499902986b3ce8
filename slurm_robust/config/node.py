"""The schema of a node's configuration: ``/etc/slurm-robust/config.yaml`` and ``conf.d/*.yaml``.

One mapping per section. Times are in seconds, sizes in MiB, shares from 0 to 1. Every key has a default: an
empty file is a working configuration, in observe mode.
"""

# Annotations are not postponed here: each would be compiled when a hook reads its configuration.
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from slurm_robust.config.section import (
    FINITE,
    AbsolutePath,
    Contradiction,
    Count,
    Number,
    Positive,
    Seconds,
    Section,
    Share,
)

HEALTH_CHECK_LIMIT_S = 60.0
"""Slurm kills a HealthCheckProgram after this time (slurm.conf(5))."""

MAX_ANSWER_S = 8.0
"""A check waits no longer for a network file system."""

Context = Literal["prolog", "epilog", "periodic", "deep", "person"]
Remedy = Literal["none", "monitor", "reset", "reboot", "replace"]

_PLACEHOLDERS = ("work_dir", "user", "uid", "home", "job_id")
_MARKS = str.maketrans("", "", "._-")


class CheckRule(Section):
    """Overrides for one check, or for all checks that match a pattern (``gpu.*``).

    ``null`` keeps the built-in behaviour. The full name of a check overrides patterns, and a later pattern
    overrides an earlier one.
    """

    enabled: bool | None = None
    """Whether the check runs."""

    contexts: tuple[Context, ...] | None = None
    """The contexts in which the check runs. One that can run beside a training does so with `periodic`."""

    on_unknown: Literal["open", "closed"] | None = None
    """What an unknown result does: ``open`` lets jobs start, ``closed`` keeps them away from the node."""

    suggestion: Remedy | None = None
    """The remedy that a failure suggests. ``none`` and ``monitor`` never drain the node."""

    confirm: Positive | None = None
    """Consecutive periodic runs that must fail before the node is drained. ``null``: 1, or 3 for checks whose
    evidence users can write."""


class Hooks(Section):
    """Time limits of the hooks, and what they do when the checks cannot run."""

    prolog_s: Seconds = 10.0
    """Time limit of the whole prolog. Slurm's ``PrologEpilogTimeout`` must be longer."""

    epilog_s: Seconds = 90.0
    """Time limit of the whole epilog. Up to 60 s of it are for GPUs that release the memory of the job."""

    periodic_s: Seconds = 30.0
    """Time limit of a periodic run. Must be below 60: Slurm kills a HealthCheckProgram after 60 s."""

    on_error: Literal["open", "closed"] = "open"
    """What a prolog does if the checks cannot run (an error in the program or in the configuration): ``open``
    lets the job start, ``closed`` does not."""

    slurm_s: Seconds = 5.0
    """Time limit of each Slurm command."""

    slurm_bin: str = ""
    """Folder that contains ``scontrol``. Empty: the folder of ``slurmd``, then the usual folders."""

    slurm_conf: str = ""
    """Value of ``SLURM_CONF`` for Slurm commands. Empty: the value in the environment, else Slurm's
    default."""

    sweep: bool = True
    """Remove the files that ended jobs left in ``/dev/shm``."""

    tell_owner: bool = True
    """Write what prolog and epilog saw of the node into the job's directory (``suspects.job_dirs``)."""

    may_skip: bool = False
    """Let a job whose comment has the word ``srobust-skip-checks`` start without the tests of the prolog."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield limits that Slurm or each other do not allow."""
        if self.periodic_s >= HEALTH_CHECK_LIMIT_S:
            text = f"periodic_s is {self.periodic_s:g}, but Slurm kills a HealthCheckProgram after 60 s"
            yield Contradiction(keys=("periodic_s",), text=text, fix="use a number below 60")
        for name in ("prolog_s", "epilog_s", "periodic_s"):
            if self.slurm_s > (limit := getattr(self, name)):
                text = (
                    f"slurm_s ({self.slurm_s:g}) is above {name} ({limit:g}): one command could use it all up"
                )
                yield Contradiction(
                    keys=("slurm_s", name), text=text, fix=f"set slurm_s to {limit:g} or less"
                )
        if self.slurm_bin and not self.slurm_bin.startswith("/"):
            text = f"slurm_bin is {self.slurm_bin!r}, but hooks have no PATH"
            yield Contradiction(keys=("slurm_bin",), text=text, fix="write an absolute path")


_AtLeast1s = Annotated[float, Meta(ge=1, le=FINITE, title="a number of seconds of 1 or more")]


class Watch(Section):
    """How often ``srobust-node watch`` runs the checks. It reads new kernel messages immediately."""

    gpu_s: _AtLeast1s = 2.0
    """Interval of the GPU checks."""

    network_s: _AtLeast1s = 10.0
    """Interval of the network checks."""

    all_s: _AtLeast1s = 60.0
    """Interval of all checks, and of retrying drains that are pending."""


class Drain(Section):
    """Limits on draining nodes. In observe mode no node is ever drained."""

    mode: Literal["observe", "act"] = "observe"
    """``observe``: report what would be drained. ``act``: drain and return nodes."""

    max_share: Share = 0.1
    """Maximum share of a partition's nodes that slurm_robust keeps drained at any time. One node is always
    allowed."""

    max_per_hour: Count = 4
    """Maximum number of new drains per partition within 3600 s."""

    undrain: bool = True
    """Return a node that slurm_robust drained once its checks pass."""

    pass_runs: Positive = 3
    """Consecutive runs that must pass before the node is returned."""

    most_per_day: Count = 3
    """A node drained this many times within 24 h stays drained until an administrator returns it."""


class Repair(Section):
    """What ``srobust admin repair`` may do to nodes that slurm_robust drained. See
    [repair](draining.md#repair)."""

    mode: Literal["observe", "act"] = "observe"
    """``observe``: report what would be done. ``act``: reset GPUs and reboot nodes."""

    most_per_week: Count = 2
    """Resets and reboots of one node within 7 days; a person decides after that."""

    reset_s: Seconds = 180.0
    """Time limit of the reset of a node's GPUs."""

    reboot_s: Seconds = 1800.0
    """Time limit of a reboot, until slurmd has registered again."""


class Suspects(Section):
    """Reports that jobs leave about nodes they suspect. The epilog tests such a node."""

    enabled: bool = True
    """Read these reports."""

    job_dirs: tuple[str, ...] = ("{work_dir}/srobust-jobs",)
    """Folders that contain job directories. ``{work_dir}``, ``{user}``, ``{uid}``, ``{home}`` and
    ``{job_id}`` are replaced by the values of the job."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield folders with a placeholder that nothing replaces."""
        for index, folder in enumerate(self.job_dirs):
            try:
                folder.format(**dict.fromkeys(_PLACEHOLDERS, ""))
            except (KeyError, IndexError, ValueError, AttributeError):
                known = ", ".join(f"{{{word}}}" for word in _PLACEHOLDERS)
                text = f"{folder!r} contains an unknown placeholder"
                yield Contradiction(keys=(f"job_dirs.{index}",), text=text, fix=f"use only {known}")


class FleetConfig(Section):
    """The fleet index: what happened to all jobs of the site. See [the fleet](fleet.md)."""

    collect: bool = False
    """Have the epilog put the summaries of jobs into ``spool_dir``."""

    spool_dir: str = ""
    """Folder for summaries, root's only, from which ``srobust admin fleet collect`` takes them. Empty:
    ``fleet-spool`` in ``paths.state``."""

    spool_mb: Positive = 256
    """Maximum size of the spool. Newer summaries are not kept while it is full."""

    index: str = ""
    """The index: absolute path of a SQLite file, or ``postgresql://user@host/database``. Keep its password in
    ``~/.pgpass``."""

    rack: str = ""
    """Regular expression that finds the rack in the name of a node (``^(r[0-9]+)``). Empty: the rack is the
    leaf switch of Slurm's topology."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what names no folder, no index and no rack."""
        if self.spool_dir and not self.spool_dir.startswith("/"):
            text = f"spool_dir is {self.spool_dir!r}"
            yield Contradiction(keys=("spool_dir",), text=text, fix="write an absolute path")
        if self.index and not self.index.startswith(("/", "sqlite:////", "postgresql://", "postgres://")):
            text = "index is neither an absolute path nor a URL of SQLite or PostgreSQL"
            fix = "write /var/lib/slurm-robust/fleet.sqlite or postgresql://user@host/database"
            yield Contradiction(keys=("index",), text=text, fix=fix)
        try:
            re.compile(self.rack)
        except re.error as error:
            text = f"rack is no regular expression: {error}"
            yield Contradiction(keys=("rack",), text=text, fix="write one such as ^(r[0-9]+)")


class Paths(Section):
    """Files of slurm_robust on the node."""

    state: AbsolutePath = "/var/lib/slurm-robust"
    """Folder of what persists between runs: baseline, history, records of drains."""

    log: AbsolutePath = "/var/log/slurm-robust/events.jsonl"
    """Event log, one JSON object per line."""

    runtime: AbsolutePath = "/run/slurm-robust"
    """Folder of locks and caches, which a reboot may remove."""

    syslog: bool = True
    """Also send events to syslog."""


class GpuLimits(Section):
    """What the GPUs of the node must be like. ``null``: as in the baseline; without one, not checked."""

    count: Annotated[Count | None, Meta(examples=[8])] = None
    """Number of GPUs."""

    max_temperature_c: Number | None = None
    """Maximum core temperature in °C. ``null``: 2 °C below the hardware's slowdown temperature."""

    max_memory_temperature_c: Number | None = None
    """Maximum memory temperature in °C."""

    max_aggregate_uncorrected: Count = 0
    """Uncorrected ECC errors allowed over the life of a GPU. More are reported, but do not drain."""

    max_volatile_uncorrected: Count = 0
    """New uncorrected ECC errors allowed within an hour. More suggest a reset. Older errors, which the driver
    has contained, are only reported."""

    max_corrected_per_hour: Count = 1000
    """Corrected ECC errors allowed per hour."""

    min_pcie_width: Count | None = None
    """Minimum PCIe link width (lanes)."""

    min_pcie_generation: Count | None = None
    """Minimum PCIe generation."""

    min_nvlinks: Count | None = None
    """Minimum number of active NVLinks per GPU."""

    max_link_errors_per_hour: Count = 100
    """NVLink errors allowed per hour: replays, recoveries and CRC errors; on NVLink 5, received errors, link
    errors and recoveries."""

    max_pcie_replays_per_hour: Count = 1000
    """PCIe replays allowed per hour."""

    max_leftover_memory_mb: Count = 512
    """Memory that may be in use on a GPU while no job runs on it."""

    xid_window_s: Number = 3600.0
    """How long an XID whose remedy is to restart the application counts."""

    persistence: bool | None = None
    """Whether persistence mode must be on."""

    application_clocks: bool = False
    """Report application clocks that are locked below the maximum."""


class NetworkLimits(Section):
    """InfiniBand, RoCE and Ethernet ports. An empty list means all ports that were up in the baseline, or
    since boot."""

    infiniband: tuple[str, ...] = ()
    """Ports that must be up (``mlx5_0/1``). If set, other ports are not checked."""

    ethernet: tuple[str, ...] = ()
    """Interfaces that must be up (``eth0``) and that jobs use for training. If set, other interfaces are not
    checked."""

    ignore: tuple[str, ...] = ()
    """Patterns of ports and interfaces that no check reads (``mlx5_bond_*``, ``eno*``)."""

    min_rate_gb: Number | None = None
    """Minimum rate of each InfiniBand port in Gb/s. ``null``: as in the baseline."""

    max_symbol_errors_per_hour: Count = 120
    """Symbol errors allowed per hour on an InfiniBand port."""

    max_port_errors_per_hour: Count = 10
    """Errors allowed per hour in each other error counter of an InfiniBand port."""

    max_ethernet_errors_per_hour: Count = 1000
    """Errors allowed per hour on an Ethernet interface."""

    max_link_downed_per_hour: Count = 3
    """Link losses allowed per hour; more are a failure, however far apart."""

    flap_window_s: Number = 600.0
    """Two link losses within this time are a failure; a single loss may recover by itself. Must be longer
    than the interval of periodic runs."""


_AnswerTime = Annotated[
    float, Meta(gt=0, le=MAX_ANSWER_S, title=f"a number of seconds above 0, at most {MAX_ANSWER_S:g}")
]


class StorageLimits(Section):
    """Mounts and disks."""

    mounts: tuple[AbsolutePath, ...] = ()
    """Mount points that must be mounted and responsive. Empty: those of ``/etc/fstab``, and the network file
    systems of the baseline."""

    ignore_mounts: tuple[str, ...] = ()
    """Patterns of mount points that no check reads (``/media/*``)."""

    answer_s: _AnswerTime = 3.0
    """Time in which a network file system must respond; at most 8 s."""

    min_free_mb: dict[AbsolutePath, Count] = field(
        default_factory=lambda: {"/": 1024, "/tmp": 1024, "/var": 512}
    )
    """Minimum free space for ordinary users, by path. A network file system is checked only if listed."""

    min_free_inodes: Count = 10_000
    """Minimum number of free inodes on the same file systems."""

    io_errors_window_s: Number = 3600.0
    """Window of ``max_io_errors``."""

    max_io_errors: Count = 10
    """Failed commands of one disk allowed within ``io_errors_window_s``. Tools that send a disk unsupported
    commands cause a few."""


class MemoryLimits(Section):
    """Memory, processes and load."""

    min_total_mb: Count | None = None
    """Minimum memory of the node, with that of GPUs where the kernel counts it. ``null``: as in the baseline,
    without."""

    max_missing_share: Share = 0.03
    """Share of the baseline's memory that may be missing. A failed module takes more."""

    min_free_share: Share = 0.5
    """Share of memory that must be available while no job runs."""

    min_free_shm_share: Share = 0.1
    """Share of ``/dev/shm`` that must be free while no job runs."""

    stale_snapshots_s: Number = 3600.0
    """Snapshots of a job that is not on the node count as left over if not written for this time."""

    max_corrected_per_hour: Count = 100
    """Corrected memory errors allowed per hour and memory controller; more are reported."""

    max_stalled_share: Share = 0.1
    """Share of a minute in which all processes may be stalled on memory; more is reported."""

    max_job_share: Share = 0.95
    """Share of a job's memory limit that may be in use, caches excluded; more is reported."""

    max_d_state: Count = 16
    """Processes that may be in uninterruptible sleep for more than a minute."""

    max_zombies: Count = 500
    """Zombie processes allowed."""

    max_load_per_cpu: Number = 4.0
    """Load per CPU allowed while no job runs, over the last minute and over the last 15 minutes."""

    min_user_uid: Positive = 1000
    """Lowest uid of ordinary users (``UID_MIN`` in ``/etc/login.defs``)."""


class ClockLimits(Section):
    """The system clock. A wrong clock breaks credentials, logs and the comparison of stacks."""

    max_offset_s: Annotated[
        float, Meta(ge=0.001, le=FINITE, title="a number of seconds of 0.001 or more")
    ] = 0.5
    """Maximum offset from the reference clock, as the kernel reports it."""

    require_sync: bool = False
    """Whether an unsynchronised clock fails the check. Otherwise the result is unknown."""


class KernelLimits(Section):
    """Messages of the kernel."""

    window_s: _AtLeast1s = 3600.0
    """How long soft lockups, OOM kills, PCIe errors and corrected machine checks count."""

    max_corrected_mce_per_hour: Count = 10
    """Corrected machine checks allowed per hour."""

    injected: bool = False
    """Whether messages written to ``/dev/kmsg`` count, for testing alarms. Only root can write them."""


class ServiceLimits(Section):
    """Daemons that must run, by the name of the program or the unit."""

    required: tuple[str, ...] = ()
    """Daemons that must run on every node."""

    optional: tuple[str, ...] = (
        "munged",
        "slurmd",
        "nvidia-fabricmanager",
        "nv-hostengine",
        "nvidia-persistenced",
    )
    """Daemons that must run if systemd starts them at boot."""

    munge_socket: AbsolutePath = "/run/munge/munge.socket.2"
    """Socket on which munged is asked for a credential, if it exists."""

    munge_s: Annotated[float, Meta(ge=0.05, le=FINITE, title="a number of seconds of 0.05 or more")] = 2.0
    """Time in which munged must respond."""


class BaselineLimits(Section):
    """What is compared with the recorded baseline, besides versions and hardware."""

    sysctls: tuple[str, ...] = (
        "vm.zone_reclaim_mode",
        "vm.overcommit_memory",
        "vm.swappiness",
        "vm.nr_hugepages",
        "kernel.numa_balancing",
        "kernel.pid_max",
        "net.core.rmem_max",
        "net.core.wmem_max",
    )
    """Kernel parameters that must match the baseline."""

    ignore: tuple[str, ...] = ()
    """Patterns of items that may differ, as the ``drift.*`` checks name them (``kernel option BOOT*``)."""


class SiteCheck(Section):
    """A check of the site: an executable that follows the Nagios convention, or a Python function.

    Give either ``command`` or ``python``. See [checks of your own](node-checks.md#checks-of-your-own).
    """

    name: str
    """Name of the check, reported as ``site.NAME``: letters, digits and ``. _ -``."""

    command: tuple[str, ...] = ()
    """Absolute path and arguments of an executable. Exit code 0 is pass, 1 warning, 2 critical, 3 unknown;
    the first line of its output is the text."""

    python: str = ""
    """``module:function``, called with the ``Host``; returns findings."""

    timeout_s: Seconds = 5.0
    """Time limit of the check."""

    contexts: tuple[Context, ...] = ("prolog", "periodic", "deep", "person")
    """The contexts in which the check runs."""

    suggestion: Remedy = "reboot"
    """The remedy that a critical result suggests. A warning only suggests to monitor the node."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what makes a check impossible to name or to run."""
        if not (self.name.isascii() and self.name.translate(_MARKS).isalnum()):
            text = f"name is {self.name!r}"
            yield Contradiction(keys=("name",), text=text, fix="use letters, digits and . _ -")
        if bool(self.command) == bool(self.python):
            has = "both command and python" if self.python else "neither command nor python"
            text, fix = f"check {self.name!r} has {has}", "give exactly one of them"
            yield Contradiction(keys=("name",), text=text, fix=fix)
        if self.command and not self.command[0].startswith("/"):
            text = f"command is {self.command[0]!r}, but hooks have no PATH"
            yield Contradiction(keys=("command",), text=text, fix="write an absolute path")
        if self.python and self.python.count(":") != 1:
            text = f"python is {self.python!r}"
            yield Contradiction(keys=("python",), text=text, fix="write module:function")


class DrainReason(Section):
    """A reason that others drain nodes with. See [reasons](draining.md#the-reasons-of-others)."""

    pattern: str
    """Regular expression that matches the beginning of a part of the reason, in upper or lower case."""

    means: Literal["fault", "slurm", "job", "upgrade", "person"]
    """Who or what took the node out of service. ``fault`` and ``slurm`` count for lemons."""

    by: str = "the site"
    """Name of the tool or person."""

    says: str = ""
    """What reports call it. Empty: ``means`` and ``by``."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what is no pattern, or one of everything."""
        try:
            if re.match(self.pattern, ""):
                text = f"pattern {self.pattern!r} matches any reason"
                yield Contradiction(keys=("pattern",), text=text, fix="write how the reason begins")
        except re.error as error:
            text = f"pattern is no regular expression: {error}"
            yield Contradiction(keys=("pattern",), text=text, fix=r"write one such as OPS-\d+")


class NodeMetrics(Section):
    """Metrics of the node for Prometheus. See [monitoring](monitoring.md#nodes)."""

    textfile_dir: str = ""
    """Folder of node_exporter's textfile collector, into which the hooks write ``srobust_*.prom``. It and all
    folders above it must be root's, and no other user may write to them. Empty: none."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a folder that depends on where a hook is started."""
        if self.textfile_dir and not self.textfile_dir.startswith("/"):
            text = f"textfile_dir is {self.textfile_dir!r}, but hooks start anywhere"
            yield Contradiction(keys=("textfile_dir",), text=text, fix="write an absolute path")


class NodeConfig(Section):
    """The configuration of a node."""

    hooks: Hooks = Hooks()
    watch: Watch = Watch()
    drain: Drain = Drain()
    repair: Repair = Repair()
    suspects: Suspects = Suspects()
    fleet: FleetConfig = FleetConfig()
    paths: Paths = Paths()
    checks: dict[str, CheckRule] = {}
    """``srobust check --explain`` lists the names of the checks."""

    site_checks: tuple[SiteCheck, ...] = ()
    """Executables in ``site_checks_dir`` need no entry here."""

    site_checks_dir: str = "/etc/slurm-robust/checks.d"
    """Folder of executables that run as checks of the site, named by their files. Empty: none."""

    drain_reasons: tuple[DrainReason, ...] = ()
    """Reasons of drains that the tools of this site set, before those that srobust knows."""

    gpu: GpuLimits = GpuLimits()
    network: NetworkLimits = NetworkLimits()
    storage: StorageLimits = StorageLimits()
    memory: MemoryLimits = MemoryLimits()
    clock: ClockLimits = ClockLimits()
    kernel: KernelLimits = KernelLimits()
    services: ServiceLimits = ServiceLimits()
    baseline: BaselineLimits = BaselineLimits()
    metrics: NodeMetrics = NodeMetrics()

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield names that two checks of the site share."""
        names = [check.name for check in self.site_checks]
        for index, name in enumerate(names):
            if name in names[:index]:
                text = f"two checks have the name {name!r}"
                yield Contradiction(
                    keys=(f"site_checks.{index}.name",), text=text, fix="give each a name of its own"
                )
