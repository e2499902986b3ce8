"""The PCI devices of a node, from ``/sys/bus/pci/devices``."""

from __future__ import annotations

from slurm_robust.health.host import Host
from slurm_robust.model.record import Record

DEVICES = "/sys/bus/pci/devices"

ETHERNET, INFINIBAND, NVME = "0200", "0207", "0108"
DISPLAY, ACCELERATOR = "03", "12"
MELLANOX, NVIDIA, AMD = "15b3", "10de", "1002"


class PciDevice(Record):
    """One function. ``kind``: class and subclass (``0207``); ``vendor`` and ``device`` in hexadecimal digits.

    ``driver`` is empty where none is bound to it.
    """

    address: str
    kind: str
    vendor: str
    device: str
    driver: str = ""

    @property
    def id(self) -> str:
        """``15b3:1021``, as ``lspci -n`` has it."""
        return f"{self.vendor}:{self.device}"


def devices(host: Host) -> tuple[PciDevice, ...]:
    """All physical functions, sorted by address. Virtual ones come and go with what they are made for."""
    found = (_read(host, address) for address in host.names(DEVICES))
    return tuple(device for device in found if device)


def _read(host: Host, address: str) -> PciDevice | None:
    # One file that has it all; reading each attribute apart takes four times as long.
    lines = host.read_or(f"{DEVICES}/{address}/uevent").splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    vendor, _, device = facts.get("PCI_ID", "").lower().partition(":")
    if not device or host.path(f"{DEVICES}/{address}/physfn").is_symlink():
        return None
    kind = facts.get("PCI_CLASS", "").zfill(6)[:4].lower()
    return PciDevice(address=address, kind=kind, vendor=vendor, device=device, driver=facts.get("DRIVER", ""))
