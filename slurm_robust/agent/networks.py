"""The networks of this node: its address in one of them, and how fast the interface with an address is."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import psutil

from slurm_robust.model.errors import ExitCode, SrobustError

_INTERNET = (socket.AF_INET, socket.AF_INET6)
INTERFACES = Path("/sys/class/net")


class NoAddress(SrobustError):
    """This node is not in the network that the configuration names."""

    exit_code = ExitCode.CONFIG


def address_in(network: str) -> str:
    """This node's address in ``network``, a subnet or an interface's name. Raises :class:`NoAddress`."""
    found = _addresses()
    for interface, address in found:
        if interface == network if "/" not in network else _is_in(address, network):
            return address
    there = ", ".join(f"{interface} {address}" for interface, address in found)
    error = NoAddress(f"no address of this node is in checkpoint.peer_network {network}; it has {there}")
    error.fix = (
        "name a subnet, or an interface, that every node of the job has, or leave the key out to use the "
        "network of the heartbeats"
    )
    raise error


def interface_of(address: str) -> str:
    """The interface that has ``address``, "" for none."""
    return next((interface for interface, known in _addresses() if known == address), "")


def speed_of(interface: str, interfaces: Path = INTERFACES) -> float:
    """What it can carry in bytes per second, as the kernel tells; 0 where it does not.

    A virtual interface that stands on no other one tells a number that means nothing.
    """
    folder = interfaces / interface
    if not (folder / "device").exists() and not any(folder.glob("lower_*")):
        return 0.0
    try:
        megabits = int((folder / "speed").read_text())
    except (OSError, ValueError):
        return 0.0  # not told, or it is down
    return megabits * 1e6 / 8 if 0 < megabits < 2**31 else 0.0


def _addresses() -> list[tuple[str, str]]:
    """Interfaces with their addresses but those of the node's own loop; IPv4 first, link-local ones last."""
    found = [
        (interface, entry.address.partition("%")[0], entry.family)
        for interface, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in _INTERNET and not ipaddress.ip_address(entry.address.partition("%")[0]).is_loopback
    ]
    found.sort(key=lambda entry: (ipaddress.ip_address(entry[1]).is_link_local, entry[2] != socket.AF_INET))
    return [(interface, address) for interface, address, _ in found]


def _is_in(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
