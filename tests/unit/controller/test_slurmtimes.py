"""Times of slurm.conf against those of the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.controller.main import slurm_times
from slurm_robust.doctor.facts import Facts
from slurm_robust.doctor.rule import Level, apply
from slurm_robust.doctor.rules.site import TIMES
from slurm_robust.slurm.records import Allocation
from slurm_robust.testing.fake_slurm import FakeSlurm

DEFAULTS = {"KillWait": "30 sec", "UnkillableStepTimeout": "60 sec"}


def too_short(slurm_conf: Mapping[str, str], timings: Timings, *, gpus: bool) -> Iterator[str]:
    facts = Facts(config=JobConfig(timings=timings), slurm=dict(slurm_conf), gpus=gpus)
    found = [apply(rule, facts) for rule in TIMES]
    return (hazard.line() for hazard in found if hazard.level is Level.BAD)


def test_slurms_defaults_are_too_short_for_gpus_only() -> None:
    assert list(too_short(DEFAULTS, Timings(), gpus=False)) == []
    (text,) = too_short(DEFAULTS, Timings(), gpus=True)
    assert text.startswith("UnkillableStepTimeout is 60 s")
    assert "180 s to die" in text
    assert text.endswith("fix: the administrator sets UnkillableStepTimeout to that in slurm.conf")


@pytest.mark.parametrize("timeout", ["180 sec", "600 sec"])
def test_a_slurm_that_waits_long_enough_is_well(timeout: str) -> None:
    assert list(too_short(DEFAULTS | {"UnkillableStepTimeout": timeout}, Timings(), gpus=True)) == []


def test_a_kill_wait_that_is_shorter_than_leaving_is_reported() -> None:
    (text,) = too_short(DEFAULTS | {"KillWait": "15 sec"}, Timings(), gpus=False)
    assert "KillWait is 15 s" in text
    assert "may need 22 s" in text
    assert "KillWait=30" in text
    assert list(too_short({"KillWait": "15 sec"}, Timings(stop_grace_s=2.0, shutdown_s=7.0), gpus=False)) == [
        text.replace("22 s", "16 s")
    ]


def test_what_slurm_does_not_say_is_not_judged() -> None:
    assert list(too_short({}, Timings(), gpus=True)) == []
    assert list(too_short({"KillWait": "(null)"}, Timings(), gpus=True)) == []


def test_the_jobs_own_slurm_is_asked() -> None:
    gpus = Allocation(job_id=1, nodes=("n1", "n2"), gpus_per_node={"n1": 8, "n2": 8})
    none = Allocation(job_id=1, nodes=("n1", "n2"), gpus_per_node={"n1": 0, "n2": 0})
    assert len(slurm_times(FakeSlurm(), JobConfig(), gpus)) == 1
    assert slurm_times(FakeSlurm(), JobConfig(), none) == ()
