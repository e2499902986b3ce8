"""How often an agent scans for new snapshots."""

from __future__ import annotations

import pytest

from slurm_robust.agent.copies.watch import pause_s


@pytest.mark.parametrize(
    ("step_s", "since_s", "expected"),
    [
        pytest.param(1.0, 0.0, 0.1, id="a snapshot has just come: a tenth of the time until the next"),
        pytest.param(1.0, 0.9, 0.1, id="the next one is due"),
        pytest.param(1.0, 3.0, 0.3, id="it is late, as in an evaluation"),
        pytest.param(0.0, 2.0, 0.2, id="none came yet"),
        pytest.param(0.0, 3600.0, 0.5, id="none will come"),
        pytest.param(0.01, 0.0, 0.01, id="steps of milliseconds"),
        pytest.param(60.0, 1.0, 0.5, id="steps of minutes"),
    ],
)
def test_the_pause_between_scans_is_a_tenth_of_that_between_snapshots(
    step_s: float, since_s: float, expected: float
) -> None:
    assert pause_s(step_s, since_s) == pytest.approx(expected)
