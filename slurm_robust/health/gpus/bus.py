"""GPUs on the PCI bus, as the kernel lists them: also those that no driver has."""

from __future__ import annotations

import os

from slurm_robust.health.host import Host
from slurm_robust.model.record import Record

NVIDIA_ID = "0x10de"
DEVICES = "/sys/bus/pci/devices"

# VGA and 3D controllers; a GPU's sound or USB function and NVSwitches have other classes.
_GPU_CLASSES = ("0x0300", "0x0302")


class BusGpu(Record):
    """A GPU on the bus. ``driver`` of the kernel is empty where none is bound to it."""

    bus: str
    driver: str = ""


def gpus_on_bus(host: Host, vendor: str) -> tuple[BusGpu, ...]:
    """The vendor's GPUs by PCI address."""
    return tuple(
        BusGpu(bus=bus, driver=_driver(host, bus))
        for bus in host.names(DEVICES)
        # The vendor first: a node has hundreds of functions, and nearly all end here.
        if host.read_or(f"{DEVICES}/{bus}/vendor") == vendor
        and host.read_or(f"{DEVICES}/{bus}/class").startswith(_GPU_CLASSES)
    )


def _driver(host: Host, bus: str) -> str:
    try:
        return os.path.basename(os.readlink(host.path(f"{DEVICES}/{bus}/driver")))
    except OSError:
        return ""
