"""The two ends of the connection between the controller and the job's agents and clients."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TypeAlias

import zmq
from zmq.utils import z85

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.probes import PortsProbed
from slurm_robust.wire import messages
from slurm_robust.wire.gate import Attendant, Gate, listen
from slurm_robust.wire.keys import ClientKeys, ServerKeys
from slurm_robust.wire.messages import (
    Drill,
    Foreign,
    FromController,
    MalformedMessage,
    Ping,
    ShowStacks,
    ToController,
    UpdateJob,
)

# A heartbeat of 16 ranks with tails and tracebacks has some 100 KiB, their stacks some MiB; more is an error.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 64 * 1024


def pieces(data: bytes) -> list[bytes]:
    """Cut ``data`` into the frames in which it goes."""
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


def joined(frames: Sequence[bytes]) -> bytes:
    """Join what :func:`pieces` cut. Raises :class:`MalformedMessage` for more than 16 MiB."""
    if sum(map(len, frames)) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"more than {MAX_MESSAGE_BYTES} bytes")
    return b"".join(frames)


def _set_common(end: zmq.Socket[bytes]) -> None:
    """Bound what a bad peer or a dead network can cost."""
    end.linger = 0
    # Memory for a piece is taken when its length is read, also of a peer that has not proven anything yet.
    end.setsockopt(zmq.MAXMSGSIZE, PIECE_BYTES + 1024)
    end.setsockopt(zmq.IPV6, 1)
    end.setsockopt(zmq.TCP_KEEPALIVE, 1)
    end.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    end.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    end.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    # A thousand agents that connect together take a second; a peer that proves nothing is not kept longer.
    end.setsockopt(zmq.HANDSHAKE_IVL, 10_000)


Question: TypeAlias = Ping | Drill | UpdateJob | ShowStacks


class AgentSocket:
    """Connects to one controller at whichever of its addresses answers first.

    A controller's host has several addresses and a node may reach only some, so all are tried together; the
    first whose handshake (which proves the controller's key) completes is kept. Nothing is queued while there
    is no connection. One thread only.
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

    def connect(self, endpoints: Sequence[str]) -> None:
        """Drop what there is and try ``endpoints`` (``tcp://address:port``)."""
        self._drop()
        self._candidates = {endpoint: self._open(endpoint) for endpoint in endpoints}

    def pollers(self, *, writing: bool) -> list[tuple[zmq.Socket[bytes], int]]:
        """Return what to give to a ``zmq.Poller`` now. ``writing``: wake also when sending is possible."""
        if self._chosen is not None:
            return [(self._chosen, zmq.POLLIN | zmq.POLLOUT if writing else zmq.POLLIN)]
        return [(candidate, zmq.POLLOUT) for candidate in self._candidates.values()]

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

    def recv(self) -> FromController | Foreign | None:
        """Return the next message, None if there is none. Malformed ones are dropped."""
        while self._chosen is not None:
            try:
                return messages.decode_from_controller(joined(self._chosen.recv_multipart(zmq.NOBLOCK)))
            except zmq.Again:
                return None
            except MalformedMessage:
                continue
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
        for endpoint, candidate in self._candidates.items():
            if int(candidate.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
                self._chosen, self._endpoint = candidate, endpoint
                break
        else:
            return
        for candidate in self._candidates.values():
            if candidate is not self._chosen:
                candidate.close(linger=0)
        self._candidates = {}

    def _drop(self) -> None:
        for one in (*self._candidates.values(), *([self._chosen] if self._chosen else [])):
            one.close(linger=0)
        self._candidates, self._chosen = {}, None

    def _open(self, endpoint: str) -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        _set_common(made)
        # After a cut TCP repeats at ever longer intervals, up to minutes. ZeroMQ's own heartbeats end such a
        # connection, so that a new one is made within seconds once the network is back. Only agents send
        # them: the answer and the time to live show each end that the other lives, and a controller that sent
        # its own to 10,000 agents would keep its I/O thread busy with nothing else (measured).
        made.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6_000)
        made.setsockopt(zmq.HEARTBEAT_TTL, 10_000)
        self._connections += 1
        # A name of its own for each connection: two of one name would throw each other out.
        made.routing_id = f"{self._name}#{self._connections}".encode()
        made.curve_serverkey = self._keys.server_public.encode()
        made.curve_publickey = self._keys.client.public.encode()
        made.curve_secretkey = self._keys.client.secret.encode()
        made.sndhwm = 16  # each heartbeat holds all that an agent knows: old ones that wait are worth nothing
        made.rcvhwm = 1_000
        # Writable means connected and proven; nothing stale is delivered after a silence.
        made.setsockopt(zmq.IMMEDIATE, 1)
        made.setsockopt(zmq.RECONNECT_IVL, 200)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        made.connect(endpoint)
        return made


class Client:
    """Asks one controller on behalf of the job's owner, one question after the other.

    All go to one endpoint, the first that connects, so what is asked for happens once.
    """

    def __init__(self, endpoints: Sequence[str], keys: ClientKeys) -> None:
        self._socket = AgentSocket(keys, f"client-{os.getpid()}-{os.urandom(4).hex()}")
        self._socket.connect(endpoints)

    def ask(self, question: Question, timeout_s: float) -> FromController | Foreign | None:
        """Return the answer; None if none comes within ``timeout_s``."""
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
) -> FromController | Foreign | None:
    """Ask a controller once; None if none answers within ``timeout_s``."""
    with closing(Client(endpoints, keys)) as client:
        return client.ask(question, timeout_s)


class PortTaken(SrobustError):
    """The configured port cannot be listened on."""

    def __init__(self, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on TCP port {port}: {reason}")
        self.fix = (
            "another program, or another controller of this job, listens on it (see 'ss -ltnp'); "
            "configure another port, or 0 to take any free one"
        )


class ControllerSocket:
    """Listens for the job's agents and clients; lets in only holders of the job's client key.

    ``port`` is the one listened on (``port=0`` takes any free one). For a ``zmq.Poller`` register
    ``socket``; after it is readable call :meth:`recv` until it gives None. One thread only.
    Raises :class:`PortTaken`.
    """

    def __init__(self, keys: ServerKeys, port: int = 0, *, agents: int = 1_000) -> None:
        """``agents``: as many as the job has."""
        try:
            self._listener = listen(port)
        except OSError as error:
            raise PortTaken(port, error.strerror or str(error)) from error
        self.port: int = self._listener.getsockname()[1]
        # A context of its own, because a context has one authenticator for all of its sockets.
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._gate = Gate(self._context, self.socket, self._listener, agents)
        self._doorkeeper = _Doorkeeper(self._context, keys.client_public, self._gate.proved)
        self.received = self.sent = 0
        self.malformed = 0  # dropped: bytes that are not a message of this protocol
        self.unreachable = 0  # dropped: the peer is gone or does not read
        _set_common(self.socket)
        self.socket.curve_server = True
        self.socket.curve_secretkey = keys.server.secret.encode()
        self.socket.zap_domain = b"srobust"
        # Heartbeats that wait for a busy controller; 1,250 agents fill it in more than a minute.
        self.socket.rcvhwm = 100_000
        # Messages that wait for one agent. Orders are few and repeated: a peer with more does not read.
        self.socket.sndhwm = 1_000
        # An agent that reconnects before we noticed the end of its old connection keeps its name.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        # Reports that a peer is gone; otherwise ROUTER would drop the message in silence.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._doorkeeper.start()
        self._gate.start()
        self.socket.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))  # which it closes
        self.socket.bind(f"tcp://*:{self.port}")

    def recv(self) -> tuple[bytes, ToController | Foreign] | None:
        """Return the next message with the name of its sender, for :meth:`send`; None if there is none.

        Raises ``RuntimeError`` when no peer can be let in, or floods are not seen, any more.
        """
        self._doorkeeper.check()
        self._gate.check()
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            self.received += 1
            try:
                return frames[0], messages.decode_to_controller(joined(frames[1:]))
            except MalformedMessage:
                self.malformed += 1

    def send(self, identity: bytes, message: FromController) -> bool:
        """Send without ever waiting; False when the peer is gone or does not read (it is dropped)."""
        try:
            self.socket.send_multipart([identity, *pieces(messages.encode(message))], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH, errno.EHOSTUNREACH):
                raise
            self.unreachable += 1
            return False
        self.sent += 1
        return True

    @property
    def refused(self) -> int:
        """Connections without the job's key."""
        return self._doorkeeper.refused

    @property
    def floods(self) -> int:
        """How often the gate kept out a source that connected again and again without the key."""
        return self._gate.floods

    def close(self) -> None:
        """Stop listening; what was sent within the last moments may be lost."""
        # A short linger: the last orders (Shutdown) must get out, a dead peer must not hold us.
        self.socket.close(linger=200)
        self._listener.close()
        self._context.term()
        self._doorkeeper.join()
        self._gate.join()


class _Doorkeeper(Attendant):
    """Answers ZeroMQ's question whether a connection may come in (ZAP, RFC 27).

    Not ``zmq.auth``: its thread brings asyncio, and its key folder has a format of its own, for what
    is one comparison. Without a handler CURVE would let in every client key.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], client_public: str, let_in: Callable[[str], None]
    ) -> None:
        """``let_in`` gets the address of each connection that may come in."""
        super().__init__("srobust-zap", context.socket(zmq.REP))
        self._let_in = let_in
        self._client = z85.decode(client_public)
        self.refused = 0
        # Before the ROUTER listens, so that no connection is ever judged without us.
        self.source.bind("inproc://zeromq.zap.01")

    def attend(self) -> None:
        """Answer one question."""
        request = self.source.recv_multipart()
        # version, request id, domain, address, routing id, mechanism, client key (32 bytes raw)
        known = len(request) == 7 and request[5] == b"CURVE" and request[6] == self._client
        if known:
            self._let_in(request[3].decode(errors="replace"))
        else:
            self.refused += 1
        code, text = (b"200", b"OK") if known else (b"400", b"not a key of this job")
        identifier = request[1] if len(request) > 1 else b""
        self.source.send_multipart([b"1.0", identifier, code, text, b"", b""])


def probe_ports(places: Mapping[str, tuple[str, int]], timeout_s: float = 1.0) -> PortsProbed:
    """Connect to ``places`` (address and port by name); waits for answers for at most ``timeout_s`` seconds.

    A kernel gives its answer within milliseconds. Nothing is sent.
    """
    deadline = time.monotonic() + timeout_s
    taken: set[str] = set()
    refused: set[str] = set()

    def sort(name: str, code: int) -> None:
        if code == 0:
            taken.add(name)
        elif code == errno.ECONNREFUSED:
            refused.add(name)

    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for name, place in places.items():
            try:
                family, kind, _, _, address = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
                connection = stack.enter_context(socket.socket(family, kind))
            except OSError:
                continue
            connection.setblocking(False)
            code = connection.connect_ex(address)
            if code == errno.EINPROGRESS:
                selector.register(connection, selectors.EVENT_WRITE, (name, connection))
            else:
                sort(name, code)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                name, connection = key.data
                sort(name, connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                selector.unregister(connection)
    return PortsProbed(frozenset(taken), frozenset(refused))
