"""One node's part, as a job step runs it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from slurm_robust.diagnostics.__main__ import answers
from slurm_robust.diagnostics.part import PartAnswer, TestPart
from slurm_robust.diagnostics.plan import BY_NAME, Program
from slurm_robust.model.findings import Outcome

COMMAND = (sys.executable, "-m", "slurm_robust.diagnostics")
PART = TestPart(node="n1", group=("n1",))


@pytest.mark.slow
def test_a_part_writes_one_line_for_each_test(tmp_path: Path) -> None:
    words = ("storage,dcgm", "--node", "n7", "--storage", str(tmp_path), "--json", "--budget", "100")
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=True, env={})
    storage, dcgm = (msgspec.json.decode(line, type=PartAnswer) for line in done.stdout.splitlines())
    assert (storage.result.test, storage.result.node, storage.result.outcome) == (
        "storage",
        "n7",
        Outcome.PASS,
    )
    assert storage.result.peers == ("n7",)
    assert (dcgm.left_out, dcgm.result.text) == (True, "dcgmi is not installed")
    assert list(tmp_path.iterdir()) == []
    people = subprocess.run([*COMMAND, *words[:-3]], capture_output=True, text=True, check=True, env={})
    assert people.stdout.splitlines()[1] == "dcgm on n7: left out dcgmi is not installed"


def test_a_test_that_is_not_there() -> None:
    done = subprocess.run([*COMMAND, "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no test nonsense" in done.stderr


def dcgmi(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str = "exec tail -f /dev/null") -> None:
    """Make ``dcgmi`` a program that never ends, or does something else."""
    program = folder / "dcgmi"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.slow
def test_what_hangs_is_killed_and_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcgmi(tmp_path, monkeypatch)
    impatient = Program(name="dcgm", needs_s=2.0)
    (found,) = answers([impatient], PART, time.monotonic() + 2.5)
    assert (found.result.outcome, found.measured) == (Outcome.UNKNOWN, False)
    assert re.fullmatch(r"(dcgmi: )?no result within \d s \(load [\d.]+ on \d+ cores\)", found.result.text)
    assert found.result.took_s < 60.0


def test_a_test_that_is_killed_has_measured_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcgmi(tmp_path, monkeypatch, "kill -9 $PPID")
    (found,) = answers([BY_NAME["dcgm"]], PART, time.monotonic() + 60.0)
    assert (found.result.outcome, found.measured) == (Outcome.FAIL, False)
    assert found.result.text == "ended without an answer"


def test_without_time_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcgmi(tmp_path, monkeypatch)
    found = list(answers([BY_NAME["dcgm"], BY_NAME["memory"]], PART, time.monotonic()))
    assert [(a.result.text, a.measured) for a in found] == [("no time was left", False)] * 2


def test_what_a_program_raises_is_a_failure(tmp_path: Path) -> None:
    # A group in which this node is not: tuple.index raises.
    stray = TestPart(node="n1", group=("n2", "n3"), port=1)
    (found,) = answers([BY_NAME["all_gather"]], stray, time.monotonic() + 60.0)
    assert found.result.outcome is Outcome.FAIL
    assert found.result.text.startswith("ValueError")
