"""A version in a checkout names the commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_robust.util.checkout import in_full


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", "-C", folder, *name, *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").touch()
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_a_release_that_is_checked_out_is_that_release(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.0")
    assert in_full("1.2.0", checkout) == "1.2.0"


def test_a_checkout_says_how_far_it_is_from_a_release_and_whether_it_was_changed(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.0")
    git(checkout, "commit", "-qm", "two", "--allow-empty")
    assert in_full("1.3.0", checkout).startswith("1.3.0 (checkout v1.2.0-1-g")
    (checkout / "file").write_text("changed")
    assert in_full("1.3.0", checkout).endswith("-dirty)")


def test_an_installed_package_has_its_version_alone(tmp_path: Path) -> None:
    assert in_full("1.2.0", tmp_path) == "1.2.0"
