"""The number of spares: the paper's table, exact sums, bursts, and that more risk never means fewer."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import accumulate
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.spares import (
    CONFIDENCE,
    ENOUGH,
    ENOUGH_DAYS,
    INDEPENDENT,
    MANY,
    PAPER_RATE,
    PUBLIC_RATE,
    Dispersion,
    FailureRate,
    Measured,
    Observed,
    Replacement,
    always,
    at_once,
    dispersion,
    dispersion_by_chance,
    dispersion_of_trace,
    dispersion_to_use,
    enough,
    failing,
    interval,
    measure,
    plan,
    rate_to_use,
    spread_out,
    thinned,
)

PAPER = FailureRate(per_day=PAPER_RATE, source="given", why="")
probabilities = st.floats(0.0, 1.0)
quantiles = st.floats(0.001, 0.999999)
counts = st.integers(1, 100_000)


@pytest.mark.parametrize(("nodes", "spares"), [(128, 2), (256, 2), (512, 3), (1024, 4)])
@pytest.mark.parametrize("per_day", [0.00117, PAPER_RATE, 0.00125])
def test_the_paper_s_table(nodes: int, spares: int, per_day: float) -> None:
    rate = FailureRate(per_day=per_day, source="given", why="")
    assert plan(nodes, rate).spares == spares


def exact(nodes: int, p: float) -> list[Fraction]:
    """The probability of at most 0, 1, ... nodes, without any rounding."""
    one = Fraction(p)
    return list(accumulate(math.comb(nodes, k) * one**k * (1 - one) ** (nodes - k) for k in range(nodes + 1)))


@given(st.integers(1, 40), probabilities, quantiles)
def test_the_number_of_spares_agrees_with_exact_sums(nodes: int, p: float, quantile: float) -> None:
    below = exact(nodes, p)
    found = at_once(nodes, p, quantile)
    # To a part in 10^8 of the tail: what a float holds of 1 - quantile.
    slack = (1 - Fraction(quantile)) / 10**8
    assert below[found] >= Fraction(quantile) - slack
    assert found == 0 or below[found - 1] < Fraction(quantile) + slack
    for spares in (0, found, nodes):
        assert enough(nodes, p, spares) == pytest.approx(float(below[spares]), rel=1e-9, abs=1e-28)


@given(*[st.tuples(each, each).map(sorted) for each in (counts, probabilities, quantiles)])
def test_more_nodes_worse_nodes_or_more_certainty_never_need_fewer(
    nodes: list[int], p: list[float], quantile: list[float]
) -> None:
    least = at_once(nodes[0], p[0], quantile[0])
    assert least <= at_once(nodes[1], p[0], quantile[0])
    assert least <= at_once(nodes[0], p[1], quantile[0])
    assert least <= at_once(nodes[0], p[0], quantile[1])


@given(counts, probabilities, quantiles)
def test_the_share_that_is_covered_is_what_was_asked_for(nodes: int, p: float, quantile: float) -> None:
    spares = at_once(nodes, p, quantile)
    assert 0 <= spares <= nodes
    assert enough(nodes, p, spares) >= quantile - 1e-8
    assert spares == 0 or enough(nodes, p, spares - 1) <= quantile + 1e-8


@pytest.mark.parametrize(
    ("nodes", "p", "quantile", "spares"),
    [
        *((7, p, 0.99, spares) for p, spares in ((0.0, 0), (1.0, 7), (5e-324, 0), (1 - 2**-53, 7))),
        # Half of all times at most half of an odd number of coins show heads.
        *((nodes, 0.5, 0.5, nodes // 2) for nodes in (1, 3, 5, 101)),
    ],
)
def test_nodes_that_never_or_always_fail_and_an_exact_tie(
    nodes: int, p: float, quantile: float, spares: int
) -> None:
    assert at_once(nodes, p, quantile) == spares


def test_a_group_that_may_be_evicted_is_the_least() -> None:
    made = plan(1024, PAPER, group=8)
    assert (made.at_once, made.spares) == (4, 8)
    assert "group of 8" in made.reason
    assert plan(1024, PAPER, group=3).spares == 4


def test_spares_that_come_back_late_must_be_more() -> None:
    spares = [plan(1024, PAPER, replacement=always(days)).spares for days in (0.1, 1, 3, 30)]
    assert spares == sorted(set(spares))
    assert failing(0.5, 7) == 1.0


def test_what_each_number_of_spares_is_good_for() -> None:
    made = plan(1024, PAPER)
    assert [chance.spares for chance in made.chances] == [1, 2, 3, 4, 5]
    shares = [chance.share for chance in made.chances]
    assert shares == sorted(shares)
    assert shares[2] < 0.99 <= shares[3]
    assert plan(1, FailureRate(per_day=1.0, source="given", why="")).chances[-1].share == 1.0


# -- bursts -----------------------------------------------------------------------------------------------


def negative_binomial(mean: float, many: float, k: int) -> float:
    """The probability of ``k``, if the variance is ``many`` times the mean, by its formula."""
    size = mean / (many - 1)
    weight = math.lgamma(k + size) - math.lgamma(size) - math.lgamma(k + 1)
    return math.exp(weight - size * math.log(many) + k * math.log(1 - 1 / many))


@given(st.floats(0.01, 60.0), st.floats(1.01, 50.0), st.integers(0, 40))
def test_the_chance_that_spares_are_enough_for_bursts_is_the_sum_of_the_formula(
    mean: float, many: float, spares: int
) -> None:
    exact_sum = math.fsum(negative_binomial(mean, many, k) for k in range(spares + 1))
    assert enough(10**6, mean / 10**6, spares, many) == pytest.approx(exact_sum, rel=1e-6)


@given(counts, st.floats(1e-6, 1.0), quantiles, st.floats(1.0, 1000.0))
def test_bursts_never_take_more_nodes_than_there_are(
    nodes: int, p: float, quantile: float, many: float
) -> None:
    spares = at_once(nodes, p, quantile, many)
    assert 0 <= spares <= nodes
    assert enough(nodes, p, spares, many) >= quantile - 1e-8


def test_the_more_failures_come_together_the_more_spares_are_needed() -> None:
    spares = [at_once(1024, 0.0042, 0.99, many) for many in (1.0, 1.5, 2.0, 3.4, 8.0)]
    assert spares == sorted(set(spares))
    assert (spares[0], spares[3]) == (10, 17)


def test_a_tiny_dispersion_is_that_of_independent_failures() -> None:
    assert at_once(1024, 0.0042, 0.99, 1 + 1e-9) == at_once(1024, 0.0042, 0.99) == 10


def test_without_a_dispersion_the_plan_says_what_a_public_trace_would_need() -> None:
    made = plan(1024, PAPER)
    assert (made.at_once, made.independent, made.public, made.dispersion.source) == (4, 4, 8, "assumed")
    given_one = Dispersion(per_day=3.4, at_once=3.4, source="given", why="")
    made = plan(1024, PAPER, dispersion=given_one)
    assert (made.at_once, made.independent, made.public) == (9, 4, None)


def test_a_burst_of_which_some_nodes_are_soon_back_leaves_less() -> None:
    assert of_given(3.0, always(5.0)) == 3.0
    days = [0.1, 0.1, 0.1, 9.7]
    assert spread_out(days, "").days == pytest.approx(2.5)
    pairs = [min(one, other) for one in days for other in days]
    assert spread_out(days, "").shorter_days == pytest.approx(fmean(pairs))
    assert of_given(3.0, spread_out(days, "")) == pytest.approx(1 + 2 * fmean(pairs) / 2.5)
    assert of_given(3.0, spread_out([0.0, 0.0], "")) == 1.0


def of_given(per_day: float, replacement: Replacement) -> float:
    return dispersion_to_use(per_day, (), 1.0, replacement).at_once


def test_fewer_nodes_chosen_at_random_see_less_of_a_burst() -> None:
    assert thinned(5.0, 8.0, 2.0) == 2.0
    assert thinned(5.0, 8.0, 80.0) == 5.0, "larger bursts were not seen"
    observed = Observed(nodes=400, mean=9.0, dispersion=5.5, at_once=31, most=35)
    found = dispersion_of_trace(3.4, observed, 3.0)
    assert (found.at_once, found.per_day, found.source) == (2.5, 3.4, "trace")


def test_days_with_bursts_are_measured() -> None:
    days = [0] * 25 + [12, 9, 14]
    found = dispersion_to_use(None, days, fmean(days), always(1.0))
    assert (found.source, found.per_day) == ("measured", pytest.approx(dispersion(days)))
    assert "35 failures in 28 days" in found.why
    less = dispersion_to_use(None, days, fmean(days) / 10, always(1.0))
    assert less.per_day == pytest.approx(1 + (found.per_day - 1) / 10)


def test_days_that_differ_by_chance_are_independent() -> None:
    days = [1, 0, 2, 1, 1, 3, 0, 1, 2, 0, 1, 1, 0, 4, 1, 1, 0, 2, 1, 0]
    found = dispersion_to_use(None, days, 1.0, always(1.0))
    assert (found.source, found.at_once) == ("measured", 1.0)
    assert "no more than chance explains" in found.why


@pytest.mark.parametrize("days", [[0] * 27 + [ENOUGH - 1], [5] * (ENOUGH_DAYS - 1), []])
def test_few_failures_or_days_tell_no_dispersion(days: list[int]) -> None:
    assert dispersion_to_use(None, days, 1.0, always(1.0)) == INDEPENDENT


def test_of_twenty_quiet_sites_one_looks_like_bursts() -> None:
    chance = random.Random(1)
    sites = [[sum(chance.random() < 0.01 for _ in range(100)) for _ in range(28)] for _ in range(400)]
    beyond = sum(dispersion(site) > dispersion_by_chance(28) for site in sites)
    assert 0.02 <= beyond / len(sites) <= 0.08


# -- the rate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "low", "high"),
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (2, 0.2422, 7.225), (10, 4.795, 18.39), (100, 81.36, 121.63)],
)
def test_the_interval_is_that_of_the_tables(failures: int, low: float, high: float) -> None:
    assert interval(failures) == pytest.approx((low, high), rel=1e-3)


@given(st.integers(0, 300))
def test_the_failures_that_were_seen_lie_in_the_interval(failures: int) -> None:
    low, high = interval(failures)
    assert low <= failures < high
    assert high - low < 5 * math.sqrt(failures + 1) + 1


@pytest.mark.parametrize(
    ("given_rate", "failures", "node_days", "source", "per_day"),
    [
        (0.5, 100, 1000.0, "given", 0.5),
        (None, ENOUGH, 100_000.0, "measured", 0.0001),
    ],
    ids=["a given rate", "enough failures"],
)
def test_a_given_or_measured_rate_is_used(
    given_rate: float | None, failures: int, node_days: float, source: str, per_day: float
) -> None:
    rate = rate_to_use(given_rate, measure(failures, node_days))
    assert (rate.source, rate.per_day) == (source, per_day)
    assert measure(failures, 0.0) is None


def test_few_failures_leave_the_rate_of_a_public_trace() -> None:
    rate = rate_to_use(None, measure(3, 1000.0))
    assert (rate.source, rate.per_day) == ("public", PUBLIC_RATE)
    assert "3 failures in 1,000 node-days" in rate.why
    assert rate_to_use(None, measure(0, 1e6)).source == "public"
    minutes = rate_to_use(None, measure(ENOUGH - 1, 0.05))
    assert minutes.source == "public", "a few failures in minutes tell no rate"
    assert "9 failures in 0.05 node-days" in minutes.why


def test_why_nothing_was_measured_is_told() -> None:
    assert rate_to_use(None, None, "slurmdbd is silent").why == "that of a public trace: slurmdbd is silent"


@given(st.integers(0, ENOUGH - 1), st.floats(1.0, 1e6))
def test_little_evidence_never_plans_fewer_than_a_public_trace(failures: int, node_days: float) -> None:
    assert rate_to_use(None, measure(failures, node_days)).per_day >= PUBLIC_RATE


def test_a_plan_names_both_ends_of_the_interval() -> None:
    found = measure(3, 1000.0)
    assert isinstance(found, Measured)
    low, high = plan(512, PAPER, measured=found).between or (0, 0)
    assert low < plan(512, PAPER).spares < high


@pytest.mark.parametrize("failures", [MANY, 3 * MANY])
def test_the_interval_of_many_failures_is_that_of_the_sum(failures: int) -> None:
    low, high = interval(failures)
    tail = (1 - CONFIDENCE) / 2
    assert poisson_at_most(failures, high) == pytest.approx(tail, rel=1e-3)
    assert 1 - poisson_at_most(failures - 1, low) == pytest.approx(tail, rel=1e-3)


def poisson_at_most(count: int, mean: float) -> float:
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))
