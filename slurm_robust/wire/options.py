"""Socket options that both ends share, and the pieces in which large messages go."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from slurm_robust.wire.messages import MalformedMessage

# A heartbeat of 16 ranks with tails and tracebacks has some 100 KiB, their stacks some MiB; more is an error.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 64 * 1024
# Memory for a piece is taken when its length is read, also of a peer that has not proven anything yet.
_MOST_BYTES = PIECE_BYTES + 1024


def pieces(data: bytes) -> list[bytes]:
    """The frames in which ``data`` goes."""
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


def joined(frames: Sequence[bytes]) -> bytes:
    """What :func:`pieces` made the frames of. Raises :class:`MalformedMessage` for more than 16 MiB."""
    if sum(map(len, frames)) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"more than {MAX_MESSAGE_BYTES} bytes")
    return b"".join(frames)


def set_common(socket: zmq.Socket[bytes]) -> None:
    """Bound what a bad peer or a dead network can cost."""
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    # A thousand agents that connect at once take a second; a peer that does not prove itself is not kept for
    # long.
    socket.setsockopt(zmq.HANDSHAKE_IVL, 10_000)
