"""Snapshots of a rank, in shared memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.checkpoint.memory import MemoryFolder
from tests.unit.checkpoint.snapshot_training import RUN


@pytest.fixture
def folder() -> Iterator[MemoryFolder]:
    """Return the folder of a node's copies in memory, which is gone after the test."""
    base = Path(tempfile.mkdtemp(prefix="test-snapshot-", dir="/dev/shm"))
    yield MemoryFolder.create(RUN, base)
    shutil.rmtree(base)
