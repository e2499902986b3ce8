"""NVIDIA's diagnostics: what three releases say, and that settings are put back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.diagnostics.part import NotHere, TestPart
from slurm_robust.diagnostics.programs import dcgm
from slurm_robust.diagnostics.programs.dcgm import restored
from slurm_robust.model.findings import Outcome

PART = TestPart(node="n1", group=("n1",), limit_s=700.0)


def report(key: str, *results: dict[str, object]) -> str:
    tests = [{"name": "Memory", "results": list(results)}]
    return json.dumps({key: {"test_categories": [{"category": "Hardware", "tests": tests}]}})


RELEASE_2 = report(
    "DCGM GPU Diagnostic",
    {"gpu_ids": "0", "status": "Pass"},
    {"gpu_ids": "1", "status": "Fail", "warnings": "Error using CUDA API"},
)
RELEASE_3 = report(
    "DCGM GPU Diagnostic",
    {"gpu_id": "1", "status": "Fail", "warnings": [{"error_id": 5, "warning": "Error using CUDA API"}]},
)
RELEASE_4 = report(
    "DCGM Diagnostic",
    {
        "entity_group": "GPU",
        "entity_id": 1,
        "status": "Fail",
        "warnings": [{"warning": "Error using CUDA API"}],
    },
)


@pytest.mark.parametrize("output", [RELEASE_2, "a warning of the host engine\n" + RELEASE_3, RELEASE_4])
def test_a_failure_names_the_gpu_and_the_test(output: str) -> None:
    found = dcgm.read(output)
    assert (found.outcome, found.text) == (Outcome.FAIL, "gpu1: Memory: Error using CUDA API")


def test_a_test_of_dcgm_that_one_gpu_skips_is_passed() -> None:
    skipped = {"gpu_id": "1", "status": "Skip"}
    assert (
        dcgm.read(report("DCGM Diagnostic", {"gpu_id": "0", "status": "Pass"}, skipped)).outcome
        is Outcome.PASS
    )
    assert dcgm.read(report("DCGM Diagnostic", skipped)).text == "dcgmi ran no test"


@pytest.mark.parametrize(
    "output",
    [
        "",
        "Error: unable to establish a connection to the specified host: localhost",
        '{"DCGM GPU Diagnostic": {"runtime_error": "no"}}',
        '{"DCGM GPU Diagnostic": {"test_categories": [{"tests": 3}]}}',
        "[1, 2]",
        "{torn",
    ],
)
def test_output_other_than_a_report_is_unknown(output: str) -> None:
    found = dcgm.read(output)
    assert found.outcome is Outcome.UNKNOWN
    assert found.text.startswith("dcgmi says: ")


def test_dcgm_runs_as_deep_as_time_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/said\ncat <<'END'\n{RELEASE_4}\nEND\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = dcgm.run(PART)
    assert (found.outcome, found.value) == (Outcome.FAIL, "level 2")
    assert (tmp_path / "said").read_text() == "diag --run 2 --json\n"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(NotHere):
        dcgm.run(PART)


class FakeNvml:
    """As much of ``pynvml`` as settings need, over one dictionary for each GPU."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM = 0, 2

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: dict[str, int], allowed: bool = True) -> None:
        self.gpus = gpus
        self.allowed = allowed
        self.sessions = 0

    def nvmlInit(self) -> None:
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, int]:
        return self.gpus[index]

    def __getattr__(self, name: str) -> Any:
        kind, key = name.removeprefix("nvmlDevice")[:3], name.removeprefix("nvmlDevice")[3:]

        def get(gpu: dict[str, int], *args: int) -> int:
            try:
                return gpu["".join([key, *map(str, args)])]
            except KeyError:
                raise self.NVMLError("Not Supported") from None

        def put(gpu: dict[str, int], *values: int) -> None:
            if not self.allowed:
                raise self.NVMLError("Insufficient Permissions")
            if key == "ApplicationsClocks":
                gpu["ApplicationsClock2"], gpu["ApplicationsClock0"] = values
            else:
                (gpu[key],) = values

        return get if kind == "Get" else put


SETTINGS = {
    "PersistenceMode": 1,
    "ApplicationsClock0": 1980,
    "ApplicationsClock2": 2619,
    "PowerManagementLimit": 700_000,
}


def spoil(gpu: dict[str, int]) -> None:
    gpu.update(PersistenceMode=0, ApplicationsClock0=345, PowerManagementLimit=200_000)


def test_settings_are_put_back_and_what_cannot_be_read_is_left_alone() -> None:
    nvml = FakeNvml(dict(SETTINGS), {"PersistenceMode": 1})
    with restored(nvml) as trouble:
        spoil(nvml.gpus[0])
    assert nvml.gpus == (SETTINGS, {"PersistenceMode": 1})
    assert trouble == []
    assert nvml.sessions == 0


def test_settings_that_cannot_be_put_back_are_reported() -> None:
    nvml = FakeNvml(dict(SETTINGS), allowed=False)
    with restored(nvml) as trouble:
        spoil(nvml.gpus[0])
    assert [words.partition(" stays")[0] for words in trouble] == [
        "gpu0: persistence mode",
        "gpu0: application clocks",
        "gpu0: power limit",
    ]
