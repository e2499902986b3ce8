from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.incident import Symptom
from slurm_robust.report.ettr import advise, daly, productivity, young
from slurm_robust.report.incident_text import incident_rows
from tests.unit.sample_events import run_started

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


def test_steps_before_a_checkpoint_were_done_though_no_controller_saw_them() -> None:
    # Steps of 1 s; the controller dies after step 10, training goes on to step 14, and so does the next run.
    journal = [START, first(1, 1, 0), made(11, 1, 10), first(30, 2, 15), made(32, 2, 19)]
    p = productivity(journal, now=40)
    assert (p.steps, p.repeated) == (20, 0)
    assert p.productive_s == pytest.approx(11.0 + 4.0 + 2.5)


def test_steps_before_the_first_one_are_another_jobs() -> None:
    p = productivity([START, first(1, 1, 1000), made(11, 1, 1010)], now=12)
    assert (p.steps, p.productive_s) == (11, pytest.approx(11.0))


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


def test_an_incident_is_one_row() -> None:
    verdict = inc.Verdict(
        rung=1,
        blame=inc.Blame.NODE,
        signature=inc.Signature.of_nodes(inc.FaultKind.NODE, ("n2",)),
        reason="n2 does not respond",
    )
    actions = (inc.Evict(node="n2"), inc.Replace(node="n2", standby="n3"), inc.Restart())
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


# -- how often to write a checkpoint ----------------------------------------------------------------


def expected_wall(interval: float, write: float, mtbf: float) -> float:
    """Time per second of training with exponential failures (Daly's exact model, restarts for free)."""
    return mtbf * math.expm1((interval + write) / mtbf) / interval


@given(st.floats(0.1, 100), st.floats(1000, 1e6))
def test_daly_is_within_a_thousandth_of_the_best_there_is(write: float, mtbf: float) -> None:
    intervals = [young(write, mtbf) * 2 ** (n / 20) for n in range(-40, 41)]
    best = min(expected_wall(interval, write, mtbf) for interval in intervals)
    assert expected_wall(daly(write, mtbf), write, mtbf) <= best * 1.001


def test_young() -> None:
    assert young(2.0, 3600.0) == 120.0


def test_for_cheap_writes_both_agree_and_for_dear_ones_it_is_the_mtbf() -> None:
    assert daly(0.001, 1e6) == pytest.approx(young(0.001, 1e6), rel=1e-3)
    assert daly(500.0, 100.0) == 100.0


@pytest.mark.parametrize(("write", "mtbf"), [(0, 1), (1, 0), (-1, 1), (math.nan, 1)])
def test_nonsense_is_refused(write: float, mtbf: float) -> None:
    for rule in (young, daly):
        with pytest.raises(ValueError, match="above 0"):
            rule(write, mtbf)


def opened(t: float) -> ev.IncidentOpened:
    return ev.IncidentOpened(
        t=t, incident=1, generation=1, symptom=Symptom.NODE_LOST, detail="x", detect_s=0.0, best_step=1
    )


def written(seconds: float) -> ev.StorageWritten:
    return ev.StorageWritten(t=1.0, generation=1, step=1, seconds=seconds)


def test_advice_from_a_journal() -> None:
    events = [ev.Noted(t=0.0, text=""), written(2.0), written(50.0), written(2.0), opened(9.0), opened(10.0)]
    advice = advise(events, 7200.0)
    assert advice is not None
    assert (advice.write_s, advice.mtbf_s) == (2.0, 3600.0)
    assert advice.every_s == daly(2.0, 3600.0)
    over = [*events, ev.RunEnded(t=3600.0, code=0, reason="")]
    assert advise(over, 1e9) == advise(events, 3600.0)


def test_no_advice_without_numbers() -> None:
    start = ev.Noted(t=0.0, text="")
    assert advise([], 1.0) is None
    assert advise([start, written(2.0)], 1.0) is None
    assert advise([start, opened(1.0)], 1.0) is None
    assert advise([start, written(2.0), opened(1.0)], -5.0) is None
