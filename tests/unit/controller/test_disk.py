"""The journal's storage: the real one and the fake, held to one contract."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from slurm_robust.controller.journal import Disk
from slurm_robust.testing.faulty_disk import FaultyDisk
from tests.contracts.disk import DiskContract
from tests.unit.controller.file_size_limit import room_for


class RealWorld:
    def __init__(self, folder: Path) -> None:
        self.disk, self.folder = Disk(), folder

    def room_for(self, nbytes: int) -> AbstractContextManager[None]:
        return room_for(nbytes)


class FakeWorld:
    def __init__(self, folder: Path) -> None:
        self.disk, self.folder = FaultyDisk(), folder

    @contextmanager
    def room_for(self, nbytes: int) -> Iterator[None]:
        self.disk.fail(errno.ENOSPC, room=nbytes)
        yield
        self.disk.heal()


class TestDisk(DiskContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> RealWorld:
        return RealWorld(tmp_path)


class TestFaultyDisk(DiskContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> FakeWorld:
        return FakeWorld(tmp_path)
