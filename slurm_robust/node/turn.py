"""The turn to drain: one node of a partition at a time looks at all others and drains itself.

Slurm has no order that drains a node only if few others are drained, and nodes that find the same fault in
the same second would all see room. But of all who create a reservation of one name, Slurm lets exactly one.
So a node creates one on itself for each of its partitions, reads the table of nodes, drains itself if there
is room, and deletes them. Should it die, Slurm ends them after a minute, and their holder has used them well
before. So whatever becomes of the answers of slurmctld: who has no turn drains nothing.

A turn that finds its partition full is left to its end. So of a whole cluster that is unfit, one node a
minute loads the table of all nodes, and all others get a short refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.slurm.client import SlurmClient

PREFIX = "srobust-turn-"
FLAGS = ("IGNORE_JOBS", "OVERLAP")
"""Jobs on the node go on, and a reservation of the site's does not keep a bad node in service."""

LASTS_S = 60.0
"""Slurm counts reservations in minutes."""

USED_S = 30.0
"""A holder that has not sent its order by then sends none: it must arrive before another's turn."""

TRIES = 2
APART_S = (0.5, 1.5)


class Turn:
    """What its holder may do. ``taken``: names of the reservations; ``ends``: when it may be used no more."""

    def __init__(self, taken: Sequence[str], ends: float, clock: Callable[[], float]) -> None:
        self.taken = list(taken)
        self._ends, self._clock = ends, clock

    @property
    def lasts(self) -> bool:
        """Whether a drain may still be ordered."""
        return self._clock() < self._ends

    def leave(self, partition: str) -> None:
        """Nobody needs to look at this partition for a while."""
        self.taken = [name for name in self.taken if name != PREFIX + partition]


@contextmanager
def turn(
    slurm: SlurmClient,
    node: str,
    partitions: Sequence[str],
    clock: Callable[[], float],
    pause: Callable[[float], None],
    chance: Callable[[], float],
) -> Iterator[Turn | None]:
    """Hold the turn; None when other nodes had it each time.

    Raises SlurmCommandError types. After any error the reservations are left to their end: an order without
    an answer may take effect late.
    """
    from slurm_robust.slurm.errors import SlurmCommandError

    # All in the same order, or two nodes could wait for each other.
    names = [PREFIX + partition for partition in sorted(partitions)]
    held: Turn | None = None
    for tried in range(TRIES):
        if tried:
            low, high = APART_S
            pause(low + chance() * (high - low))
        asked = clock()
        taken = _take(slurm, node, names)
        if len(taken) == len(names):
            held = Turn(taken, asked + USED_S, clock)
            break
        _give_back(slurm, taken)
    yield held
    if held is not None and held.lasts:
        try:
            _give_back(slurm, held.taken)
        except SlurmCommandError:
            pass  # They end by themselves.


def _take(slurm: SlurmClient, node: str, names: Sequence[str]) -> list[str]:
    """Those that the node got, up to the first that another has."""
    from slurm_robust.slurm.errors import ReservationExists
    from slurm_robust.slurm.requests import ReservationRequest

    taken: list[str] = []
    for name in names:
        request = ReservationRequest(
            name=name, nodes=(node,), users=("root",), flags=FLAGS, duration_s=LASTS_S
        )
        try:
            slurm.create_reservation(request)
        except ReservationExists:
            break
        taken.append(name)
    return taken


def _give_back(slurm: SlurmClient, names: Sequence[str]) -> None:
    for name in reversed(names):
        slurm.delete_reservation(name)
