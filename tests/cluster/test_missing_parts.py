"""Two nodes are lost at once, and the memory that is left lacks the own part of one rank, or of both."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.test_sizes import hashes

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = "--set timings.unreachable_s=8 --set checkpoint.every_steps=20"
# The copy of the newest step to the peer that is left may have come in time or not.
NOT_WHOLE = (
    r"step {step} is not whole: (the part of rank \d is on n\d|the parts of ranks \d-\d are on n\[\d-\d\])"
)
DDP = "resized.py --kind ddp --no-position --out OUT --steps 50 --step-s 0.3"


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    """Three nodes are left after a job."""
    return sandboxes(nodes=5, slurmd_timeout_s=20, cred_expire_s=5, accounting=False)


def lose_two(cluster: Sandbox, setting: str) -> ProtectedJob:
    """A job that has lost two of its three nodes after step 25, and came to its end after a requeue."""
    job = ProtectedJob(cluster, f"{SETTINGS} --set checkpoint.if_parts_are_missing={setting} {DDP}", nodes=3)
    job.wait_step(25)
    for node in job.state.world.slots[1:]:
        cluster.fault.power_cut(node)
    job.wait(lambda: job.state.restart_count == 1, 200, "next run of the job")
    assert job.wait_end() == 0, job.log
    return job


@pytest.mark.soak
def test_an_older_step_is_restored_if_the_owner_wants_that(cluster: Sandbox) -> None:
    older = lose_two(cluster, "older")
    again = older.events(ev.GenerationLaunched)[-1]
    assert (again.restore_step, again.tiers) == (19, {"storage": 3}), older.log
    assert re.search(NOT_WHOLE.format(step=r"[23]\d"), older.log), older.log
    assert "(checkpoint.if_parts_are_missing: reseed may take step" in older.log, older.log
    assert "new random generators" not in older.log, older.log


def test_new_parts_are_made_if_the_owner_wants_that(cluster: Sandbox) -> None:
    reseed = lose_two(cluster, "reseed")
    steps, begun = hashes(reseed)
    (_, ranks, state) = begun[-1]
    first = begun[-1][0]
    again = reseed.events(ev.GenerationLaunched)[-1]
    assert again.restore_step == first - 1 > 20, reseed.log
    assert (ranks, again.tiers) == (3, {"storage": 3}), reseed.log
    assert state == steps[first - 1], f"not bitwise what was there after step {first - 1}\n{reseed.log}"
    said = [e.text for e in reseed.events(ev.Noted) if "with new random generators" in e.text]
    assert len(said) == 1, reseed.log
    assert said[0] in reseed.log, reseed.log
    why = r"since (its part is|their parts are) lost"
    assert re.search(f"go(es)? on from step {first - 1} with new random generators, {why}", said[0]), said
    command = ["srobust", "incident", str(reseed.id), "1"]
    report = cluster.exec(command, user=USER, timeout_s=30.0, check=True).stdout
    assert "with new random generators" in " ".join(report.split()), report
