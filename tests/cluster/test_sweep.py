"""Copies in a node's memory outlive a requeue and nothing else: the hooks as they stand, on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_robust.sandbox import Sandbox
from tests.cluster.installed_hooks import installed
from tests.cluster.protected_job import USER
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

# Nothing else than the sweep is looked at here: how the machine is must not matter.
CONFIG = """
checks: {"*": {enabled: false}}
paths: {state: /run/srobust-state, log: /run/srobust-events.jsonl, syslog: false}
"""
# Leaves on each of its nodes what agents leave, and waits to be ended in some way.
JOB = """#!/bin/bash
#SBATCH --requeue --open-mode=append --time=10
srun --overlap bash -c '
    folder=/dev/shm/srobust-$(id -u)-$SLURM_JOB_ID-ab12cd34-copies
    [ -d "$folder" ] && echo "found $SLURM_RESTART_COUNT on $SLURMD_NODENAME"
    mkdir -p -m 700 "$folder" && echo data > "$folder/own-00000.0"
    echo -n "${SLURM_RESTART_COUNT:-0}" > "$folder/run"
    echo "ready ${SLURM_RESTART_COUNT:-0} on $SLURMD_NODENAME"'
until [ -e end-$SLURM_JOB_ID ]; do sleep 0.2; done
"""


class Jobs:
    """Jobs of one user, and what they left on the nodes."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.home = sandbox.home(USER)
        (self.home / "sweep.sbatch").write_text(JOB)

    def submit(self, nodes: str) -> int:
        command = ["sbatch", "--parsable", f"--nodelist={nodes}", "--output=sweep-%j.log", "sweep.sbatch"]
        done = self.sandbox.exec(command, user=USER, timeout_s=30.0)
        return int(done.stdout.strip().partition(";")[0])

    def slurm(self, *command: str) -> str:
        return self.sandbox.exec(list(command), user="root", timeout_s=30.0).stdout.strip()

    def state(self, job: int) -> str:
        return self.slurm("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T")

    def log(self, job: int) -> str:
        path = self.home / f"sweep-{job}.log"
        return path.read_text() if path.exists() else ""

    def wait_ready(self, job: int, run: int, node: str) -> None:
        wait_for(lambda: f"ready {run} on {node}" in self.log(job), 60, f"job {job}: {self.log(job)}")

    def copies(self, job: int, node: str) -> bool:
        command = ["find", "/dev/shm", "-maxdepth", "1", "-name", f"srobust-*-{job}-*-copies"]
        return bool(self.sandbox.exec(command, node=node, user="root", timeout_s=30.0).stdout)

    def wait_state(self, job: int, state: str) -> None:
        wait_for(lambda: self.state(job) == state, 60, f"job {job} {state}")


@pytest.fixture(scope="module")
def hooks() -> Iterator[Path]:
    with installed(CONFIG) as folder:
        yield folder


@pytest.fixture
def jobs(sandboxes: Callable[..., Sandbox], hooks: Path) -> Jobs:
    return Jobs(
        sandboxes(
            nodes=2,
            slurmd_timeout_s=20,
            cred_expire_s=5,
            slurm_conf_lines=(
                f"Prolog={hooks}/prolog.sh",
                f"Epilog={hooks}/epilog.sh",
                "PrologFlags=Alloc",
            ),
        )
    )


def test_copies_go_with_a_job_that_ends_or_is_cancelled(jobs: Jobs) -> None:
    ended, cancelled = jobs.submit("n1"), jobs.submit("n2")
    jobs.wait_ready(ended, 0, "n1")
    jobs.wait_ready(cancelled, 0, "n2")
    assert jobs.copies(ended, "n1")
    (jobs.home / f"end-{ended}").touch()
    jobs.slurm("scancel", str(cancelled))
    wait_for(lambda: not jobs.copies(ended, "n1"), 60)
    wait_for(lambda: not jobs.copies(cancelled, "n2"), 60)


def test_copies_wait_for_a_requeued_job_and_go_when_it_does_not_come(jobs: Jobs) -> None:
    job = jobs.submit("n1")
    jobs.wait_ready(job, 0, "n1")
    jobs.slurm("scontrol", "requeuehold", str(job))
    jobs.wait_state(job, "PENDING")
    assert jobs.copies(job, "n1")
    beside = jobs.submit("n1")  # another job meanwhile: its prolog asks, and keeps them
    jobs.wait_ready(beside, 0, "n1")
    assert jobs.copies(job, "n1")
    jobs.slurm("scancel", str(beside))
    jobs.wait_state(beside, "CANCELLED")
    jobs.slurm("scontrol", "release", str(job))
    jobs.wait_ready(job, 1, "n1")
    assert "found 1 on n1" in jobs.log(job)
    jobs.slurm("scontrol", "requeuehold", str(job))
    jobs.wait_state(job, "PENDING")
    jobs.slurm("scancel", str(job))
    jobs.wait_state(job, "CANCELLED")
    assert jobs.copies(job, "n1")  # no epilog where the job was not running
    after = jobs.submit("n1")
    jobs.wait_ready(after, 0, "n1")
    assert not jobs.copies(job, "n1")
    jobs.slurm("scancel", str(after))


def test_copies_on_a_node_that_the_job_has_lost_go_with_the_next_job_there(jobs: Jobs) -> None:
    job = jobs.submit("n1")
    jobs.wait_ready(job, 0, "n1")
    jobs.slurm("scontrol", "requeuehold", str(job))
    jobs.wait_state(job, "PENDING")
    jobs.slurm("scontrol", "update", f"jobid={job}", "ReqNodeList=n2")
    jobs.slurm("scontrol", "release", str(job))
    jobs.wait_ready(job, 1, "n2")
    assert jobs.copies(job, "n1")
    after = jobs.submit("n1")
    jobs.wait_ready(after, 0, "n1")
    assert not jobs.copies(job, "n1")
    assert jobs.copies(job, "n2")
    jobs.slurm("scancel", str(job), str(after))
