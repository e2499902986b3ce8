"""Where views look for a job: Slurm, and the folder of a user's jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm


@pytest.fixture
def slurm() -> FakeSlurm:
    """Return a Slurm with one job."""
    slurm = FakeSlurm()
    slurm.submit(SubmitRequest(command=("train.sh",)))
    return slurm


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the user's jobs are by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "srobust-jobs"
