"""The addresses of a controller: those of its node that other nodes can reach."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError


def resolved(name: str) -> tuple[str, ...]:
    """Return what the name resolves to here, loopback addresses included; empty if it does not resolve."""
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(info[4][0]) for info in infos))


def of_controller(
    node: str, host: str, slurm: SlurmClient, resolve: Callable[[str], tuple[str, ...]] = resolved
) -> tuple[str, ...]:
    """Return addresses in the order in which agents try them: those of the node's names, then the names.

    ``node`` is Slurm's name for it, "" if Slurm has none, ``host`` its own. If they resolve to nothing
    that another node could use (Debian maps a host's own name to 127.0.1.1, and names of pods resolve
    nowhere), Slurm's NodeAddr comes first, which slurmctld itself uses (slurm.conf(5)).
    """
    names = tuple(dict.fromkeys(filter(None, (node, host))))
    remote = [address for name in names for address in resolve(name) if not _is_loopback(address)]
    if not remote and node:
        remote = [address for address in _node_addr(node, slurm) if not _is_loopback(address)]
    return tuple(dict.fromkeys((*remote, *names)))


def _node_addr(node: str, slurm: SlurmClient) -> tuple[str, ...]:
    try:
        return tuple(found.address for found in slurm.nodes([node]) if found.address)
    except SlurmError:
        return ()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
