from __future__ import annotations

from pathlib import Path

from msgspec import structs

from slurm_robust.agent.copies.service import CopyPlaces
from slurm_robust.agent.rankenv import build_spawn, prepare_inherited
from slurm_robust.model.copies import SHARED, Source, Tier
from slurm_robust.model.job import CommandKind, JobDirectory, JobSpec
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
    restore="gen-0002/step-00000040",
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
        checkpoint_dir="/job/checkpoints",
        restore="gen-0002/step-00000040",
    )
    assert worker.record == "/dev/shm/x/rank-00002.rec"
    assert worker.out == "/job/logs/gen-003/rank-00002.out"
    assert (spawn.command, spawn.cwd, spawn.generation) == (SPEC.command, SPEC.cwd, 3)


def test_what_a_torchrun_around_us_left_is_removed_and_the_users_choice_kept() -> None:
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    prepare_inherited(environ)
    assert environ == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}


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
    places = CopyPlaces(memory="/dev/shm/c", local="/disk/c")
    spawn = build_spawn(SPEC, JobDirectory(Path("/job")), launch, Path("/dev/shm/x"), places)
    workers = [WorkerEnvironment.from_env(worker.env) for worker in spawn.workers]
    assert [w.restore_tier for w in workers if w] == ["memory", "peer", "local", "peer", "", ""]
    assert {(w.layout, w.copies, w.local) for w in workers if w} == {("w6", "/dev/shm/c", "/disk/c")}
    without = build_spawn(SPEC, JobDirectory(Path("/job")), launch, Path("/dev/shm/x"))
    assert {worker.env["SROBUST_RESTORE_TIER"] for worker in without.workers} == {""}
