"""Lives over time, and many of them together."""

from __future__ import annotations

import pytest

from slurm_robust.simulator.curves import POINTS, LifeCurve, band, histogram
from slurm_robust.simulator.figures import FEW, estimate
from slurm_robust.simulator.runs import live
from slurm_robust.simulator.spec import FaultOf, FaultSource, SimulatedJob, Spec


def test_the_curve_of_a_life_ends_with_its_ettr_and_falls_when_training_stops() -> None:
    spec = Spec(
        job=SimulatedJob(nodes=4, spares=1),
        time="10 h",
        faults=(FaultSource(kind=FaultOf.NODE, after="5 h", detect="1 h"),),
    )
    found = live(spec, 1)
    curve = found.curve
    assert len(curve.hours) == POINTS
    assert curve.ettr[-1] == pytest.approx(found.ettr, abs=0.001)
    assert curve.ettr[28] > 0.99 > curve.ettr[36]
    assert min(curve.hour) < 0.1  # the hour in which the node was not missed
    assert (curve.standbys[0], curve.standbys[-1]) == (1, 0)


def test_a_band_has_the_lives_that_go_on() -> None:
    def curve(end: float, value: float) -> LifeCurve:
        hours = tuple(end * (place + 1) / POINTS for place in range(POINTS))
        return LifeCurve(hours=hours, ettr=(value,) * POINTS)

    found = band([curve(10, 0.5), curve(20, 0.9)], "ettr")
    assert found.mean[0] == pytest.approx(0.7)
    assert found.mean[-1] == pytest.approx(0.9)
    assert (found.low[0], found.high[0]) == (0.5, 0.9)
    assert band([LifeCurve()], "ettr").hours == ()


def test_a_histogram_has_each_value_once() -> None:
    for values in ([0.5], [0.5, 0.5], [0.1, 0.2, 0.9, 0.95]):
        edges, counts = histogram(values)
        assert sum(counts) == len(values)
        assert len(edges) == len(counts) + 1


def test_many_lives_have_the_interval_that_resampling_gives() -> None:
    few = estimate([float(value % 7) for value in range(FEW)])
    many = estimate([float(value % 7) for value in range(FEW + 1)])
    assert (many.low, many.high) == pytest.approx((few.low, few.high), abs=0.05)
    assert estimate([3.0, 3.0]).low == estimate([3.0]).high == 3.0
