"""A file in shared memory: reserved, mapped, and locked while it is written."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path

OnMap = Callable[[memoryview], Callable[[], None]]
"""Told when a file is mapped; what it returns is called before that mapping goes."""


class BufferInUse(Exception):
    """Somebody reads the file, so it cannot be written now."""


class SharedFile:
    """One writer at a time; :attr:`map` is None until :meth:`make_room`."""

    def __init__(self, path: Path, on_map: OnMap = lambda _: lambda: None) -> None:
        """Open or make the file (0600), which keeps its content. Raises ``OSError``."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.path = path
        self.map: mmap.mmap | None = None
        self._file = os.open(path, flags, 0o600)
        self._on_map = on_map
        self._on_unmap: Callable[[], None] = lambda: None

    @property
    def capacity(self) -> int:
        """Bytes that are reserved."""
        return os.fstat(self._file).st_size

    def lock(self) -> None:
        """Keep readers out. Raises :class:`BufferInUse`."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BufferInUse(str(self.path)) from None

    def unlock(self) -> None:
        """Let readers in."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def make_room(self, total: int) -> mmap.mmap:
        """Reserve and map ``total`` bytes of a locked file.

        Raises ``OSError`` when there is no memory; the file is empty and unlocked then.
        """
        try:
            if self.capacity < total:
                self._drop_map()
                # Reserved now: writing to a sparse file on a full /dev/shm would kill us by SIGBUS.
                os.posix_fallocate(self._file, 0, -(-total // mmap.PAGESIZE) * mmap.PAGESIZE)
            if self.map is None:
                self.map = mmap.mmap(self._file, self.capacity)
                self._on_unmap = self._on_map(memoryview(self.map))
        except OSError:
            self._drop_map()
            os.ftruncate(self._file, 0)
            self.unlock()
            raise
        return self.map

    def close(self) -> None:
        """Unmap and close; the file and what is in it stay."""
        self._drop_map()
        os.close(self._file)

    def _drop_map(self) -> None:
        if self.map is not None:
            self._on_unmap()
            try:
                self.map.close()
            except BufferError:
                pass  # a view of an earlier image lives; the kernel unmaps when it is gone
            self.map = None
