"""What an agent tells a worker arrives whole, or is refused with the fix."""

from __future__ import annotations

import pytest

from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.worker.environment import BadWorkerEnvironment, WorkerEnvironment

PLACE = WorkerEnvironment(
    job_dir="/job",
    run_id="run-1",
    generation=3,
    record="/dev/shm/rank-0",
    restore=CheckpointId(generation=2, step=9),
    places={Tier.STORAGE: "/job/checkpoints"},
)


def test_variables_carry_everything() -> None:
    assert WorkerEnvironment.from_env(PLACE.to_env()) == PLACE


def test_outside_of_a_run_there_is_none() -> None:
    assert WorkerEnvironment.from_env({"HOME": "/root"}) is None


def test_fresh_start_needs_no_restore() -> None:
    environ = {k: v for k, v in PLACE.to_env().items() if k != "SROBUST_RESTORE"}
    place = WorkerEnvironment.from_env(environ)
    assert place is not None
    assert place.restore is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SROBUST_RECORD", "", "SROBUST_RECORD"),
        ("SROBUST_GENERATION", "three", "not a whole number"),
        ("SROBUST_TIERS", '{"moon": "/x"}', "SROBUST_TIERS.*moon"),
        ("SROBUST_RESTORE", "step 7", "SROBUST_RESTORE: 'step 7' names no checkpoint"),
    ],
)
def test_a_missing_or_wrong_variable_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(BadWorkerEnvironment, match=message):
        WorkerEnvironment.from_env({**PLACE.to_env(), name: value})
