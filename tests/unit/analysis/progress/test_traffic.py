"""Silence of a network is a hint only where the training used it, and does nothing else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.analysis.progress.traffic import TrafficMeter, fallen_silent
from slurm_robust.config.job import DetectConfig
from slurm_robust.model.progress import Progress, Traffic

CONFIG = DetectConfig()
GB = 10**9
DEAD = Traffic(silent_s=610.0, talked_s=3600.0)
LIVE = Traffic(silent_s=3.0, talked_s=3600.0)


def metered(*totals: int, every_s: float = 10.0) -> Traffic | None:
    meter = TrafficMeter()
    for number, nbytes in enumerate(totals):
        meter.see(nbytes, 100.0 + number * every_s)
    return meter.traffic


def rank(number: int = 0, age_s: float = 700.0, **more: object) -> Progress:
    return Progress(rank=number, step=-1, reported=False, age_s=age_s, **more)  # type: ignore[arg-type]


# -- what a node measures --------------------------------------------------------------------------


def test_links_that_never_carried_anything_say_nothing() -> None:
    assert metered() is None
    assert metered(5 * GB) is None
    assert metered(*[5 * GB] * 100) is None
    assert metered(*[number * 50_000 for number in range(100)]) is None, "chatter"


def test_silence_counts_from_the_last_traffic() -> None:
    assert metered(0, GB, 2 * GB) == Traffic(silent_s=0.0, talked_s=10.0)
    assert metered(0, GB, 2 * GB, 2 * GB, 2 * GB + 1) == Traffic(silent_s=20.0, talked_s=10.0)


def test_the_longest_silence_that_ended_by_itself_is_known() -> None:
    found = metered(0, GB, GB, GB, GB, 2 * GB, 2 * GB)
    assert found == Traffic(silent_s=10.0, pause_s=30.0, talked_s=40.0)


def test_a_counter_that_was_set_back_begins_silence_anew() -> None:
    assert metered(0, GB, GB, GB, 0, 0) == Traffic(silent_s=10.0, pause_s=20.0, talked_s=30.0)
    assert metered(GB, 0, 0) is None


@given(st.lists(st.integers(0, 10 * GB), max_size=30))
def test_times_add_up_whatever_is_read(totals: list[int]) -> None:
    found = metered(*totals)
    if found is not None:
        assert 0.0 <= found.silent_s + found.talked_s <= 10.0 * len(totals)
        assert found.pause_s <= found.talked_s


# -- what all nodes together mean ------------------------------------------------------------------


def test_ten_minutes_without_traffic_on_all_nodes_are_a_hint() -> None:
    found = fallen_silent([DEAD, DEAD], [rank(0), rank(1)], CONFIG)
    assert found is not None
    assert found.detect_s == 610.0
    assert found.detail == "the links of all 2 nodes have carried next to nothing for 610 s"
    assert found.why == "the limit is 600 s"


@pytest.mark.parametrize(
    ("traffic", "why"),
    [
        ([DEAD], "on one node nothing has to cross the network"),
        ([], "nobody trains"),
        ([DEAD, None], "a node has no such links, or trains over another network"),
        ([None, None], "no node has"),
        ([DEAD, LIVE], "one node talks, so another listens"),
        ([DEAD, Traffic(silent_s=599.0, talked_s=3600.0)], "not for so long yet"),
        ([DEAD, Traffic(silent_s=900.0, talked_s=300.0)], "only what was restored came this way"),
        ([DEAD, Traffic(silent_s=901.0, pause_s=301.0, talked_s=3600.0)], "it does that"),
    ],
)
def test_what_is_no_silence_of_the_training(traffic: list[Traffic | None], why: str) -> None:
    assert fallen_silent(traffic, [rank(0), rank(1)], CONFIG) is None, why


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (rank(1, age_s=30.0), "a step was made meanwhile"),
        (rank(1, phase="evaluation", phase_s=610.0), "the script says what it does"),
        (rank(1, phase_s=30.0), "a phase has ended meanwhile"),
    ],
)
def test_a_sign_of_life_speaks_against_it(record: Progress, why: str) -> None:
    assert fallen_silent([DEAD, DEAD], [rank(0), record], CONFIG) is None, why


@pytest.mark.parametrize(
    ("settings", "pause_s", "told"),
    [
        ({}, 0.0, True),
        ({}, 200.0, True),
        ({}, 204.0, False),
        ({"silence_s": 700.0}, 0.0, False),
        ({"hang_floor_s": 700.0}, 0.0, False),
        ({"hang": False}, 0.0, False),
    ],
)
def test_the_silences_of_a_network_that_are_allowed(
    settings: dict[str, float], pause_s: float, told: bool
) -> None:
    config = DetectConfig(**settings)  # type: ignore[arg-type]
    found = fallen_silent([DEAD, DEAD], [rank(age_s=math.inf)], config, longest_pause_s=pause_s)
    assert (found is not None) is told
