"""Socket options that both ends share."""

from __future__ import annotations

import zmq

# A Beat of 16 ranks with tails and tracebacks has some 100 KiB; more than this is an error or an attack.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024


def set_common(socket: zmq.Socket[bytes]) -> None:
    """Bound what a bad peer or a dead network can cost."""
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    # A thousand agents that connect at once may have to wait for the handshake.
    socket.setsockopt(zmq.HANDSHAKE_IVL, 60_000)
