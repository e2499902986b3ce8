"""The connection between two agents of a job over which images of checkpoints travel.

Both ends prove with HMAC-SHA256 over a nonce of each that they hold the job's secret, before anything else is
said: no process outside of the job can read its memory or write into it. What follows is neither encrypted
nor signed: an attacker that changes packets between two nodes is not kept out (the images have checksums
against errors, not against forgery). Little-endian; C connects, S listens::

    C  magic "SRCOPY\\0\\1", nonce c of 32 bytes
    S  nonce s of 32 bytes, HMAC(key, "server" c s)
    C  HMAC(key, "client" c s)

Then requests and answers, each a u32 of its bytes and MessagePack::

    C  Put      S  Answer GO, HAVE or REFUSED;       after GO  C  bytes 8 to total of the image    S  Answer
    C  Get      S  Answer GO with total, or REFUSED; after GO  C  Answer GO, with the memory, or REFUSED
                after GO  S  bytes 8 to total of the image    C  Answer

The receiver reserves memory before the first byte is sent: that takes half a second per GiB, in which the
sender would believe the way to be cut.

A request may ask for several ``streams``. If GO grants more than one, C may open other connections and show
the ticket of GO there, and the bytes go in pieces over all of them, in any order::

    C  Join     S  Answer GO or REFUSED
    pieces: u64 place in the image, u32 bytes, and these; 0 and 0 after the last one of a connection

Who does not know of streams asks for none and grants one: then the bytes follow as above.

Every wait has a limit, so a cut network costs seconds and never a thread.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import msgspec

from slurm_robust.model.copies import WORK_BYTES_S, CheckpointId
from slurm_robust.model.record import Record, decoded

HANDSHAKE_S = 5.0
# Without a byte of progress for so long, the other side or the way to it is gone.
PROGRESS_S = 5.0
# Between two requests; TCP's own keepalive ends the connection of a node that died.
IDLE_S = 3600.0
# The magic of an image is never sent: it is written when all has arrived and agrees.
FIRST_BYTE = 8
MAX_IMAGE_BYTES = 2**44

_DSCP_BULK = 8  # CS1, lower effort (RFC 3662)
_PRIORITY_BULK = 2  # TC_PRIO_BULK of linux/pkt_sched.h; none of up to 6 needs a privilege

_MAGIC = b"SRCOPY\0\1"
_NONCE = 32
_DIGEST = 32
_LENGTH = struct.Struct("<I")
_SPAN = struct.Struct("<QI")
_MAX_FRAME = 64 * 1024
_PIECE = 16 * 2**20
_TRY_S = 0.25


class ChannelError(ConnectionError):
    """The other side is not of this job, does not answer in time, or sends something else than messages."""


class CopyVerdict(str, Enum):
    """The answer to a request."""

    GO = "go"  # the bytes may come, or do come; after them: all is well
    HAVE = "have"  # exactly that image is there already
    REFUSED = "refused"  # with a reason


class Put(Record, tag_field="kind", tag="put"):
    """The image of a rank is offered to its peer."""

    run_id: str
    launch: int  # the generation that runs; copies of others, but of ``restore``, are dead for it
    restore: CheckpointId | None  # the checkpoint that it began with
    rank: int
    checkpoint: CheckpointId
    total: int
    streams: int = 1


class Get(Record, tag_field="kind", tag="get"):
    """The image of exactly this part is wanted for a restore."""

    run_id: str
    rank: int
    checkpoint: CheckpointId
    streams: int = 1


class Join(Record, tag_field="kind", tag="join"):
    """This connection carries pieces of the copy that another one agreed on."""

    ticket: str


class CopyAnswer(Record, tag_field="kind", tag="answer"):
    """Answers a request, and the bytes that followed it."""

    verdict: CopyVerdict
    reason: str = ""
    total: int = 0  # bytes of the image that a Get asked for
    later: bool = False  # the same may go well soon
    streams: int = 1  # over so many connections the bytes may go; with more than one they go in pieces
    ticket: str = ""  # what the others show


Request: TypeAlias = Put | Get | Join

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[CopyAnswer] = msgspec.msgpack.Decoder(CopyAnswer)


def request_in(frame: bytes) -> Request:
    """Decode the request of a frame. Raises :class:`ChannelError`."""
    return decoded(
        _requests, frame, lambda why: ChannelError(f"it sends something else than a request: {why}")
    )


def answer_in(frame: bytes) -> CopyAnswer:
    """Decode the answer of a frame. Raises :class:`ChannelError`."""
    return decoded(
        _answers, frame, lambda why: ChannelError(f"it sends something else than an answer: {why}")
    )


def derive_key(secret: str) -> bytes:
    """Derive the channel's key from the secret that all agents of the job share."""
    return hmac.new(secret.encode(), b"slurm_robust copies of checkpoints 1", hashlib.sha256).digest()


class Handshake:
    """The listener's part: bytes in, bytes out. Never wants more than belongs to the handshake."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._said = bytearray()
        self._nonces = b""
        self.is_proven = False

    @property
    def is_silent(self) -> bool:
        """Whether the other side has said nothing yet."""
        return not self._said and not self._nonces

    @property
    def wants(self) -> int:
        """Bytes that are still to come before there is something to answer."""
        return (_DIGEST if self._nonces else len(_MAGIC) + _NONCE) - len(self._said)

    def receive(self, data: bytes) -> bytes:
        """Take in at most :attr:`wants` bytes; what to answer. Raises :class:`ChannelError`."""
        self._said += data
        if not self._nonces and not _MAGIC.startswith(self._said[: len(_MAGIC)]):
            raise ChannelError("it speaks another protocol, or another version of this one")
        if self.wants:
            return b""
        said, self._said = bytes(self._said), bytearray()
        if self._nonces:
            _check(said, self._key, b"client" + self._nonces)
            self.is_proven = True
            return b""
        ours = os.urandom(_NONCE)
        self._nonces = said[len(_MAGIC) :] + ours
        return ours + _sign(self._key, b"server" + self._nonces)


class CopyChannel:
    """One end. One thread at a time, except for :meth:`abort`."""

    def __init__(self, connection: socket.socket) -> None:
        """Use :meth:`connect`, :meth:`accept` or :meth:`proven`."""
        self._socket = connection

    @classmethod
    def connect(cls, address: str, port: int, key: bytes) -> CopyChannel:
        """Reach the agent that listens there. Raises ``OSError``, :class:`ChannelError` among them."""
        deadline = time.monotonic() + HANDSHAKE_S
        channel = cls(_reached(address, port, deadline))
        try:
            channel._prepare()
            ours = os.urandom(_NONCE)
            channel._send(_MAGIC + ours, deadline)
            theirs = channel._receive(_NONCE, deadline)
            _check(channel._receive(_DIGEST, deadline), key, b"server" + ours + theirs)
            channel._send(_sign(key, b"client" + ours + theirs), deadline)
        except BaseException:
            channel.close()
            raise
        return channel

    @classmethod
    def accept(cls, connection: socket.socket, key: bytes) -> CopyChannel:
        """Prove ourselves to the client, and have it do the same. Raises ``OSError``.

        The connection is closed if that fails.
        """
        deadline = time.monotonic() + HANDSHAKE_S
        channel, handshake = cls(connection), Handshake(key)
        try:
            while not handshake.is_proven:
                channel._send(handshake.receive(channel._receive(handshake.wants, deadline)), deadline)
            channel._prepare()
        except BaseException:
            channel.close()
            raise
        return channel

    @classmethod
    def proven(cls, connection: socket.socket) -> CopyChannel:
        """Return the end of a connection whose :class:`Handshake` is over. Raises ``OSError``."""
        channel = cls(connection)
        channel._prepare()
        return channel

    def send(self, message: Request | CopyAnswer) -> None:
        """Send one message. Raises ``OSError``."""
        content = msgspec.msgpack.encode(message)
        self._send(_LENGTH.pack(len(content)) + content, time.monotonic() + PROGRESS_S)

    def request(self) -> Request | None:
        """Receive the next request, however late; None when the other side is done. Raises ``OSError``."""
        self._socket.settimeout(IDLE_S)
        first = self._socket.recv(1)
        if not first:
            return None
        return request_in(self._frame(PROGRESS_S, first))

    def answer(self, work_bytes: int = 0) -> CopyAnswer:
        """Return the answer, for which the other side may have to read ``work_bytes``. Raises ``OSError``."""
        return answer_in(self._frame(PROGRESS_S + work_bytes / WORK_BYTES_S))

    def send_file(self, file: int, total: int, pace: Callable[[int], None] | None, piece: int = 0) -> None:
        """Send bytes 8 to ``total`` of an image's file.

        ``pace`` is called before each ``piece`` with its bytes and may wait. Raises ``OSError``.
        """
        self._send_span(file, FIRST_BYTE, total, pace, piece)

    def send_piece(
        self, file: int, at: int, count: int, pace: Callable[[int], None] | None, piece: int = 0
    ) -> None:
        """Send ``count`` bytes from ``at``; the rest as :meth:`send_file`. Raises ``OSError``."""
        self._send(_SPAN.pack(at, count), time.monotonic() + PROGRESS_S)
        self._send_span(file, at, at + count, pace, piece)

    def end_pieces(self) -> None:
        """Say that no piece follows on this connection. Raises ``OSError``."""
        self._send(_SPAN.pack(0, 0), time.monotonic() + PROGRESS_S)

    def receive_piece(self, view: memoryview) -> int:
        """Put the next piece into its place in ``view``, which is bytes 8 to total of an image.

        Returns its bytes, 0 when none follows. Raises ``OSError``.
        """
        at, count = _SPAN.unpack(self._receive(_SPAN.size, time.monotonic() + PROGRESS_S))
        if not count:
            return 0
        if not FIRST_BYTE <= at <= FIRST_BYTE + len(view) - count:
            raise ChannelError(f"a piece of {count} bytes at {at} is not in an image of {len(view)} bytes")
        with view[at - FIRST_BYTE : at - FIRST_BYTE + count] as place:
            self.receive_into(place)
        return int(count)

    def receive_into(self, view: memoryview) -> None:
        """Fill ``view``. Raises ``OSError``."""
        self._socket.settimeout(PROGRESS_S)
        at = 0
        while at < len(view):
            received = self._socket.recv_into(view[at : at + _PIECE])
            if not received:
                raise ChannelError("the connection ended in the middle of an image")
            at += received

    def abort(self) -> None:
        """End whatever another thread waits for on this connection. Does not wait."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        """Close. May be called again."""
        self._socket.close()

    def _prepare(self) -> None:
        for level, option, value in (
            # Heartbeats go first in this node's queues, and in those of switches that read the packets.
            (socket.IPPROTO_IP, socket.IP_TOS, _DSCP_BULK << 2),
            (socket.SOL_SOCKET, socket.SO_PRIORITY, _PRIORITY_BULK),  # after IP_TOS, which sets it as well
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            # After a cut TCP repeats for minutes; this ends it when data stay unacknowledged.
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * PROGRESS_S)),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        ):
            self._socket.setsockopt(level, option, value)
        if self._socket.family is socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _DSCP_BULK << 2)

    def _frame(self, patience_s: float, first: bytes = b"") -> bytes:
        deadline = time.monotonic() + patience_s
        (length,) = _LENGTH.unpack(first + self._receive(_LENGTH.size - len(first), deadline))
        if length > _MAX_FRAME:
            raise ChannelError(f"it announces a message of {length} bytes, more than any has")
        return self._receive(length, deadline)

    def _send(self, data: bytes, deadline: float) -> None:
        self._limit(deadline)
        self._socket.sendall(data)

    def _receive(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._limit(deadline)
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ChannelError("it closed the connection")
            data += piece
        return bytes(data)

    def _limit(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)

    def _send_span(
        self, file: int, at: int, end: int, pace: Callable[[int], None] | None, piece: int
    ) -> None:
        while at < end:
            count = min(piece or _PIECE, end - at)
            if pace is not None:
                pace(count)
            turn = at + count
            while at < turn:
                at += self._send_some(file, at, turn - at)

    def _send_some(self, file: int, at: int, count: int) -> int:
        try:
            sent = os.sendfile(self._socket.fileno(), file, at, count)
        except BlockingIOError:
            self._wait_writable()
            return 0
        if not sent:
            raise ChannelError("the image's file ends before the image does")
        return sent

    def _wait_writable(self) -> None:
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLOUT)
        if not poller.poll(1000 * PROGRESS_S):
            raise TimeoutError("timed out")


def _reached(address: str, port: int, deadline: float) -> socket.socket:
    """Connect. If the other side's queue is full, TCP alone would try again after 1 s and 3 s."""
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection((address, port), timeout=min(_TRY_S, max(_TRY_S / 10, left)))
        except TimeoutError:
            if left <= _TRY_S:
                raise


def _check(digest: bytes, key: bytes, content: bytes) -> None:
    if not hmac.compare_digest(digest, _sign(key, content)):
        raise ChannelError("it does not hold this job's key")


def _sign(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()
