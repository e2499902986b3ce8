"""What a failure trace says: rates, bursts, nodes out at a time, repair times, repeated failures. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from statistics import correlation, fmean, median
from typing import TypeVar

from slurm_robust.analysis.lemons import Failure, Work, score
from slurm_robust.model.record import Record
from slurm_robust.policy.spares import Measured, Observed, dispersion, measure
from slurm_robust.simulator.trace import DAY_S, FailureTrace, Outage

T = TypeVar("T")

BURST_S = 600.0
"""Outages that begin within this time of each other are one burst."""

BURST = 4
"""Fewer are none."""

WORST = 0.05
"""The share of nodes that are called the worst."""

_RETURN_DAYS = (1, 7, 28)
_WINDOWS = (1, 7, 28)
_BURSTS = 5
_ROUNDING = 1e-12


class RepairTimes(Record):
    """How long outages of one kind lasted, in seconds, until the end of the trace at most."""

    kind: str
    outages: int
    median_s: float
    mean_s: float
    p90_s: float


class Burst(Record):
    """Outages that began together. ``at``: seconds since the beginning of the trace."""

    at: float
    outages: int


class Return(Record):
    """Returns of nodes: the ``share`` that failed again within ``days``; ``usual``: that of any node."""

    days: int
    share: float
    usual: float


class WindowDispersion(Record):
    """The variance by mean of the outages that begin in ``days``: 1 if they are independent."""

    days: int
    dispersion: float


class TraceFacts(Record):
    """All of it."""

    nodes: int
    days: float
    outages: int
    rate: Measured | None
    """Outages per node and day."""
    per_day: float
    """Mean of the outages that begin in a day."""
    per_day_p99: int
    per_day_most: int
    dispersions: tuple[WindowDispersion, ...]
    """For a day, a week and four weeks: the same if bursts are short, growing if whole weeks are bad."""
    out: Observed
    """Nodes out at a time; ``at_once`` is their 99th percentile over time."""
    never: int
    """Nodes without an outage."""
    worst_share: float
    """Share of the outages on the worst 5 % of the nodes."""
    most_of_one: int
    repairs: tuple[RepairTimes, ...]
    """All together (kind ""), then the kinds, the most frequent first."""
    bursts: tuple[Burst, ...]
    """The largest, the largest first."""
    returns: tuple[Return, ...]
    halves: float | None
    """Correlation of a node's outages in the first half of the trace with those in the second; None if either
    has none.
    """


def facts(trace: FailureTrace) -> TraceFacts:
    """Return what the trace says."""
    days = per_day(trace)
    by_node = Counter(outage.node for outage in trace.outages)
    worst = sorted(by_node.values(), reverse=True)[: math.ceil(WORST * trace.nodes)]
    return TraceFacts(
        nodes=trace.nodes,
        days=trace.span_s / DAY_S,
        outages=len(trace.outages),
        rate=measure(len(trace.outages), trace.nodes * trace.span_s / DAY_S),
        per_day=fmean(days) if days else 0.0,
        per_day_p99=_quantile(sorted(days), 0.99) if days else 0,
        per_day_most=max(days, default=0),
        dispersions=tuple(
            WindowDispersion(days=many, dispersion=dispersion(_sums(days, many))) for many in _WINDOWS
        ),
        out=out_at_once(trace),
        never=trace.nodes - len(by_node),
        worst_share=sum(worst) / len(trace.outages),
        most_of_one=worst[0],
        repairs=_repairs(trace),
        bursts=_bursts(trace),
        returns=tuple(_return(trace, days) for days in _RETURN_DAYS),
        halves=_halves(trace),
    )


def per_day(trace: FailureTrace) -> list[int]:
    """Return how many outages begin in each whole day."""
    days = [0] * int(trace.span_s / DAY_S)
    for outage in trace.outages:
        if (day := int(outage.start / DAY_S)) < len(days):
            days[day] += 1
    return days


def _sums(days: Sequence[int], many: int) -> list[int]:
    return [sum(days[begin : begin + many]) for begin in range(0, len(days) - many + 1, many)]


def out_at_once(trace: FailureTrace, quantile: float = 0.99, lasts: Sequence[float] = ()) -> Observed:
    """Return how many nodes were out at a time, or would have been if the outages had lasted for ``lasts``.

    ``lasts``: seconds, for each outage by its place.
    """
    changes: defaultdict[float, int] = defaultdict(int)
    for place, outage in enumerate(trace.outages):
        end = outage.start + (lasts[place] if lasts else trace.lasted(outage))
        changes[outage.start] += 1
        changes[min(end, trace.span_s)] -= 1
    shares: defaultdict[int, float] = defaultdict(float)
    now, since = 0, 0.0
    for at, change in (*sorted(changes.items()), (trace.span_s, 0)):
        shares[now] += (at - since) / trace.span_s
        now, since = now + change, at
    mean = math.fsum(many * share for many, share in shares.items())
    square = math.fsum((many - mean) ** 2 * share for many, share in shares.items())
    ranked = sorted(shares)
    below = accumulate(shares[many] for many in ranked)
    enough = (many for many, share in zip(ranked, below, strict=True) if share >= quantile - _ROUNDING)
    return Observed(
        nodes=trace.nodes,
        mean=mean,
        dispersion=square / mean if mean else 1.0,
        at_once=next(enough, ranked[-1]),
        most=max(many for many, share in shares.items() if share > 0),
    )


def lasted_days(trace: FailureTrace) -> list[float]:
    """Return for how many days each outage lasted."""
    return [trace.lasted(outage) / DAY_S for outage in trace.outages]


def _repairs(trace: FailureTrace) -> tuple[RepairTimes, ...]:
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for outage in trace.outages:
        kinds[outage.kind or "unknown"].append(trace.lasted(outage))
    every = [time for times in kinds.values() for time in times]
    ranked = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        RepairTimes(
            kind=kind,
            outages=len(times),
            median_s=median(times),
            mean_s=fmean(times),
            p90_s=_quantile(sorted(times), 0.9),
        )
        for kind, times in (("", every), *ranked)
    )


def _bursts(trace: FailureTrace) -> tuple[Burst, ...]:
    found: list[Burst] = []
    begin = 0
    starts = [outage.start for outage in trace.outages]
    while begin < len(starts):
        end = bisect_left(starts, starts[begin] + BURST_S)
        if end - begin >= BURST:
            found.append(Burst(at=starts[begin], outages=end - begin))
            begin = end
        else:
            begin += 1
    return tuple(sorted(found, key=lambda burst: (-burst.outages, burst.at))[:_BURSTS])


def _return(trace: FailureTrace, days: int) -> Return:
    """Count the returns after which a node failed within ``days``, if the trace shows all of these days."""
    within_s, returns, again = days * DAY_S, 0, 0
    for outages in _by_node(trace).values():
        for place, outage in enumerate(outages):
            if outage.end is None or outage.end + within_s > trace.span_s:
                continue
            returns += 1
            later = outages[place + 1 : place + 2]
            again += bool(later) and later[0].start < outage.end + within_s
    rate = len(trace.outages) / trace.nodes / trace.span_s
    usual = 1 - math.exp(-rate * within_s)
    return Return(days=days, share=again / returns if returns else 0.0, usual=usual)


def _halves(trace: FailureTrace) -> float | None:
    first, second = Counter[str](), Counter[str]()
    for outage in trace.outages:
        (first if outage.start < trace.span_s / 2 else second)[outage.node] += 1
    names = [*_by_node(trace)]
    silent = [0] * (trace.nodes - len(names))
    halves = [[*(half[name] for name in names), *silent] for half in (first, second)]
    return correlation(*halves) if all(len(set(half)) > 1 for half in halves) else None


def _by_node(trace: FailureTrace) -> dict[str, list[Outage]]:
    found: defaultdict[str, list[Outage]] = defaultdict(list)
    for outage in trace.outages:
        found[outage.node].append(outage)
    return found


def _quantile(ranked: Sequence[T], share: float) -> T:
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


# -- lemons -------------------------------------------------------------------------------------------------


class LemonTrial(Record):
    """What the lemons of one report, or of several, did in the time after it, against all other nodes."""

    reports: int
    named: int
    """Lemons, of all reports together."""
    failed: int
    """Of these, those that failed in the time after the report."""
    precision: float
    others: float
    """Share of the other nodes that failed."""
    lift: float
    """Failures per lemon by failures per other node."""
    share: float
    """Share of all later failures that lemons had."""


def lemon_trial(trace: FailureTrace, look_s: float, ahead_s: float, every_s: float = math.inf) -> LemonTrial:
    """Compare the lemons of ``look_s`` with what fails in ``ahead_s`` after it; a report each ``every_s``.

    A node works whenever it is not out.
    """
    work, failures = work_of(trace), failures_of(trace)
    starts = [failure.t for failure in failures]
    reports = named = failed = of_named = later = others = others_failed = 0
    at = look_s
    while at + ahead_s <= trace.span_s:
        lemons = {found.node for found in score(work, failures, at - look_s, at) if found.is_lemon}
        between = failures[bisect_left(starts, at) : bisect_left(starts, at + ahead_s)]
        after = Counter(failure.nodes[0] for failure in between)
        reports += 1
        named += len(lemons)
        failed += sum(node in after for node in lemons)
        of_named += sum(after[node] for node in lemons)
        later += after.total()
        others += trace.nodes - len(lemons)
        others_failed += len(after.keys() - lemons)
        at += every_s
    per_other = (later - of_named) / others if others else 0.0
    return LemonTrial(
        reports=reports,
        named=named,
        failed=failed,
        precision=failed / named if named else 0.0,
        others=others_failed / others if others else 0.0,
        lift=of_named / named / per_other if named and per_other else 0.0,
        share=of_named / later if later else 0.0,
    )


def work_of(trace: FailureTrace) -> list[Work]:
    """Return when each node worked: whenever it was not out. Nodes without an outage get numbers as names."""
    found = []
    by_node = _by_node(trace)
    for node, outages in by_node.items():
        begin = 0.0
        for outage in outages:
            found.append(Work(nodes=(node,), start=begin, end=outage.start))
            begin = outage.start + trace.lasted(outage)
        found.append(Work(nodes=(node,), start=begin, end=trace.span_s))
    silent = range(trace.nodes - len(by_node))
    return [*found, *(Work(nodes=(f"without an outage {i}",), start=0.0, end=trace.span_s) for i in silent)]


def failures_of(trace: FailureTrace) -> list[Failure]:
    """Return the outages as failures of their nodes, by time."""
    return [
        Failure(t=outage.start, nodes=(outage.node,), kind=outage.kind, in_job=False)
        for outage in trace.outages
    ]
