"""How long Slurm leaves a job at each of its ends."""

from __future__ import annotations

from slurm_robust.doctor.facts import Facts
from slurm_robust.doctor.rules.ends import ends
from slurm_robust.slurm.options import Options
from tests.unit.doctor.samples import GOOD, fact, slurm


def lines(facts: Facts) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in ends(facts))


def test_each_end_has_its_time() -> None:
    asked = fact(options=Options(given={"signal": "B:USR1@120"}))
    found = lines(asked(slurm(KillWait="60 sec", PreemptType="preempt/qos")(GOOD)))
    assert found["scancel, Ctrl-C"] == "55 s after SIGTERM (KillWait=60)"
    assert found["time limit"] == "120 s (--signal=B:USR1@120), then 55 s after SIGTERM (KillWait=60)"
    assert found["preemption"].startswith("the GraceTime of its partition or QOS")


def test_a_site_without_preemption_has_no_line_on_it() -> None:
    assert "preemption" not in lines(slurm(PreemptType="preempt/none")(GOOD))


def test_without_slurm_nothing_is_said() -> None:
    assert lines(Facts()) == {}
