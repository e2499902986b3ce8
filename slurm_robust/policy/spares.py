"""How many shared spares a site needs: a quantile of the nodes that fail at a time. Pure.

The paper's rule (7.2): each of n nodes fails with probability p before a spare that was used is replaced, and
there are spares for all but the worst 1 % of such times. The binomial distribution is summed outwards from
its most likely count, so that nothing underflows, whatever n and p are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

from slurm_robust.model.record import Record
from slurm_robust.util.text import count

PAPER_RATE = 0.0012
"""Failures per node and day. Any rate from 0.00117 to 0.00125 gives the spares of the paper's table 5."""

QUANTILE = 0.99
REPLENISH_DAYS = 1.0
"""The paper counts failures per day."""

ENOUGH = 10
"""The failures from which on their number tells a rate: to a factor of two."""

USUAL = (0.01, 0.02)
"""The shares of nodes that sites keep as spares before they have measured anything."""

CONFIDENCE = 0.95
MANY = 500
"""Failures from which on an interval need not be summed up term by term."""

_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

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
    source: Literal["given", "measured", "paper"]
    why: str


class Chance(Record):
    """``share`` of the times in which ``spares`` are enough."""

    spares: int
    share: float


class SparePlan(Record):
    """So many ``spares`` for ``nodes``, and all that this follows from.

    ``p``: the probability that a node fails within ``replenish_days``; ``expected``: failures of all nodes in
    that time; ``at_once``: their quantile; ``group``: the largest that may be over-evicted. ``between``: the
    spares for both ends of the measured rate's interval.
    """

    nodes: int
    quantile: float
    replenish_days: float
    rate: FailureRate
    measured: Measured | None
    p: float
    expected: float
    at_once: int
    group: int
    spares: int
    between: tuple[int, int] | None
    chances: tuple[Chance, ...]
    reason: str


# -- the plan ---------------------------------------------------------------------------------------------


def plan(
    nodes: int,
    rate: FailureRate,
    *,
    measured: Measured | None = None,
    quantile: float = QUANTILE,
    replenish_days: float = REPLENISH_DAYS,
    group: int = 0,
) -> SparePlan:
    """Plan the spares for ``nodes`` that fail at ``rate``; never fewer than ``group``."""

    def needed(per_day: float) -> int:
        return max(group, at_once(nodes, failing(per_day, replenish_days), quantile))

    p = failing(rate.per_day, replenish_days)
    by_chance = at_once(nodes, p, quantile)
    least = max(0, by_chance - _CHANCES)
    reason = (
        f"with a probability of {100 * quantile:g} % at most {by_chance} of {nodes:,} nodes fail within "
        f"{days_text(replenish_days)}, until a spare that was used is replaced"
    )
    if group > by_chance:
        reason += f"; a group of {group} that is evicted together needs {group}"
    return SparePlan(
        nodes=nodes,
        quantile=quantile,
        replenish_days=replenish_days,
        rate=rate,
        measured=measured,
        p=p,
        expected=nodes * p,
        at_once=by_chance,
        group=group,
        spares=needed(rate.per_day),
        between=(needed(measured.low), needed(measured.high)) if measured else None,
        chances=tuple(
            Chance(spares=spares, share=enough(nodes, p, spares))
            for spares in range(least, min(nodes, by_chance + 1) + 1)
        ),
        reason=reason,
    )


def days_text(days: float) -> str:
    """Return a text such as ``1 day`` or ``0.5 days``."""
    return f"{days:g} {'day' if days == 1 else 'days'}"


def rate_to_use(given: float | None, measured: Measured | None, missing: str = "") -> FailureRate:
    """Choose the rate that was given, else the measured one if it says enough, else the paper's.

    ``missing``: why nothing was measured.
    """
    if given is not None:
        return FailureRate(per_day=given, source="given", why="as given")
    if measured is None:
        why = f"ByteRobust's paper: {missing or 'nothing was measured'}"
        return FailureRate(per_day=PAPER_RATE, source="paper", why=why)
    if measured.failures >= ENOUGH:
        return FailureRate(per_day=measured.rate, source="measured", why=f"measured: {seen_text(measured)}")
    why = f"ByteRobust's paper: {seen_text(measured)} are too few to measure one, {ENOUGH} would do"
    return FailureRate(per_day=PAPER_RATE, source="paper", why=why)


def seen_text(measured: Measured) -> str:
    """Return ``3 failures in 0.05 node-days``."""
    days = f"{measured.node_days:,.0f}" if measured.node_days >= ENOUGH else f"{measured.node_days:.2g}"
    return f"{count(measured.failures, 'failure')} in {days} node-days"


def usual(nodes: int) -> tuple[int, int]:
    """Return the spares of :data:`USUAL` shares of so many nodes."""
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
    """Return the probability that a node fails within so many days. If it is small, ``per_day`` x ``days``.

    One that has failed is replaced, and its successor may fail as well: hence not ``1 - exp(-x)``.
    """
    return min(1.0, per_day * days)


# -- distributions ----------------------------------------------------------------------------------------


def at_once(nodes: int, p: float, quantile: float) -> int:
    """Return the least number that at most as many of ``nodes`` exceed with probability ``1 - quantile``."""
    first, weights = _binomial(nodes, p)
    allowed = (1 - quantile) * math.fsum(weights) * (1 + _TIE)
    more = 0.0
    for many in range(first + len(weights) - 1, first, -1):
        more += weights[many - first]
        if more > allowed:
            return many
    return first


def enough(nodes: int, p: float, spares: int) -> float:
    """Return the probability that at most ``spares`` of ``nodes`` fail."""
    return _at_most(spares, *_binomial(nodes, p))


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


def _cube_root(count: int, quantile: float) -> float:
    return float(count * (1 - 1 / (9 * count) + quantile / (3 * math.sqrt(count))) ** 3)


def _falling(f: Callable[[float], float], value: float, high: float) -> float:
    """Find the argument at which ``f``, which falls from 1 at 0 to nothing at ``high``, takes ``value``."""
    low = 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > value else (low, middle)
    return (low + high) / 2


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
