"""Addresses, interfaces and ports of this node, as other nodes use them."""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.util.trust import user_name

_INTERNET = (socket.AF_INET, socket.AF_INET6)
INTERFACES = Path("/sys/class/net")


class NoAddress(SrobustError):
    """This node is not in the network that the configuration names."""

    exit_code = ExitCode.CONFIG


def address_in(network: str) -> str:
    """Return this node's address in ``network``, a subnet or an interface's name. Raises
    :class:`NoAddress`.
    """
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
    """Return the interface that has ``address``, "" for none."""
    return next((interface for interface, known in _addresses() if known == address), "")


def speed_of(interface: str, interfaces: Path = INTERFACES) -> float:
    """Return what it can carry in bytes per second, by the kernel; 0 if it does not say.

    The number of a virtual interface that has no other one below it means nothing.
    """
    folder = interfaces / interface
    if not (folder / "device").exists() and not any(folder.glob("lower_*")):
        return 0.0
    try:
        megabits = int((folder / "speed").read_text())
    except (OSError, ValueError):
        return 0.0  # not known, or it is down
    return megabits * 1e6 / 8 if 0 < megabits < 2**31 else 0.0


def speeds() -> dict[str, tuple[str, float]]:
    """Return by address of this node its interface, and what that carries in bytes per second, if known."""
    found = {address: (interface, speed_of(interface)) for interface, address in _addresses()}
    return {address: (interface, speed) for address, (interface, speed) in found.items() if speed}


def _addresses() -> list[tuple[str, str]]:
    """Return the interfaces with their addresses but those of the node's own loop.

    IPv4 first, link-local ones last.
    """
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


_LISTENS = "0A"  # TCP_LISTEN of net/tcp_states.h


class PortHolder:
    """Keeps a TCP port for the rendezvous of the next launch from all other processes, of whatever user.

    If ``hand_over``, the socket itself becomes rank 0's, whose torch listens on it. A program that binds the
    port on its own can do so only from its launch on, and until then no process can: Linux lets a second
    socket of any user bind while both have SO_REUSEADDR and none listens, and torch's store sets it.
    """

    def __init__(self, ports: Iterable[int] = (0,), *, hand_over: bool = False) -> None:
        """``ports`` to choose from, say for a firewall; (0,) for any free one. Raises ``OSError``."""
        self._ports = tuple(ports)
        self._hand_over = hand_over
        self._next = 0
        self._used: socket.socket | None = None
        self._held = self._take()

    @property
    def port(self) -> int:
        """The port held for the next launch."""
        return int(self._held.getsockname()[1])

    def open(self, backlog: int = socket.SOMAXCONN) -> socket.socket | None:
        """Open the port for workers: return the socket for rank 0, None if rank 0 binds it by itself.

        ``backlog``: connections that the kernel keeps until rank 0 accepts them.
        """
        if self._hand_over:
            self._held.listen(backlog)
            return self._held
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        return None

    def renew(self) -> None:
        """Hold another port: the held one is being used now. Raises ``OSError``."""
        if self._used is not None:
            self._used.close()
        self._used = self._held
        if self._hand_over:
            # Else a client that connects after the end of rank 0 would wait for ever.
            self._used.close()
            self._used = None
        self._held = self._take()

    def close(self) -> None:
        """Release all."""
        for holder in (self._used, self._held):
            if holder is not None:
                holder.close()

    def _take(self) -> socket.socket:
        error: OSError | None = None
        # At first only ports that are not used in any way; then also ports whose last connections the kernel
        # still remembers (TIME_WAIT), which a short list of ports soon leads to.
        for reuse in (False, True):
            for _ in self._ports:
                port = self._ports[self._next % len(self._ports)]
                self._next += 1
                try:
                    return self._hold(port, reuse)
                except OSError as problem:
                    error = problem
        raise OSError(f"no rendezvous port is free among {self._ports}: {error}")

    def _hold(self, port: int, reuse: bool) -> socket.socket:
        if port and self._used is not None and self._used.getsockname()[1] == port:
            raise OSError(f"port {port} is used by the last launch")
        holder = _bound(port, reuse)
        try:
            if self._hand_over:
                holder.listen(0)  # which keeps out all others, even if it was bound for reuse
            else:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, False)
        except OSError:
            holder.close()
            raise
        return holder


def bind_free(ports: Iterable[int] = (0,)) -> socket.socket:
    """Bind a socket to one of ``ports`` for all addresses of the node, IPv6 too. Raises ``OSError``.

    It tries the last port first, while :class:`PortHolder` begins with the first.
    """
    choices = tuple(ports)[::-1]
    error: OSError | None = None
    # As in PortHolder: at first without the ports whose last connections the kernel still remembers.
    for reuse in (False, True):
        for port in choices:
            try:
                return _bound(port, reuse)
            except OSError as problem:
                error = problem
    raise OSError(f"no port is free among {choices}: {error}")


def _bound(port: int, reuse: bool) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    bound = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        if dual:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", port))
    except OSError:
        bound.close()
        raise
    return bound


def taken_by(port: int) -> str:
    """Say which other user's process listens on ``port`` of this node, for people; "" for none."""
    for name in ("tcp6", "tcp"):
        try:
            with open(f"/proc/net/{name}") as table:
                uids = set(_listeners(table, port))
        except OSError:
            continue
        for uid in uids - {os.geteuid()}:
            return f"a process of {user_name(uid)} listens on port {port}"
    return ""


def _listeners(table: Iterable[str], port: int) -> Iterator[int]:
    """Yield the uids of the listeners on ``port``, with which the table begins (proc_pid_net(5))."""
    for row in itertools.islice(table, 1, None):
        fields = row.split()
        if fields[3] != _LISTENS:
            return
        if int(fields[1].rpartition(":")[2], 16) == port:
            yield int(fields[7])


def local_address(peer: str, port: int) -> str:
    """Return the address under which this node reaches ``peer``. Raises ``OSError`` without a route."""
    family, kind, protocol, _, target = socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # UDP: only asks the routing table, sends nothing
        return str(probe.getsockname()[0])
