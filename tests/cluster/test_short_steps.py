"""Steps that are shorter than their snapshots: some are kept, and the end is bitwise that without faults."""

from __future__ import annotations

import os
import signal

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_rank_dies_while_only_some_steps_are_kept(sandbox: Sandbox) -> None:
    words = "tiny.py --out OUT --steps 500 --width 50000 --step-s"
    job = ProtectedJob(sandbox, f"{words} 0.01", nodes=2, keeps_every_step=False)
    job.wait_step(2)
    job.wait(lambda: job.state.world.local_stride > 1, 60.0, "a local stride")
    job.wait(lambda: "snapshots in memory of steps that are multiples of" in job.log, 60.0, "the line of it")
    job.wait_step(job.step() + 2 * job.state.world.local_stride)
    os.kill(sandbox.fault.rank_pid(job.id, 1), signal.SIGKILL)
    job.wait_recovered()
    launched = job.events(ev.GenerationLaunched)[-1]
    assert launched.restore_step % 2 == 0
    assert set(launched.tiers) == {"memory"}
    assert job.wait_end() == 0
    # Without a job each snapshot would be written to disk, which takes a minute.
    assert job.out.read_text() == undisturbed(2, f"{words} 0 --every 1000")
