"""A controller that was taken over changes nothing in Slurm."""

from __future__ import annotations

import pytest

from slurm_robust.slurm import fence
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import NotFenced
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm


def overtaken() -> bool:
    return False


def no_answer() -> bool:
    raise OSError("stale file handle")


def submitted(slurm: FakeSlurm) -> int:
    return slurm.submit(SubmitRequest(name="j", nodes=1, command=("true",)))


@pytest.mark.parametrize(
    ("is_ours", "why"), [(overtaken, "has taken over"), (no_answer, "stale file handle")]
)
def test_a_controller_that_lost_its_job_changes_nothing(is_ours: object, why: str) -> None:
    slurm = FakeSlurm()
    job = submitted(slurm)
    before = slurm.job(job)
    client = fence.fenced(slurm, is_ours)  # type: ignore[arg-type]
    for change in (
        lambda: client.cancel(job),
        lambda: client.requeue(job),
        lambda: client.shrink(job, ["n1"]),
    ):
        with pytest.raises(NotFenced, match=why):
            change()
    assert client.job(job) == before


def test_the_controller_that_has_the_job_changes_it() -> None:
    slurm = FakeSlurm()
    job = submitted(slurm)
    fence.fenced(slurm, lambda: True).cancel(job)
    assert slurm.job(job).is_finished


def test_what_may_harm_another_run_is_known_by_its_name() -> None:
    assert all(callable(getattr(SlurmClient, name)) for name in fence.CHANGES)
