"""The other end: an agent's lasting connection to its controller, and one-shot questions."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TypeAlias

import zmq

from slurm_robust.wire import messages
from slurm_robust.wire.keys import ClientKeys
from slurm_robust.wire.messages import (
    Drill,
    FromController,
    MalformedMessage,
    Ping,
    ShowStacks,
    ToController,
)
from slurm_robust.wire.options import joined, pieces, set_common

# Every heartbeat holds all that an agent knows, so old ones that wait are worth nothing.
_SEND_QUEUE = 16
_RECEIVE_QUEUE = 1_000

Question: TypeAlias = Ping | Drill | ShowStacks


class AgentSocket:
    """Connects to one controller at whichever of its addresses answers first.

    A controller's host has several addresses and a node may reach only some, so all are tried at
    once; the first whose handshake (which proves the controller's key) completes is kept. Nothing is
    queued while there is no connection. One thread only.
    """

    def __init__(
        self, keys: ClientKeys, name: str, *, context: zmq.Context[zmq.Socket[bytes]] | None = None
    ) -> None:
        """``name`` identifies this agent to the controller (its connections add to it).

        ``context``: one to share among many, which its owner ends; by default one of its own.
        """
        self._owns_context = context is None
        self._context = context or zmq.Context()
        self._keys = keys
        self._name = name
        self._connections = 0
        self._chosen: zmq.Socket[bytes] | None = None
        self._candidates: dict[str, zmq.Socket[bytes]] = {}
        self._endpoint = ""
        self.malformed = 0

    def connect(self, endpoints: Sequence[str]) -> None:
        """Drop what there is and try ``endpoints`` (``tcp://address:port``)."""
        self._drop()
        self._candidates = {endpoint: self._open(endpoint) for endpoint in endpoints}

    def pollers(self, *, writing: bool) -> list[tuple[zmq.Socket[bytes], int]]:
        """What to give to a ``zmq.Poller`` now. ``writing``: wake also when sending is possible."""
        if self._chosen is not None:
            return [(self._chosen, zmq.POLLIN | zmq.POLLOUT if writing else zmq.POLLIN)]
        return [(socket, zmq.POLLOUT) for socket in self._candidates.values()]

    @property
    def endpoint(self) -> str:
        """The address that answered; "" while none has."""
        self._choose()
        return self._endpoint if self._chosen is not None else ""

    @property
    def connected(self) -> bool:
        """Whether an address has answered since :meth:`connect` (it may be lost again)."""
        self._choose()
        return self._chosen is not None

    def send(self, message: ToController) -> bool:
        """Send without waiting; False (and nothing sent) while there is no connection."""
        self._choose()
        if self._chosen is None:
            return False
        try:
            self._chosen.send_multipart(pieces(messages.encode(message)), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def recv(self) -> FromController | None:
        """The next message, None when there is none. Malformed ones are counted and dropped."""
        while self._chosen is not None:
            try:
                return messages.decode_from_controller(joined(self._chosen.recv_multipart(zmq.NOBLOCK)))
            except zmq.Again:
                return None
            except MalformedMessage:
                self.malformed += 1
        return None

    def close(self) -> None:
        """Close all connections; a message just sent still gets 200 ms to leave."""
        if self._chosen is not None:
            self._chosen.close(linger=200)
            self._chosen = None
        self._drop()
        if self._owns_context:
            self._context.term()

    def _choose(self) -> None:
        if self._chosen is not None:
            return
        for endpoint, socket in self._candidates.items():
            if int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
                self._chosen, self._endpoint = socket, endpoint
                break
        else:
            return
        for socket in self._candidates.values():
            if socket is not self._chosen:
                socket.close(linger=0)
        self._candidates = {}

    def _drop(self) -> None:
        for socket in (*self._candidates.values(), *([self._chosen] if self._chosen else [])):
            socket.close(linger=0)
        self._candidates, self._chosen = {}, None

    def _open(self, endpoint: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        set_common(socket)
        # After a cut TCP repeats at ever longer intervals, up to minutes. ZeroMQ's own heartbeats end such a
        # connection, so that a new one is made within seconds once the network is back. Only agents send
        # them: the answer and the time to live show each end that the other lives, and a controller that sent
        # its own to 10,000 agents would keep its I/O thread busy with nothing else (measured).
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6_000)
        socket.setsockopt(zmq.HEARTBEAT_TTL, 10_000)
        self._connections += 1
        # A name of its own for each connection: two of one name would throw each other out.
        socket.routing_id = f"{self._name}#{self._connections}".encode()
        socket.curve_serverkey = self._keys.server_public.encode()
        socket.curve_publickey = self._keys.client.public.encode()
        socket.curve_secretkey = self._keys.client.secret.encode()
        socket.sndhwm = _SEND_QUEUE
        socket.rcvhwm = _RECEIVE_QUEUE
        # Writable means connected and proven; nothing stale is delivered after a silence.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 200)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        socket.connect(endpoint)
        return socket


class Client:
    """Asks one controller on behalf of the job's owner, one question after the other.

    All go to one endpoint, the first that connects, so what is asked for happens once.
    """

    def __init__(self, endpoints: Sequence[str], keys: ClientKeys) -> None:
        self._socket = AgentSocket(keys, f"client-{os.getpid()}-{os.urandom(4).hex()}")
        self._socket.connect(endpoints)

    def ask(self, question: Question, timeout_s: float) -> FromController | None:
        """The answer; None when none comes within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        sent = False
        while True:
            sent = sent or self._socket.send(question)
            if sent and (reply := self._socket.recv()) is not None:
                return reply
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            poller = zmq.Poller()
            for item, flags in self._socket.pollers(writing=not sent):
                poller.register(item, flags)
            poller.poll(int(left * 1000) + 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def ask(
    endpoints: Sequence[str], keys: ClientKeys, question: Question, timeout_s: float
) -> FromController | None:
    """Ask a controller once; None when none answers within ``timeout_s``."""
    with closing(Client(endpoints, keys)) as client:
        return client.ask(question, timeout_s)
