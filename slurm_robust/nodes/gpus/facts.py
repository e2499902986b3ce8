"""What is known of a node's GPUs, of any vendor, and of their processes. None: GPU or driver does not say."""

from __future__ import annotations

from enum import Enum

from slurm_robust.kernel.host import Host
from slurm_robust.kernel.recovery import Recovery
from slurm_robust.model.record import Record

NVIDIA = "nvidia"
AMD = "amd"


class Throttle(str, Enum):
    """A reason for clocks below the maximum that no user or site wants."""

    HW_SLOWDOWN = "hardware slowdown"
    HW_THERMAL = "hardware thermal slowdown"
    POWER_BRAKE = "power brake"
    SW_THERMAL = "thermal limit"


class GpuError(str, Enum):
    """Why a GPU says nothing of itself."""

    LOST = "lost"
    """It fell off the bus."""

    RESET_REQUIRED = "reset required"
    ERRORS = "errors"
    """It answers the simplest questions (its name, its memory, its temperature) with errors."""

    OTHER = "other"
    """It cannot be asked, say for want of rights."""


class Gpu(Record):
    """One GPU. Memory in MiB, temperatures in °C, clocks in MHz; error counters as the driver counts them.

    ``volatile`` counters start anew with the driver, ``aggregate`` ones are the GPU's whole life.
    """

    index: int
    """The driver's."""

    vendor: str = NVIDIA
    bus: str = ""
    """PCI address as in sysfs (``0000:1b:00.0``)."""

    uuid: str = ""
    name: str = ""
    serial: str = ""
    trouble: GpuError | None = None
    error: str = ""
    """The driver's message."""

    errors: tuple[str, ...] = ()
    """Questions that it should answer and does not: the call, and the driver's message."""

    memory_mb: int | None = None
    """All that it has."""

    ecc_enabled: bool | None = None
    corrected: int | None = None
    """Volatile."""

    uncorrected: int | None = None
    """Volatile."""

    aggregate_uncorrected: int | None = None
    sram_threshold_exceeded: bool | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    recovery: Recovery | None = None

    links: tuple[bool | None, ...] | None = None
    """NVLink: whether each link is up; None in between for one that this card does not have."""

    link_errors: int | None = None
    """Replays, recoveries and errors of all links, as its generation of NVLink counts them."""

    fabric: str | None = None
    """State of the NVSwitch fabric: ``not started``, ``in progress``, ``completed``, or the error."""

    fabric_health: tuple[str, ...] = ()
    """What of the fabric is degraded, in NVML's words."""

    clique: str = ""
    """NVLink clique, ``CLUSTER-UUID/ID``: GPUs of the same one reach each other over NVLink, also from
    node to node. Empty if there is none.
    """

    pcie_width: int | None = None
    pcie_max_width: int | None = None
    pcie_generation: int | None = None
    pcie_max_generation: int | None = None
    pcie_replays: int | None = None

    temperature_c: float | None = None
    slowdown_c: float | None = None
    """The temperature at which the hardware slows the GPU down."""

    memory_temperature_c: float | None = None
    memory_max_c: float | None = None
    throttle: tuple[Throttle, ...] | None = None
    idle: bool | None = None
    utilization: int | None = None
    """Per cent of the last sample period in which a kernel ran."""

    sm_clock: int | None = None
    max_sm_clock: int | None = None
    application_clock: int | None = None
    persistence: bool | None = None

    @property
    def label(self) -> str:
        """Its name in findings."""
        return f"gpu{self.index}"

    @property
    def links_up(self) -> int:
        """How many links are up."""
        return sum(state is True for state in self.links or ())


class GpuFacts(Record):
    """All GPUs of a node."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    on_bus: tuple[str, ...] = ()
    """PCI addresses of GPUs that the driver should have, whether it lists them or not."""

    uptime_s: float | None = None
    """The node's, when this was read."""

    fault: str = ""
    """Why the driver does not work."""

    unreadable: str = ""
    """Why it cannot be asked."""

    stuck_in: str = ""
    """The call that did not come back within ``took_s``."""

    took_s: float = 0.0


class GpuProcess(Record):
    """A process that holds a GPU."""

    pid: int
    name: str = ""
    ending: bool = False
    """It is gone or a zombie, and its memory is being freed."""

    uid: int | None = None
    """Its owner; None if that is not known. A server of MPS runs as the user whom it serves: it belongs to
    the daemon that has started it.
    """


class Use(Record):
    """Who uses one GPU, and how much of its memory (without what the driver reserves), in MiB."""

    index: int
    memory_mb: int | None = None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def label(self) -> str:
        """Its name in findings."""
        return f"gpu{self.index}"


class GpuUse(Record):
    """Use of all GPUs of a node."""

    gpus: tuple[Use, ...] = ()


_FLAGS = 6  # the place in /proc/PID/stat, counted from the state on
_PF_EXITING = 0x4
_SIGKILL = 1 << 8

MPS = "nvidia-cuda-mps"
"""How the names of its daemon and its servers begin."""


def process(host: Host, pid: int) -> GpuProcess:
    """Return a process by its number, with what ``/proc`` says of it."""
    stat = host.read_or(f"/proc/{pid}/stat")
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return GpuProcess(
        pid=pid,
        name=name,
        ending=_is_ending(host, pid, fields),
        uid=host.real_uid(fields[1] if name.startswith(MPS) and _is_of_mps(host, fields) else pid),
    )


def _is_of_mps(host: Host, stat: list[str]) -> bool:
    """Return whether its parent is a daemon of MPS too, by its name."""
    return len(stat) > 1 and host.read_or(f"/proc/{stat[1]}/comm").startswith(MPS)


def _is_ending(host: Host, pid: int, stat: list[str]) -> bool:
    """Return whether it is gone, on its way out, or has SIGKILL and is still held up in the kernel.

    What a process has registered with the driver goes back page by page: tens of seconds for a big one.
    """
    if stat[:1] in ([], ["Z"], ["X"]) or (len(stat) > _FLAGS and int(stat[_FLAGS]) & _PF_EXITING):
        return True
    lines = host.read_or(f"/proc/{pid}/status").splitlines()
    pending = [line.split()[1] for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(signals, 16) & _SIGKILL for signals in pending)
