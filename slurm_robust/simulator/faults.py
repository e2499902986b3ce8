"""When what goes wrong in a simulated life, drawn from the sources of a spec. Pure.

Faults are drawn one after the other, as they are asked for: a source with one fault a second costs nothing if
the job ends after ten.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import count
from random import Random

from slurm_robust.model.record import Record
from slurm_robust.simulator.spec import FaultSource, Spec
from slurm_robust.simulator.spread import UNITS, rate, seconds

DAY_S = UNITS["day"]


class SimulatedFault(Record):
    """Something that goes wrong at ``t`` seconds after the life began."""

    t: float
    source: FaultSource
    node: int = -1
    """The number of the node that it strikes, -1 for one of the job's nodes, whichever it has then."""
    at_node: bool = True
    """A node is at fault; else the code, or nobody."""
    persists: bool = False
    """It comes again as long as the node, or the code, is in use."""
    number: int = 0
    """Tells two faults of one life apart. Those that :attr:`~.FaultSource.same` calls one have one number."""


def faults_of(spec: Spec, nodes: int, seed: str) -> Iterator[SimulatedFault]:
    """Yield the faults of one life by their rates, the earliest first, without end.

    ``nodes``: of the whole cluster.
    """
    numbers = count(1)
    streams = [
        _stream(source, spec.job.gpus_per_node, nodes, _chance(seed, place, source), numbers)
        for place, source in enumerate(spec.faults)
        if source.after is None
    ]
    return heapq.merge(*streams, key=lambda fault: (fault.t, fault.number))


def given_faults(spec: Spec, seed: str) -> list[SimulatedFault]:
    """Return the faults of which the spec says when they happen; ``t``: how long the job has trained then."""
    numbers: dict[str, int] = {}
    found = []
    for place, source in enumerate(spec.faults):
        if source.after is not None:
            number = -1 - (numbers.setdefault(source.same, place) if source.same else place)
            found.append(_fault(seconds(source.after), source, -1, _chance(seed, place, source), number))
    return sorted(found, key=lambda fault: fault.t)  # stable


def _chance(seed: str, place: int, source: FaultSource) -> Random:
    return Random(f"{seed} {place} {source.kind.value}")


def _fault(t: float, source: FaultSource, node: int, chance: Random, number: int) -> SimulatedFault:
    at_node = chance.random() < source.at_node
    persists = chance.random() < (source.persists if at_node else source.code_persists)
    return SimulatedFault(t=t, source=source, node=node, at_node=at_node, persists=persists, number=number)


def _stream(
    source: FaultSource, gpus: int, nodes: int, chance: Random, numbers: Iterator[int]
) -> Iterator[SimulatedFault]:
    assert source.rate is not None
    often = rate(source.rate)
    of_job = often.what == "job"
    each = often.per_s * (gpus if often.what == "GPU" else 1)
    if each <= 0:
        return
    strikes = _Strikes(source, 1 if of_job else nodes, each, chance)
    for t, node in strikes:
        yield _fault(t, source, -1 if of_job else node, chance, next(numbers))


class _Strikes:
    """The times at which one source strikes, and the node that it strikes."""

    def __init__(self, source: FaultSource, nodes: int, each: float, chance: Random) -> None:
        self._source, self._nodes, self._each, self._chance = source, nodes, each, chance
        lemons = round(source.lemons * nodes)
        self._lemons = chance.sample(range(nodes), lemons) if lemons else []
        if lemons and source.lemons_together:
            first = chance.randrange(nodes - lemons + 1)
            self._lemons = list(range(first, first + lemons))
        self._lemon_share = 0.0
        if lemons:  # their share of all faults; the rate stays what the spec says
            weight = lemons * source.lemon_factor
            self._lemon_share = weight / (weight + nodes - lemons)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        if self._source.lifetime == "weibull":
            return self._renewals()
        return self._days() if self._source.dispersion > 1 else self._alike()

    def _node(self) -> int:
        if self._chance.random() < self._lemon_share:
            return self._chance.choice(self._lemons)
        return self._chance.randrange(self._nodes)

    def _alike(self) -> Iterator[tuple[float, int]]:
        t, often = 0.0, self._nodes * self._each
        while True:
            t += self._chance.expovariate(often)
            yield t, self._node()

    def _days(self) -> Iterator[tuple[float, int]]:
        """Yield a Poisson process whose rate is another one each day, gamma-distributed."""
        mean = self._nodes * self._each * DAY_S
        shape = mean / (self._source.dispersion - 1)  # the variance is mean + mean**2 / shape
        for day in count():
            often = self._chance.gammavariate(shape, 1 / shape) * mean / DAY_S
            t, end = day * DAY_S, (day + 1) * DAY_S
            while often > 0 and (t := t + self._chance.expovariate(often)) < end:
                yield t, self._node()

    def _renewals(self) -> Iterator[tuple[float, int]]:
        """Yield the faults of nodes that are new at the beginning, and after each fault."""
        shape = self._source.shape
        mean_s = 1 / self._each
        weights = [1.0] * self._nodes
        for node in self._lemons:
            weights[node] = self._source.lemon_factor
        level = sum(weights) / self._nodes

        def lifetime(node: int) -> float:
            scale = mean_s * level / weights[node] / math.gamma(1 + 1 / shape)
            return self._chance.weibullvariate(scale, shape)

        due = [(lifetime(node), node) for node in range(self._nodes)]
        heapq.heapify(due)
        while True:
            t, node = due[0]
            heapq.heapreplace(due, (t + lifetime(node), node))
            yield t, node
