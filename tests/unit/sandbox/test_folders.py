"""Whose folders they are: ``down`` removes those that ``up`` made, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.sandbox.boot import claimed
from slurm_robust.sandbox.errors import NotASandbox, RequirementMissing
from slurm_robust.sandbox.folder import StateFolder
from slurm_robust.sandbox.sandbox import sandbox_names
from slurm_robust.sandbox.teardown import take_down


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SROBUST_SANDBOX_DIR", str(tmp_path / "mine"))
    return tmp_path / "mine"


def begin(name: str) -> StateFolder:
    """What is there after an ``up`` that was killed."""
    folder = StateFolder(name)
    with claimed(folder):
        (folder.path / "etc").mkdir()
        (folder.path / "config.json").write_text("{}")
    return folder


def test_the_folder_of_all_goes_with_the_last_sandbox_where_it_was_made_for_them(root: Path) -> None:
    begin("a"), begin("b")
    assert sandbox_names() == ("a", "b")
    take_down("a")
    assert sandbox_names() == ("b",)
    take_down("b")
    assert not root.exists()


def test_the_users_own_folder_and_what_is_in_it_stay(root: Path) -> None:
    (root / "models").mkdir(parents=True)
    (root / "models" / "config.json").write_text("{}")
    begin("a")
    assert sandbox_names() == ("a",)
    take_down("a")
    with pytest.raises(NotASandbox, match="was not made by a sandbox"):
        take_down("models")
    with pytest.raises(NotASandbox), claimed(StateFolder("models")):
        pass
    assert (root / "models" / "config.json").exists()
    (root / "models" / "config.json").unlink()
    (root / "models").rmdir()
    begin("a")
    take_down("a")
    assert root.exists()


def test_what_an_up_left_that_was_killed_is_removed_by_the_next(root: Path) -> None:
    begin("a")
    (root / "empty").mkdir()  # one that was killed in its first moment
    for name in ("a", "empty"):
        folder = begin(name)
        assert (folder.path / "etc").is_dir()


def test_what_a_machine_lacks_is_said_with_its_fix() -> None:
    error = RequirementMissing("slurmctld is not installed", fix="apt-get install slurmctld")
    assert error.in_full() == "slurmctld is not installed\n  fix: apt-get install slurmctld"
