"""The PCI devices of a node, from ``/sys/bus/pci/devices``."""

from __future__ import annotations

import os

from slurm_robust.kernel.host import Host
from slurm_robust.model.record import Record

DEVICES = "/sys/bus/pci/devices"

NETWORK, ETHERNET, INFINIBAND, NVME = "02", "0200", "0207", "0108"
DISPLAY, ACCELERATOR = "03", "12"
MELLANOX, NVIDIA, AMD = "15b3", "10de", "1002"


class PciDevice(Record):
    """One function. Kind, vendor and device are in hexadecimal digits."""

    address: str
    kind: str
    """Class and subclass (``0207``)."""

    vendor: str
    device: str
    driver: str = ""
    """Empty if none is bound to it."""

    @property
    def id(self) -> str:
        """``15b3:1021``, as ``lspci -n`` has it."""
        return f"{self.vendor}:{self.device}"


def devices(host: Host) -> tuple[PciDevice, ...]:
    """Return all physical functions, sorted by address. Virtual ones come and go with their use."""
    # Large nodes have hundreds: paths as plain text, and one file of each that has it all.
    folder = str(host.path(DEVICES))
    found = (_read(f"{folder}/{address}", address) for address in host.names(DEVICES))
    return tuple(device for device in found if device)


def _read(folder: str, address: str) -> PciDevice | None:
    try:
        with open(f"{folder}/uevent", "rb", buffering=0) as file:
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    vendor, _, device = facts.get("PCI_ID", "").lower().partition(":")
    if not device or os.path.islink(f"{folder}/physfn"):
        return None
    kind = facts.get("PCI_CLASS", "").zfill(6)[:4].lower()
    return PciDevice(address=address, kind=kind, vendor=vendor, device=device, driver=facts.get("DRIVER", ""))
