"""The measurements on a GPU, tried without one: every part writes what it finds, or says what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.part import PARTS, WHOLE_S, Part
from slurm_robust.sandbox.gpus import STATE_VARIABLE, StandInGpus, library
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
