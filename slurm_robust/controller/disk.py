"""What the journal asks of its storage. A class, so that tests let each call fail or hang."""

from __future__ import annotations

import os
from pathlib import Path


class Disk:
    """The file system as it is. Each call may block for minutes; each raises ``OSError``."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor of ``path``, 0600 if it is made now."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes) -> int:
        """Append what there is room for; how many bytes that were."""
        return os.write(fd, data)

    def tail(self, fd: int, offset: int) -> bytes:
        """What the file has after ``offset``."""
        with open(fd, "rb", closefd=False) as file:  # appending does not depend on where it stands
            file.seek(offset)
            return file.read()

    def size(self, fd: int) -> int:
        """Bytes of the file."""
        return os.fstat(fd).st_size

    def cut(self, fd: int, size: int) -> None:
        """Shorten the file to ``size`` bytes."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return when what was written survives a crash of this machine and of the server."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """The descriptor is used no more."""
        os.close(fd)
