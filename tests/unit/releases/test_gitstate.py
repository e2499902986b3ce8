"""What Git says of the code."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_robust.releases import gitstate
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from tests.unit.releases.conftest import Write


@pytest.fixture
def repository(code: Path, write: Write) -> Path:
    write({"train.py": "x"})
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "exp"], ["add", "."], [*name, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(code), *command], check=True)
    return code


def test_commit_and_branch_are_in_the_release(
    repository: Path, store: ReleaseStore, wish: Taking, write: Write
) -> None:
    clean = take(store, wish).git
    assert clean is not None
    assert (len(clean.commit), clean.branch, clean.dirty) == (40, "exp", False)
    write({"untracked.py": ""})
    assert gitstate.read(str(repository)) == clean
    write({"train.py": "y"})
    dirty = gitstate.read(str(repository))
    assert dirty is not None
    assert dirty.dirty


def test_of_a_repository_that_takes_too_long_it_is_unknown_whether_files_have_changed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of a large repository on slow storage is looked at for minutes."""
    slow, git = tmp_path / "bin/git", shutil.which("git")
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\ncase "$*" in *status*) exec sleep 60;; esac\nexec {git} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(gitstate, "_LIMIT_S", 0.5)
    found = gitstate.read(str(repository))
    assert found is not None
    assert (len(found.commit), found.dirty) == (40, None)


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    subprocess.run(["git", "-C", str(repository), "checkout", "-q", "--detach"], check=True)
    found = gitstate.read(str(repository))
    assert found is not None
    assert found.branch == ""


def test_nothing_is_written_into_the_repository(repository: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")}
    (repository / "train.py").touch()
    gitstate.read(str(repository))
    assert {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")} == before


def test_no_repository_no_commit_and_no_git_are_no_errors(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gitstate.read(str(code)) is None
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    assert gitstate.read(str(code)) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert gitstate.read(str(code)) is None
