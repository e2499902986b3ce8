"""NVIDIA's GPUs as the real ``pynvml`` reads them from the stand-in library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_robust.health.gpus.facts import Gpu, GpuProcess, Recovery, Throttle, Trouble
from slurm_robust.sandbox.errors import SandboxError
from slurm_robust.sandbox.gpus import Gpus
from tests.unit.health.nvml import Reader, environment


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("gpus"))
    yield reader
    reader.close()


@pytest.fixture
def node(shared: Reader) -> Reader:
    shared.gpus.reset()
    return shared


def test_a_healthy_node_tells_everything(node: Reader) -> None:
    facts = node.read()
    assert (len(facts.gpus), facts.driver, facts.library) == (8, "570.172.08", "12.570.172.08")
    assert not facts.fault
    assert not facts.stuck_in
    last = facts.gpus[7]
    assert last.uuid == node.gpus.uuid(7)
    assert last.bus == "0000:80:00.0"
    unknown = {name for name in Gpu.__struct_fields__ if getattr(last, name) is None}
    # An H200 remaps rows and retires no pages; the first says that there is no trouble.
    assert unknown == {"trouble", "retired_pages", "retired_pending"}
    assert last.links == (True,) * 18
    assert (last.throttle, last.idle, last.recovery) == ((), True, Recovery.NONE)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"temperature": 91}, {"temperature_c": 91.0}),
        ({"memory_temperature": 99}, {"memory_temperature_c": 99.0}),
        ({"memory_temperature": None}, {"memory_temperature_c": None}),
        ({"throttle": 0x48}, {"throttle": (Throttle.HW_SLOWDOWN, Throttle.HW_THERMAL), "idle": False}),
        ({"throttle": None}, {"throttle": None, "idle": None}),
        ({"ecc_volatile_uncorrected": 2}, {"uncorrected": 2, "aggregate_uncorrected": 0}),
        ({"ecc_aggregate_corrected": 2**40}, {"aggregate_corrected": 2**40}),
        ({"ecc": 0}, {"ecc_enabled": False, "uncorrected": None}),
        ({"ecc": None}, {"ecc_enabled": None}),
        ({"sram_threshold_exceeded": True}, {"sram_threshold_exceeded": True}),
        ({"remap_pending": True, "remapped_uncorrected": 3}, {"remap_pending": True, "remap_failed": False}),
        ({"remapped_corrected": None}, {"remap_pending": None, "remap_failed": None}),
        ({"retired_uncorrected": 3, "retired_pending": True}, {"retired_pages": 3, "retired_pending": True}),
        ({"recovery_action": 2}, {"recovery": Recovery.REBOOT}),
        ({"recovery_action": 99}, {"recovery": Recovery.UNKNOWN}),
        ({"recovery_action": None}, {"recovery": None}),
        ({"nvlink.5": 0}, {"links": (*(True,) * 5, False, *(True,) * 12)}),
        (
            {"nvlinks": 4, "error.nvmlDeviceGetNvLinkState": 3},
            {"links": None},
        ),
        ({"nvlinks": None}, {"links": None}),
        ({"nvlink_replay": 3, "nvlink_recovery": 4}, {"link_errors": 7}),
        ({"fabric_state": 1}, {"fabric": "not started"}),
        ({"fabric_state": None}, {"fabric": None}),
        ({"fabric_status": 999}, {"fabric": "Unknown Error"}),
        ({"pcie_width": 8, "pcie_generation": 4}, {"pcie_width": 8, "pcie_generation": 4}),
        ({"persistence": 0}, {"persistence": False}),
        ({"temperature_slowdown": None, "temperature_margin": 40}, {"slowdown_c": 75.0}),
        ({"error.nvmlDeviceGetTemperature": 999}, {"temperature_c": None}),
    ],
    ids=str,
)
def test_each_value_reaches_its_fact(
    node: Reader, values: dict[str, object], expected: dict[str, object]
) -> None:
    node.gpus.set(2, **values)
    gpu = node.read().gpus[2]
    assert {name: getattr(gpu, name) for name in expected} == expected


def test_a_lost_gpu_is_named_and_the_others_speak(node: Reader) -> None:
    node.gpus.set(3, lost=True)
    gpus = node.read().gpus
    assert (gpus[3].trouble, gpus[3].error) == (Trouble.LOST, "GPU is lost")
    assert [gpu.index for gpu in gpus if gpu.trouble is None] == [0, 1, 2, 4, 5, 6, 7]
    node.gpus.set(3, lost=False)
    assert node.read().gpus[3].trouble is None


def test_a_gpu_that_is_lost_between_two_questions_keeps_its_name(node: Reader) -> None:
    node.gpus.set(3, **{"error.nvmlDeviceGetPersistenceMode": 15})
    gpu = node.read().gpus[3]
    assert (gpu.trouble, gpu.uuid) == (Trouble.LOST, node.gpus.uuid(3))


def test_a_gpu_that_must_be_reset_says_so(node: Reader) -> None:
    node.gpus.set(1, **{"error.nvmlDeviceGetHandleByIndex_v2": 16})
    assert node.read().gpus[1].trouble is Trouble.RESET_REQUIRED


def test_one_that_vanishes_is_not_listed(node: Reader) -> None:
    node.gpus.set(3, absent=True)
    gpus = node.read().gpus
    assert [gpu.index for gpu in gpus] == list(range(7))
    assert node.gpus.uuid(3) not in {gpu.uuid for gpu in gpus}


def test_a_driver_that_is_newer_than_the_kernel_module_is_a_fault(node: Reader) -> None:
    node.gpus.driver(init=18)
    facts = node.read()
    assert facts.gpus == ()
    assert facts.fault == "the driver does not start: RM has detected an NVML/RM version mismatch."


def test_a_library_without_driver_and_gpus_is_no_fault(node: Reader) -> None:
    node.gpus.path.unlink()
    facts = node.read()
    assert (facts.gpus, facts.fault, facts.unreadable) == ((), "", "")


def test_processes_and_memory_without_what_the_driver_reserves(node: Reader) -> None:
    ours = os.getpid()
    node.gpus.set(0, processes=f"{ours}:2048")
    node.gpus.set(1, memory_used=300)
    use = node.use().gpus
    assert use[0].processes[0].pid == ours
    assert (use[0].memory_mb, use[0].processes[0].memory_mb, use[0].processes[0].ending) == (
        2048,
        2048,
        False,
    )
    assert use[0].processes[0].name
    assert (use[1].memory_mb, use[1].processes) == (300, ())
    assert use[2].memory_mb == 0


@pytest.mark.slow
def test_what_has_ended_is_given_time_and_then_named(node: Reader) -> None:
    node.gpus.set(0, processes=f"{2**22 + 1}:2048")
    assert node.use().gpus[0].processes == (GpuProcess(pid=2**22 + 1, memory_mb=2048, ending=True),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hanging", "call"),
    [("hang", "nvmlDeviceGetHandleByIndex"), ("hang.nvmlDeviceGetTemperature", "nvmlDeviceGetTemperature")],
)
def test_a_driver_that_hangs_is_named_in_bounded_time(tmp_path: Path, hanging: str, call: str) -> None:
    reader = Reader(tmp_path)
    try:
        assert not reader.read().stuck_in
        reader.gpus.set(5, **{hanging: True})
        facts = reader.read()
        assert (facts.stuck_in, facts.gpus) == (call, ())
        assert 2.9 < facts.took_s < 5
    finally:
        reader.close()


def test_a_bare_process_asks_no_pynvml_where_there_is_no_library() -> None:
    code = (
        "import sys\n"
        "from slurm_robust.health.gpus.gather import gather_gpus\n"
        "from slurm_robust.health.host import Host\n"
        "from slurm_robust.config.node import NodeConfig\n"
        "assert gather_gpus(Host(), NodeConfig()).gpus == ()\n"
        "print('pynvml' in sys.modules)\n"
    )
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has the library")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "False\n"


def test_importing_the_checks_imports_no_driver() -> None:
    code = (
        "import sys\nimport slurm_robust.health.checks.gpu\n"
        "print(sorted({'pynvml', 'ctypes', 'threading', 'psutil', 'yaml'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[]\n"


# -- the stand-in itself ---------------------------------------------------------------------------


def test_uuids_are_unique_across_nodes(tmp_path: Path) -> None:
    uuids = {Gpus(tmp_path / "s", node, 8).uuid(i) for node in ("n1", "n2") for i in range(8)}
    assert len(uuids) == 16


def test_a_gpu_that_does_not_exist_cannot_be_broken(tmp_path: Path) -> None:
    gpus = Gpus(tmp_path / "state", "n1", 2)
    with pytest.raises(SandboxError, match=r"no GPU 2 on n1: it has 2"):
        gpus.set(2, lost=True)


def test_a_hang_ends_when_the_file_says_so(tmp_path: Path) -> None:
    gpus = Gpus(tmp_path / "state", "n1", 1)
    gpus.reset()
    gpus.driver(hang=True)
    code = "import pynvml; print('begun', flush=True); pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(gpus), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        gpus.driver(hang=False)
        assert process.stdout.readline() == "1\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_facts_survive_the_way_through_a_file(node: Reader) -> None:
    facts = node.read()
    assert msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts
