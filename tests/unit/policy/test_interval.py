from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.evidence.incident_text import incident_rows
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.incident import Symptom
from slurm_robust.policy.interval import MIN_INCIDENTS, advise, daly, young
from tests.builders import incidents
from tests.builders.events import run_started

START = run_started(t=0.0, command=("t.py",))


def test_an_incident_is_one_row() -> None:
    verdict = incidents.verdict(
        blame=inc.Blame.NODE,
        signature=inc.Signature.of_nodes(inc.FaultKind.NODE, ("n2",)),
        reason="n2 does not respond",
    )
    actions = (inc.Evict(node="n2"), inc.Replace(node="n2", standby="n3"), inc.Restart())
    journal = [
        START,
        incidents.opened(t=5, symptom=inc.Symptom.NODE_LOST, detail="n2 silent", detect_s=5.1, best_step=4),
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


def test_youngs_interval_is_that_of_his_formula() -> None:
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
    return incidents.opened(t=t, symptom=Symptom.NODE_LOST, detail="x", detect_s=0.0)


def written(seconds: float) -> ev.StorageWritten:
    return ev.StorageWritten(t=1.0, generation=1, step=1, seconds=seconds)


def test_advice_from_a_journal() -> None:
    failures = [opened(float(t)) for t in range(MIN_INCIDENTS)]
    events = [ev.Noted(t=0.0, text=""), written(2.0), written(50.0), written(2.0), *failures]
    advice = advise(events, MIN_INCIDENTS * 3600.0)
    assert advice is not None
    assert (advice.write_s, advice.mtbf_s) == (2.0, 3600.0)
    assert advice.every_s == daly(2.0, 3600.0)
    over = [*events, ev.RunEnded(t=3600.0, code=0, reason="")]
    assert advise(over, 1e9) == advise(events, 3600.0)
    assert advise(events[:-1], MIN_INCIDENTS * 3600.0) is None, "too few incidents tell no rate"


def test_no_advice_without_numbers() -> None:
    start = ev.Noted(t=0.0, text="")
    assert advise([], 1.0) is None
    assert advise([start, written(2.0)], 1.0) is None
    assert advise([start, *(opened(1.0) for _ in range(MIN_INCIDENTS))], 1.0) is None
    assert advise([start, written(2.0), *(opened(1.0) for _ in range(MIN_INCIDENTS))], -5.0) is None
