"""Drift: what differs from the baseline that the site recorded when the node was well."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel import pci
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import matches
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import NOT_LIVE, AnyCheck, Check, Probe, Source, View, judged

CPU, DMI, DIMMS = "/sys/devices/system/cpu", "/sys/class/dmi/id", "/sys/firmware/dmi/entries"
MODULES = ("mlx5_core", "ib_core", "amdgpu", "lustre", "ice", "bnxt_en")
LIBRARIES = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/opt/slurm/lib")
PID_FILES = ("/run/slurmd.pid", "/run/slurm/slurmd.pid", "/var/run/slurmd.pid")
# One line or a few: the file has a stanza for each CPU, and asks each of them for its clock.
_SOME = 4096

OPTION = "kernel option "
BASELINE = "the recorded baseline"

# PCI classes that jobs cannot do without, as a report names them.
VITAL = {
    pci.DISPLAY: "GPU",
    pci.ACCELERATOR: "accelerator",
    pci.INFINIBAND: "InfiniBand adapter",
    pci.ETHERNET: "network adapter",
}
KINDS = VITAL | {pci.NVME: "NVMe drive", "0680": "bridge", "0604": "PCI bridge", "0107": "SAS controller"}


class DriftFacts(Record):
    """Items by the names that findings tell. What is not there or cannot be read has no item."""

    software: dict[str, str] = {}
    settings: dict[str, str] = {}
    hardware: dict[str, str] = {}
    devices: dict[str, int] = {}
    """How many PCI devices there are of each class and id (``0302 10de:2330``)."""


def gather(host: Host, config: NodeConfig) -> DriftFacts:
    """Read all, in some hundred small files."""
    devices = Counter(f"{device.kind} {device.id}" for device in pci.devices(host))
    return DriftFacts(
        software=_there(_software(host)),
        settings=_there(_settings(host, config.baseline.sysctls)),
        hardware=_there(_hardware(host)),
        devices=dict(sorted(devices.items())),
    )


def _there(items: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in items.items() if value}


def _software(host: Host) -> dict[str, str]:
    nvidia = host.read_or("/sys/module/nvidia/version")
    modules = {f"{name} driver": host.read_or(f"/sys/module/{name}/version") for name in MODULES}
    devices = "/sys/class/infiniband"
    firmware = {f"{name} firmware": host.read_or(f"{devices}/{name}/fw_ver") for name in host.names(devices)}
    return {
        "kernel": host.read_or("/proc/sys/kernel/osrelease"),
        "NVIDIA driver": nvidia or _nvidia_version(host),
        "BIOS": host.read_or(f"{DMI}/bios_version"),
        "microcode": _cpuinfo(host, "microcode"),
        "Slurm library": _slurm_library(host),
        **modules,
        **firmware,
    }


def _nvidia_version(host: Host) -> str:
    found = re.search(r"\s(\d+\.\d[\d.]*)\s", host.read_or("/proc/driver/nvidia/version"))
    return found[1] if found else ""


def _cpuinfo(host: Host, field: str) -> str:
    try:
        text = host.read("/proc/cpuinfo", _SOME)
    except OSError:
        return ""
    found = re.search(rf"^{field}\s*: (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _slurm_library(host: Host) -> str:
    """Return the library, whose file name has the version; asking slurmd for it would cost a process."""
    names = (name for folder in LIBRARIES for name in host.names(folder) if name.startswith("libslurm.so."))
    return max(names, key=len, default="")


def _settings(host: Host, sysctls: tuple[str, ...]) -> dict[str, str]:
    huge_pages = re.search(r"\[(\w+)\]", host.read_or("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        **_kernel_options(host.read_or("/proc/cmdline")),
        **{name: " ".join(host.read_or(f"/proc/sys/{name.replace('.', '/')}").split()) for name in sysctls},
        "CPU governor": _governors(host),
        "transparent huge pages": huge_pages[1] if huge_pages else "",
        "slurmd's locked memory": _memlock(host),
    }


def _kernel_options(text: str) -> dict[str, str]:
    """Return the options with their values, those of a repeated one joined. What follows ``--`` is init's."""
    found: dict[str, str] = {}
    for word in text.partition(" -- ")[0].split():
        name, _, value = word.partition("=")
        # These change with the kernel, which is an item of its own.
        if name not in ("BOOT_IMAGE", "initrd"):
            key = f"{OPTION}{name}"
            found[key] = f"{found[key]},{value}" if key in found else value or "set"
    return found


def _governors(host: Host) -> str:
    folder = f"{CPU}/cpufreq"
    names = [name for name in host.names(folder) if name.startswith("policy")]
    return ",".join(sorted({host.read_or(f"{folder}/{name}/scaling_governor") for name in names} - {""}))


def _memlock(host: Host) -> str:
    """Return the limit of locked memory. RDMA needs it unlimited, and jobs have what their daemon has."""
    pid = next((pid for name in PID_FILES if (pid := host.number(name))), 0)
    found = re.search(r"^Max locked memory\s+(\S+)", host.read_or(f"/proc/{pid}/limits"), re.MULTILINE)
    return found[1] if found else ""


def _hardware(host: Host) -> dict[str, str]:
    sizes = Counter(_modules_mb(host))
    return {
        "system": host.read_or(f"{DMI}/product_name"),
        "CPU model": _cpuinfo(host, "model name"),
        "CPUs online": host.read_or(f"{CPU}/online"),
        "memory modules": ", ".join(f"{count} x {size} MiB" for size, count in sorted(sizes.items())),
    }


def _modules_mb(host: Host) -> Iterator[int]:
    """Yield the sizes of memory modules, if root can read them (SMBIOS, Memory Device, type 17)."""
    for name in host.names(DIMMS):
        if not name.startswith("17-"):
            continue
        try:
            raw = host.path(f"{DIMMS}/{name}/raw").read_bytes()
        except OSError:
            continue
        size = int.from_bytes(raw[0x0C:0x0E], "little")
        if size in (0, 0xFFFF):  # an empty slot; not known
            continue
        if size == 0x7FFF:  # Too large for this field: there is a wider one.
            size = int.from_bytes(raw[0x1C:0x20], "little")
        elif size & 0x8000:  # in KiB
            size = (size & 0x7FFF) // 1024
        yield size


def judge_software(view: View[DriftFacts], config: NodeConfig) -> Iterator[Finding]:
    """Compare the versions of kernel, drivers and firmware."""
    yield from _compared(view, config, "software", lambda facts: facts.software)


def judge_settings(view: View[DriftFacts], config: NodeConfig) -> Iterator[Finding]:
    """Compare the settings of the kernel and the limits of slurmd."""
    yield from _compared(view, config, "settings", lambda facts: facts.settings)


def judge_hardware(view: View[DriftFacts], config: NodeConfig) -> Iterator[Finding]:
    """Compare CPU, memory modules and PCI devices."""
    devices = [*_devices(view, config)]
    for finding in _compared(view, config, "hardware", lambda facts: facts.hardware):
        # All is as it was only if the devices are.
        if finding.outcome is not Outcome.PASS or not devices:
            yield finding
    yield from devices


def _compared(
    view: View[DriftFacts], config: NodeConfig, check: str, part: Callable[[DriftFacts], dict[str, str]]
) -> Iterator[Finding]:
    """Yield a finding for each item that differs, else one for all.

    An item that the baseline lacks is news only if it is a kernel option: earlier releases may not have
    recorded others.
    """
    if view.baseline is None:
        return
    old, now = part(view.baseline), part(view.facts)
    added = [name for name in now if name.startswith(OPTION) and name not in old]
    names = [name for name in (*old, *added) if not _ignored(config, name)]
    changed = [name for name in names if old.get(name) != now.get(name)]
    for name in changed:
        before, after = old.get(name, "none"), now.get(name, "none")
        yield judged(
            f"drift.{check}",
            f"{name} is {after}, was {before}",
            subject=name,
            value=after,
            limit=before,
            source=BASELINE,
            blame=Party.SITE,
        )
    if not changed and names:
        value = f"{len(names)} items as in the baseline"
        yield judged(f"drift.{check}", "", value=value, limit="", source=BASELINE)


def _ignored(config: NodeConfig, name: str) -> bool:
    return matches(name, config.baseline.ignore)


def _devices(view: View[DriftFacts], config: NodeConfig) -> Iterator[Finding]:
    old = view.baseline.devices if view.baseline else {}
    for name in sorted({*old, *view.facts.devices}):
        before, after = old.get(name, 0), view.facts.devices.get(name, 0)
        if before == after or not old or _ignored(config, name):
            continue
        kind, _, identity = name.partition(" ")
        noun = KINDS.get(kind) or KINDS.get(kind[:2], "PCI device")
        is_lost = after < before and (kind in VITAL or kind[:2] in VITAL)
        change = f"{before - after} missing" if after < before else f"{after - before} more"
        yield judged(
            "drift.hardware",
            f"{after} of {noun} {identity} instead of {before}, {change}",
            subject=f"{noun} {identity}",
            value=str(after),
            limit=str(before),
            source=pci.DEVICES,
            suggestion=Suggestion.RESET if is_lost else Suggestion.MONITOR,
        )


# What does not change while a node runs need not be read anew in each prolog.
SOURCE = Source(name="drift", facts=DriftFacts, gather=gather, timeout_s=5.0, fresh_s=600.0)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="drift.software",
        source=SOURCE,
        judge=judge_software,
        written_by=Writer.ROOT,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        hangs=True,
        explain="Kernel, drivers (NVIDIA, mlx5, Lustre ...), firmware of InfiniBand adapters, BIOS, "
        "microcode and Slurm's library must be those of the baseline. Nodes that differ make jobs slow or "
        "wrong in ways that are hard to find. Jobs go on; bring the node in line, or record a new "
        "baseline (`srobust check --record-baseline`) if the change was meant.",
    ),
    Check(
        name="drift.settings",
        source=SOURCE,
        judge=judge_settings,
        written_by=Writer.ROOT,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain="The kernel's command line, the values of baseline.sysctls, the CPU governor, transparent "
        "huge pages and the locked memory that slurmd passes on to jobs (RDMA needs it unlimited) must be "
        "those of the baseline. Jobs go on. Items that may differ are named in baseline.ignore.",
    ),
    Check(
        name="drift.hardware",
        source=SOURCE,
        judge=judge_hardware,
        written_by=Writer.KERNEL,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain="CPU model and CPUs online, memory modules and PCI devices must be those of the baseline. "
        "A GPU or network adapter that is no longer on the PCI bus keeps jobs away: reset it or power the "
        "node off and on, then look at the slot. Anything else is reported.",
    ),
)
