from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.agent.rankenv import build_spawn, prepare_inherited, torch_release
from slurm_robust.model.copies import SHARED, CheckpointId, Source, Tier
from slurm_robust.model.job import CommandKind, CopySpec, JobDirectory, JobSpec
from slurm_robust.wire.messages import Launch
from slurm_robust.worker.environment import WorkerEnvironment

SPEC = JobSpec(
    run_id="r1",
    job_id=7,
    kind=CommandKind.SCRIPT,
    command=("train.py", "--x"),
    cwd="/home/u",
    nproc_per_node=2,
)
LAUNCH = Launch(
    epoch=1,
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


RECORDER = {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "2000"}


@pytest.mark.parametrize(
    ("given", "torch", "expected"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "SLURM_TASK_PID": "7"}, (2, 13), RECORDER),
        ({}, (2, 8), {**RECORDER, "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
        ({}, None, {**RECORDER, "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
    ],
)
def test_what_workers_inherit(
    given: dict[str, str], torch: tuple[int, ...] | None, expected: dict[str, str]
) -> None:
    prepare_inherited(given, torch)
    assert given == expected


@pytest.mark.parametrize(
    "own",
    [
        {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_FR_BUFFER_SIZE": "0"},
        {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "50"},
        {**RECORDER, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
    ],
)
def test_what_the_user_has_set_stays(own: dict[str, str]) -> None:
    environ = dict(own)
    prepare_inherited(environ)
    assert environ == own


def test_the_release_of_torch_is_known_without_importing_it() -> None:
    release = torch_release()
    assert release is not None
    assert release >= (2, 4)


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
    pytest.importorskip("lightning")
    pytest.importorskip("accelerate")
    agent = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "3", "SLURM_NODEID": "1"}
    agent |= {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": "n[1-4]",
        "SLURM_NNODES": "4",
    }
    monkeypatch.setenv("SLURM_PROCID", "1")
    worker = build_spawn(SPEC, JobDirectory(Path("/job")), LAUNCH, Path("/dev/shm/x")).workers[1]
    env = {"PATH": os.environ["PATH"], **agent, **worker.env}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORLD], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["6 3 1 1", "6 3 1 1", "6 3 1 2"], done.stderr


def test_workers_are_told_where_copies_lie_and_where_their_parts_come_from() -> None:
    sources = (
        Source(rank=2, tier=Tier.PEER),
        Source(rank=3, tier=Tier.MEMORY, address="10.0.0.2", port=9),
        Source(rank=4, tier=Tier.LOCAL),
        Source(rank=5, tier=Tier.LOCAL, address="10.0.0.2", port=9),
        Source(rank=6, tier=Tier.STORAGE),
        Source(rank=SHARED, tier=Tier.MEMORY),
    )
    launch = structs.replace(LAUNCH, ranks=(2, 3, 4, 5, 6, 7), layout="w6", sources=sources)
    spec = structs.replace(SPEC, copies=CopySpec(places={Tier.LOCAL: "/disk"}))
    spawn = build_spawn(spec, JobDirectory(Path("/job")), launch, Path("/dev/shm/x"), "/dev/shm/c")
    workers = [WorkerEnvironment.from_env(worker.env) for worker in spawn.workers]
    assert [w.restore_tier for w in workers if w] == [
        Tier.MEMORY, Tier.PEER, Tier.LOCAL, Tier.PEER, Tier.STORAGE, Tier.STORAGE
    ]  # fmt: skip
    assert {(w.layout, w.copies) for w in workers if w} == {("w6", "/dev/shm/c")}
    places = {Tier.LOCAL: "/disk", Tier.STORAGE: "/job/checkpoints"}
    assert all(w.places == places for w in workers if w)
