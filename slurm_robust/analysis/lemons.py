"""Lemons: nodes that fail more often than chance explains, although every test of them passes. Pure.

A job of many nodes fails more often than a job of one, without any of its nodes being worse. So a failure
that cannot be pinned on one node counts 1/size on each node of the job: then a healthy node collects blame in
proportion to the hours it worked, whatever the sizes of its jobs. What a node has collected is compared with
what the rate of all *other* nodes lets expect of it. docs/fleet.md#lemons has the method and what it
cannot see.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_robust.model.record import Record

SIGNIFICANT = 0.01
"""The share of analyses of a healthy fleet that show a lemon: 1 in 100 at most."""

MIN_FAILURES = 2
"""One failure is an accident, however short the node has worked."""

CONFIDENCE = 0.95
HOUR_S = 3600.0
# For the distribution, shares are rounded to 1/2, 1/4, ... of a failure, and not below 1/64: the failure of a
# larger job says next to nothing about one of its nodes.
_LARGEST = 64


class Failure(Record):
    """Something that went wrong on one of ``nodes``."""

    t: float
    """Seconds since 1970."""
    nodes: tuple[str, ...]
    kind: str
    """In words for people."""
    in_job: bool = True
    """A job on ``nodes`` died of it; else a node was seen to fail by itself, whatever ran there."""
    is_hearsay: bool = False
    """Only a job's user says so. It adds to what else is known; alone it makes no lemon."""


class Work(Record):
    """One run of a job: its nodes were busy from ``start`` to ``end``, seconds since 1970."""

    nodes: tuple[str, ...]
    start: float
    end: float


class Score(Record):
    """One node."""

    node: str
    hours: float
    """Hours that it worked."""
    blame: float
    """The blame that it collected."""
    expected: float
    """Blame at the rate of the other nodes."""
    ratio: float | None = None
    """``blame`` by ``expected``; None if there is no other node to compare with."""
    least: float | None = None
    """What ``expected`` must be multiplied by, with 95 % confidence, for the blame not to be surprising."""
    p: float = 1.0
    """How likely a node like the others collects at least as much, times the number of nodes analysed."""
    is_lemon: bool = False
    kinds: dict[str, int] = {}
    """How many failures of each kind."""


def score(work: Iterable[Work], failures: Iterable[Failure], since: float, until: float) -> list[Score]:
    """Return all nodes that worked or failed between ``since`` and ``until``, the most suspicious first."""
    fleet = _Fleet()
    for run in work:
        hours = (min(run.end, until) - max(run.start, since)) / HOUR_S
        if hours > 0 and run.nodes:
            fleet.add_work(run.nodes, hours)
    for failure in failures:
        if since <= failure.t <= until and failure.nodes:
            fleet.add_failure(failure)
    scores = [fleet.score(name) for name in fleet.names]
    return sorted(scores, key=lambda s: (not s.is_lemon, s.p, -(s.ratio or 0.0), s.node))


def pinned(failures: Iterable[Failure], window_s: float) -> list[Failure]:
    """Return ``failures`` without those of jobs that something closer to one of their nodes explains.

    When a node dies, its job dies of it: that is one death, and the other nodes have no part in it. Closer is
    what the node was seen to do by itself, and for a job of several nodes the end of a job on one of them.
    """
    every = list(failures)
    own: dict[str, list[float]] = defaultdict(list)
    alone: dict[str, list[float]] = defaultdict(list)
    for failure in every:
        if len(failure.nodes) == 1:
            (alone if failure.in_job else own)[failure.nodes[0]].append(failure.t)

    def explained(failure: Failure) -> bool:
        if not failure.in_job:
            return False
        closer = (own,) if len(failure.nodes) == 1 else (own, alone)
        times = (t for known in closer for node in failure.nodes for t in known.get(node, ()))
        return any(abs(t - failure.t) <= window_s for t in times)

    return [failure for failure in every if not explained(failure)]


class _Node:
    """What is known of one node."""

    def __init__(self) -> None:
        self.hours = 0.0
        self.hazard: defaultdict[int, float] = defaultdict(float)
        """Node-hours of its jobs, by 1/share in them: how often such jobs die goes with these."""
        self.seen: defaultdict[int, int] = defaultdict(int)
        """Failures of its jobs, by 1/share in them."""
        self.job_blame = 0.0
        self.own = 0
        self.hearsay = 0
        self.kinds: dict[str, int] = {}


class _Fleet:
    """All nodes, and what they sum up to."""

    def __init__(self) -> None:
        self._nodes: defaultdict[str, _Node] = defaultdict(_Node)
        self._hours = self._job_blame = 0.0
        self._own = 0

    @property
    def names(self) -> list[str]:
        return sorted(self._nodes)

    def add_work(self, nodes: Sequence[str], hours: float) -> None:
        self._hours += hours * len(nodes)
        for name in nodes:
            node = self._nodes[name]
            node.hours += hours
            node.hazard[_share(nodes)] += hours * len(nodes)

    def add_failure(self, failure: Failure) -> None:
        for name in failure.nodes:
            node = self._nodes[name]
            node.kinds[failure.kind] = node.kinds.get(failure.kind, 0) + 1
            node.hearsay += failure.is_hearsay
            if failure.in_job:
                node.seen[_share(failure.nodes)] += 1
                node.job_blame += 1 / len(failure.nodes)
            else:
                node.own += 1
        if failure.in_job:
            self._job_blame += 1
        else:
            self._own += len(failure.nodes)

    def score(self, name: str) -> Score:
        node = self._nodes[name]
        blame = node.job_blame + node.own
        others = self._hours - node.hours
        if others <= 0 or node.hours <= 0:
            return Score(node=name, hours=node.hours, blame=blame, expected=0.0, kinds=node.kinds)
        # Half a failure more than was seen: others without failures have a small rate, not none.
        job_rate = (max(0.0, self._job_blame - node.job_blame) + 0.5) / others
        own_rate = (self._own - node.own + 0.5) / others
        expected = (job_rate + own_rate) * node.hours
        means = {share: job_rate * hazard for share, hazard in node.hazard.items()}
        means[1] = means.get(1, 0.0) + own_rate * node.hours
        counted = node.own + math.fsum(count / share for share, count in node.seen.items())
        p = min(1.0, len(self._nodes) * at_least(counted, means)) if blame > expected else 1.0
        failures = node.own + sum(node.seen.values())
        return Score(
            node=name,
            hours=node.hours,
            blame=blame,
            expected=expected,
            ratio=blame / expected,
            least=least_ratio(counted, means) if p < 1 else None,
            p=p,
            is_lemon=p < SIGNIFICANT and failures >= MIN_FAILURES and failures > node.hearsay,
            kinds=node.kinds,
        )


def _share(nodes: Sequence[str]) -> int:
    return int(min(_LARGEST, 1 << (len(nodes) - 1).bit_length()))


# -- sums of Poisson variables ------------------------------------------------------------------------------


def at_least(blame: float, means: Mapping[int, float]) -> float:
    """Return the probability of so much ``blame`` or more, if failures that name ``size`` nodes count 1/size
    each and come independently, ``means[size]`` of them on average. Exact, by Panjer's recursion (1981).
    """
    steps = round(blame * _LARGEST)
    jumps = [(_LARGEST // size, mean) for size, mean in means.items() if mean > 0]
    if steps <= 0:
        return 1.0
    # The probabilities are computed relative to that of no failure at all, which may be too small to write.
    relative, scale = [1.0], -math.fsum(mean for _, mean in jumps)
    for j in range(1, steps):
        terms = (mean * jump * relative[j - jump] for jump, mean in jumps if jump <= j)
        relative.append(math.fsum(terms) / j)
        if relative[-1] > 1e200:
            relative = [value * 1e-200 for value in relative]
            scale += 200 * math.log(10)
    below = math.fsum(relative)
    return max(0.0, 1 - math.exp(scale + math.log(below))) if below > 0 else 1.0


def least_ratio(blame: float, means: Mapping[int, float]) -> float:
    """Return by how much all ``means`` must at least be too small for ``blame`` not to be surprising.

    With one kind of failure this is the lower end of the exact interval of Garwood (1936).
    """
    tail = (1 - CONFIDENCE) / 2

    def grown(factor: float) -> float:
        return at_least(blame, {size: mean * factor for size, mean in means.items()})

    return _solve(grown, tail)


def _solve(rising: Callable[[float], float], value: float) -> float:
    """Find the argument at which a function rising from 0 to 1 takes ``value``, to one in a thousand."""
    low, high = 0.0, 1.0
    while rising(high) < value:
        low, high = high, high * 2
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return low
