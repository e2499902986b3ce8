"""A job comes back with another number of nodes: nothing of what was computed is lost."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps"


def come_back(sandbox: Sandbox, job: ProtectedJob, nodes: int) -> None:
    """The owner requeues the job and asks for so many nodes."""
    run = job.state.restart_count
    sandbox.exec(["scontrol", "requeue", str(job.id)], user=USER, check=True)
    job.wait_queued()
    # Without its upper end, Slurm keeps that of the last update.
    update = ["scontrol", "update", f"JobId={job.id}", f"NumNodes={nodes}-{nodes}"]
    sandbox.exec([*update, "StartTime=now"], user=USER, check=True)
    job.wait(lambda: job.state.restart_count == run + 1, 120, "the next run")


def hashes(job: ProtectedJob) -> tuple[dict[int, str], list[tuple[int, int, str]]]:
    """The state after each step, and where each generation began: step, ranks, state."""
    steps: dict[int, str] = {}
    begun = []
    for log in sorted(job.folder.glob("logs/gen-*/rank-00000.out")):
        for line in log.read_text().splitlines():
            if match := re.fullmatch(r"step (\d+) is (\w+)", line):
                steps.setdefault(int(match[1]), match[2])
            elif match := re.fullmatch(r"begins (\d+) of (\d+) with (\w+)", line):
                begun.append((int(match[1]), int(match[2]), match[3]))
    return steps, begun


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("fsdp", (3, 2, 4)),
        pytest.param("ddp", (3, 2, 4), marks=pytest.mark.soak),
        pytest.param("hsdp", (4, 2), marks=pytest.mark.soak),
    ],
)
def test_another_number_of_ranks_in_each_run(sandbox: Sandbox, kind: str, sizes: tuple[int, ...]) -> None:
    """``scontrol requeue`` leaves the newest steps in memory; they go to storage before they are cut."""
    options = f"--nodes $(cat {kind}.nodes) resized.py --kind {kind} --out OUT --steps 70 --step-s 0.2"
    number = sandbox.home(USER) / f"{kind}.nodes"
    number.write_text(str(sizes[0]))
    number.chmod(0o644)
    job = ProtectedJob(sandbox, options, nodes=sizes[0])
    job.wait_step(10)
    for ranks, step in zip(sizes[1:], (25, 40), strict=False):
        number.write_text(str(ranks))
        come_back(sandbox, job, ranks)
        job.wait_step(step)
    assert job.wait_end() == 0, job.log
    steps, begun = hashes(job)
    assert [ranks for _, ranks, _ in begun] == list(sizes)
    for first, _, state in begun[1:]:
        assert first > 5, "it does not begin anew"
        assert state == steps[first - 1], f"bitwise what was there after step {first - 1}"
    for before, after in pairwise(sizes):
        assert f"{before} ranks took it and {after} go on" in job.log
    launched = job.events(ev.GenerationLaunched)
    assert all(one.restore is not None for one in launched[1:])


def test_a_standby_is_given_up_before_a_slot(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"--spares 1 {TINY} 60 --step-s 0.2", nodes=4)
    job.wait_step(10)
    assert (len(job.state.world.slots), len(job.state.spares)) == (3, 1)
    come_back(sandbox, job, 3)
    job.wait_step(20)
    assert (len(job.state.world.slots), len(job.state.spares)) == (3, 0)
    assert "3 nodes: 3 slots and no standby instead of 1" in job.log
    assert job.wait_end() == 0, job.log
    again = job.events(ev.GenerationLaunched)[-1]
    assert again.restore is not None
    assert again.restore.step >= 9


def test_a_run_of_a_size_that_does_not_fit_says_what_gives_it_one_that_does(sandbox: Sandbox) -> None:
    """Its owner does what the message says."""
    job = ProtectedJob(sandbox, f"--set parallel.tp=2 {TINY} 60 --step-s 0.2", nodes=4)
    job.wait_step(10)

    def follow(requeue: str, update: str) -> None:
        sandbox.exec(requeue.split(), user=USER, check=True)
        job.wait_queued()
        sandbox.exec(update.split(), user=USER, check=True)

    follow(f"scontrol requeue {job.id}", f"scontrol update JobId={job.id} NumNodes=3-3 StartTime=now")
    assert job.wait_left() == f"{int(ExitCode.CONFIG)}:0", job.log
    said = re.search(r"'(scontrol requeue \d+)', and while it is pending '(scontrol update [^']+)'", job.log)
    assert said is not None, job.log
    follow(*said.groups())
    job.wait(lambda: len(job.events(ev.GenerationLaunched)) == 2, 120, "the next launch")
    assert job.wait_end() == 0, job.log
    first, again = job.events(ev.GenerationLaunched)
    assert (len(first.slots), len(again.slots)) == (4, 4)
    assert again.restore is not None
    assert again.restore.step >= 9, "what the refused run found stays"


def test_storage_that_has_lost_its_checkpoints_ends_the_run(sandbox: Sandbox) -> None:
    """Nothing is overwritten; with the folder back the same job goes on."""
    options = f"--set checkpoint.memory=false {TINY} 60 --step-s 0.2"
    job = ProtectedJob(sandbox, options, nodes=2)
    job.wait_step(10)
    sandbox.exec(["scontrol", "requeue", str(job.id)], user=USER, check=True)
    job.wait_queued()
    there, away = job.folder / "checkpoints", job.folder / "moved"
    there.rename(away)
    sandbox.exec(["scontrol", "update", f"JobId={job.id}", "StartTime=now"], user=USER, check=True)
    job.wait(lambda: job.state.ended is not None, 120, "end of the run")
    assert job.wait_left() == f"{int(ExitCode.CHECKPOINTS)}:0", job.log
    assert "was on storage and is not there any more" in job.log
    assert len(job.events(ev.GenerationLaunched)) == 1
    if there.exists():
        there.rmdir()
    away.rename(there)
    sandbox.exec(["scontrol", "requeue", str(job.id)], user=USER, check=True)
    job.wait_queued()
    sandbox.exec(["scontrol", "update", f"JobId={job.id}", "StartTime=now"], user=USER)
    job.wait(lambda: len(job.events(ev.GenerationLaunched)) == 2, 120, "the next launch")
    assert job.wait_end() == 0, job.log
    launched = job.events(ev.GenerationLaunched)[-1]
    assert launched.restore is not None
    assert launched.restore.step >= 9
