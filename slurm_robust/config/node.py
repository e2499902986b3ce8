"""The configuration of a node's checks and hooks: ``/etc/slurm-robust/config.yaml`` and ``conf.d/*.yaml``.

The YAML has the same shape, one mapping per nested record. Times are in seconds, sizes in MiB, shares from
0 to 1. Everything has a default: an empty file is a working configuration, in observe mode.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from slurm_robust.model.record import Record


class _Section(Record, forbid_unknown_fields=True):
    """A part of the configuration; an unknown key is an error and not ignored."""


def _not_below(section: _Section, low: float, *names: str) -> None:
    for name in names:
        if getattr(section, name) < low:
            raise ValueError(f"{name} is {getattr(section, name):g}: use {low:g} or more")


class CheckRule(_Section):
    """What a site changes about one check, by its name or a pattern (``gpu.*``); None leaves it as it is."""

    enabled: bool | None = None
    contexts: tuple[str, ...] | None = None
    """Where it runs: prolog, epilog, periodic, deep, person."""

    on_unknown: Literal["open", "closed"] | None = None
    """Whether a result that is unknown lets jobs start (open) or keeps them away (closed)."""

    suggestion: Literal["none", "monitor", "reset", "reboot", "replace"] | None = None
    """Overrides what a failure suggests: none and monitor never drain."""

    confirm: int | None = None
    """Periodic runs in a row that must fail before the node is drained: 1, or 3 for what users can write."""


class Hooks(_Section):
    """Budgets of the hooks, and what they do when they cannot tell."""

    prolog_s: float = 10.0
    """Whole prolog; Slurm's PrologEpilogTimeout must be longer."""

    epilog_s: float = 90.0
    """Whole epilog; 60 s of it are for GPUs that are freeing the memory of the job, others need a few."""

    periodic_s: float = 30.0
    """Slurm kills a HealthCheckProgram after 60 s."""

    on_error: Literal["open", "closed"] = "open"
    """What a prolog does when the checks themselves cannot run (a bug, a broken configuration)."""

    slurm_s: float = 5.0
    """Limit of each Slurm command."""

    slurm_bin: str = ""
    """Folder of scontrol; empty: beside slurmd, else the usual places."""

    slurm_conf: str = ""
    """SLURM_CONF for Slurm's commands; empty: as in the environment, else Slurm's own default."""

    sweep: bool = True
    """Remove what jobs that are gone left in /dev/shm."""


class Watch(_Section):
    """How often ``srobust-node watch`` looks, in seconds. At the kernel's log it looks when there is news."""

    gpu_s: float = 2.0
    network_s: float = 10.0
    all_s: float = 60.0
    """Everything, and drains that wait for their end."""

    def __post_init__(self) -> None:
        """Refuse what would be a busy loop."""
        for name in ("gpu_s", "network_s", "all_s"):
            if getattr(self, name) < 1.0:
                raise ValueError(f"watch.{name} is {getattr(self, name):g} s: use 1 or more")


class Drain(_Section):
    """Bounds of what is done to nodes. Nothing is done at all in observe mode."""

    mode: Literal["observe", "act"] = "observe"
    max_share: float = 0.1
    """At most this share of a partition's nodes is drained by us at any time (but one node always may be)."""

    max_per_hour: int = 4
    """At most so many new drains of ours per partition within 3600 s."""

    undrain: bool = True
    """Return a node that we drained when it has passed."""

    pass_runs: int = 3
    """Runs in a row that must pass before that."""

    most_per_day: int = 3
    """A node that we drained so often within 24 h stays drained until a person has looked at it."""


class Hints(_Section):
    """Suspicions that jobs record about nodes they give back."""

    enabled: bool = True
    job_dirs: tuple[str, ...] = ("{work_dir}/srobust-jobs",)
    """Where job directories are; {work_dir}, {user}, {uid}, {home} and {job_id} are filled in."""


class Paths(_Section):
    """Files of the node's side."""

    state: str = "/var/lib/slurm-robust"
    log: str = "/var/log/slurm-robust/events.jsonl"
    runtime: str = "/run/slurm-robust"
    syslog: bool = True


class GpuLimits(_Section):
    """What a node's GPUs must be like. None: as in the baseline, or not checked without one."""

    count: int | None = None
    max_temperature_c: float | None = None
    """None: 2 C below the temperature at which the hardware slows the GPU down."""

    max_memory_temperature_c: float | None = None
    max_aggregate_uncorrected: int = 0
    max_volatile_uncorrected: int = 0
    """Uncorrected errors that are new within an hour; more than that ask for a reset. Older ones, which the
    driver has contained, are only reported."""

    max_corrected_per_hour: int = 1000
    min_pcie_width: int | None = None
    min_pcie_generation: int | None = None
    min_nvlinks: int | None = None
    max_link_errors_per_hour: int = 100
    """NVLink replays, recoveries and CRC errors; errors received, link errors and recoveries of NVLink 5."""

    max_pcie_replays_per_hour: int = 1000
    max_leftover_memory_mb: int = 512
    """Memory in use on a GPU where no job runs."""

    xid_window_s: float = 3600.0
    """XIDs whose remedy is a restart of the application count for so long."""

    persistence: bool | None = None
    """Whether persistence mode must be on."""

    application_clocks: bool = False
    """Whether clocks that are locked below the maximum are a finding."""


class NetworkLimits(_Section):
    """InfiniBand, RoCE and Ethernet ports. Empty tuples: all that were up in the baseline or in this boot."""

    infiniband: tuple[str, ...] = ()
    """Ports that must be up (``mlx5_0/1``); others are not judged then."""

    ethernet: tuple[str, ...] = ()
    """Interfaces (``eth0``) that must be up, and over which jobs train; others are not judged then."""

    ignore: tuple[str, ...] = ()
    """Ports and interfaces that no check looks at; patterns (``mlx5_bond_*``, ``eno*``)."""

    min_rate_gb: float | None = None
    """Gb/s of each InfiniBand port; None: as in the baseline."""

    max_symbol_errors_per_hour: int = 120
    max_port_errors_per_hour: int = 10
    """Of each other error counter of an InfiniBand port."""

    max_ethernet_errors_per_hour: int = 1000
    max_link_downed_per_hour: int = 3
    """More losses of a link are a fault, however far apart."""

    flap_window_s: float = 600.0
    """Two losses of a link within this time are a fault; a single one may heal itself. Longer than the
    interval of periodic runs."""

    def __post_init__(self) -> None:
        """Refuse limits that no port could keep."""
        _not_below(self, 0, "max_symbol_errors_per_hour", "max_port_errors_per_hour")
        _not_below(self, 0, "max_ethernet_errors_per_hour", "max_link_downed_per_hour", "flap_window_s")


MOST_ANSWER_S = 8.0


class StorageLimits(_Section):
    """Mounts and disks."""

    mounts: tuple[str, ...] = ()
    """Must be mounted and answer; empty: all of /etc/fstab, and network file systems of the baseline."""

    ignore_mounts: tuple[str, ...] = ()
    """Mount points that no check looks at; patterns (``/media/*``)."""

    answer_s: float = 3.0
    """How long a network file system may take to answer; at most :data:`MOST_ANSWER_S`."""

    min_free_mb: dict[str, int] = msgspec.field(
        default_factory=lambda: {"/": 1024, "/tmp": 1024, "/var": 512}
    )
    """Free space that ordinary users find, by path. Network file systems only if they are named here."""

    min_free_inodes: int = 10_000
    io_errors_window_s: float = 3600.0
    max_io_errors: int = 10
    """More failed commands of one disk within ``io_errors_window_s`` are a fault; tools that ask a disk for
    what it cannot do cause a few."""

    def __post_init__(self) -> None:
        """Refuse limits that no disk could keep, and a wait that outlasts the check itself."""
        _not_below(self, 0, "min_free_inodes", "io_errors_window_s", "max_io_errors")
        if not 0 < self.answer_s <= MOST_ANSWER_S:
            raise ValueError(f"answer_s is {self.answer_s:g}: use more than 0 and at most {MOST_ANSWER_S:g}")
        if bad := [path for path in (*self.mounts, *self.min_free_mb) if not path.startswith("/")]:
            raise ValueError(f"{bad[0]!r} is no absolute path: begin it with /")


class MemoryLimits(_Section):
    """Memory, processes and load."""

    min_total_mb: int | None = None
    max_missing_share: float = 0.03
    """Share of the baseline's memory that may be missing (a module that failed takes more)."""

    min_free_share: float = 0.5
    """Share of memory that must be available where no job runs."""

    min_free_shm_share: float = 0.1
    """Share of /dev/shm that must be free where no job runs."""

    stale_snapshots_s: float = 3600.0
    """Snapshots of a job that is not on the node are left over when nothing wrote them for so long."""

    max_corrected_per_hour: int = 100
    """More corrected errors of one memory controller are worth a look."""

    max_stalled_share: float = 0.1
    """Share of a minute in which all processes wait for memory that is worth a look."""

    max_job_share: float = 0.95
    """Share of a job's limit of memory in use, without caches, that is worth a look."""

    max_d_state: int = 16
    """Processes in uninterruptible sleep for more than a minute."""

    max_zombies: int = 500
    max_load_per_cpu: float = 4.0
    """Where no job runs: load per CPU over the last minute as well as over 15."""

    min_user_uid: int = 1000
    """Ordinary users have this uid or a higher one (UID_MIN of /etc/login.defs)."""

    def __post_init__(self) -> None:
        """Refuse limits that every node would miss."""
        _not_below(self, 0, "max_missing_share", "min_free_share", "min_free_shm_share", "stale_snapshots_s")
        _not_below(self, 0, "max_stalled_share", "max_job_share")
        _not_below(self, 0, "max_corrected_per_hour", "max_d_state", "max_zombies", "max_load_per_cpu")
        _not_below(self, 1, "min_user_uid")


class ClockLimits(_Section):
    """The clock, whose offset disturbs tickets, logs and stack analysis."""

    max_offset_s: float = 0.5
    """Between this clock and its reference, as far as the kernel knows."""

    require_sync: bool = False
    """Whether a clock that nothing keeps right is a failure; else it is unknown how right it is."""

    def __post_init__(self) -> None:
        """Refuse a limit that no clock keeps."""
        _not_below(self, 0.001, "max_offset_s")


class KernelLimits(_Section):
    """What the kernel reported."""

    window_s: float = 3600.0
    """Soft lockups, OOM kills, PCIe errors and corrected machine checks count for so long."""

    max_corrected_mce_per_hour: int = 10
    injected: bool = False
    """Whether messages count that root wrote into /dev/kmsg, to try the alarm out; users cannot."""

    def __post_init__(self) -> None:
        """Refuse limits that mean nothing."""
        _not_below(self, 1, "window_s")
        _not_below(self, 0, "max_corrected_mce_per_hour")


class ServiceLimits(_Section):
    """Daemons that must run, by the names of their programs or units."""

    required: tuple[str, ...] = ()
    """On every node, whatever is installed there."""

    optional: tuple[str, ...] = (
        "munged",
        "slurmd",
        "nvidia-fabricmanager",
        "nv-hostengine",
        "nvidia-persistenced",
    )
    """Where systemd starts them at boot."""

    munge_socket: str = "/run/munge/munge.socket.2"
    """Where munged is asked for a credential, if it is there."""

    munge_s: float = 2.0
    """How long that may take."""

    def __post_init__(self) -> None:
        """Refuse a socket that is no path and a time in which nobody can answer."""
        _not_below(self, 0.05, "munge_s")
        if not self.munge_socket.startswith("/"):
            raise ValueError(f"munge_socket {self.munge_socket!r} is no absolute path: begin it with /")


class BaselineLimits(_Section):
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
    ignore: tuple[str, ...] = ()
    """Items that may differ; patterns of what ``drift.*`` names (``kernel option BOOT*``)."""


_MARKS = str.maketrans("", "", "._-")


class SiteCheck(_Section):
    """A check of the site: an executable with the Nagios convention, or a Python entry point.

    ``command`` is a path and arguments (exit code 0 pass, 1 warning, 2 critical, 3 unknown; the first line of
    the output is the text); ``python`` is ``module:function``, called with the Host and returning findings.
    ``suggestion`` is for what is critical; a warning only suggests to monitor.
    """

    name: str
    command: tuple[str, ...] = ()
    python: str = ""
    timeout_s: float = 5.0
    contexts: tuple[Literal["prolog", "epilog", "periodic", "deep", "person"], ...] = (
        "prolog",
        "periodic",
        "deep",
        "person",
    )
    suggestion: Literal["none", "monitor", "reset", "reboot", "replace"] = "reboot"

    def __post_init__(self) -> None:
        """Refuse a check that cannot be named or run."""
        if not (self.name.isascii() and self.name.translate(_MARKS).isalnum()):
            raise ValueError(f"name is {self.name!r}: use letters, digits and . _ -")
        if bool(self.command) == bool(self.python):
            raise ValueError(f"{self.name}: give either command or python, and not both")
        if self.timeout_s <= 0:
            raise ValueError(f"{self.name}: timeout_s is {self.timeout_s:g}: use more than 0")


class NodeConfig(_Section):
    """All of it."""

    hooks: Hooks = Hooks()
    watch: Watch = Watch()
    drain: Drain = Drain()
    hints: Hints = Hints()
    paths: Paths = Paths()
    checks: dict[str, CheckRule] = {}
    site_checks: tuple[SiteCheck, ...] = ()
    site_checks_dir: str = "/etc/slurm-robust/checks.d"
    """Executables there are site checks as well, by their file names; empty: none."""

    gpu: GpuLimits = GpuLimits()
    network: NetworkLimits = NetworkLimits()
    storage: StorageLimits = StorageLimits()
    memory: MemoryLimits = MemoryLimits()
    clock: ClockLimits = ClockLimits()
    kernel: KernelLimits = KernelLimits()
    services: ServiceLimits = ServiceLimits()
    baseline: BaselineLimits = BaselineLimits()
