"""Does the kernel of a node answer? It does for a process that is stopped, starved or swapped out.

Two probes of different kinds, of which one answer suffices. The kernel itself refuses a TCP connection to a
port on which nothing listens: no process takes part, and no queue fills. An ICMP echo needs no port at all,
but a site may not permit it to users (``net.ipv4.ping_group_range``) or drop it.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TypeAlias

from slurm_robust.model.probes import Answers, ProbeTarget

EVERY_S = 0.1
"""Seconds between two probes of one node: each is new, since a lost one is repeated by TCP only after a
second.
"""

_RARELY_S = 0.35

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_ECHO = struct.Struct("!BBHHH")
_Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
# A connection that is refused, or reset, or taken was answered by the other kernel.
_ANSWERS = (0, errno.ECONNREFUSED, errno.ECONNRESET)


def probe(places: Mapping[str, ProbeTarget], for_s: float, *, each_kind: bool = False) -> Answers:
    """Probe the kernels at ``places`` again and again for ``for_s`` seconds, or until each has answered.

    ``each_kind``: until each has answered both kinds of probes.
    """
    with ExitStack() as stack:
        return _Probing(places, stack, each_kind=each_kind).run(for_s)


def _echo_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, socket.IPPROTO_ICMP)


class _Probing:
    """One call of :func:`probe`."""

    def __init__(self, places: Mapping[str, ProbeTarget], stack: ExitStack, *, each_kind: bool) -> None:
        self._targets = [
            (name, family, address) for name, place in places.items() for family, address in _resolve(place)
        ]
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._stack = stack
        self._tcp: dict[str, float] = {}
        self._icmp: dict[str, float] = {}
        self._asked: set[str] = set()
        self._began = time.monotonic()
        self._enough, self._every_s = (all, _RARELY_S) if each_kind else (any, EVERY_S)
        self._echoes: dict[tuple[str, str], socket.socket] = {}

    def run(self, for_s: float) -> Answers:
        deadline, due, turned = self._began + for_s, self._began, self._began
        while self._open():
            now = time.monotonic()
            if now - turned > 2 * EVERY_S:
                deadline += now - turned  # we were stopped ourselves: the probes need their time
            turned = now
            if now >= due and now < deadline:
                waited = self._open()
                for name, family, address in self._targets:
                    if name in waited:
                        self._send(name, family, address)
                due = now + self._every_s
            self._read(min(max(0.0, min(due, deadline) - now), EVERY_S))
            if now >= deadline:
                break  # after one last look at what has come meanwhile
        return Answers(tcp=self._tcp, icmp=self._icmp, asked=frozenset(self._asked))

    def _open(self) -> set[str]:
        kinds = self._tcp, self._icmp
        return {name for name, _, _ in self._targets if not self._enough(name in kind for kind in kinds)}

    def _send(self, name: str, family: int, address: _Address) -> None:
        if name not in self._icmp:
            self._send_echo(name, family, address)
        if name in self._tcp or not address[1]:
            return
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._stack.callback(connection.close)
        # What was taken by a listener after all leaves nothing behind.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        code = connection.connect_ex(address)
        if code in _ANSWERS:
            self._answered(self._tcp, name)
        if code in (*_ANSWERS, errno.EHOSTUNREACH):
            self._asked.add(name)
        elif code == errno.EINPROGRESS:
            self._asked.add(name)
            self._selector.register(connection, selectors.EVENT_WRITE, name)

    def _send_echo(self, name: str, family: int, address: _Address) -> None:
        if family != socket.AF_INET:
            return
        key = name, str(address[0])
        try:
            if key not in self._echoes:
                echo = self._stack.enter_context(_echo_socket())
                echo.connect((address[0], 0))
                self._selector.register(echo, selectors.EVENT_READ, name)
                self._echoes[key] = echo
            # The kernel puts in its own identifier and the checksum.
            self._echoes[key].send(_ECHO.pack(_ECHO_REQUEST, 0, 0, 0, 1) + os.urandom(8))
        except OSError:
            return  # not permitted to this user, or no route
        self._asked.add(name)

    def _read(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            name: str = key.data
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection.type == socket.SOCK_DGRAM:
                self._read_echo(name, connection)
                continue
            self._selector.unregister(connection)
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS:
                self._answered(self._tcp, name)
            connection.close()

    def _read_echo(self, name: str, echo: socket.socket) -> None:
        try:
            reply = echo.recv(256)
        except OSError:
            return  # unreachable, say: nothing has answered
        if reply and reply[0] == _ECHO_REPLY:
            self._answered(self._icmp, name)

    def _answered(self, kind: dict[str, float], name: str) -> None:
        self._asked.add(name)
        kind.setdefault(name, time.monotonic() - self._began)


def _resolve(place: ProbeTarget) -> list[tuple[socket.AddressFamily, _Address]]:
    found: list[tuple[socket.AddressFamily, _Address]] = []
    for address in place.addresses:
        try:
            family, _, _, _, target = socket.getaddrinfo(address, place.port, type=socket.SOCK_STREAM)[0]
        except OSError:
            continue
        found.append((family, target))
    return found
