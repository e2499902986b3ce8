"""The controller's listening socket, and its watch: the kernel keeps out sources that flood it.

CURVE lets no peer in without the job's key, but every connection costs a descriptor, and work, until it
fails.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from slurm_robust.util.process import spare_files
from slurm_robust.wire import portfilter
from slurm_robust.wire.portfilter import Address


class Attendant(threading.Thread):
    """A thread beside the controller's socket, which must not die unseen: see :meth:`check`.

    It calls :meth:`attend` again and again until the context of ``source`` ends; ``source`` is its alone.
    """

    def __init__(self, name: str, source: zmq.Socket[bytes]) -> None:
        super().__init__(name=name, daemon=True)
        self.source = source
        self._died: BaseException | None = None

    def attend(self) -> None:
        """Wait for the next message of ``source``, and answer it."""
        raise NotImplementedError

    def run(self) -> None:
        """Serve until the context ends."""
        try:
            while True:
                self.attend()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:  # noqa: BLE001 - check() raises it, in the thread that can end all
            self._died = error
        finally:
            self.source.close(linger=0)

    def check(self) -> None:
        """Raise ``RuntimeError`` if this thread has died."""
        if self._died is not None:
            raise RuntimeError(f"the thread {self.name} has died") from self._died


WINDOW_S = 10.0
"""A connection proves itself within this time."""

BAN_S = 60.0

S = TypeVar("S", bound=Hashable)


class Strangers(Generic[S]):
    """Counts connections without the job's key by source, and bans sources with too many. Decides only.

    ``allowance``: how many within 10 s are allowed. Times are monotonic seconds.
    """

    def __init__(self, allowance: int) -> None:
        self._allowance = allowance
        self._unproven: Counter[S] = Counter()
        self._window = 0.0
        self._banned: dict[S, float] = {}  # until when

    def came(self, source: S, now: float) -> bool:
        """Take in a connection from ``source``; True if that is kept out from now on."""
        if now - self._window > WINDOW_S:
            self._window = now
            self._unproven.clear()
        self._unproven[source] += 1
        if self._unproven[source] <= self._allowance or source in self._banned:
            return False
        self._banned[source] = now + BAN_S
        return True

    def proved(self, source: S) -> None:
        """Take in that a connection from ``source`` has the job's key."""
        self._unproven[source] -= 1

    def banned(self, now: float) -> frozenset[S]:
        """Return the sources to keep out."""
        self._banned = {source: until for source, until in self._banned.items() if until > now}
        return frozenset(self._banned)

    def next_change(self, now: float) -> float | None:
        """Return the seconds until some source is let in again; None while none is kept out."""
        return max(0.0, min(self._banned.values()) - now) if self._banned else None


_BACKLOG = 4096
_MONITOR = "inproc://srobust-gate"
_LONGEST_S = 3600.0
# Of one source within 10 s. A thousand agents behind one address are less, since each has soon proven itself.
_MIN_UNPROVEN, _MAX_UNPROVEN = 64, 4000


def listen(port: int) -> socket.socket:
    """Open a socket that listens on ``port`` of all addresses of this host. Raises ``OSError``."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


class Gate(Attendant):
    """Follows the connections that ``served`` accepts on ``listener``, until their context ends."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        served: zmq.Socket[bytes],
        listener: socket.socket,
        agents: int,
    ) -> None:
        """``agents``: how many descriptors are kept for them."""
        served.monitor(_MONITOR, zmq.EVENT_ACCEPTED)
        events: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        # Never full: ZeroMQ would wait for us before it serves any peer.
        events.rcvhwm = 0
        events.linger = 0
        events.connect(_MONITOR)
        super().__init__("srobust-gate", events)
        self._listener = listener
        allowance = max(_MIN_UNPROVEN, min(_MAX_UNPROVEN, spare_files(agents) // 4))
        self._strangers: Strangers[Address] = Strangers(allowance)
        self._lock = threading.Lock()  # of it
        self.floods = 0
        """How often a source was kept out."""

    def proved(self, source: str) -> None:
        """Take in that a connection from the address ``source`` has the job's key. From any thread."""
        try:
            found = portfilter.address(source)
        except ValueError:
            return  # no connection of the network's
        with self._lock:
            self._strangers.proved(found)

    def attend(self) -> None:
        """Handle one connection that came, or the end of a time in which a source was kept out."""
        with self._lock:
            left_s = self._strangers.next_change(time.monotonic())
        if left_s == 0:
            self._keep_out()  # also while others come all the time
            return
        if self.source.poll(None if left_s is None else int(1000 * left_s) + 1):
            self._hear(parse_monitor_message(self.source.recv_multipart())["value"])
        else:
            self._keep_out()

    def _hear(self, descriptor: int) -> None:
        source = _source(descriptor)
        if source is None:
            return  # it is gone already
        with self._lock:
            is_flood = self._strangers.came(source, time.monotonic())
        if is_flood:
            self.floods += 1
            self._keep_out()

    def _keep_out(self) -> None:
        with self._lock:
            banned = self._strangers.banned(time.monotonic())
        try:
            portfilter.drop(self._listener, banned)
        except OSError:
            pass  # a kernel without filters: what is left is the bound on each connection


def _source(descriptor: int) -> Address | None:
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None  # the number is that of something else by now
        return portfilter.address(connection.getpeername()[0])
    except (OSError, ValueError):
        return None
    finally:
        connection.detach()  # it is ZeroMQ's
