"""Nobody is late while others still come."""

from __future__ import annotations

import math

from slurm_robust.policy.patience import GROWS_S, Growth, patience_s


def test_while_nobody_is_there_all_are_waited_for() -> None:
    assert patience_s(600.0, 60.0, None) == 600.0


def test_while_nodes_come_nobody_is_late() -> None:
    assert patience_s(600.0, 60.0, 0.0) == math.inf
    assert patience_s(600.0, 60.0, GROWS_S) == math.inf


def test_once_no_more_nodes_come_the_others_are_late() -> None:
    assert patience_s(600.0, 120.0, GROWS_S + 1) == 120.0
    assert patience_s(20.0, 120.0, GROWS_S + 1) == 20.0, "a shorter limit of the user holds"


def test_only_nodes_that_were_never_there_count_as_growth() -> None:
    growth = Growth()
    assert growth.see(0, 100.0) is None
    assert [growth.see(count, now) for count, now in ((3, 101.0), (2, 105.0), (3, 110.0), (4, 120.0))] == [
        0.0,
        4.0,
        9.0,
        0.0,
    ]
