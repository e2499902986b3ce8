"""What happens to the training: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What breaks."""

    KILL_RANK = "SIGKILL to a rank"
    STOP_RANK = "SIGSTOP to a rank"
    KILL_AGENT = "SIGKILL to an agent"
    KILL_CONTROLLER = "SIGKILL to the controller"
    KILL_SLURMD = "SIGKILL to a slurmd"
    POWER_CUT = "power cut of a node that trains"
    CUT_SPARE = "power cut of a standby"
    CUT_HOST = "power cut of the controller's node"
    CUT_NETWORK = "cut network of a node that trains"
    CUT_HOST_NETWORK = "cut network of the controller's node"
    KILL_SLURMCTLD = "SIGKILL to slurmctld"
    RESTART_SLURMCTLD = "restart of slurmctld"
    FULL_STORAGE = "full storage"


CONVICTS = {
    Kind.STOP_RANK,
    Kind.POWER_CUT,
    Kind.CUT_SPARE,
    Kind.CUT_HOST,
    Kind.CUT_NETWORK,
    Kind.CUT_HOST_NETWORK,
}
"""Faults of one node that may evict it."""

LASTS_S = {
    Kind.KILL_SLURMD: (5.0, 30.0),
    Kind.POWER_CUT: (5.0, 60.0),
    Kind.CUT_SPARE: (5.0, 60.0),
    Kind.CUT_HOST: (5.0, 60.0),
    Kind.CUT_NETWORK: (0.5, 40.0),
    Kind.CUT_HOST_NETWORK: (0.5, 40.0),
    Kind.KILL_SLURMCTLD: (5.0, 20.0),
    Kind.FULL_STORAGE: (20.0, 20.0),
}
"""Until the fault is mended; others need no mending."""

MIDWAY = 0.2
"""The share of faults that come while training recovers from the one before."""

MIDWAY_S = (0.0, 4.0)
"""After the incident of the one before has begun."""

APART = (15, 45)
"""Steps between the recovery from a fault and the next one: more than the two seconds that count as none."""


@dataclass(frozen=True)
class Planned:
    """One fault. ``pick``, from 0 to 1, chooses among the ranks or nodes that it can hit when it comes.

    ``midway_s``: seconds after the incident of the previous fault has opened; None: the fault comes ``apart``
    steps after training has recovered from the previous one.
    """

    number: int
    kind: Kind
    pick: float
    lasts_s: float
    apart: int
    midway_s: float | None


def plan(seed: int, faults: int) -> tuple[Planned, ...]:
    """The faults of ``seed``; fewer of them are the first of more. Never two midway ones in a row."""
    chance = random.Random(seed)
    kinds, found = _shuffled(chance), list[Planned]()
    for number in range(1, faults + 1):
        kind = next(kinds)
        midway = chance.random() < MIDWAY
        low, high = LASTS_S.get(kind, (0.0, 0.0))
        pick, lasts_s = chance.random(), round(chance.uniform(low, high), 1)
        apart, delay_s = chance.randint(*APART), round(chance.uniform(*MIDWAY_S), 1)
        midway = midway and bool(found) and found[-1].midway_s is None
        found.append(Planned(number, kind, pick, lasts_s, apart, delay_s if midway else None))
    return tuple(found)


def _shuffled(chance: random.Random) -> Iterator[Kind]:
    """All kinds in one order, then all in another, so that the rare ones come as often."""
    while True:
        kinds = list(Kind)
        chance.shuffle(kinds)
        yield from kinds
