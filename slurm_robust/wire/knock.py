"""Does a node answer although its agent does not? Its kernel takes connections for a stalled process."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Mapping

# A kernel answers within milliseconds, or is not there.
ANSWER_S = 1.0


def answering(places: Mapping[str, tuple[str, int]], timeout_s: float = ANSWER_S) -> frozenset[str]:
    """Of ``places`` (address and port by name) those that take a connection within ``timeout_s`` seconds.

    Nothing is sent. What refuses does not answer: nobody listens there any more.
    """
    deadline = time.monotonic() + timeout_s
    found: set[str] = set()
    with selectors.DefaultSelector() as selector:
        try:
            for name, place in places.items():
                if (connection := _begin(place)) is not None:
                    selector.register(connection, selectors.EVENT_WRITE, name)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    connection = _socket_of(key)
                    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        found.add(key.data)
                    selector.unregister(connection)
                    connection.close()
        finally:
            for key in list(selector.get_map().values()):
                _socket_of(key).close()
    return frozenset(found)


def _begin(place: tuple[str, int]) -> socket.socket | None:
    """A connection under way; None where there can be none."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
        connection = socket.socket(family, kind)
    except OSError:
        return None
    connection.setblocking(False)
    if connection.connect_ex(address) in (0, errno.EINPROGRESS):
        return connection
    connection.close()
    return None


def _socket_of(key: selectors.SelectorKey) -> socket.socket:
    assert isinstance(key.fileobj, socket.socket)
    return key.fileobj
