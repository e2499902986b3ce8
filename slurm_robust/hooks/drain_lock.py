"""The drain lock: one node of a partition at a time reads the state of all others and drains itself.

Slurm has no order that drains a node only if few others are drained, and nodes that find the same fault in
the same second would all see room. But Slurm lets exactly one node create a reservation of a given name. So a
node creates one on itself for each of its partitions, reads the table of nodes, drains itself if there is
room, and deletes them. If the node dies, Slurm ends them after a minute; their holder has used them well
before. Whatever becomes of the answers of slurmctld, a node without the lock drains nothing. slurmctld may
carry out an order to delete late, and remove the lock of the next holder. So after ordering its drain the
holder checks whether the lock is still its own; if not, or without an answer, the drain is compared with the
caps later.

The minute is one of slurmctld's clock, and begins at a time that slurmctld reports. The holder counts its
own seconds from before it asked. So the clocks of nodes may be as wrong as they like.

A holder that finds its partition full leaves the lock to expire. So if a whole cluster is unfit, one node a
minute loads the table of all nodes, and Slurm refuses the others with a short answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from slurm_robust.hooks.record import LOCK_LASTS_S
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import ReservationExists, SlurmCommandError
from slurm_robust.slurm.requests import ReservationRequest

PREFIX = "srobust-turn-"
FLAGS = ("IGNORE_JOBS", "OVERLAP")
"""Jobs on the node go on, and a reservation of the site's does not keep a bad node in service."""

USED_S = 30.0
"""A holder that has not sent its order by then sends none: it must arrive before the next holder."""

TAKING = 0.5
"""Share of the time of a hook for taking the lock. The rest is for using it and for releasing it."""

TRIES = 2
APART_S = (0.5, 1.5)


class DrainLock:
    """The lock of ``node`` until ``deadline`` of ``clock``, which showed ``begun`` when it asked for it.

    ``taken``: names of the reservations; ``ahead_s``: slurmctld's clock less ``clock``.
    """

    def __init__(
        self,
        node: str,
        taken: Sequence[str],
        begun: float,
        ahead_s: float,
        clock: Callable[[], float],
        deadline: float,
    ) -> None:
        self.taken = list(taken)
        self._node, self._begun, self._ahead_s = node, begun, ahead_s
        self._clock, self._deadline = clock, deadline

    @property
    def now(self) -> float:
        """slurmctld's clock: seconds since 1970."""
        return self._clock() + self._ahead_s

    @property
    def lasts(self) -> bool:
        """Whether a drain may still be ordered."""
        return self._clock() < min(self._begun + USED_S, self._deadline)

    def is_sole(self, slurm: SlurmClient) -> bool:
        """Return whether certainly no other node has held it so far. Forget what is not ours."""
        try:
            own = {r.name for r in slurm.reservations() if r.nodes == (self._node,)}
        except SlurmCommandError:
            own = set()
        taken, self.taken = self.taken, [name for name in self.taken if name in own]
        return self.taken == taken

    def leave(self, partition: str) -> None:
        """Say that no other node needs to try this partition for a while."""
        self.taken = [name for name in self.taken if name != PREFIX + partition]


class NoDrainLock(NamedTuple):
    """The node did not get the lock, and ``why``."""

    why: str


@contextmanager
def drain_lock(
    slurm: SlurmClient,
    node: str,
    partitions: Sequence[str],
    clock: Callable[[], float],
    deadline: float,
    pause: Callable[[float], None],
    chance: Callable[[], float],
) -> Iterator[DrainLock | NoDrainLock]:
    """Hold the drain lock if no other node has it and there is time enough to take it.

    Raises SlurmCommandError types. After any error nothing is tried again, and the reservations are left to
    their end: an order without an answer may take effect late.
    """
    # All in the same order, or two nodes could wait for each other.
    names = [PREFIX + partition for partition in sorted(partitions)]
    begun = clock()
    until = begun + TAKING * (deadline - begun)
    ahead_s = slurm.now() - begun
    mine: DrainLock | NoDrainLock = NoDrainLock(
        "other nodes hold the drain lock, or found no room just now; it waits"
    )
    for tried in range(TRIES):
        if tried:
            low, high = APART_S
            wait_s = low + chance() * (high - low)
            if clock() + wait_s >= until:
                break
            pause(wait_s)
        asked = clock()
        taken = _take(slurm, node, names, asked + ahead_s, lambda: clock() < until)
        if len(taken) == len(names):
            mine = DrainLock(node, taken, asked, ahead_s, clock, deadline)
            break
        is_late = clock() >= until
        if is_late:
            mine = NoDrainLock(
                f"out of time: got the drain lock in {len(taken)} of {len(names)} partitions within half of "
                "the hook's remaining budget; see why slurmctld is slow (sdiag), or raise the budget (hooks)"
            )
        if not _release(slurm, taken) or is_late:
            break
    yield mine
    if isinstance(mine, DrainLock) and mine.lasts:
        _release(slurm, mine.taken)


def try_drain_lock(slurm: SlurmClient, node: str) -> None:
    """Take a drain lock of no partition and release it. Raises SlurmCommandError types on failure."""
    name = f"{PREFIX}verify-{node}"
    request = _request(name, node, slurm.now())
    try:
        slurm.create_reservation(request)
    except ReservationExists:
        pass  # left by a run that was killed
    except BaseException:
        _release(slurm, [name])  # Also for Ctrl-C: Slurm may have created it anyway.
        raise
    slurm.delete_reservation(name)


def _take(
    slurm: SlurmClient, node: str, names: Sequence[str], start: float, in_time: Callable[[], bool]
) -> list[str]:
    """Return what the node got, up to the first that another node has or that comes after ``in_time``."""
    taken: list[str] = []
    for name in names:
        if not in_time():
            break
        try:
            slurm.create_reservation(_request(name, node, start))
        except ReservationExists:
            break
        taken.append(name)
    return taken


def _request(name: str, node: str, start: float) -> ReservationRequest:
    return ReservationRequest(
        name=name, nodes=(node,), users=("root",), flags=FLAGS, start_time=start, duration_s=LOCK_LASTS_S
    )


def _release(slurm: SlurmClient, names: Sequence[str]) -> bool:
    """Delete them; False if Slurm did not, then the rest expires."""
    try:
        for name in reversed(names):
            slurm.delete_reservation(name)
    except SlurmCommandError:
        return False
    return True
