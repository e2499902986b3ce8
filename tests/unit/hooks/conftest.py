"""A Slurm in memory, and a node in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.testing.fake_cluster import FakeCluster
from tests.unit.hooks.hook_node import Hooked


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def hooked(cluster: FakeCluster, tmp_path: Path) -> Hooked:
    return Hooked(cluster, tmp_path)
