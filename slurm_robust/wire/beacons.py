"""Beacons: datagrams by which an agent shows, many times a second, that its process and its node live.

A beacon says nothing else, so a lost one is not repeated and a late one does no harm. It is signed with the
key that only the job's processes can read, and numbered, so no stranger can make one, or repeat an old one.
The controller listens on the UDP port of the same number as its TCP port.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping

from slurm_robust.util.threads import start_thread
from slurm_robust.util.wakeup import WakeUp

MAGIC = b"SRB1"
_HEAD = struct.Struct("!4sQ")
_SIGNATURE_BYTES = 16
_MAX_BYTES = 256
# If the controller's name or the route to it is not known now; a resolver may take half a minute.
_AGAIN_S, _CLOSE_S = 1.0, 0.5
# Datagrams read at one time: far more than come, and few enough that a flood leaves time for other threads.
_AT_ONCE, _PER_AGENT = 256, 4

FORGET_S = 60.0
"""An agent that has been overdue for so long sends no beacons any more."""


def encode(key: bytes, agent: str, seq: int) -> bytes:
    """Encode beacon number ``seq`` of ``agent``."""
    content = _HEAD.pack(MAGIC, seq) + agent.encode()
    return content + _sign(key, content)


def decode(key: bytes, datagram: bytes) -> tuple[str, int] | None:
    """Decode the agent and the number of a beacon; None for what no process of this job has sent."""
    content, signature = datagram[:-_SIGNATURE_BYTES], datagram[-_SIGNATURE_BYTES:]
    if len(content) <= _HEAD.size or not hmac.compare_digest(signature, _sign(key, content)):
        return None
    magic, seq = _HEAD.unpack_from(content)
    try:
        return (content[_HEAD.size :].decode(), seq) if magic == MAGIC else None
    except UnicodeDecodeError:
        return None


def _sign(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIGNATURE_BYTES, key=key).digest()


class BeaconSender:
    """Sends beacons from a thread of its own, whatever the agent's loop does."""

    def __init__(self, key: str, agent: str, interval_s: float) -> None:
        """``key``: the public key of the job's clients, which no message shows."""
        self._key, self._agent, self._interval_s = key.encode(), agent, interval_s
        self._target: tuple[str, int] | None = None
        self._socket: socket.socket | None = None
        self._wakeup = threading.Event()
        self._closed = False
        self._seq = time.time_ns()  # above those of any earlier thread of this agent
        self._thread = start_thread("beacons", self._run)

    def aim(self, endpoint: str) -> None:
        """Send to the controller at ``endpoint`` (``tcp://address:port``) from now on."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        target = host.strip("[]"), int(port)
        if target != self._target:
            self._target = target
            self._wakeup.set()

    def close(self) -> None:
        """Send no more."""
        self._closed = True
        self._wakeup.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        connected: tuple[str, int] | None = None
        again = 0.0
        try:
            while not self._closed:
                if self._target != connected or (self._socket is None and time.monotonic() > again):
                    connected, again = self._target, time.monotonic() + _AGAIN_S
                    self._connect(connected)
                self._send()
                self._wakeup.wait(self._interval_s if self._target is not None else None)
                self._wakeup.clear()
        finally:
            self._disconnect()

    def _connect(self, target: tuple[str, int] | None) -> None:
        self._disconnect()
        if target is None:
            return
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setblocking(False)
            self._socket.connect(address)
        except OSError:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self) -> None:
        if self._socket is None:
            return
        self._seq += 1
        try:
            self._socket.send(encode(self._key, self._agent, self._seq))
        except OSError:
            pass  # no process listens there now, or the network is down: the next one may arrive


class BeaconReceiver:
    """Takes in beacons in a thread of its own, and wakes a loop while an agent is overdue.

    Time in which this thread itself did not run, or a stranger flooded the port, counts as no agent's
    silence.
    """

    def __init__(self, key: str, port: int, interval_s: float, overdue_s: float) -> None:
        """``port``: to listen on, UDP; ``overdue_s``: see :meth:`fileno`. Raises ``OSError``."""
        self._key, self._interval_s, self._overdue_s = key.encode(), interval_s, overdue_s
        self._socket = _listen(port)
        self.floods = 0  # times that more had come than one read takes
        self._seen: dict[
            str, tuple[float, int]
        ] = {}  # when the newest beacon of an agent came, and its number
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self._was_overdue = False
        self._news, self._end = WakeUp(), WakeUp()
        self._thread = start_thread("beacons", self._run)

    def fileno(self) -> int:
        """Return a descriptor, readable once an agent is silent for ``overdue_s``, until :meth:`ages`."""
        return self._news.fileno()

    def ages(self) -> Mapping[str, float]:
        """Return the seconds without a beacon of each agent of which one has come.

        They end when this object last looked: what came later may wait to be read.
        """
        self._news.clear()
        with self._lock:
            return {agent: max(0.0, self._looked - at) for agent, (at, _) in self._seen.items()}

    def close(self) -> None:
        """Stop listening."""
        self._end.wake()
        self._thread.join()
        self._socket.close()
        self._end.close()
        self._news.close()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._end.fileno(), select.POLLIN)
        # Datagrams are read a few at a time: a wake-up costs far more than a datagram.
        while not poll.poll(1000 * self._interval_s / 2):
            if self._drain():
                self._look(time.monotonic())
            else:
                self.floods += 1

    def _drain(self) -> bool:
        """Read what has come. False if there is more: a stranger floods the port, and beacons may be lost."""
        for _ in range(_AT_ONCE + _PER_AGENT * len(self._seen)):
            try:
                datagram = self._socket.recv(_MAX_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                continue  # an error of something that was sent before, reported on this socket
            if (beacon := decode(self._key, datagram)) is None:
                continue
            agent, seq = beacon
            with self._lock:
                if seq > self._seen.get(agent, (0.0, -1))[1]:
                    self._seen[agent] = time.monotonic(), seq
        return False

    def _look(self, now: float) -> None:
        """Look for overdue agents: all that had come by ``now`` was read."""
        with self._lock:
            stalled_s = now - self._looked - self._interval_s
            self._looked = now
            if stalled_s > self._interval_s:  # we were stopped: what came meanwhile may have been dropped
                self._seen = {
                    agent: (min(at + stalled_s, now), seq) for agent, (at, seq) in self._seen.items()
                }
            self._seen = {agent: seen for agent, seen in self._seen.items() if now - seen[0] <= FORGET_S}
            oldest = min((at for at, _ in self._seen.values()), default=now)
        is_overdue = now - oldest > self._overdue_s
        if is_overdue or self._was_overdue:
            self._news.wake()
        self._was_overdue = is_overdue


def _listen(port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if dual:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        listener.setblocking(False)
        listener.bind(("", port))
    except OSError:
        listener.close()
        raise
    return listener
