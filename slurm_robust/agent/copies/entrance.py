"""The entrance to this node's copies: one thread lets in connections that prove to be of the job.

Any process that reaches the port can open connections, faster than they can be served. So strangers get no
thread and hardly any memory, and each address only half of the places: an address that needs more loses its
oldest connection, silent ones first. If all places are taken, the address that has most of them loses one;
the job's agents come last. An agent proves itself immediately, and is through before it comes to that.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from slurm_robust.agent.copies.notes import Notes
from slurm_robust.wire import copychannel
from slurm_robust.wire.copychannel import ChannelError, CopyChannel, Handshake

PLACES = 2048
"""Places for connections that have not proven themselves, but at most a quarter of what this process may
open.
"""
BACKLOG = 64
"""How many connections the kernel queues for us. Those behind a flood wait for these to be accepted."""

_AT_ONCE = 64
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NOTE_EVERY_S = 600.0

LetIn = Callable[[CopyChannel, str], None]
"""Called in the entrance's thread with a connection that has proven itself, and its address."""


@dataclass(eq=False)
class _Stranger:
    connection: socket.socket
    address: str
    handshake: Handshake
    deadline: float


class WaitingConnections:
    """The connections that stand at the entrance, within the limits; pure but for their descriptors."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._of_address = max(1, places // 2)
        self._all: dict[int, _Stranger] = {}  # by descriptor, the oldest first
        self._by_address: dict[str, dict[int, _Stranger]] = {}
        self.agents: set[str] = set()

    def __len__(self) -> int:
        return len(self._all)

    def oldest(self) -> _Stranger | None:
        """Return the connection that has waited longest."""
        return next(iter(self._all.values()), None)

    def get(self, descriptor: int) -> _Stranger | None:
        """Return the connection of this descriptor."""
        return self._all.get(descriptor)

    def add(self, stranger: _Stranger) -> _Stranger | None:
        """Give ``stranger`` a place; return the connection that must leave for it, if any."""
        group = self._by_address.setdefault(stranger.address, {})
        leaving = None
        if len(group) >= self._of_address:
            leaving = _first(group)
        elif len(self._all) >= self._places:
            leaving = self.surplus()
        if leaving is not None:
            self.remove(leaving)
        descriptor = stranger.connection.fileno()
        self._all[descriptor] = stranger
        self._by_address.setdefault(stranger.address, {})[descriptor] = stranger
        return leaving

    def remove(self, stranger: _Stranger) -> None:
        """Take the place back before the descriptor is closed: ``stranger`` has proven itself, or is gone."""
        descriptor = stranger.connection.fileno()
        self._all.pop(descriptor, None)
        group = self._by_address.get(stranger.address, {})
        group.pop(descriptor, None)
        if not group:
            self._by_address.pop(stranger.address, None)

    def surplus(self) -> _Stranger | None:
        """Return the connection that leaves first when there are too many in all."""
        if not self._all:
            return None
        address = max(self._by_address, key=lambda a: (a not in self.agents, len(self._by_address[a])))
        return _first(self._by_address[address])

    def overdue(self, now: float) -> list[_Stranger]:
        """Return the connections that have waited for too long."""
        found = []
        for stranger in self._all.values():
            if stranger.deadline > now:
                break
            found.append(stranger)
        return found

    def everybody(self) -> list[_Stranger]:
        """Return all that stand there."""
        return list(self._all.values())


class Entrance:
    """Listens on a bound socket until :meth:`close`."""

    def __init__(self, listener: socket.socket, key: bytes, let_in: LetIn, notes: Notes) -> None:
        self._listener = listener
        self._key = key
        self._let_in = let_in
        self._notes = notes
        self._waiting = WaitingConnections(min(PLACES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._closed = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.epoll()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = notes.start_thread(
            "entrance", "lets in connections for copies", self._run, self._closed
        )

    def expect(self, addresses: Iterable[str]) -> None:
        """Remember addresses of this job's agents, which lose their places last."""
        self._waiting.agents.update(map(group_of, addresses))

    def close(self) -> None:
        """Let no connection in any more. Waits for the thread, which itself waits for nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        self._poll.close()
        self._listener.close()
        os.close(self._wake)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                oldest = self._waiting.oldest()
                patience_s = -1.0 if oldest is None else max(0.0, oldest.deadline - time.monotonic())
                for descriptor, _ in self._poll.poll(patience_s, maxevents=_AT_ONCE):
                    stranger = self._waiting.get(descriptor)
                    if stranger is not None:
                        self._hear(stranger)
                self._accept()
                for stranger in self._waiting.overdue(time.monotonic()):
                    self._turn_away(stranger, "timed out")
        finally:
            # After an error too: copies are tried as long as they are wanted, so the job's agents come again.
            for stranger in self._waiting.everybody():
                self._shut(stranger)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, source = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._on_failure(error)
                return
            connection.setblocking(False)
            deadline = time.monotonic() + copychannel.HANDSHAKE_S
            stranger = _Stranger(connection, group_of(source[0]), Handshake(self._key), deadline)
            leaving = self._waiting.add(stranger)
            if leaving is not None:
                self._forget(leaving)
                self._note(leaving, "its address opens too many without a proof")
            self._poll.register(connection, select.EPOLLIN)

    def _pause(self, seconds: float) -> None:
        """Wait ``seconds``, or until this is closed. By poll: select takes no descriptor above 1023."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll(seconds * 1000)

    def _on_failure(self, error: OSError) -> None:
        self._notes.say("accept", f"a connection for copies could not be taken: {error}", _NOTE_EVERY_S)
        leaving = self._waiting.surplus() if error.errno in _NO_DESCRIPTORS else None
        if leaving is not None:
            self._shut(leaving)
        elif error.errno in _NO_DESCRIPTORS:
            # Others of this process hold them all; the listener stays readable, so pause before the next
            # accept.
            self._pause(0.1)

    def _hear(self, stranger: _Stranger) -> None:
        try:
            data = stranger.connection.recv(stranger.handshake.wants)
            if not data:
                if stranger.handshake.is_silent:
                    self._shut(stranger)  # it was only tried if this node answers
                else:
                    self._turn_away(stranger, "it closed the connection")
                return
            answer = stranger.handshake.receive(data)
            if answer and stranger.connection.send(answer) < len(answer):
                raise ChannelError("it does not read")  # the first bytes of a connection always find room
        except BlockingIOError:
            return
        except OSError as error:
            self._turn_away(stranger, str(error))
            return
        if stranger.handshake.is_proven:
            self._poll.unregister(stranger.connection)
            self._waiting.remove(stranger)
            self._waiting.agents.add(stranger.address)
            try:
                channel = CopyChannel.proven(stranger.connection)
            except OSError:
                stranger.connection.close()  # gone meanwhile
                return
            self._let_in(channel, stranger.address)

    def _turn_away(self, stranger: _Stranger, why: str) -> None:
        self._shut(stranger)
        self._note(stranger, why)

    def _note(self, stranger: _Stranger, why: str) -> None:
        text = f"a connection of {stranger.address} to this node's copies was refused: {why}"
        self._notes.say("stranger", text)

    def _shut(self, stranger: _Stranger) -> None:
        self._waiting.remove(stranger)
        self._forget(stranger)

    def _forget(self, stranger: _Stranger) -> None:
        stranger.connection.close()  # which ends its registration, too


@lru_cache(1024)
def group_of(address: str) -> str:
    """Return what addresses share their places: one of IPv4, or of IPv6 all that one host may choose from."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_address(int(found) >> 64 << 64)) + "/64"


def _first(group: dict[int, _Stranger]) -> _Stranger:
    """Return the oldest that has said nothing yet, else the oldest."""
    return next((s for s in group.values() if s.handshake.is_silent), None) or next(iter(group.values()))
