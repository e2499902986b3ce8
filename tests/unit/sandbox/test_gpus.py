"""How the stand-in library is made; what it says is tested with the checks that read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.sandbox.errors import RequirementMissing
from slurm_robust.sandbox.gpus import LIBRARY, StandInGpus, library


@pytest.mark.slow
def test_the_gpu_library_is_compiled_once(tmp_path: Path) -> None:
    first = library(tmp_path)
    made = first.stat().st_mtime_ns
    assert first.name == LIBRARY
    assert library(tmp_path) == first
    assert first.stat().st_mtime_ns == made
    assert [path.name for path in first.parent.iterdir()] == [LIBRARY]


def test_without_a_compiler_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequirementMissing, match="no cc") as caught:
        library(tmp_path)
    assert "apt-get install gcc libc6-dev" in str(caught.value)


def test_changes_are_lines_and_reset_forgets_them(tmp_path: Path) -> None:
    gpus = StandInGpus(tmp_path / "state", "n1", 1)
    gpus.reset()
    new = gpus.path.read_text()
    assert new == f"system count 1\n0 uuid {gpus.uuid(0)}\n"
    gpus.set(0, lost=True, serial=None)
    gpus.set(temperature=40)
    gpus.driver(hang=False)
    gpus.set(0, name="two\nlines")
    added = gpus.path.read_text().removeprefix(new)
    assert added == "0 lost 1\n0 serial -\n* temperature 40\nsystem hang 0\n0 name two lines\n"
    gpus.reset()
    assert gpus.path.read_text() == new
