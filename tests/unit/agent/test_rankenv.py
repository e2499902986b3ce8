from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.agent.rankenv import NOWHERE, Binding, bindings, build_spawn, find_shortage
from slurm_robust.kernel.host import Host
from slurm_robust.model.copies import SHARED, CheckpointId, RestoreSource, Tier
from slurm_robust.model.job import JobDirectory
from slurm_robust.slurm.companion import OF_JOB, OF_NODES
from slurm_robust.util import process
from slurm_robust.worker.environment import WorkerEnvironment
from tests.builders import specs
from tests.forked_python import run_python
from tests.later import skip_without
from tests.unit.nodes.host_files import plant

SPEC = specs.job_spec(run_id="r1", command=("train.py", "--x"), cwd="/home/u", nproc_per_node=2)
LAUNCH = specs.launch(
    generation=3,
    ranks=(2, 3),
    world_size=6,
    slot=1,
    slots=3,
    master_addr="10.0.0.1",
    master_port=29500,
    restore=CheckpointId(generation=2, step=40),
    restart_count=2,
)


def test_workers_get_torchruns_variables() -> None:
    spawn = build_spawn(SPEC, JobDirectory(Path("/job")), LAUNCH, Path("/dev/shm/x"))
    env = spawn.workers[1].env
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "r1",
    }
    assert {name: env[name] for name in expected} == expected


def test_workers_get_this_librarys_variables() -> None:
    spawn = build_spawn(SPEC, JobDirectory(Path("/job")), LAUNCH, Path("/dev/shm/x"))
    worker = spawn.workers[0]
    assert WorkerEnvironment.from_env(worker.env) == WorkerEnvironment(
        job_dir="/job",
        run_id="r1",
        generation=3,
        record="/dev/shm/x/rank-00002.rec",
        places={Tier.STORAGE: "/job/checkpoints"},
        restore=CheckpointId(generation=2, step=40),
    )
    assert worker.record == "/dev/shm/x/rank-00002.rec"
    assert worker.out == "/job/logs/gen-003/rank-00002.out"
    assert (spawn.command, spawn.cwd, spawn.generation) == (SPEC.command, SPEC.cwd, 3)


def test_slurms_variables_of_a_task_are_those_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    worker = build_spawn(SPEC, JobDirectory(Path("/job")), LAUNCH, Path("/dev/shm/x")).workers[1]
    found = {name: value for name, value in worker.env.items() if name.startswith("SLURM_")}
    assert found == {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_GTIDS": "2,3",
        "SLURM_NTASKS": "6",
        "SLURM_NPROCS": "6",
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_NNODES": "3",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_TASKS_PER_NODE": "2(x3)",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    }
    monkeypatch.delenv("SLURM_PROCID")
    outside = build_spawn(SPEC, JobDirectory(Path("/job")), LAUNCH, Path("/dev/shm/x")).workers[1]
    assert not any(name.startswith("SLURM_") for name in outside.env)


def test_workers_on_a_companions_node_see_the_job_that_they_belong_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OF_JOB, "38")
    monkeypatch.setenv(OF_NODES, "n[1-4]")
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    worker = build_spawn(SPEC, JobDirectory(Path("/job")), LAUNCH, Path("/dev/shm/x")).workers[1]
    seen = {**os.environ, **worker.env}
    assert (seen["SLURM_JOB_ID"], seen["SLURM_JOB_NODELIST"]) == ("38", "n[1-4]")


WORLD = """
from accelerate import PartialState
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
assert TorchElasticEnvironment.detect() and SLURMEnvironment.detect()
for found in (TorchElasticEnvironment(), SLURMEnvironment()):
    found.validate_settings(num_devices=2, num_nodes=3)
    print(found.world_size(), found.global_rank(), found.local_rank(), found.node_rank())
from accelerate.utils.environment import get_cpu_distributed_information as cpu
found = cpu()
print(found.world_size, found.rank, found.local_rank, found.local_world_size)
"""


@pytest.mark.slow
def test_lightning_and_accelerate_believe_in_the_right_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node of Slurm, where the agent is the only task."""
    skip_without("lightning")
    skip_without("accelerate")
    agent = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "3", "SLURM_NODEID": "1"}
    agent |= {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": "n[1-4]",
        "SLURM_NNODES": "4",
    }
    monkeypatch.setenv("SLURM_PROCID", "1")
    worker = build_spawn(SPEC, JobDirectory(Path("/job")), LAUNCH, Path("/dev/shm/x")).workers[1]
    done = run_python("-c", WORLD, env={"PATH": os.environ["PATH"], **agent, **worker.env})
    assert done.stdout.splitlines() == ["6 3 1 1", "6 3 1 1", "6 3 1 2"], done.stderr


def test_workers_are_told_where_copies_lie_and_where_their_parts_come_from() -> None:
    sources = (
        RestoreSource(rank=2, tier=Tier.PEER),
        RestoreSource(rank=3, tier=Tier.MEMORY, address="10.0.0.2", port=9),
        RestoreSource(rank=4, tier=Tier.LOCAL),
        RestoreSource(rank=5, tier=Tier.LOCAL, address="10.0.0.2", port=9),
        RestoreSource(rank=6, tier=Tier.STORAGE),
        RestoreSource(rank=SHARED, tier=Tier.MEMORY),
    )
    launch = structs.replace(LAUNCH, ranks=(2, 3, 4, 5, 6, 7), layout="w6", sources=sources)
    spec = structs.replace(SPEC, copies=specs.copy_spec(places={Tier.LOCAL: "/disk"}))
    spawn = build_spawn(spec, JobDirectory(Path("/job")), launch, Path("/dev/shm/x"), "/dev/shm/c")
    workers = [WorkerEnvironment.from_env(worker.env) for worker in spawn.workers]
    assert [w.restore_tier for w in workers if w] == [
        Tier.MEMORY, Tier.PEER, Tier.LOCAL, Tier.PEER, Tier.STORAGE, Tier.STORAGE
    ]  # fmt: skip
    assert {(w.layout, w.copies) for w in workers if w} == {("w6", "/dev/shm/c")}
    places = {Tier.LOCAL: "/disk", Tier.STORAGE: "/job/checkpoints"}
    assert all(w.places == places for w in workers if w)


DEVICES = "/sys/bus/pci/devices"
# A DGX H100: 2 sockets of 56 cores with 2 threads each and 4 GPUs; beside them a BMC's display and a NIC.
SOCKETS = ("0-55,112-167", "56-111,168-223")
FIRST = frozenset((*range(56), *range(112, 168)))
SECOND = frozenset(range(224)) - FIRST
GPUS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
ALL = range(224)


def dgx(
    root: Path, *, nodes: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 1, 1), gpus: tuple[str, ...] = GPUS
) -> Host:
    files = {}
    for bus, node in zip(gpus, nodes, strict=False):
        folder = f"{DEVICES}/0000:{bus}:00.0"
        files[f"{folder}/uevent"] = "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330"
        files[f"{folder}/numa_node"] = str(node)
        files[f"{folder}/local_cpulist"] = SOCKETS[node] if node >= 0 else "0-223"
    files[f"{DEVICES}/0000:03:00.0/uevent"] = "DRIVER=ast\nPCI_CLASS=30000\nPCI_ID=1A03:2000"
    files[f"{DEVICES}/0000:18:00.0/uevent"] = "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021"
    return plant(root, files)


def test_each_rank_runs_beside_its_gpu(tmp_path: Path) -> None:
    found = bindings(8, {}, ALL, dgx(tmp_path))
    assert [binding.node for binding in found] == [0] * 4 + [1] * 4
    assert {frozenset(binding.cpus) for binding in found[:4]} == {FIRST}
    assert {frozenset(binding.cpus) for binding in found[4:]} == {SECOND}


def test_only_cpus_of_the_job_are_taken(tmp_path: Path) -> None:
    found = bindings(8, {}, [*range(8), *range(56, 60)], dgx(tmp_path))
    assert (
        found
        == (Binding(cpus=tuple(range(8)), node=0),) * 4 + (Binding(cpus=tuple(range(56, 60)), node=1),) * 4
    )


def test_no_rank_gets_a_few_cpus_while_others_have_many(tmp_path: Path) -> None:
    host = dgx(tmp_path)
    assert bindings(8, {}, [*range(48), *range(56, 60)], host) == (NOWHERE,) * 8
    assert bindings(8, {}, [*range(48), *range(56, 80)], host) != (NOWHERE,) * 8


def test_the_order_of_visible_gpus_counts(tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}
    assert [found.node for found in bindings(8, environ, ALL, dgx(tmp_path))] == [1] * 4 + [0] * 4


@pytest.mark.parametrize(
    ("count", "visible"),
    [(4, None), (16, None), (1, None), (4, "0,1,2,3"), (8, "GPU-a"), (8, ""), (8, "0,0,1,2,3,4,5,6")],
)
def test_where_ranks_and_gpus_are_not_one_to_one_nothing_is_bound(
    tmp_path: Path, count: int, visible: str | None
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert bindings(count, environ, ALL, dgx(tmp_path)) == (NOWHERE,) * count


def test_where_nothing_is_known_or_to_be_gained_nothing_is_bound(tmp_path: Path) -> None:
    virtual = dgx(tmp_path / "virtual", nodes=(-1,) * 8)
    assert bindings(8, {}, ALL, virtual) == (NOWHERE,) * 8
    host = dgx(tmp_path / "dgx")
    # CPUs of one socket only: there is no choice for its GPUs, and nothing near the others.
    assert bindings(8, {}, range(56), host) == (NOWHERE,) * 8
    assert bindings(1, {}, ALL, Host(tmp_path / "empty")) == (NOWHERE,)


def test_the_memory_of_a_gpu_is_nothing_that_its_rank_takes_first(tmp_path: Path) -> None:
    """GB200: sysfs has the node of the Grace beside a GPU, not that of the GPU's own memory."""
    files = {}
    for bus, node in (("0008", 0), ("0009", 0), ("0018", 1), ("0019", 1)):
        folder = f"{DEVICES}/{bus}:01:00.0"
        files[f"{folder}/uevent"] = "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2941"
        files[f"{folder}/numa_node"] = str(node)
        files[f"{folder}/local_cpulist"] = ("0-71", "72-143")[node]
    found = bindings(4, {}, range(144), plant(tmp_path, files))
    assert [binding.node for binding in found] == [0, 0, 1, 1]
    # A kernel that had it would name no CPUs beside it.
    files |= {f"{DEVICES}/0008:01:00.0/numa_node": "2", f"{DEVICES}/0008:01:00.0/local_cpulist": ""}
    assert bindings(4, {}, range(144), plant(tmp_path / "other", files))[0] == NOWHERE


BOUND = """
import os
from slurm_robust.util import process
cpu = min(os.sched_getaffinity(0))
process.bind((cpu,), {node})
print(sorted(os.sched_getaffinity(0)) == [cpu])
print(next(line.split()[1] for line in open("/proc/self/numa_maps")))
"""


@pytest.mark.parametrize(("node", "policy"), [(0, "prefer"), (-1, "default"), (999, "default")])
def test_a_process_is_bound_and_prefers_the_memory(node: int, policy: str) -> None:
    """A node that is not there changes nothing: a worker is as good without."""
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel without NUMA")
    done = subprocess.run(
        [sys.executable, "-c", BOUND.format(node=node)], capture_output=True, text=True, check=True
    )
    bound, told = done.stdout.split()
    assert bound == "True"
    assert told.startswith(policy)


def test_cpus_that_are_gone_leave_a_process_where_it_is() -> None:
    before = os.sched_getaffinity(0)
    process.bind((8191,), -1)
    assert os.sched_getaffinity(0) == before


def test_nothing_is_missing_outside_slurm() -> None:
    assert find_shortage({}, 2, 64) == []


def test_a_task_that_was_bound_to_one_cpu_is_reported() -> None:
    (note,) = find_shortage({"SLURM_CPUS_ON_NODE": "64"}, 1, 64)
    assert "1 of the 64 CPUs" in note


def test_more_cpus_configured_in_slurm_than_there_are_make_no_note() -> None:
    assert find_shortage({"SLURM_CPUS_ON_NODE": "64"}, 2, 2) == []


def test_missing_gpus_are_reported() -> None:
    environ = {"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1"}
    (note,) = find_shortage(environ, 2, 2)
    assert "2 of the 8 GPUs" in note
    assert find_shortage({**environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, 2, 2) == []
    assert find_shortage({"SLURM_GPUS_ON_NODE": "8"}, 2, 2) == []
    assert "0 of the 8" in find_shortage({"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": ""}, 2, 2)[0]


def test_values_that_are_no_numbers_are_not_guessed_at() -> None:
    assert find_shortage({"SLURM_CPUS_ON_NODE": "many", "SLURM_GPUS_ON_NODE": "tesla:2"}, 1, 2) == []
