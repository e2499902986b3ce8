"""Faults around the copies of checkpoints: what is lost, and that the end is bitwise the one without."""

from __future__ import annotations

import os
import random
import re
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.checkpoint.image import MAGIC, PAGE
from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps"
# Enough for spares and for a group of nodes that goes at once.
WIDE = {"nodes": 6, "slurmd_timeout_s": 20, "cred_expire_s": 5}
# Restarts that are our own doing must not end the job.
PATIENT = "--set limits.per_hour=1000 --set limits.total=1000"
STEPS = 60
SIXTY = f"{TINY} {STEPS} --step-s 0"


@pytest.fixture
def wide(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(**WIDE)


def newest_launch(job: ProtectedJob) -> ev.GenerationLaunched:
    return job.events(ev.GenerationLaunched)[-1]


def done_by_all(job: ProtectedJob, generation: int) -> int:
    """Newest step that every rank of the generation has printed."""
    logs = job.folder.glob(f"logs/gen-{generation:03d}/rank-*.out")
    steps = [[int(s) for s in re.findall(r"^step (\d+)", log.read_text(), re.M)] for log in logs]
    return min(max(each, default=-1) for each in steps)


def repeated(job: ProtectedJob) -> int:
    """Steps that the newest generation did again."""
    launch = newest_launch(job)
    return done_by_all(job, launch.generation - 1) - launch.restore_step


def wait_stalled(job: ProtectedJob) -> int:
    """Wait until no step of the first generation was done for four steps' time; the newest one."""
    seen, since = -1, 0.0

    def stalled() -> bool:
        nonlocal seen, since
        newest, now = done_by_all(job, 1), time.monotonic()
        if newest != seen:
            seen, since = newest, now
        return now - since > 2.0

    wait_for(stalled, 30, "training stands still")
    return seen


def images(sandbox: Sandbox, node: str, pattern: str) -> list[Path]:
    """Files of copies in the memory of ``node``, as this machine sees them."""
    memory = Path(f"/proc/{sandbox.node_pid(node)}/root/dev/shm")
    return sorted(memory.glob(f"srobust-*-copies/{pattern}"))


def is_whole(image: Path) -> bool:
    """As a reader sees it that need not own it: the first bytes come last."""
    with image.open("rb", buffering=0) as file:
        return file.read(len(MAGIC)) == MAGIC


def flip(path: Path) -> None:
    """Change one bit in the middle of an image's tensors, or of another file."""
    with path.open("r+b") as file:
        head = file.read(PAGE)
        middle = path.stat().st_size // 2
        if head.startswith(MAGIC):
            begin, length = struct.unpack_from("<QQ", head, 24)  # as docs/storage-format.md#images has them
            middle = begin + length // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 1]))


def peer_holder(job: ProtectedJob, sandbox: Sandbox, rank: int) -> str:
    """The node that holds the peer copy of ``rank``, once one is there."""

    def holders() -> list[str]:
        return [n for n in job.state.world.slots if images(sandbox, n, f"peer-{rank:05d}.*")]

    wait_for(holders, 30, f"peer copy of rank {rank}")
    return holders()[0]


@pytest.mark.parametrize("kills", [10, pytest.param(30, marks=pytest.mark.soak)])
def test_all_workers_killed_at_random_moments(sandbox: Sandbox, kills: int) -> None:
    # Steps enough that the training does not end while a test on a busy machine looks for its ranks.
    words = f"{TINY} {25 * kills} --width 20000 --step-s"
    expected = undisturbed(2, f"{words} 0")
    job = ProtectedJob(sandbox, f"{PATIENT} {words} 0.02", nodes=2)
    job.wait_step(2)
    dice = random.Random(20)
    for kill in range(1, kills + 1):
        until = job.step() + dice.randrange(1, 8)
        job.wait(lambda until=until: job.step() >= until, 60, f"step {until}")  # type: ignore[misc]
        for pid in [sandbox.fault.rank_pid(job.id, rank) for rank in (0, 1)]:
            os.kill(pid, signal.SIGKILL)  # both before the first death is noticed
        job.wait_recovered(kill)
        assert repeated(job) <= 1, (kill, job.log)
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    # Not one of them needed storage.
    restored = job.events(ev.GenerationLaunched)[1:]
    assert len(restored) >= kills
    assert all(set(launch.tiers) == {"memory"} for launch in restored)


def test_a_rank_killed_in_the_middle_of_its_copy(sandbox: Sandbox) -> None:
    words = f"{TINY} 30 --step-s 0.3 --width 300000"
    expected = undisturbed(2, f"{TINY} 30 --step-s 0 --width 300000")
    job = ProtectedJob(sandbox, words, nodes=2)
    job.wait_step(3)
    node = job.state.world.slots[1]

    def torn() -> bool:
        found = images(sandbox, node, "own-00001.*")
        return any(p.stat().st_size and not is_whole(p) for p in found)

    pid = sandbox.fault.rank_pid(job.id, 1)
    wait_for(torn, 60, "a copy in progress")
    os.kill(pid, signal.SIGKILL)  # at once: looking for the rank first would take longer than its copy
    job.wait_recovered(1)
    assert repeated(job) <= 1
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


def test_the_peer_of_a_dead_node_has_its_state(wide: Sandbox) -> None:
    expected = undisturbed(3, SIXTY)
    job = ProtectedJob(wide, f"--spares 1 {TINY} {STEPS} --step-s 0.4", nodes=4)
    job.wait_step(6)
    dead = job.state.world.slots[1]
    wide.fault.power_cut(dead)
    job.wait_recovered(1)
    launch = newest_launch(job)
    assert dead not in launch.slots
    assert launch.tiers == {"memory": 2, "peer": 1}
    assert repeated(job) <= 1
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


def test_when_source_and_peer_are_gone_storage_has_it(wide: Sandbox) -> None:
    expected = undisturbed(4, SIXTY)
    options = f"--spares 2 --set checkpoint.every_steps=4 {TINY} {STEPS} --step-s 0.6"
    job = ProtectedJob(wide, options, nodes=6)
    job.wait(lambda: job.events(ev.StorageWritten), 120, "a checkpoint on storage")
    rank = next(r for r in (3, 2, 1) if peer_holder(job, wide, r) != job.state.world.slots[0])
    both = (job.state.world.slots[rank], peer_holder(job, wide, rank))
    for node in both:
        wide.fault.power_cut(node)
    job.wait_recovered(1)
    launch = newest_launch(job)
    assert not set(both) & set(launch.slots)
    assert set(launch.tiers) == {"storage"}
    assert job.wait_end() == 0, job.log
    assert job.out.read_text() == expected


@pytest.mark.soak
def test_a_whole_pipeline_group_can_go(wide: Sandbox) -> None:
    expected = undisturbed(4, SIXTY)
    job = ProtectedJob(wide, f"--spares 2 --set parallel.pp=2 {TINY} {STEPS} --step-s 0.4", nodes=6)
    job.wait_step(6)
    group = (
        job.state.world.slots[1],
        job.state.world.slots[3],
    )  # dp before pp: ranks 1 and 3 are one pipeline
    for node in group:
        wide.fault.power_cut(node)
    job.wait_recovered(1)
    launch = newest_launch(job)
    assert not set(group) & set(launch.slots)
    assert launch.tiers == {"memory": 2, "peer": 2}
    assert repeated(job) <= 1
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


def test_a_flipped_byte_in_memory_is_found_and_another_copy_used(sandbox: Sandbox) -> None:
    expected = undisturbed(2, SIXTY)
    job = ProtectedJob(sandbox, f"{PATIENT} {TINY} {STEPS} --step-s 0.2", nodes=2)
    job.wait_step(6)
    for rank in (0, 1):
        sandbox.fault.stop_rank(job.id, rank)  # nothing is written any more
    damaged = images(sandbox, job.state.world.slots[1], "own-00001.*")
    assert damaged
    for path in damaged:
        flip(path)
    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    assert "checksum" in job.log
    assert newest_launch(job).restore_step >= 4  # from the peer, not from the beginning


def test_flipped_bytes_in_a_peer_copy_lead_to_storage(wide: Sandbox) -> None:
    expected = undisturbed(3, SIXTY)
    options = f"{PATIENT} --spares 1 --set checkpoint.every_steps=4 {TINY} {STEPS} --step-s 0.6"
    job = ProtectedJob(wide, options, nodes=4)
    job.wait(lambda: job.events(ev.StorageWritten), 120, "a checkpoint on storage")
    holder = peer_holder(job, wide, 2)
    for rank in range(3):
        wide.fault.stop_rank(job.id, rank)
    for path in images(wide, holder, "peer-00002.*"):
        flip(path)
    wide.fault.power_cut(job.state.world.slots[2])
    job.wait_recovered(1, timeout=180)
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


def test_a_damaged_file_on_storage_is_passed_over(sandbox: Sandbox) -> None:
    expected = undisturbed(2, SIXTY)
    job = ProtectedJob(
        sandbox, f"{PATIENT} --set checkpoint.memory=false {TINY} {STEPS} --step-s 0.3", nodes=2
    )
    job.wait_step(6)
    for rank in (0, 1):
        sandbox.fault.stop_rank(job.id, rank)
    newest = max((job.folder / "checkpoints").glob("gen-*/step-*"), key=lambda path: path.name)
    for path in newest.glob("__*.distcp"):
        flip(path)
    sandbox.fault.kill_rank(job.id, 0)
    job.wait_recovered(1)
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


@pytest.mark.soak
def test_an_agent_killed_while_copies_are_under_way(wide: Sandbox) -> None:
    expected = undisturbed(3, f"{TINY} 30 --step-s 0 --width 300000")
    job = ProtectedJob(wide, f"--spares 1 {TINY} 30 --step-s 0.4 --width 300000", nodes=4)
    job.wait_step(4)
    node = job.state.world.slots[1]
    wide.exec(["pkill", "-9", "-f", "slurm_robust.agent --job-dir"], node=node, user="root")
    job.wait_recovered(1)
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


@pytest.mark.soak
def test_a_network_cut_during_copies_heals(wide: Sandbox) -> None:
    expected = undisturbed(3, f"{TINY} 40 --step-s 0 --width 300000")
    options = f"--spares 1 --set timings.node_dead_s=15 {TINY} 40 --step-s 0.4 --width 300000"
    job = ProtectedJob(wide, options, nodes=4)
    job.wait_step(4)
    node = job.state.world.slots[1]
    wide.fault.cut_network(node)
    seen = wait_stalled(job)
    wide.fault.heal_network(node)
    job.wait_step(seen + 4)
    assert job.events(ev.IncidentOpened) == []
    wide.fault.power_cut(node)
    job.wait_recovered(1)
    assert set(newest_launch(job).tiers) == {"memory", "peer"}
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


@pytest.mark.soak
def test_a_requeue_takes_the_newest_step_to_storage_and_finds_it_there(sandbox: Sandbox) -> None:
    expected = undisturbed(3, SIXTY)
    job = ProtectedJob(sandbox, f"{TINY} {STEPS} --step-s 0.4", nodes=3, sbatch=("--nodelist=n1,n2,n3",))
    job.wait_step(6)
    sandbox.fault.power_cut("n2")
    job.wait(lambda: job.state.restart_count == 1, 120, "next run of the job")
    job.wait(lambda: newest_launch(job).generation == 2, 60, "launch")
    launch = newest_launch(job)
    assert set(launch.slots) == {"n1", "n3", "n4"}
    assert launch.tiers == {"storage": 3}
    assert repeated(job) <= 1
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


def test_a_node_without_memory_or_disk_for_copies(wide: Sandbox) -> None:
    expected = undisturbed(3, SIXTY)
    options = f"--spares 1 --set checkpoint.local_directory=/tmp --set checkpoint.every_steps=4 {TINY}"
    # Filling disks takes seconds on a slow machine, and the training must last longer.
    job = ProtectedJob(wide, f"{options} {STEPS} --step-s 1.2", nodes=4)
    job.wait_step(3)
    node = job.state.world.slots[1]
    wide.fault.fill_disk(node, "/tmp")
    wide.fault.fill_disk(node, "/dev/shm")
    job.wait_step(20)
    assert job.events(ev.IncidentOpened) == []  # training does not care
    wide.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    assert repeated(job) <= 2  # the memory that its snapshots had stays theirs
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
