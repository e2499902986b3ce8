"""How long Slurm leaves a job at each of its ends."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.doctor.facts import Facts
from slurm_robust.doctor.rule import Level, apply_all
from slurm_robust.doctor.rules.ends import RULES, ends
from slurm_robust.slurm.options import Options
from tests.unit.doctor.samples import GOOD, fact, preempted, slurm


def lines(facts: Facts) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in ends(facts))


def test_each_end_has_its_time() -> None:
    asked = fact(options=Options(given={"signal": "B:USR1@120"}))
    found = lines(asked(slurm(KillWait="60 sec", PreemptType="preempt/qos")(GOOD)))
    assert found["scancel, Ctrl-C"] == "55 s after SIGTERM (KillWait=60)"
    assert found["time limit"] == "120 s (--signal=B:USR1@120), then 55 s after SIGTERM (KillWait=60)"
    assert found["preemption"].startswith("the GraceTime of its QOS ('sacctmgr show qos'); without one, 55 s")


@pytest.mark.parametrize("asked", ["USR1@120", "R:USR1@120", "B:TERM@120", "USR2"])
def test_a_signal_that_srobust_does_not_get_gives_no_time(asked: str) -> None:
    found = lines(fact(options=Options(given={"signal": asked}))(GOOD))
    assert found["time limit"] == "25 s after SIGTERM (KillWait=30)"


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (
            {"grace_s": 60, "mode": "REQUEUE"},
            "60 s (GraceTime=60), then the job is requeued (QOS low, PreemptMode=REQUEUE)",
        ),
        (
            {"mode": "CANCEL"},
            "no GraceTime, so 25 s after SIGTERM (KillWait=30), then the job is cancelled (QOS low, "
            "PreemptMode=CANCEL)",
        ),
        ({"grace_s": 5}, "5 s (GraceTime=5), then the job is requeued (QOS low, PreemptMode=REQUEUE)"),
        ({"mode": "SUSPEND"}, "the job is suspended and goes on later (QOS low, PreemptMode=SUSPEND)"),
        ({"mode": "OFF", "grace_s": 60}, "none (QOS low, PreemptMode=OFF)"),
    ],
)
def test_a_preemption_has_the_time_of_the_partition_or_qos(terms: dict[str, Any], said: str) -> None:
    assert lines(preempted(**terms)(GOOD))["preemption"] == said


def test_a_grace_is_too_short_for_what_saving_needs() -> None:
    def found(**terms: Any) -> str:
        hazards = apply_all(RULES, preempted(**terms)(GOOD))
        return "".join(hazard.text for hazard in hazards if hazard.level is Level.NOTE)

    assert found(grace_s=20) == "GraceTime is 20 s, which leaves 5 s"
    assert found(grace_s=60, saved_s=50.0) == (
        "GraceTime is 60 s, which leaves 45 s; the job took 50 s to save a step"
    )
    assert found(saved_s=40.0) == (
        "no GraceTime, and KillWait is 30 s, which leaves 25 s; the job took 40 s to save a step"
    )
    assert found(grace_s=60) == found(mode="OFF", saved_s=50.0) == found(mode="SUSPEND", saved_s=50.0) == ""


def test_a_site_without_preemption_has_no_line_on_it() -> None:
    assert "preemption" not in lines(slurm(PreemptType="preempt/none")(GOOD))


def test_without_slurm_nothing_is_said() -> None:
    assert lines(Facts()) == {}
