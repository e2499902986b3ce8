"""Times and rates with their units: what they mean, and how they are refused."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.simulator import spread


@pytest.mark.parametrize(
    ("text", "mean_s"),
    [
        ("90 s", 90.0),
        ("90s", 90.0),
        ("1.5 hours", 5400.0),
        ("5 s to 15 s", 10.0),
        ("3 h mean", 3 * 3600.0),
        ("0.7 days median, 6.5 days mean", 6.5 * 86400.0),
        ("6.5 days mean, 0.7 days median", 6.5 * 86400.0),
        ("0 s", 0.0),
    ],
)
def test_a_time_has_the_mean_that_it_says(text: str, mean_s: float) -> None:
    found = spread.parse(text)
    assert found.mean_s == pytest.approx(mean_s)
    chance = Random(1)
    drawn = [found.draw(chance) for _ in range(200_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean_s, rel=0.1)


@pytest.mark.parametrize("text", ["5 s to 15 s", "3 h mean", "0.7 days median, 6.5 days mean"])
def test_the_quantile_is_that_of_the_draws(text: str) -> None:
    found, chance = spread.parse(text), Random(2)
    drawn = sorted(found.draw(chance) for _ in range(50_000))
    for share in (0.1, 0.5, 0.9):
        assert drawn[int(share * len(drawn))] == pytest.approx(found.quantile(share), rel=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("90", "has no unit"),
        ("90 bananas", "bananas is no unit of time"),
        ("-3 s", "is no time of 0 or more"),
        ("9 s to 2 s", "is longer than"),
        ("3 days median", "is no distribution"),
        ("5 days median, 2 days mean", "the mean not below it"),
        ("1e9 years", "longer than 1000 years"),
        ("", "is no time"),
        ("nan s", "is no time"),
    ],
)
def test_what_is_no_time_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spread.parse(text)


@pytest.mark.parametrize(
    ("text", "per_day", "what"),
    [
        ("175 / 90 days", 175 / 90, "job"),
        ("175 per 90 days", 175 / 90, "job"),
        ("6.5 / 1000 node-days", 0.0065, "node"),
        ("0.2 / GPU-year", 0.2 / 365.25, "GPU"),
        ("1 / s", 86400.0, "job"),
        ("0 / day", 0.0, "job"),
    ],
)
def test_a_rate_says_of_what_it_is(text: str, per_day: float, what: str) -> None:
    found = spread.rate(text)
    assert (found.per_s * 86400, found.what) == (pytest.approx(per_day), what)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("7", "is no rate"),
        ("7 / 0 days", "no time to divide by"),
        ("1 / banana", "no unit of time"),
        ("-1 / day", "is no"),
    ],
)
def test_what_is_no_rate_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spread.rate(text)


@given(st.text(alphabet="0123456789 .eE-,/smhdaynGPUotmeian", max_size=40))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    for reads in (spread.parse, spread.rate, spread.seconds):
        with contextlib.suppress(ValueError):
            assert reads(text) is not None
