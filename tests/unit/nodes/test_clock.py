"""The clock: kept right or not, and how far it is off."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.node import ClockLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome, Suggestion
from slurm_robust.nodes.checks import clock
from slurm_robust.nodes.checks.clock import ClockFacts
from tests.unit.nodes.host_files import only, view

CONFIG = NodeConfig()


def facts(offset: float = 0.0, error: float = 0.0, synchronised: bool = True) -> ClockFacts:
    return ClockFacts(synchronised=synchronised, offset_s=offset, error_s=error, bound_s=1.0)


def test_the_real_clock_is_asked_and_not_set() -> None:
    found = clock.gather(Host(), CONFIG)
    assert -60 < found.offset_s < 60
    assert found.bound_s >= 0
    assert found.synchronised or found.bound_s > 0


def test_a_copy_has_no_clock(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="copy"):
        clock.gather(Host(tmp_path), CONFIG)


@pytest.mark.parametrize(
    ("synchronised", "required", "outcome", "suggestion"),
    [
        (True, False, Outcome.PASS, Suggestion.NONE),
        (True, True, Outcome.PASS, Suggestion.NONE),
        (False, False, Outcome.UNKNOWN, Suggestion.NONE),
        (False, True, Outcome.FAIL, Suggestion.RESET),
    ],
)
def test_a_clock_that_is_not_synchronised_fails_if_the_site_requires_it(
    synchronised: bool, required: bool, outcome: Outcome, suggestion: Suggestion
) -> None:
    config = NodeConfig(clock=ClockLimits(require_sync=required))
    found = only(clock.judge_sync(view(facts(synchronised=synchronised)), config))
    assert (found.outcome, found.suggestion) == (outcome, suggestion)


@pytest.mark.parametrize(
    ("offset", "error", "fails"),
    [(0.5, 0.0, False), (0.501, 0.0, True), (-0.501, 0.0, True), (0.0, 0.5, False), (0.0, 0.6, True)],
)
def test_an_offset_of_the_clock_above_the_limit_fails(offset: float, error: float, fails: bool) -> None:
    found = only(clock.judge_offset(view(facts(offset, error)), CONFIG))
    assert (found.outcome is Outcome.FAIL) is fails
    assert not found.suggestion.keeps_jobs_away


def test_a_clock_that_nobody_compares_has_no_offset() -> None:
    assert list(clock.judge_offset(view(facts(9.0, 9.0, synchronised=False)), CONFIG)) == []
