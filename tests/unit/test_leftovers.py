"""The check that CI relies on sees what a run leaves, and touches nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "leftovers.py"


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True, timeout=60)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    path = tmp_path / "before.json"
    path.write_text(call("snapshot").stdout)
    return path


@pytest.fixture
def child(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits; with the run's mark in its environment if the test's parameter says so."""
    mark = {"SROBUST_SANDBOX_DIR": str(tmp_path / "state")} if request.param else {}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={**os.environ, **mark}) as process:
        yield process
        process.kill()


def test_a_snapshot_names_what_is_there(before: Path) -> None:
    state = json.loads(before.read_text())
    assert "lo" in state["link"]
    assert "/proc" in state["mount"]
    assert os.readlink("/proc/self/ns/net") in state["namespace"]


@pytest.mark.parametrize("child", [True], indirect=True)
def test_a_process_of_the_run_is_seen_and_ended(
    child: subprocess.Popen[bytes], before: Path, tmp_path: Path
) -> None:
    found = call("compare", before, tmp_path / "state")
    assert found.returncode == 1
    assert f"left over: process {child.pid}: cat" in found.stderr
    assert call("kill", tmp_path / "state").returncode == 0
    assert child.wait(timeout=60) == -9
    assert f"process {child.pid}:" not in call("compare", before, tmp_path / "state").stderr


@pytest.mark.parametrize("child", [False], indirect=True)
def test_a_process_of_somebody_else_is_left_alone(
    child: subprocess.Popen[bytes], before: Path, tmp_path: Path
) -> None:
    assert f"process {child.pid}:" not in call("compare", before, tmp_path / "state").stderr
    call("kill", tmp_path / "state")
    assert child.poll() is None


def test_a_new_mount_or_link_is_named(before: Path, tmp_path: Path) -> None:
    """Told as if ``lo`` and ``/proc`` were new: a test may not make mounts."""
    state = json.loads(before.read_text())
    state["link"].remove("lo")
    state["mount"].remove("/proc")
    before.write_text(json.dumps(state))
    found = call("compare", before, tmp_path / "state")
    assert {"left over: link lo", "left over: mount /proc"} <= set(found.stderr.splitlines())
    assert found.returncode == 1
