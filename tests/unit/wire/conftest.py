"""Keys of a job, as its agents have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.wire.keys import ClientKeys, create_keys, load_client


@pytest.fixture
def keys(tmp_path: Path) -> ClientKeys:
    create_keys(tmp_path / "keys")
    return load_client(tmp_path / "keys")
