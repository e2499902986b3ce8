"""The controller's listening socket, and who watches it: sources that flood it are kept out by the kernel.

CURVE lets nobody in without the job's key, but every connection costs a descriptor, and work, until it fails.
"""

from __future__ import annotations

import os
import socket
import threading
import time

import zmq
from zmq.utils.monitor import parse_monitor_message

from slurm_robust.wire import openfiles, portfilter
from slurm_robust.wire.portfilter import Address
from slurm_robust.wire.strangers import Strangers

_BACKLOG = 4096
_MONITOR = "inproc://srobust-gate"
_LONGEST_S = 3600.0
# Of one source within 10 s. A thousand agents behind one address are less, since each has soon proven itself.
_LEAST_UNPROVEN, _MOST_UNPROVEN = 64, 4000


def listen(port: int) -> socket.socket:
    """A socket that listens on ``port`` of all addresses of this host. Raises ``OSError``."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


class Gate(threading.Thread):
    """Follows the connections that ``served`` accepts on ``listener``, until their context ends."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        served: zmq.Socket[bytes],
        listener: socket.socket,
        agents: int,
    ) -> None:
        """``agents``: so many descriptors are for them."""
        super().__init__(name="srobust-gate", daemon=True)
        self._listener = listener
        allowance = max(_LEAST_UNPROVEN, min(_MOST_UNPROVEN, openfiles.spare(agents) // 4))
        self._strangers: Strangers[Address] = Strangers(allowance)
        self._lock = threading.Lock()  # of it
        self.floods = 0
        """How often a source was kept out."""
        served.monitor(_MONITOR, zmq.EVENT_ACCEPTED)
        self._events: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        # Never full: ZeroMQ would wait for us before it serves anybody.
        self._events.rcvhwm = 0
        self._events.linger = 0
        self._events.connect(_MONITOR)

    def proved(self, source: str) -> None:
        """A connection from the address ``source`` has the job's key. From any thread."""
        try:
            found = portfilter.address(source)
        except ValueError:
            return  # no connection of the network's
        with self._lock:
            self._strangers.proved(found)

    def run(self) -> None:
        """Until the context ends."""
        try:
            while True:
                self._wait()
        except zmq.ContextTerminated:
            pass
        finally:
            self._events.close(linger=0)

    def _wait(self) -> None:
        with self._lock:
            left_s = self._strangers.next_change(time.monotonic())
        is_over = not self._events.poll(None if left_s is None else int(1000 * left_s) + 1)
        came = (
            None if is_over else _source(int(parse_monitor_message(self._events.recv_multipart())["value"]))
        )
        with self._lock:
            now = time.monotonic()
            is_flood = came is not None and self._strangers.came(came, now)
            banned = self._strangers.banned(now)
        if is_flood or is_over:
            self.floods += is_flood
            self._keep_out(banned)

    def _keep_out(self, banned: frozenset[Address]) -> None:
        try:
            portfilter.drop(self._listener, banned)
        except OSError:
            pass  # a kernel without filters: what is left is the bound on each connection


def _source(descriptor: int) -> Address | None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return portfilter.address(connection.getpeername()[0])
    except (OSError, ValueError):
        return None
