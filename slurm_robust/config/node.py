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
    """Periodic runs in a row that must fail before the node is drained."""


class Hooks(_Section):
    """Budgets of the hooks, and what they do when they cannot tell."""

    prolog_s: float = 10.0
    """Whole prolog; Slurm's PrologEpilogTimeout must be longer."""

    epilog_s: float = 20.0
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
    """None: 2 C below the temperature at which the driver slows the GPU down."""

    max_memory_temperature_c: float | None = None
    max_aggregate_uncorrected: int = 0
    max_volatile_uncorrected: int = 0
    max_corrected_per_hour: int = 1000
    min_pcie_width: int | None = None
    min_pcie_generation: int | None = None
    min_nvlinks: int | None = None
    max_leftover_memory_mb: int = 512
    """Memory in use on a GPU where no job runs."""

    xid_window_s: float = 3600.0
    """XIDs whose remedy is a restart of the application count for so long."""

    persistence: bool | None = None
    """Whether persistence mode must be on."""

    application_clocks: bool = False
    """Whether clocks that are locked below the maximum are a finding."""


class NetworkLimits(_Section):
    """InfiniBand, RoCE and Ethernet ports. Empty tuples: all that are in the baseline, or that are up."""

    infiniband: tuple[str, ...] = ()
    """Ports that must be up (``mlx5_0/1``)."""

    ethernet: tuple[str, ...] = ()
    """Interfaces that must be up (``eth0``)."""

    min_rate_gb: float | None = None
    max_symbol_errors_per_hour: int = 120
    max_link_downed_per_hour: int = 1
    flap_window_s: float = 300.0
    """Two losses of a link within this time are a fault; a single one may heal itself."""


class StorageLimits(_Section):
    """Mounts and disks."""

    mounts: tuple[str, ...] = ()
    """Must be mounted and answer; empty: all network file systems of /etc/fstab and of the baseline."""

    answer_s: float = 3.0
    """How long a mount may take to answer."""

    min_free_mb: dict[str, int] = msgspec.field(
        default_factory=lambda: {"/": 1024, "/tmp": 1024, "/var": 512}
    )
    min_free_inodes: int = 10_000
    io_errors_window_s: float = 3600.0


class MemoryLimits(_Section):
    """Memory, processes and load."""

    min_total_mb: int | None = None
    max_missing_share: float = 0.03
    """Share of the baseline's memory that may be missing (a module that failed takes more)."""

    min_free_share: float = 0.5
    """Share of memory that must be available where no job runs."""

    max_d_state: int = 16
    """Processes in uninterruptible sleep for more than a minute."""

    max_zombies: int = 500
    max_load_per_cpu: float = 4.0
    """Where no job runs: 15 minutes' load per CPU."""


class ClockLimits(_Section):
    """The clock, whose offset disturbs tickets, logs and stack analysis."""

    max_offset_s: float = 0.5
    require_sync: bool = False


class KernelLimits(_Section):
    """What the kernel reported."""

    window_s: float = 3600.0
    """Soft lockups, OOM kills outside of jobs and corrected machine checks count for so long."""

    max_corrected_mce_per_hour: int = 10


class ServiceLimits(_Section):
    """Daemons that must run; only those that are installed are asked for unless they are named here."""

    required: tuple[str, ...] = ("munged", "slurmd")
    optional: tuple[str, ...] = ("nvidia-fabricmanager", "nv-hostengine", "nvidia-persistenced")


class SiteCheck(_Section):
    """A check of the site: an executable with the Nagios convention, or a Python entry point.

    ``command`` is a path and arguments (exit code 0 pass, 1 warning, 2 critical, 3 unknown; the first line of
    the output is the text); ``python`` is ``module:function``, called with the Host and returning findings.
    """

    name: str
    command: tuple[str, ...] = ()
    python: str = ""
    timeout_s: float = 5.0
    contexts: tuple[str, ...] = ("prolog", "periodic", "deep", "person")
    suggestion: Literal["none", "monitor", "reset", "reboot", "replace"] = "reboot"


class NodeConfig(_Section):
    """All of it."""

    hooks: Hooks = Hooks()
    drain: Drain = Drain()
    hints: Hints = Hints()
    paths: Paths = Paths()
    checks: dict[str, CheckRule] = {}
    site_checks: tuple[SiteCheck, ...] = ()
    gpu: GpuLimits = GpuLimits()
    network: NetworkLimits = NetworkLimits()
    storage: StorageLimits = StorageLimits()
    memory: MemoryLimits = MemoryLimits()
    clock: ClockLimits = ClockLimits()
    kernel: KernelLimits = KernelLimits()
    services: ServiceLimits = ServiceLimits()
