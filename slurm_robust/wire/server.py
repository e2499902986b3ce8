"""The controller's end: one ROUTER for all agents and clients of the job."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import zmq
from zmq.utils import z85

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.record import Record
from slurm_robust.wire import messages
from slurm_robust.wire.gate import Attendant, Gate, listen
from slurm_robust.wire.keys import ServerKeys
from slurm_robust.wire.messages import FromController, MalformedMessage, ToController
from slurm_robust.wire.options import joined, pieces, set_common

# Messages that wait for one agent. Orders are few and repeated, so a peer with more is not reading.
_SEND_QUEUE = 1_000
# Heartbeats that wait for a busy controller; 1,250 agents fill it in more than a minute.
_RECEIVE_QUEUE = 100_000


class PortTaken(SrobustError):
    """The configured port cannot be listened on."""

    def __init__(self, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on TCP port {port}: {reason}")
        self.port = port
        self.fix = (
            "another program, or another controller of this job, listens on it (see 'ss -ltnp'); "
            "configure another port, or 0 to take any free one"
        )


class SocketStatistics(Record):
    """Counts since the socket was opened."""

    received: int = 0
    malformed: int = 0  # dropped: bytes that are not a message of this protocol
    sent: int = 0
    unreachable: int = 0  # dropped: the peer is gone or does not read
    refused: int = 0  # connections without the job's key
    floods: int = 0  # times that a source was kept out, which connected again and again without the key


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
        self._received = self._malformed = self._sent = self._unreachable = 0
        set_common(self.socket)
        self.socket.curve_server = True
        self.socket.curve_secretkey = keys.server.secret.encode()
        self.socket.zap_domain = b"srobust"
        self.socket.rcvhwm = _RECEIVE_QUEUE
        self.socket.sndhwm = _SEND_QUEUE
        # An agent that reconnects before we noticed the end of its old connection keeps its name.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        # Reports that a peer is gone, where ROUTER would drop the message in silence.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._doorkeeper.start()
        self._gate.start()
        self.socket.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))  # which it closes
        self.socket.bind(f"tcp://*:{self.port}")

    def recv(self) -> tuple[bytes, ToController] | None:
        """The next message with the name of its sender, for :meth:`send`; None when there is none.

        Raises ``RuntimeError`` when nobody can be let in, or floods are not seen, any more.
        """
        self._doorkeeper.check()
        self._gate.check()
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            self._received += 1
            try:
                return frames[0], messages.decode_to_controller(joined(frames[1:]))
            except MalformedMessage:
                self._malformed += 1

    def send(self, identity: bytes, message: FromController) -> bool:
        """Send without ever waiting; False when the peer is gone or does not read (it is dropped)."""
        try:
            self.socket.send_multipart([identity, *pieces(messages.encode(message))], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH, errno.EHOSTUNREACH):
                raise
            self._unreachable += 1
            return False
        self._sent += 1
        return True

    def statistics(self) -> SocketStatistics:
        """What passed until now."""
        return SocketStatistics(
            received=self._received,
            malformed=self._malformed,
            sent=self._sent,
            unreachable=self._unreachable,
            refused=self._doorkeeper.refused,
            floods=self._gate.floods,
        )

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
        """One question."""
        self._answer(self.source.recv_multipart())

    def _answer(self, request: list[bytes]) -> None:
        # version, request id, domain, address, routing id, mechanism, client key (32 bytes raw)
        known = len(request) == 7 and request[5] == b"CURVE" and request[6] == self._client
        if known:
            self._let_in(request[3].decode(errors="replace"))
        else:
            self.refused += 1
        code, text = (b"200", b"OK") if known else (b"400", b"not a key of this job")
        identifier = request[1] if len(request) > 1 else b""
        self.source.send_multipart([b"1.0", identifier, code, text, b"", b""])
