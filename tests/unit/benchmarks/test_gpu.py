"""The measurements on a GPU, tried without one: every part writes what it finds, or says what it needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.part import PARTS, WHOLE_S, Part
from benchmarks.scratch import scratch
from slurm_robust.sandbox.gpus import STATE_VARIABLE, StandInGpus, library
from tests.waiting import wait_for
from tools.lacks import lacks


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "gpu.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of all parts."""
    folder = tmp_path_factory.mktemp("gpu")
    gpu.main(["--cpu", "--out", str(folder)])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_runs_without_a_gpu_or_says_that_it_needs_one(part: Part, run: Path) -> None:
    *results, last = [one for one in lines(run) if one["part"] == part.name]
    if part.needs_cuda:
        assert (results, last["what"], last["reason"]) == ([], "left out", "needs CUDA")
    else:
        assert results
        assert last["what"] == "done", last


@pytest.mark.slow
def test_a_run_is_written_with_its_machine_and_command(run: Path) -> None:
    written = json.loads((run / "gpu.json").read_text())
    assert written["results"] == lines(run)
    assert written["machine"]["torch"]
    assert written["command"].startswith("python -m benchmarks.gpu")


@pytest.mark.slow
def test_a_part_is_ended_at_its_limit_and_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = Part("recorder", "hang", 0.01, ""), Part("stacks", "hang", 60, "")
    monkeypatch.setattr(gpu, "PARTS", (stuck, other))
    assert gpu.main(["--cpu", "--out", str(tmp_path)]) == 1
    first, *rest = lines(tmp_path)
    assert (first["part"], first["error"]) == ("recorder", "ended at its limit of 0.01 s")
    assert rest[-1]["what"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_run_that_a_signal_ends_leaves_neither_memory_nor_a_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path) as (shm, run):
        run.send_signal(number)
        _, error = run.communicate(timeout=30)
    assert (run.returncode, error) == (128 + number, f"ended by {number.name}\n")
    assert list(shm.iterdir()) == []
    assert processes_that_name(tmp_path) == []


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next_and_its_part_is_gone(tmp_path: Path) -> None:
    with started(tmp_path) as (shm, run):
        run.kill()
    wait_for(lambda: processes_that_name(tmp_path) == [], 10.0)
    (left,) = shm.iterdir()
    with scratch("next", shm) as place:
        assert list(shm.iterdir()) == [place] != [left]


@pytest.mark.slow
def test_a_second_run_into_the_same_folder_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path):
        assert gpu.main(["--cpu", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"another run writes to {tmp_path}: wait for its end, or name another folder with --out\n"
    )


@pytest.mark.parametrize(
    ("option", "folder", "error"),
    [
        ("--shm", "/nosuch", "no folder that you may write to"),
        ("--out", "/dev/null/x", "Not a directory"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named_in_one_line(
    option: str, folder: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--cpu", "--out", str(tmp_path), option, folder]) == 2
    assert capsys.readouterr().err == f"{option} {folder}: {error}\n"


@contextmanager
def started(folder: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run that is in its first part, until the block ends; its shared memory."""
    shm = folder / "shm"
    shm.mkdir()
    words = [sys.executable, "-m", "benchmarks.gpu", "recorder", "--cpu", "--out", folder, "--shm", shm]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            wait_for(lambda: list(shm.glob("*/*")), 60.0)
            yield shm, run
        finally:
            run.kill()


def processes_that_name(folder: Path) -> list[list[str]]:
    return [one.info["cmdline"] for one in psutil.process_iter(["cmdline"]) if str(folder) in str(one.info)]


def test_all_limits_together_are_less_than_eight_minutes() -> None:
    assert sum(part.limit_s for part in PARTS) <= WHOLE_S < 480


def test_what_a_python_lacks_is_named_with_the_way_to_install_it() -> None:
    assert lacks(["pytest", "pyyaml", "nvidia-ml-py"]) == ""
    assert lacks(["pytest", "no-such-thing"]) == (
        f"{sys.executable} lacks no-such-thing: {sys.executable} -m pip install no-such-thing"
    )


@pytest.mark.slow
def test_what_the_driver_says_is_measured_with_stand_in_gpus(tmp_path: Path) -> None:
    gpus = StandInGpus(tmp_path / "state", "n1", 1)
    gpus.reset()
    results = tmp_path / "gpu.jsonl"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.part", "nvml", "--place", tmp_path, "--results", results],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library(tmp_path / "cache").parent),
            STATE_VARIABLE: str(gpus.path),
        },
        check=True,
        timeout=60,
    )
    found = lines(tmp_path)
    assert found[-1]["what"] == "done", found[-1]
    assert [one["name"] for one in found if one["what"] == "gpu"] == ["NVIDIA H200"]
    assert {one["outcome"] for one in found if one["what"] == "finding"} == {"pass"}
    assert {one["errors"] == {} for one in found if one["what"] == "field"} == {True}
