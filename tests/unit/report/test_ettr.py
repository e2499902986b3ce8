from __future__ import annotations

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.report.ettr import productivity
from slurm_robust.report.incident_text import incident_rows
from tests.unit.run_started import run_started

START = run_started(t=0.0, command=("t.py",))


def first(t: float, generation: int, step: int, reported: bool = True) -> ev.FirstStep:
    return ev.FirstStep(t=t, generation=generation, step=step, reported=reported)


def made(t: float, generation: int, step: int, reported: bool = True) -> ev.ProgressMade:
    return ev.ProgressMade(t=t, generation=generation, step=step, reported=reported)


def test_steps_that_were_repeated_count_once() -> None:
    # 11 steps of 1 s, a fault, 5 of them again, then 5 new ones
    journal = [
        START,
        first(1, 1, 0),
        made(11, 1, 10),
        first(21, 2, 6),
        made(30, 2, 15),
        ev.RunEnded(t=32, code=0, reason=""),
    ]
    p = productivity(journal, now=99)
    assert (p.steps, p.repeated) == (16, 5)
    assert p.productive_s == pytest.approx(16.0)
    assert p.wall_s == 32
    assert p.ettr == pytest.approx(0.5)


def test_a_job_that_never_made_a_step_was_never_productive() -> None:
    assert productivity([START], now=50).ettr == 0.0
    assert productivity([], now=50).ettr == 0.0


def test_unreported_steps_all_count() -> None:
    p = productivity([START, first(10, 1, 0, False), made(20, 1, 10, False)], now=22)
    assert p.productive_s == pytest.approx(11.0)


def test_how_many_steps_were_repeated_is_not_known_of_a_script_that_does_not_number_them() -> None:
    before = [START, first(1, 1, 0, False), made(11, 1, 10, False)]
    again = [*before, first(21, 2, 0, False), made(30, 2, 15, False)]
    assert productivity(before, now=12).repeated == 0
    p = productivity(again, now=31)
    assert (p.steps, p.repeated) == (16, None)


def test_an_incident_is_told_in_one_record() -> None:
    verdict = inc.Verdict(
        rung=1, blame=inc.Blame.NODE, signature="node n2", reason="n2 gives no sign of life"
    )
    actions = (inc.Evict(node="n2", reason="dead"), inc.Replace(node="n2", standby="n3"), inc.Restart())
    journal = [
        START,
        ev.IncidentOpened(
            t=5,
            incident=1,
            generation=1,
            symptom=inc.Symptom.NODE_LOST,
            detail="n2 silent",
            detect_s=5.1,
            best_step=4,
        ),
        ev.Decided(t=6, incident=1, actions=actions, reason="why", verdict=verdict, localise_s=0.2),
        ev.IncidentClosed(t=8, incident=1, generation=2, step=5, recover_s=1.5),
    ]
    (one,) = incident_rows(journal)
    assert one.done == "evict n2, n3 takes its slot, restart"
    assert (one.detect_s, one.localise_s, one.recover_s) == (5.1, 0.2, 1.5)
