"""What a trace says, on small traces by hand and on the public one, whose figures the documentation has."""

from __future__ import annotations

import math
import random
from statistics import fmean, variance

import pytest

from slurm_robust.policy.spares import (
    PUBLIC_DISPERSION,
    PUBLIC_PER_DAY,
    PUBLIC_RATE,
    at_once,
    dispersion_of_trace,
    of_nodes_out,
    spread_out,
)
from slurm_robust.simulator.trace import DAY_S, FailureTrace, Outage
from slurm_robust.simulator.trace_facts import (
    Burst,
    RepairTimes,
    TraceFacts,
    facts,
    lasted_days,
    lemon_trial,
    out_at_once,
    per_day,
    work_of,
)
from slurm_robust.simulator.trace_file import load


def trace(*outages: tuple[str, float, float | None], nodes: int = 10, days: float = 10.0) -> FailureTrace:
    """Outages by node, first and last day."""
    return FailureTrace(
        nodes=nodes,
        span_s=days * DAY_S,
        outages=tuple(
            Outage(node=node, start=start * DAY_S, end=end and end * DAY_S, kind="GPU")
            for node, start, end in sorted(outages, key=lambda outage: outage[1])
        ),
    )


def test_nodes_out_at_a_time_are_weighted_by_time() -> None:
    found = out_at_once(trace(("a", 0, 4), ("b", 2, 4), ("c", 9, None)), quantile=0.8)
    # One for 2 days, two for 2, none for 5, one for the last.
    assert found.mean == pytest.approx(0.7)
    assert found.dispersion * found.mean == pytest.approx((0.49 * 5 + 0.09 * 3 + 1.69 * 2) / 10)
    assert (found.at_once, found.most, found.nodes) == (1, 2, 10)


def test_an_outage_of_no_time_has_no_node_out() -> None:
    found = out_at_once(trace(("a", 3, 3)))
    assert (found.mean, found.at_once, found.most) == (0.0, 0, 0)


def test_outages_can_be_counted_as_if_they_had_lasted_otherwise() -> None:
    found = out_at_once(trace(("a", 1, 8), ("b", 1, 8)), lasts=[DAY_S, 100 * DAY_S])
    assert (found.mean, found.most) == (pytest.approx(1.0), 2)


def test_a_node_works_whenever_it_is_not_out() -> None:
    work = work_of(trace(("a", 1, 2), ("b", 3, None), ("a", 5, 6), nodes=3))
    days: dict[str, float] = {}
    for one in work:
        days[one.nodes[0]] = days.get(one.nodes[0], 0.0) + (one.end - one.start) / DAY_S
    assert sorted(days.values()) == [3.0, 8.0, 10.0]


def test_the_facts_of_a_small_trace() -> None:
    together = [(f"n{i}", 5 + i / 1440, 6.0) for i in range(5)]
    found = facts(trace(*together, ("n0", 8.0, 9.0), nodes=20))
    assert (found.outages, found.never, found.most_of_one, found.worst_share) == (6, 15, 2, 2 / 6)
    assert found.halves is None, "all are in the second half"
    assert (found.per_day, found.per_day_most, found.per_day_p99) == (0.6, 5, 5)
    assert found.dispersions[0].dispersion == pytest.approx(variance([5, 1, *[0] * 8]) / 0.6)
    assert found.bursts == (Burst(at=5 * DAY_S, outages=5),)
    assert found.repairs[0].outages == found.repairs[1].outages == 6
    # Of five returns on day 6 none failed within a day, one within two; the one on day 9 is seen for one day.
    assert [(back.days, back.share) for back in found.returns] == [(1, 0.0), (7, 0.0), (28, 0.0)]


def test_a_return_that_fails_again_counts_if_the_trace_shows_the_time_after_it() -> None:
    found = facts(trace(("a", 1, 2), ("a", 2.5, 3), ("b", 2, 3), ("c", 9, 9.5)))
    day, week, _ = found.returns
    assert (day.share, week.share) == (1 / 3, 1 / 3)
    assert week.usual == pytest.approx(1 - math.exp(-4 / 10 / 10 * 7))


# -- the public trace ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public() -> FailureTrace:
    return load("infinitehbd")


@pytest.fixture(scope="module")
def found(public: FailureTrace) -> TraceFacts:
    return facts(public)


def test_the_public_rates_are_those_of_the_trace(found: TraceFacts) -> None:
    assert found.rate is not None
    assert found.rate.rate == pytest.approx(PUBLIC_RATE, abs=5e-5)
    assert found.rate.low == pytest.approx(0.00384, abs=1e-5)
    assert found.dispersions[0].dispersion == pytest.approx(PUBLIC_DISPERSION, abs=0.05)
    assert [round(window.dispersion, 1) for window in found.dispersions[1:]] == [5.1, 15.9], (
        "whole weeks were bad"
    )
    assert found.per_day == pytest.approx(PUBLIC_PER_DAY, abs=0.005)


def test_the_public_trace_says_what_others_have_counted_in_it(found: TraceFacts) -> None:
    assert (found.never, found.most_of_one, found.per_day_p99, found.per_day_most) == (169, 14, 14, 20)
    assert found.worst_share == pytest.approx(0.246, abs=1e-3)
    assert found.bursts[0].outages == 14
    assert found.halves == pytest.approx(-0.02, abs=0.005)
    assert (round(found.out.mean, 2), found.out.at_once, found.out.most) == (9.26, 31, 35)
    gpu = next(repair for repair in found.repairs if repair.kind == "GPU")
    days = RepairTimes(kind="GPU", outages=158, median_s=0.70, mean_s=6.48, p90_s=19.97)
    assert gpu.outages == days.outages
    for name in ("median_s", "mean_s", "p90_s"):
        assert getattr(gpu, name) / DAY_S == pytest.approx(getattr(days, name), abs=0.005)


def test_nodes_that_come_back_fail_far_more_often_than_others(found: TraceFacts) -> None:
    shares = [(back.days, round(back.share, 2), round(back.usual, 3)) for back in found.returns]
    assert shares == [(1, 0.22, 0.004), (7, 0.31, 0.029), (28, 0.42, 0.11)]


def test_the_distribution_with_the_moments_of_the_trace_has_its_quantiles(public: FailureTrace) -> None:
    """And a binomial with the same mean has not: it is off by half."""
    for lasts, slack in ((lasted_days(public), 2), ([1.0] * 582, 1), ([3.0] * 582, 3), ([7.0] * 582, 3)):
        seen = out_at_once(public, 0.99, [days * DAY_S for days in lasts])
        p = seen.mean / seen.nodes
        assert abs(at_once(seen.nodes, p, 0.99, seen.dispersion) - seen.at_once) <= slack
        assert at_once(seen.nodes, p, 0.99) < 0.6 * seen.at_once


@pytest.mark.slow
def test_of_nodes_chosen_from_the_trace_as_many_are_out_as_the_plan_says(public: FailureTrace) -> None:
    every = out_at_once(public)
    names = [f"silent {i}" for i in range(169)] + sorted({outage.node for outage in public.outages})
    chance = random.Random(7)
    found = []
    for _ in range(60):
        chosen = set(chance.sample(names, 100))
        outages = tuple(outage for outage in public.outages if outage.node in chosen)
        found.append(out_at_once(FailureTrace(nodes=100, span_s=public.span_s, outages=outages)))
    mean = every.mean / 4
    planned = dispersion_of_trace(3.4, every, mean)
    assert fmean(one.mean for one in found) == pytest.approx(mean, rel=0.1)
    assert fmean(one.dispersion for one in found) == pytest.approx(planned.at_once, rel=0.1)
    assert fmean(one.at_once for one in found) == pytest.approx(
        at_once(100, mean / 100, 0.99, planned.at_once), abs=2
    )


@pytest.mark.slow
def test_bursts_at_random_times_have_the_dispersion_that_follows_from_that_of_a_day() -> None:
    """A simulation: bursts of logarithmic sizes, so that a day's failures are negative binomial."""
    chance = random.Random(3)
    dispersion, per_day_mean, days = 5.0, 3.0, 20_000
    share = 1 - 1 / dispersion
    bursts = per_day_mean / (dispersion - 1) * math.log(dispersion)
    times, t = list[float](), 0.0
    while (t := t + chance.expovariate(bursts)) < days:
        times += [t] * logarithmic(share, chance)
    lasts = [chance.lognormvariate(0.0, 1.2) for _ in times]
    whole = FailureTrace(
        nodes=10**6,
        span_s=days * DAY_S,
        outages=tuple(
            Outage(node=str(i), start=at * DAY_S, end=(at + last) * DAY_S)
            for i, (at, last) in enumerate(zip(times, lasts, strict=True))
        ),
    )
    counts = per_day(whole)
    assert variance(counts) / fmean(counts) == pytest.approx(dispersion, rel=0.07)
    seen = out_at_once(whole)
    replacement = spread_out(lasts, "")
    assert seen.mean == pytest.approx(per_day_mean * replacement.days, rel=0.03)
    assert seen.dispersion == pytest.approx(of_nodes_out(dispersion, replacement), rel=0.07)
    p = seen.mean / 10**6
    planned = at_once(10**6, p, 0.99, of_nodes_out(dispersion, replacement))
    assert abs(planned - seen.at_once) <= 1
    assert at_once(10**6, p, 0.99) < planned - 3


def logarithmic(share: float, chance: random.Random) -> int:
    """Draw a size with probability share ** k / k, by the inverse of its sums."""
    left, size = chance.random(), 1
    weight = -share / math.log(1 - share)
    while (left := left - weight) > 0:
        weight *= share * size / (size + 1)
        size += 1
    return size


# -- lemons -------------------------------------------------------------------------------------------------


def test_lemons_of_half_a_year_do_not_fail_in_the_next_half_of_the_public_trace(public: FailureTrace) -> None:
    half = public.span_s / 2
    tried = lemon_trial(public, half, half)
    assert (tried.reports, tried.named, tried.failed) == (1, 5, 1)
    assert (round(tried.others, 2), round(tried.lift, 2), round(tried.share, 4)) == (0.33, 0.29, 0.0037)


@pytest.mark.slow
def test_lemons_of_four_weeks_fail_four_times_as_often_in_the_week_after(public: FailureTrace) -> None:
    tried = lemon_trial(public, 28 * DAY_S, 7 * DAY_S, 7 * DAY_S)
    assert (tried.reports, tried.named, tried.failed) == (45, 73, 7)
    assert (round(tried.precision, 3), round(tried.others, 3), round(tried.lift, 1)) == (0.096, 0.025, 4.0)


def test_a_node_that_goes_on_failing_is_found(public: FailureTrace) -> None:
    again = [("bad", day, day + 0.1) for day in range(1, 40, 3)]
    tried = lemon_trial(
        trace(*again, ("n1", 3, 4), ("n2", 30, 31), nodes=100, days=40), 20 * DAY_S, 20 * DAY_S
    )
    assert (tried.named, tried.failed, tried.precision) == (1, 1, 1.0)
    assert tried.lift > 100
