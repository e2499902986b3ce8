"""NVIDIA's GPUs as the real ``pynvml`` reads them from the stand-in library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from slurm_robust.kernel.recovery import Recovery
from slurm_robust.nodes.gpus.facts import Gpu, GpuError, GpuProcess, Throttle, process
from slurm_robust.sandbox.errors import SandboxError
from slurm_robust.sandbox.gpus import StandInGpus
from tests.unit.nodes.fake_nvml import Reader, environment, start
from tests.unit.nodes.host_files import plant, view
from tests.unit.nodes.sample_gpus import FAIL, PER_GPU, judge


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
    assert (len(facts.gpus), facts.driver) == (8, "570.172.08")
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
        ({"nvlinks": 4, "error.nvmlDeviceGetNvLinkState": 3}, {"links": None}),
        ({"nvlinks": None}, {"links": None, "link_errors": None, "errors": ()}),
        ({"nvlink_version": 3, "nvlink_replay": 3, "nvlink_recovery": 4}, {"link_errors": 7}),
        ({"nvlink_replay.5": 3, "nvlink_recovery.17": 4, "nvlink_crc.0": 2**33}, {"link_errors": 2**33 + 7}),
        ({"nvlink_version": 5, "nvlink_receive_errors.1": 2, "nvlink_recovery.17": 4}, {"link_errors": 6}),
        ({"nvlink_version": 5, "nvlink_integrity_errors.0": 3, "nvlink.0": 0}, {"link_errors": 3}),
        ({"nvlink_version": 9}, {"link_errors": None}),
        ({"fabric_state": 1}, {"fabric": "not started"}),
        ({"fabric_state": None}, {"fabric": None}),
        ({"fabric_health": 165}, {"fabric_health": ("bandwidth degraded", "route recovery in progress")}),
        ({"fabric_health": 426}, {"fabric_health": ()}),
        ({"fabric_health": 1450}, {"fabric_health": ("configuration: too few NVLinks",)}),
        ({"fabric_cluster": 17, "fabric_clique": 3}, {"clique": "11111111-1111-1111-1111-111111111111/3"}),
        ({"fabric_clique": 3}, {"clique": ""}),
        ({"fabric_status": 999}, {"fabric": "Unknown Error"}),
        ({"pcie_width": 8, "pcie_generation": 4}, {"pcie_width": 8, "pcie_generation": 4}),
        ({"persistence": 0}, {"persistence": False}),
        # Of a Hopper: 40 C below the highest working temperature, and the slowdown 2 C above that.
        ({"temperature_slowdown": None, "temperature_margin": 40}, {"slowdown_c": 77.0}),
        (
            {"temperature_slowdown": None, "temperature_margin": -1, "slowdown_tlimit": 0},
            {"slowdown_c": 34.0},
        ),
        (
            {"temperature_slowdown": None, "temperature_margin": 40, "slowdown_tlimit": None},
            {"slowdown_c": 75.0},
        ),
        (
            {"error.nvmlDeviceGetPcieReplayCounter": 10},
            {"pcie_replays": None, "trouble": None, "errors": ("nvmlDeviceGetPcieReplayCounter: Timeout",)},
        ),
        (
            {"error.nvmlDeviceGetTemperature": 999},
            {"trouble": GpuError.ERRORS, "error": "nvmlDeviceGetTemperature: Unknown Error"},
        ),
        ({"error.nvmlDeviceGetName": 17}, {"trouble": GpuError.ERRORS}),
        ({"error.nvmlDeviceGetMemoryInfo": 999}, {"trouble": GpuError.ERRORS}),
        ({"error.nvmlDeviceGetHandleByIndex_v2": 999}, {"trouble": GpuError.ERRORS}),
        ({"error.nvmlDeviceGetHandleByIndex_v2": 4}, {"trouble": GpuError.OTHER}),
        *(
            ({"error.nvmlDeviceGetTemperature": code}, {"temperature_c": None, "trouble": None, "errors": ()})
            for code in (3, 4, 13, 25, 26)
        ),
    ],
    ids=str,
)
def test_each_value_of_nvml_reaches_its_fact(
    node: Reader, values: dict[str, object], expected: dict[str, object]
) -> None:
    node.gpus.set(2, **values)
    gpu = node.read().gpus[2]
    assert {name: getattr(gpu, name) for name in expected} == expected


def test_a_lost_gpu_is_named_and_the_others_speak(node: Reader) -> None:
    node.gpus.set(3, lost=True)
    gpus = node.read().gpus
    assert (gpus[3].trouble, gpus[3].error) == (GpuError.LOST, "GPU is lost")
    assert [gpu.index for gpu in gpus if gpu.trouble is None] == [0, 1, 2, 4, 5, 6, 7]
    node.gpus.set(3, lost=False)
    assert node.read().gpus[3].trouble is None


def test_a_gpu_that_answers_999_to_everything_never_passes(node: Reader) -> None:
    node.gpus.set(3, **{"error": 999, "error.nvmlDeviceGetHandleByIndex_v2": 0})
    facts = node.read()
    assert (facts.gpus[3].trouble, facts.gpus[3].name, facts.gpus[3].memory_mb) == (GpuError.ERRORS, "", None)
    assert len(facts.gpus[3].errors) > 20
    for name in PER_GPU:
        found = judge(name.removeprefix("gpu."), view(facts, (60.0, facts)))
        outcomes = [one.outcome for one in found if one.subject == "gpu3"]
        assert outcomes == ([FAIL] if name == "gpu.lost" else []), name


def test_a_gpu_that_is_lost_between_two_questions_keeps_its_name(node: Reader) -> None:
    node.gpus.set(3, **{"error.nvmlDeviceGetPersistenceMode": 15})
    gpu = node.read().gpus[3]
    assert (gpu.trouble, gpu.uuid) == (GpuError.LOST, node.gpus.uuid(3))


def test_a_gpu_that_must_be_reset_says_so(node: Reader) -> None:
    node.gpus.set(1, **{"error.nvmlDeviceGetHandleByIndex_v2": 16})
    assert node.read().gpus[1].trouble is GpuError.RESET_REQUIRED


def test_a_gpu_that_vanishes_is_not_listed(node: Reader) -> None:
    node.gpus.set(3, absent=True)
    gpus = node.read().gpus
    assert [gpu.index for gpu in gpus] == list(range(7))
    assert node.gpus.uuid(3) not in {gpu.uuid for gpu in gpus}


def test_a_driver_that_is_newer_than_the_kernel_module_is_a_fault(node: Reader) -> None:
    node.gpus.driver(init=18)
    facts = node.read()
    assert facts.gpus == ()
    assert facts.fault == "the driver does not start: RM has detected an NVML/RM version mismatch."


def test_a_library_without_driver_and_gpus_is_not_a_fault(node: Reader) -> None:
    node.gpus.path.unlink()
    facts = node.read()
    assert (facts.gpus, facts.fault, facts.unreadable) == ((), "", "")


def test_processes_and_memory_without_what_the_driver_reserves(node: Reader) -> None:
    ours = os.getpid()
    node.gpus.set(0, processes=f"{ours}:2048")
    node.gpus.set(1, memory_used=300)
    use = node.use().gpus
    assert use[0].processes[0].pid == ours
    assert (use[0].memory_mb, use[0].processes[0].ending) == (2048, False)
    assert use[0].processes[0].name
    assert (use[1].memory_mb, use[1].processes) == (300, ())
    assert use[2].memory_mb == 0


@pytest.mark.slow
def test_what_has_ended_is_given_time_and_then_named(node: Reader) -> None:
    node.gpus.set(0, processes=f"{2**22 + 1}:2048")
    assert node.use().gpus[0].processes == (GpuProcess(pid=2**22 + 1, ending=True),)


@pytest.mark.parametrize(
    ("state", "flags", "pending", "is_ending"),
    [
        ("S", 0x400040, 0, False),
        ("Z", 0x400044, 0, True),
        # Its pages go back to the system, one by one.
        ("D", 0x400044, 0, True),
        # Held up in the kernel before it could begin with that.
        ("D", 0x400040, 0x100, True),
        ("D", 0x400040, 0x4000, False),
    ],
)
def test_a_process_that_is_killed_is_ending_before_it_is_gone(
    tmp_path: Path, state: str, flags: int, pending: int, is_ending: bool
) -> None:
    files = {
        "/proc/7/stat": f"7 (py) thon) {state} 1 7 7 0 -1 {flags} 100 0",
        "/proc/7/status": f"Name:\tpy) thon\nSigPnd:\t{pending:016x}\nShdPnd:\t0000000000000000",
    }
    found = process(plant(tmp_path, files), 7)
    assert (found.name, found.ending) == ("py) thon", is_ending)
    assert process(plant(tmp_path, {}), 8).ending


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hanging", "call"),
    [("hang", "nvmlDeviceGetHandleByIndex"), ("hang.nvmlDeviceGetTemperature", "nvmlDeviceGetTemperature")],
)
def test_a_driver_that_hangs_is_named_in_bounded_time(tmp_path: Path, hanging: str, call: str) -> None:
    with closing(Reader(tmp_path)) as reader:
        assert not reader.read().stuck_in
        reader.gpus.set(5, **{hanging: True})
        facts = reader.read()
        assert (facts.stuck_in, facts.gpus) == (call, ())
        assert 2.9 < facts.took_s < 60


# Storage from which one module comes late, and a shorter patience with the driver, so that the test is.
SLOW_STORAGE = """
import sys, time
from importlib.abc import MetaPathFinder
from slurm_robust.kernel.host import Host
class Storage(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            time.sleep(0.9)
sys.meta_path.insert(0, Storage())
from slurm_robust.nodes.gpus import reading
reading.PATIENCE_S, reading.STUCK_S = 0.7, 0.4
facts = reading.read_gpus(Host())
print(facts.stuck_in, len(facts.gpus), "{module}" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["pynvml", "slurm_robust.nodes.gpus.nvidia"])
def test_modules_that_come_late_are_no_silence_of_the_driver(tmp_path: Path, module: str) -> None:
    gpus = StandInGpus(tmp_path / "state", "n1", 8)
    gpus.reset()
    with start(SLOW_STORAGE.format(module=module), gpus) as process:
        said, _ = process.communicate(timeout=60)
    assert said == " 8 True\n"


def test_a_bare_process_asks_no_pynvml_where_there_is_no_library() -> None:
    code = (
        "import sys\n"
        "from slurm_robust.nodes.gpus.gather import gather_gpus\n"
        "from slurm_robust.kernel.host import Host\n"
        "from slurm_robust.config.node import NodeConfig\n"
        "assert gather_gpus(Host(), NodeConfig()).gpus == ()\n"
        "print('pynvml' in sys.modules)\n"
    )
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has the library")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


def test_importing_the_checks_imports_no_driver() -> None:
    code = (
        "import sys\nimport slurm_robust.nodes.checks.gpu\n"
        "print(sorted({'pynvml', 'ctypes', 'threading', 'psutil', 'yaml'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


# -- the stand-in itself ---------------------------------------------------------------------------


def test_uuids_are_unique_across_nodes(tmp_path: Path) -> None:
    uuids = {StandInGpus(tmp_path / "s", node, 8).uuid(i) for node in ("n1", "n2") for i in range(8)}
    assert len(uuids) == 16


VERSIONS = """
import ctypes, pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
for name, make, version in (
    ("nvmlDeviceGetMemoryInfo_v2", n.c_nvmlMemory_v2_t, n.nvmlMemory_v2),
    ("nvmlDeviceGetMarginTemperature", n.c_nvmlMarginTemperature_v1_t, n.nvmlMarginTemperature_v1),
    ("nvmlDeviceGetSramEccErrorStatus", n.c_nvmlEccSramErrorStatus_v1_t, n.nvmlEccSramErrorStatus_v1),
    ("nvmlDeviceGetGpuFabricInfoV", n.c_nvmlGpuFabricInfo_v2_t, n.nvmlGpuFabricInfo_v2),
):
    for wrong in (0, version + 8, version + 2**24, version):
        info = make()
        info.version = wrong
        print(getattr(n.nvmlLib, name)(handle, ctypes.byref(info)))
"""


def test_a_structure_of_another_version_is_refused_as_by_the_real_library(tmp_path: Path) -> None:
    gpus = StandInGpus(tmp_path / "state", "n1", 1)
    gpus.reset()
    done = subprocess.run(
        [sys.executable, "-c", VERSIONS], env=environment(gpus), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["25", "25", "25", "0"] * 4


def test_a_gpu_that_does_not_exist_cannot_be_broken(tmp_path: Path) -> None:
    gpus = StandInGpus(tmp_path / "state", "n1", 2)
    with pytest.raises(SandboxError, match=r"no GPU 2 on n1: it has 2"):
        gpus.set(2, lost=True)


def test_a_hang_ends_when_the_file_says_so(tmp_path: Path) -> None:
    gpus = StandInGpus(tmp_path / "state", "n1", 1)
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


def of(pid: int, name: str, parent: int, uid: int) -> dict[str, str]:
    """What /proc says of a process of a user."""
    return {
        f"/proc/{pid}/stat": f"{pid} ({name}) S {parent} 1 1 0 -1 4194560 0",
        f"/proc/{pid}/comm": name,
        f"/proc/{pid}/status": f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\nSigPnd:\t0\nShdPnd:\t0",
    }


def test_a_server_of_mps_is_the_daemons_and_a_program_its_users_by_any_name(tmp_path: Path) -> None:
    server, control = "nvidia-cuda-mps", "nvidia-cuda-mps"
    tree = {
        **of(1, "systemd", 0, 0),
        **of(10, control, 1, 0),
        **of(11, server, 10, 1234),
        **of(20, server, 1, 1234),
        **of(30, control, 1, 1234),
        **of(31, server, 30, 1234),
        **of(40, "dcgm", 10, 1234),
    }
    host = plant(tmp_path, tree)
    owners = {pid: process(host, pid).uid for pid in (10, 11, 20, 31, 40)}
    assert owners == {10: 0, 11: 0, 20: 1234, 31: 1234, 40: 1234}
    assert process(host, 99).uid is None
