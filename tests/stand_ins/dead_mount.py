"""A mount that hangs as a dead file server's does: it takes requests and never answers (FUSE, by hand)."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import tempfile
import threading
from types import TracebackType

_INIT = 26
_MNT_DETACH = 2


class DeadMount:
    """Mounted while in ``with``; gives the folder. Root; better in a mount namespace of its own.

    The connection ends with this process at the latest, and with it every call that hangs. As a program,
    ``python -m tests.stand_ins.dead_mount FOLDER`` mounts until it is killed.
    """

    def __init__(self, folder: str = "") -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._made = "" if folder else tempfile.mkdtemp(prefix="srobust-dead-")
        self.folder = folder or self._made
        self._fd = -1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._swallow, daemon=True)

    def __enter__(self) -> str:
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        kind, where = b"fuse.dead", os.fsencode(self.folder)
        if self._libc.mount(b"dead", where, kind, 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount", self.folder)
        self._thread.start()
        return self.folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._libc.umount2(os.fsencode(self.folder), _MNT_DETACH)
        self._over.set()
        self._thread.join(10)
        os.close(self._fd)  # Ends the connection: callers get ENOTCONN.
        if self._made:
            os.rmdir(self._made)

    def _swallow(self) -> None:
        while not self._over.is_set():
            # Not in read(): while a thread is in there, closing the descriptor would not end the connection.
            if not select.select([self._fd], [], [], 0.1)[0]:
                continue
            code, unique = struct.unpack_from("=IQ", os.read(self._fd, 2**17 + 4096), 4)
            if code == _INIT:
                os.write(self._fd, greeting(unique))


def greeting(unique: int) -> bytes:
    """``fuse_out_header`` and ``fuse_init_out`` of protocol 7.31."""
    body = struct.pack("=IIIIHHIIHHI7I", 7, 31, 4096, 0, 16, 12, 4096, 1, 1, 0, 0, *([0] * 7))
    return struct.pack("=IiQ", 16 + len(body), 0, unique) + body


if __name__ == "__main__":
    import sys

    with DeadMount(sys.argv[1]):
        print("mounted", flush=True)
        sys.stdin.read()
