"""A folder with code, and the releases of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurm_robust.model.job import CommandKind
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking

Write = Callable[[Mapping[str, str]], None]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ReleaseStore:
    return ReleaseStore(tmp_path / "releases")


@pytest.fixture
def wish(code: Path) -> Taking:
    roots = (os.path.realpath(code),)
    return Taking(kind=CommandKind.SCRIPT, command=("train.py",), cwd=str(code), roots=roots)


@pytest.fixture
def write(code: Path) -> Write:
    """Write files, by their paths relative to the code."""

    def write_all(files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = code / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write_all
