"""A mount of one file that refuses on order, as a file server does that tells an error (FUSE, by hand)."""

from __future__ import annotations

import errno
import os
import select
import stat
import struct

from tests.stand_ins.dead_mount import DeadMount, greeting

_LOOKUP, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _RELEASE = 1, 3, 4, 14, 15, 16, 18
_FSYNC, _FLUSH, _INIT, _CREATE = 20, 25, 26, 35
_FORGET, _FORGETS = 2, 42  # without an answer
_CHANGES = frozenset({_SETATTR, _WRITE, _FSYNC, _CREATE})
_ROOT, _FILE = 1, 2
_HEADER = struct.Struct("=IIQQIIII")
_SIZE_IS_SET = 1 << 3
_DIRECT = 1  # nothing in the kernel's cache


class FaultyMount(DeadMount):
    """Keeps the bytes of its one file, of whatever name, in memory.

    Between :meth:`fail` and :meth:`heal` calls that change it are answered by that error, also in the middle
    of a longer write, which comes in pieces.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.content: bytearray | None = None
        self._error = 0
        self._calls = _CHANGES
        self._handle = self._dead = 0

    def fail(self, number: int, *, only_sync: bool = False) -> None:
        """From now on, with errno ``number``."""
        self._calls = frozenset({_FSYNC}) if only_sync else _CHANGES
        self._error = number

    def heal(self) -> None:
        """All is well again."""
        self._error = 0

    def lose(self, nbytes: int) -> None:
        """The end of the file, as a server that confirms writes before they are on its disk, and crashes."""
        assert self.content is not None
        del self.content[max(0, len(self.content) - nbytes) :]

    def throw_out(self) -> None:
        """Whatever is open now fails for ever, as on a Lustre client that was evicted."""
        self._dead = self._handle

    def _swallow(self) -> None:
        while not self._over.is_set():
            if not select.select([self._fd], [], [], 0.1)[0]:
                continue
            request = os.read(self._fd, 2**17 + 4096)
            _, code, unique, node, *_ = _HEADER.unpack_from(request)
            if code == _INIT:
                os.write(self._fd, greeting(unique))
            elif code not in (_FORGET, _FORGETS):
                number, body = self._answer(code, node, request[_HEADER.size :])
                os.write(self._fd, struct.pack("=IiQ", 16 + len(body), -number, unique) + body)

    def _answer(self, code: int, node: int, body: bytes) -> tuple[int, bytes]:
        if self._error and code in self._calls:
            return self._error, b""
        if code in (_WRITE, _FSYNC) and struct.unpack_from("=Q", body)[0] <= self._dead:
            return errno.EIO, b""
        data = self.content
        if code == _CREATE:
            self.content = bytearray()
            return 0, self._entry() + self._opened()
        if code == _GETATTR:
            return 0, struct.pack("=QII", 0, 0, 0) + self._attributes(node)
        if code in (_OPEN, _RELEASE, _FSYNC, _FLUSH):
            return 0, self._opened() if code == _OPEN else b""
        if code == _LOOKUP:
            return (0, self._entry()) if data is not None else (errno.ENOENT, b"")
        assert data is not None or code not in (_READ, _WRITE, _SETATTR)
        return self._on_content(code, body, data) if data is not None else (errno.ENOSYS, b"")

    def _on_content(self, code: int, body: bytes, data: bytearray) -> tuple[int, bytes]:
        _, offset, size = struct.unpack_from("=QQI", body)
        if code == _READ:
            return 0, bytes(data[offset : offset + size])
        if code == _WRITE:
            data[offset : offset + size] = body[40 : 40 + size]
            return 0, struct.pack("=II", size, 0)
        if code == _SETATTR:
            valid, _, _, length = struct.unpack_from("=IIQQ", body)
            if valid & _SIZE_IS_SET:
                data[length:] = bytes(max(0, length - len(data)))
            return 0, struct.pack("=QII", 0, 0, 0) + self._attributes(_FILE)
        return errno.ENOSYS, b""

    def _opened(self) -> bytes:
        self._handle += 1
        return struct.pack("=QII", self._handle, _DIRECT, 0)

    def _entry(self) -> bytes:
        return struct.pack("=4Q2I", _FILE, 0, 0, 0, 0, 0) + self._attributes(_FILE)

    def _attributes(self, node: int) -> bytes:
        """``fuse_attr``."""
        size = len(self.content or b"") if node == _FILE else 0
        mode = stat.S_IFREG | 0o600 if node == _FILE else stat.S_IFDIR | 0o700
        return struct.pack("=6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
