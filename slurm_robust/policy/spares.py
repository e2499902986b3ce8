"""How many shared spares a site needs: a quantile of the nodes that are out at a time. Pure.

The paper's rule (7.2): each of n nodes fails with probability p before a spare that was used is replaced, and
there are spares for all but the worst 1 % of such times. The number of failures is binomial if they are
independent. If they come together, it is negative binomial, with the variance that was given or measured.
Both are summed outwards from the most likely count, so that nothing underflows, whatever n and p are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, variance
from typing import Literal

from slurm_robust.model.record import Record
from slurm_robust.util.text import count

PAPER_RATE = 0.0012
"""Failures per node and day. Any rate from 0.00117 to 0.00125 gives the spares of the paper's table 5."""

PUBLIC_RATE = 0.0042
"""Failures per node and day of InfiniteHBD-Trace (400 nodes, 349 days), used where nothing was measured.

Other public figures for nodes of 8 GPUs: 0.0065 and 0.0023 (Meta's RSC-1 and RSC-2, arXiv 2410.21680), 0.0038
(Llama 3: 419 interruptions of 2,048 nodes in 54 days). The paper's is the lowest.
"""

PUBLIC_DISPERSION = 3.4
"""Variance by mean of the failures per day in the same trace."""

PUBLIC_PER_DAY = 1.67
"""Mean of the failures per day in the same trace, of 400 nodes."""

QUANTILE = 0.99
REPLENISH_DAYS = 1.0
"""The paper counts failures per day."""

ENOUGH = 10
"""The failures from which on their number tells a rate: to a factor of two."""

USUAL = (0.01, 0.02)
"""The shares of nodes that sites keep as spares before they have measured anything."""

ENOUGH_DAYS = 14
"""The days from which on their numbers of failures tell a dispersion."""

CONFIDENCE = 0.95
MANY = 500
"""Failures from which on an interval need not be summed up term by term."""

_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_ONE_SIDED = NormalDist().inv_cdf(CONFIDENCE)

_NEGLIGIBLE = 1e-30
# An exact tie, such as the median of one coin, must not hang on the last bit.
_TIE = 1e-9
_CHANCES = 3


class Measured(Record):
    """What a site's history says: ``rate`` per node and day, ``low`` to ``high`` with 95 % confidence."""

    failures: int
    node_days: float
    rate: float
    low: float
    high: float


class FailureRate(Record):
    """The failures per node and day to plan with, the source of the number, and why that one."""

    per_day: float
    source: Literal["given", "measured", "trace", "public"]
    why: str


class Replacement(Record):
    """How long a used spare is missing: ``days`` on average; ``text`` says it in words for people.

    ``shorter_days``: the mean of the shorter of two such times, for which two nodes that failed together are
    both missing.
    """

    days: float
    shorter_days: float
    text: str


class Dispersion(Record):
    """How far failures come together: the variance by the mean of their number, 1 if they are independent.

    ``per_day``: of the failures in a day; ``at_once``: of the nodes that are out at a time.
    """

    per_day: float
    at_once: float
    source: Literal["given", "measured", "trace", "assumed"]
    why: str


class Observed(Record):
    """How many of ``nodes`` a trace shows out of service at a time.

    ``mean``, and the variance by it (``dispersion``), over time; ``at_once``: the quantile of the plan.
    """

    nodes: int
    mean: float
    dispersion: float
    at_once: int
    most: int


class Chance(Record):
    """``share`` of the times in which ``spares`` are enough."""

    spares: int
    share: float


class SparePlan(Record):
    """``spares`` for ``nodes``, and all that this follows from.

    ``p``: the probability that a node fails within ``replenish_days``; ``expected``: failures of all nodes in
    that time; ``at_once``: the quantile of the nodes that are out at a time. ``independent``: the same if
    failures were independent; ``public``: with the dispersion of a public trace, where none is known.
    ``group``: the largest that may be over-evicted. ``between``: the spares for both ends of the measured
    rate's interval.
    """

    nodes: int
    quantile: float
    replenish_days: float
    replacement: Replacement
    rate: FailureRate
    dispersion: Dispersion
    measured: Measured | None
    observed: Observed | None
    p: float
    expected: float
    at_once: int
    independent: int
    public: int | None
    group: int
    spares: int
    between: tuple[int, int] | None
    chances: tuple[Chance, ...]
    reason: str
    notes: tuple[str, ...] = ()


# -- the plan ---------------------------------------------------------------------------------------------


def plan(
    nodes: int,
    rate: FailureRate,
    *,
    measured: Measured | None = None,
    observed: Observed | None = None,
    quantile: float = QUANTILE,
    replacement: Replacement | None = None,
    dispersion: Dispersion | None = None,
    group: int = 0,
    notes: tuple[str, ...] = (),
) -> SparePlan:
    """Plan the spares for ``nodes`` that fail at ``rate``; never fewer than ``group``.

    ``replacement``: None for a day; ``dispersion``: None for independent failures; ``notes``: on the trace.
    """
    replacement = replacement or always(REPLENISH_DAYS)
    dispersion = dispersion or INDEPENDENT
    days = replacement.days

    def needed(per_day: float) -> int:
        return max(group, at_once(nodes, failing(per_day, days), quantile, dispersion.at_once))

    p = failing(rate.per_day, days)
    by_chance = at_once(nodes, p, quantile, dispersion.at_once)
    least = max(0, by_chance - _CHANCES)
    public = None
    if dispersion.source == "assumed":
        per_day = thinned(PUBLIC_DISPERSION, PUBLIC_PER_DAY, nodes * rate.per_day)
        public = at_once(nodes, p, quantile, of_nodes_out(per_day, replacement))
    return SparePlan(
        nodes=nodes,
        quantile=quantile,
        replenish_days=days,
        replacement=replacement,
        rate=rate,
        dispersion=dispersion,
        measured=measured,
        observed=observed,
        p=p,
        expected=nodes * p,
        at_once=by_chance,
        independent=at_once(nodes, p, quantile),
        public=public,
        group=group,
        spares=needed(rate.per_day),
        between=(needed(measured.low), needed(measured.high)) if measured else None,
        chances=tuple(
            Chance(spares=spares, share=enough(nodes, p, spares, dispersion.at_once))
            for spares in range(least, min(nodes, by_chance + 1) + 1)
        ),
        reason=_reason(nodes, by_chance, quantile, replacement, group),
        notes=notes,
    )


def _reason(nodes: int, by_chance: int, quantile: float, replacement: Replacement, group: int) -> str:
    often = f"with a probability of {100 * quantile:g} % at most {by_chance:,} of {nodes:,} nodes"
    if replacement.shorter_days == replacement.days:
        reason = f"{often} fail within {replacement.text}, until a spare that was used is replaced"
    else:
        reason = f"{often} are out at a time, each until it is replaced"
    if group > by_chance:
        reason += f"; a group of {group} that is evicted together needs {group}"
    return reason


def days_text(days: float) -> str:
    """Return a text such as ``1 day`` or ``0.5 days``."""
    return f"{days:g} {'day' if days == 1 else 'days'}"


def always(days: float, text: str = "") -> Replacement:
    """Return a replacement that always takes this long, which ``text`` says in its own unit."""
    return Replacement(days=days, shorter_days=days, text=text or days_text(days))


def spread_out(days: Sequence[float], text: str) -> Replacement:
    """Return a replacement that takes each of ``days`` as often as any other."""
    many = len(days)
    # The i-th of all days, from the shortest on, is the shorter one in 2 * (many - i) - 1 pairs of draws.
    pairs = ((2 * (many - i) - 1) * time for i, time in enumerate(sorted(days)))
    return Replacement(days=fmean(days), shorter_days=math.fsum(pairs) / many**2, text=text)


def rate_to_use(given: float | None, measured: Measured | None, missing: str = "") -> FailureRate:
    """Choose the rate that was given, else the measured one if it says enough, else that of a public trace.

    ``missing``: why nothing was measured.
    """
    if given is not None:
        return FailureRate(per_day=given, source="given", why="as given")
    if measured is None:
        return _public_rate(missing or "nothing was measured")
    if measured.failures >= ENOUGH:
        return FailureRate(per_day=measured.rate, source="measured", why=f"measured: {seen_text(measured)}")
    return _public_rate(f"{seen_text(measured)} are too few to measure one, {ENOUGH} would do")


def rate_of_trace(failures: int, node_days: float) -> FailureRate:
    """Return the rate of a trace."""
    why = f"by the trace: {count(failures, 'outage')} in {node_days:,.0f} node-days"
    return FailureRate(per_day=failures / node_days, source="trace", why=why)


def _public_rate(missing: str) -> FailureRate:
    why = f"that of a public trace: {missing}"
    return FailureRate(per_day=PUBLIC_RATE, source="public", why=why)


def dispersion_to_use(
    given: float | None, per_day: Sequence[int], expected: float, replacement: Replacement
) -> Dispersion:
    """Choose the dispersion that was given, else that of the failures ``per_day`` if it is known, else 1.

    ``expected``: the mean of the failures in a day, of the nodes to plan for.
    """
    if given is not None:
        why = "with the given dispersion" if given > 1 else "as given"
        return _of_days(given, "given", why, replacement)
    if len(per_day) < ENOUGH_DAYS or sum(per_day) < ENOUGH:
        return INDEPENDENT
    found, by_chance = dispersion(per_day), dispersion_by_chance(len(per_day))
    seen = f"{count(sum(per_day), 'failure')} in {days_text(len(per_day))}"
    if found <= by_chance:
        why = f"the dispersion of {seen} is {found:.1f}, no more than chance explains ({by_chance:.1f})"
        return _of_days(1.0, "measured", why, replacement)
    return _of_days(
        thinned(found, fmean(per_day), expected), "measured", f"with bursts as measured, {seen}", replacement
    )


def dispersion_of_trace(per_day: float, observed: Observed, expected: float) -> Dispersion:
    """Return the dispersion for a plan with ``expected`` nodes out on average."""
    value = thinned(observed.dispersion, observed.mean, expected)
    why = f"{'with bursts ' if value > 1 else ''}as in the trace of {observed.nodes:,} nodes"
    return Dispersion(per_day=per_day, at_once=max(1.0, value), source="trace", why=why)


INDEPENDENT = Dispersion(per_day=1.0, at_once=1.0, source="assumed", why="nothing was measured")


def _of_days(
    per_day: float, source: Literal["given", "measured"], why: str, replacement: Replacement
) -> Dispersion:
    return Dispersion(per_day=per_day, at_once=of_nodes_out(per_day, replacement), source=source, why=why)


def of_nodes_out(per_day: float, replacement: Replacement) -> float:
    """Return the dispersion of the nodes that are out at a time, if failures come in bursts at random times.

    It is that of the failures if all nodes of a burst come back together. Otherwise it is less.
    """
    if not replacement.days:
        return 1.0
    return 1 + (per_day - 1) * replacement.shorter_days / replacement.days


def thinned(found: float, mean: float, expected: float) -> float:
    """Return the dispersion of ``expected`` failures, if it was ``found`` for ``mean`` failures.

    For fewer failures this is exact if they are chosen at random. More failures keep the dispersion: bursts
    are as large as those that were seen, and more frequent.
    """
    return 1 + (found - 1) * min(1.0, expected / mean) if mean > 0 else found


def dispersion(numbers: Sequence[int]) -> float:
    """Return the variance of ``numbers`` by their mean, 1 if nothing is known."""
    mean = fmean(numbers) if numbers else 0.0
    return variance(numbers) / mean if mean > 0 and len(numbers) > 1 else 1.0


def dispersion_by_chance(many: int) -> float:
    """Return the 95th percentile of the dispersion of ``many`` numbers of independent failures."""
    return 2 * _cube_root((many - 1) / 2, _ONE_SIDED) / (many - 1)


def seen_text(measured: Measured) -> str:
    """Return ``3 failures in 0.05 node-days``."""
    days = f"{measured.node_days:,.0f}" if measured.node_days >= ENOUGH else f"{measured.node_days:.2g}"
    return f"{count(measured.failures, 'failure')} in {days} node-days"


def usual(nodes: int) -> tuple[int, int]:
    """Return the spares of a site with ``nodes``, by the shares of :data:`USUAL`."""
    few, many = USUAL
    return math.ceil(nodes * few), math.ceil(nodes * many)


def measure(failures: int, node_days: float) -> Measured | None:
    """Measure the rate, with the exact interval of Garwood (1936); None if no node has worked."""
    if node_days <= 0:
        return None
    low, high = interval(failures)
    return Measured(
        failures=failures,
        node_days=node_days,
        rate=failures / node_days,
        low=low / node_days,
        high=high / node_days,
    )


def failing(per_day: float, days: float) -> float:
    """Return the probability that a node fails within ``days``. If it is small, ``per_day`` x ``days``.

    One that has failed is replaced, and its successor may fail as well: hence not ``1 - exp(-x)``.
    """
    return min(1.0, per_day * days)


# -- distributions ----------------------------------------------------------------------------------------


def at_once(nodes: int, p: float, quantile: float, dispersion: float = 1.0) -> int:
    """Return the least number that at most as many of ``nodes`` exceed with probability ``1 - quantile``."""
    first, weights = _out(nodes, p, dispersion)
    allowed = (1 - quantile) * math.fsum(weights) * (1 + _TIE)
    more = 0.0
    for many in range(first + len(weights) - 1, first, -1):
        more += weights[many - first]
        if more > allowed:
            return many
    return first


def enough(nodes: int, p: float, spares: int, dispersion: float = 1.0) -> float:
    """Return the probability that at most ``spares`` of ``nodes`` are out."""
    return _at_most(spares, *_out(nodes, p, dispersion))


@lru_cache(maxsize=4096)
def interval(failures: int) -> tuple[float, float]:
    """Return the means of a Poisson distribution between which ``failures`` are no surprise (two-sided).

    From :data:`MANY` on it uses the cube root of Wilson and Hilferty (1931), which is off by less than a ten
    thousandth of the interval's width there.
    """
    if failures >= MANY:
        return _cube_root(failures, -_QUANTILE), _cube_root(failures + 1, _QUANTILE)
    tail = (1 - CONFIDENCE) / 2
    wide = failures + 10 * math.sqrt(failures + 1) + 10
    low = _falling(lambda mean: _at_most(failures - 1, *_poisson(mean)), 1 - tail, wide) if failures else 0.0
    return low, _falling(lambda mean: _at_most(failures, *_poisson(mean)), tail, wide)


def _cube_root(count: float, quantile: float) -> float:
    return float(count * (1 - 1 / (9 * count) + quantile / (3 * math.sqrt(count))) ** 3)


def _falling(f: Callable[[float], float], value: float, high: float) -> float:
    """Find the argument at which ``f``, which falls from 1 at 0 to nothing at ``high``, takes ``value``."""
    low = 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > value else (low, middle)
    return (low + high) / 2


def _out(nodes: int, p: float, dispersion: float) -> tuple[int, list[float]]:
    """Return the distribution of the nodes that are out: ``nodes`` times ``p`` on average."""
    if dispersion <= 1 or not 0 < p < 1:
        return _binomial(nodes, p)
    first, weights = _negative_binomial(nodes * p, dispersion)
    return first, weights[: nodes - first + 1]


def _negative_binomial(mean: float, dispersion: float) -> tuple[int, list[float]]:
    more = dispersion - 1
    mode = max(0, int(mean - more))
    return _weights(mode, math.inf, lambda k: (mean + k * more) / ((k + 1) * dispersion))


def _binomial(n: int, p: float) -> tuple[int, list[float]]:
    if not 0 < p < 1:
        return (0 if p <= 0 else n), [1.0]
    odds = p / (1 - p)
    return _weights(min(n, int((n + 1) * p)), n, lambda k: (n - k) / (k + 1) * odds)


def _poisson(mean: float) -> tuple[int, list[float]]:
    return _weights(int(mean), math.inf, lambda k: mean / (k + 1))


def _weights(mode: int, most: float, up: Callable[[int], float]) -> tuple[int, list[float]]:
    """Return the first count that matters, and the probabilities from there relative to that of ``mode``.

    ``up(k)``: the probability of k + 1 by that of k, which falls with k.
    """
    above, weight, count = [1.0], 1.0, mode
    while count < most and (weight := weight * up(count)) > _NEGLIGIBLE:
        above.append(weight)
        count += 1
    below: list[float] = []
    weight, count = 1.0, mode
    while count > 0 and (weight := weight / up(count - 1)) > _NEGLIGIBLE:
        below.append(weight)
        count -= 1
    return count, [*reversed(below), *above]


def _at_most(count: int, first: int, weights: list[float]) -> float:
    return math.fsum(weights[: max(0, count - first + 1)]) / math.fsum(weights)
