"""A time limit that is too short for a new step ends the job after some runs, on a real Slurm."""

from __future__ import annotations

import pytest

from slurm_robust.model import events as ev
from slurm_robust.policy.rules import MAX_RUNS_WITHOUT_PROGRESS
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.soak
def test_runs_too_short_for_a_step_are_requeued_but_not_for_ever(sandbox: Sandbox) -> None:
    limit = ("--time=1", "--signal=B:USR1@40")
    job = ProtectedJob(sandbox, "tiny.py --out OUT --steps 5 --step-s 300", nodes=2, sbatch=limit)
    assert job.wait_end(400) == 93
    assert len(job.events(ev.AllocationTaken)) == MAX_RUNS_WITHOUT_PROGRESS
    assert len(job.events(ev.RequeueStarted)) == MAX_RUNS_WITHOUT_PROGRESS - 1
    assert "3 runs in a row ended at the time limit (or a preemption) without a new step" in job.log
    assert "fix: submit with more time (sbatch --time)" in job.log
