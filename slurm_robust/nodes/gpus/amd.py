"""AMD's GPUs, from the files that the ``amdgpu`` driver keeps in sysfs: no library is needed."""

from __future__ import annotations

import re
from typing import Any

from slurm_robust.kernel.host import Host
from slurm_robust.nodes.gpus.facts import AMD, Gpu, GpuError, GpuFacts, Use, process

VENDOR = "0x1002"
DRM = "/sys/class/drm"
KFD = "/sys/class/kfd/kfd"
_CARD = re.compile(r"card\d+")
_MIB = 2**20

# GT/s of a PCIe lane -> generation
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


def read_gpus(host: Host, first: int = 0) -> GpuFacts:
    """Return all AMD GPUs; their indices start at ``first``."""
    cards = _cards(host)
    return GpuFacts(
        gpus=tuple(_gpu(host, card, index) for index, card in enumerate(cards, start=first)),
        driver=host.read_or("/sys/module/amdgpu/version") if cards else "",
    )


def _cards(host: Host) -> tuple[str, ...]:
    """Return the folders of the devices, in the order of their PCI addresses as the runtime has it."""
    names = [name for name in host.names(DRM) if _CARD.fullmatch(name)]
    devices = [f"{DRM}/{name}/device" for name in names]
    ours = [device for device in devices if host.read_or(f"{device}/vendor") == VENDOR]
    return tuple(sorted(ours, key=lambda device: _bus(host, device)))


def _bus(host: Host, device: str) -> str:
    # The folder is a link into /sys/devices, whose last part is the address.
    return host.path(device).resolve().name


def _gpu(host: Host, device: str, index: int) -> Gpu:
    bus = _bus(host, device)
    if _fell_off(host, device):
        return Gpu(
            index=index,
            vendor=AMD,
            bus=bus,
            trouble=GpuError.LOST,
            error="PCI configuration space reads 0xff",
        )
    return Gpu(
        index=index,
        vendor=AMD,
        bus=bus,
        uuid=host.read_or(f"{device}/unique_id"),
        name=host.read_or(f"{device}/product_name"),
        serial=host.read_or(f"{device}/serial_number"),
        utilization=host.number(f"{device}/gpu_busy_percent"),
        pcie_width=_width(host, device, "current"),
        pcie_max_width=_width(host, device, "max"),
        pcie_generation=_generation(host, device, "current"),
        pcie_max_generation=_generation(host, device, "max"),
        pcie_replays=host.number(f"{device}/pcie_replay_count"),
        **_memory_errors(host, device),
        **_temperatures(host, device),
    )


def _fell_off(host: Host, device: str) -> bool:
    try:
        with host.path(f"{device}/config").open("rb") as file:
            return file.read(4) == b"\xff" * 4
    except OSError:
        return False


def _width(host: Host, device: str, which: str) -> int | None:
    lanes = host.number(f"{device}/{which}_link_width")
    # The kernel writes 255 for what it does not know.
    return lanes if lanes and lanes <= 32 else None


def _generation(host: Host, device: str, which: str) -> int | None:
    return _GENERATIONS.get(host.read_or(f"{device}/{which}_link_speed").partition(" ")[0])


def _memory_errors(host: Host, device: str) -> dict[str, Any]:
    """Return sums over the blocks (umc, sdma, gfx, ...) since the driver was loaded."""
    blocks = [name for name in host.names(f"{device}/ras") if name.endswith("_err_count")]
    if not blocks:
        return {}
    counts = {"ue": 0, "ce": 0}
    for block in blocks:
        for line in host.read_or(f"{device}/ras/{block}").splitlines():
            kind, _, number = line.partition(":")
            if kind.strip() in counts and number.strip().isdecimal():
                counts[kind.strip()] += int(number)
    # ADDRESS : SIZE : FLAG, with R for a page that is retired and P for one that is about to be.
    pages = host.read_or(f"{device}/ras/gpu_vram_bad_pages").splitlines()
    flags = [line.rpartition(":")[2].strip() for line in pages]
    return {
        "ecc_enabled": True,
        "uncorrected": counts["ue"],
        "corrected": counts["ce"],
        "retired_pages": flags.count("R"),
        "retired_pending": "P" in flags,
    }


def _temperatures(host: Host, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for hwmon in host.names(f"{device}/hwmon"):
        folder = f"{device}/hwmon/{hwmon}"
        for name in host.names(folder):
            sensor, _, kind = name.rpartition("_")
            if kind != "label" or not sensor.startswith("temp"):
                continue
            celsius = _celsius(host, f"{folder}/{sensor}_input")
            limit = _celsius(host, f"{folder}/{sensor}_crit")
            label = host.read_or(f"{folder}/{name}")
            if label == "junction":
                found |= {"temperature_c": celsius, "slowdown_c": limit}
            elif label == "mem":
                found |= {"memory_temperature_c": celsius, "memory_max_c": limit}
    return found


def _celsius(host: Host, name: str) -> float | None:
    milli = host.number(name)
    return None if milli is None else milli / 1000


def read_use(host: Host, first: int = 0) -> tuple[Use, ...]:
    """Return who uses which GPU now: processes with a queue of the compute driver, and memory of each GPU."""
    found = []
    for index, device in enumerate(_cards(host), start=first):
        used = host.number(f"{device}/mem_info_vram_used")
        holders = _holders(host, _kfd_id(host, _bus(host, device)))
        found.append(
            Use(
                index=index,
                memory_mb=None if used is None else used // _MIB,
                processes=tuple(process(host, pid) for pid in holders),
            )
        )
    return tuple(found)


def _kfd_id(host: Host, bus: str) -> str:
    """Return the compute driver's own number of a GPU; empty if it has none."""
    domain, _, rest = bus.partition(":")
    try:
        number, _, device = rest.partition(":")
        slot, _, function = device.partition(".")
        location = int(number, 16) << 8 | int(slot, 16) << 3 | int(function, 16)
        wanted = {("location_id", location), ("domain", int(domain, 16))}
    except ValueError:
        return ""
    for node in host.names(f"{KFD}/topology/nodes"):
        folder = f"{KFD}/topology/nodes/{node}"
        lines = [line.split() for line in host.read_or(f"{folder}/properties").splitlines()]
        properties = {
            (fields[0], int(fields[1])) for fields in lines if len(fields) == 2 and fields[1].isdecimal()
        }
        if wanted <= properties:
            return host.read_or(f"{folder}/gpu_id")
    return ""


def _holders(host: Host, gpu_id: str) -> list[int]:
    """Return the processes with memory on the GPU."""
    if not gpu_id:
        return []
    pids = filter(str.isdecimal, host.names(f"{KFD}/proc"))
    return [int(pid) for pid in pids if (host.number(f"{KFD}/proc/{pid}/vram_{gpu_id}") or 0) > 0]
