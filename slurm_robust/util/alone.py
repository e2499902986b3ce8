"""A guard that only one process of a node does something: a name in the kernel, which goes with the process.

A lock on shared storage can outlive a node that died, and would keep its job from being started again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import time

_CREDENTIALS = struct.Struct("3i")  # ucred of unix(7)
_TRIES, _PAUSE_S = 50, 0.01
_MAX_ASKED = 1 << 16  # each question stays in the queue, as nothing accepts; the kernel has a limit, too


class Alone:
    """Takes a name for this process; it goes back by :meth:`close`, or with the end of the process."""

    def __init__(self, what: str) -> None:
        """Take ``what``: only processes of this user with the same text exclude each other."""
        digest = hashlib.sha256(f"{os.geteuid()}:{what}".encode(errors="surrogateescape")).hexdigest()
        self._name = f"\0srobust-{digest}"
        self._socket: socket.socket | None = None

    def take(self) -> int | None:
        """Take the name. Returns None, or the id of the process that has it, 0 if that is hidden.

        A name that another user has put in the way, or whose owner the kernel does not tell, or a kernel that
        has none, keeps no process out.
        """
        for _ in range(_TRIES if self._socket is None else 0):
            ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                ours.bind(self._name)
                ours.listen(_MAX_ASKED)
            except OSError as error:
                ours.close()
                if error.errno != errno.EADDRINUSE:
                    return None
            else:
                self._socket = ours
                return None
            try:
                return self._owner()
            except ConnectionRefusedError:
                time.sleep(_PAUSE_S)  # it does not listen yet, or has just ended
            except OSError:
                return None  # its queue is full, say, which only a process that means to can do
        return None

    def close(self) -> None:
        """Let others have it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _owner(self) -> int | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.setblocking(False)
            link.connect(self._name)
            told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(told)
        return int(pid) if uid == os.geteuid() else None
