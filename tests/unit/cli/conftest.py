"""Where jobs are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the user's jobs are by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "srobust-jobs"
