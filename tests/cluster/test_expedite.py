"""``--requeue=expedite``, from Slurm 25.11 on: the next run begins at once, and no end leaves a job held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.boot import EXPEDITES, slurm_version
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.releases, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps"
EXPEDITE = ("--requeue=expedite",)
# An ordinary requeue waits two minutes; a dead node is given up after some 35 s.
SOON_S = 100


@pytest.fixture
def sandbox(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    if slurm_version() < EXPEDITES:
        pytest.skip("Slurm before 25.11 has no --requeue=expedite")
    lines = ("SlurmctldParameters=enable_expedited_requeue",)
    return sandboxes(nodes=3, slurmd_timeout_s=20, slurm_conf_lines=lines)


def test_the_next_run_begins_at_once(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2 --every 1000", nodes=3, sbatch=EXPEDITE)
    job.wait_step(5)
    sandbox.exec(["scancel", "--batch", "--signal=USR1", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.state.restart_count == 1, SOON_S, "next run of the job")
    assert job.wait_end() == 0
    assert job.exit_code() == "0:0"
    (asked,) = job.events(ev.CheckpointRequested)
    assert job.events(ev.GenerationLaunched)[-1].restore_step == asked.step


def test_the_next_run_begins_at_once_without_a_dead_node(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=2, sbatch=(*EXPEDITE, "--nodelist=n1,n2"))
    job.wait_step(5)
    sandbox.fault.power_cut("n2")
    job.wait(lambda: job.state.restart_count == 1, SOON_S, "next run of the job")
    assert job.wait_end() == 0
    assert "n2" not in job.state.world.slots


def test_a_job_that_gives_up_has_failed_and_is_not_held(sandbox: Sandbox) -> None:
    """Slurm requeues and holds an expedited job whose batch script fails, for ever."""
    job = ProtectedJob(sandbox, f"{TINY} 60 --fail-at 3", nodes=2, sbatch=EXPEDITE)
    assert job.wait_end() == ExitCode.DO_NOT_REQUEUE
    assert job.wait_left() == f"{int(ExitCode.DO_NOT_REQUEUE)}:0"
    assert job.slurm_state() == "FAILED"
