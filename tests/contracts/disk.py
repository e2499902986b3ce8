"""The contract of Disk as tests: the file system and the fake must both pass it.

Derive a class from :class:`DiskContract` in a pytest module and give it a fixture ``world``.
"""

from __future__ import annotations

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from slurm_robust.controller.journal import FileSystem

_FLAGS = os.O_RDWR | os.O_APPEND


class DiskWorld(Protocol):
    """A disk, a folder on it, and a way to fill it up."""

    disk: FileSystem
    folder: Path

    def room_for(self, nbytes: int) -> AbstractContextManager[None]:
        """No file may grow beyond so many bytes."""
        ...


class DiskContract:
    """What the journal relies on."""

    def test_bytes_appended_to_a_new_file_are_there(self, world: DiskWorld) -> None:
        """Of a file that was not there; nobody else may read it."""
        disk, path = world.disk, world.folder / "j"
        fd = disk.open(path, _FLAGS | os.O_CREAT)
        assert disk.write(fd, b"one\n") == 4
        assert disk.write(fd, b"two\n") == 4
        disk.sync(fd)
        assert (disk.size(fd), disk.tail(fd, 4)) == (8, b"two\n")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        disk.cut(fd, 4)
        disk.write(fd, b"three\n")
        assert disk.tail(fd, 0) == b"one\nthree\n"
        disk.close(fd)

    def test_without_room_a_write_ends_short_and_the_next_one_fails(self, world: DiskWorld) -> None:
        """And goes on where there is room again."""
        disk = world.disk
        fd = disk.open(world.folder / "j", _FLAGS | os.O_CREAT)
        with world.room_for(3):
            assert disk.write(fd, b"one\n") == 3
            with pytest.raises(OSError, match=r"too large|No space"):
                disk.write(fd, b"\n")
            assert disk.tail(fd, 0) == b"one"
        disk.write(fd, b"\n")
        assert disk.tail(fd, 0) == b"one\n"
        disk.close(fd)

    def test_a_file_that_is_not_there_is_an_error(self, world: DiskWorld) -> None:
        """Unless it is to be made."""
        with pytest.raises(FileNotFoundError):
            world.disk.open(world.folder / "none", _FLAGS)
