"""Which node keeps the second copies of a node's ranks (ByteRobust paper, section 5.1). Pure.

What fails together must not hold both copies. Nodes fail one at a time, and all nodes of one parallel
group are evicted together when it is not known which of them is at fault. So two nodes are *linked* by
every parallel group that has ranks on both, and the best peer is a node without any link.

That cannot always be had. With data parallelism alone, every node is linked with every other by the one
group there is; a pipeline that spans all nodes links them all; two nodes have no choice at all. Then the
node with the fewest links is taken, so the copies survive the loss of a node, and what survives the
eviction of a whole group is what lies on storage.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from slurm_robust.model.layout import ParallelLayout

PEER_SHARE = 0.25
"""The share of what an interface can carry that copies to peers take, unless configured (``peer_mb_s``).

Heartbeats, Slurm and often the shared storage share it with the copies.
"""


def peer_slots(layout: ParallelLayout, switches: Sequence[str] = ()) -> tuple[int, ...]:
    """Return for each slot the slot whose node keeps the copies of its ranks; empty for a single slot.

    ``switches``: name of the leaf switch of each slot's node, empty if not known; among equally good
    peers one at another switch is better. Each slot gets a peer with the fewest links that any has for it,
    and under that condition the most loaded peer keeps as few as possible (one slot's copies, if possible).
    Equal input gives equal output.
    """
    return _peer_slots(layout, tuple(switches))


class Links:
    """How many parallel groups two slots have in common, apart from groups with ranks on all slots."""

    def __init__(self, layout: ParallelLayout) -> None:
        nproc = layout.nproc_per_node
        self.slots = layout.world_size // nproc
        members: dict[tuple[str, int], dict[int, None]] = {}
        for slot in range(self.slots):
            for rank in range(slot * nproc, (slot + 1) * nproc):
                for group in layout.groups_of(rank):
                    members.setdefault(group, {})[slot] = None
        # Ranks of a node are mostly in like groups: what has ranks on the same slots is counted together.
        alike = Counter(tuple(found) for found in members.values() if 1 < len(found) < self.slots)
        self._of: list[dict[int, int]] = [{} for _ in range(self.slots)]
        for number, (found, count) in enumerate(alike.items()):
            for slot in found:
                self._of[slot][number] = count

    def between(self, slot: int, other: int) -> int:
        """Return how many groups have ranks on both slots."""
        mine, theirs = self._of[slot], self._of[other]
        return sum(count for number, count in mine.items() if number in theirs)


@lru_cache(maxsize=8)
def _peer_slots(layout: ParallelLayout, switches: tuple[str, ...]) -> tuple[int, ...]:
    links = Links(layout)
    if links.slots < 2:
        return ()
    candidates = [_Candidates(slot, links, switches) for slot in range(links.slots)]
    load = 1
    while (found := _match(candidates, load)) is None:
        load += 1
    return found


class _Candidates:
    """The slots that are the best peers of ``slot``, half the world away first.

    They are found on demand: the first ones nearly always suffice, and comparing all slots of a large world
    with each other takes seconds.
    """

    def __init__(self, slot: int, links: Links, switches: tuple[str, ...]) -> None:
        self._slot, self._links, self._switches = slot, links, switches
        self._least: tuple[int, bool] | None = None

    def __iter__(self) -> Iterator[int]:
        if self._least is None:
            least = self._cost(next(self._others()))
            for cost in map(self._cost, self._others()):
                least = min(least, cost)
                if least == (0, False):
                    break
            self._least = least
        return (other for other in self._others() if self._cost(other) == self._least)

    def _others(self) -> Iterator[int]:
        """Yield from half the world away on: neighbours tend to share a switch, a rack, a power supply."""
        slots = self._links.slots
        around = ((self._slot + slots // 2 + i) % slots for i in range(slots))
        return (other for other in around if other != self._slot)

    def _cost(self, other: int) -> tuple[int, bool]:
        near = bool(self._switches) and self._switches[other] == self._switches[self._slot]
        return self._links.between(self._slot, other), near


def _match(candidates: Sequence[Iterable[int]], load: int) -> tuple[int, ...] | None:
    """Match each slot with one of its candidates, none more than ``load`` times; None if impossible.

    Augmenting paths (Kuhn's algorithm), breadth first.
    """
    taken: list[list[int]] = [[] for _ in candidates]
    peer = [-1] * len(candidates)
    for start in range(len(candidates)):
        before: dict[int, tuple[int, int]] = {}  # slot that moves: who takes its peer, and which
        queue, seen = deque([start]), set[int]()
        end: tuple[int, int] | None = None
        while queue and end is None:
            slot = queue.popleft()
            for other in candidates[slot]:
                if len(taken[other]) < load:
                    end = slot, other
                    break
                if other not in seen:
                    seen.add(other)
                    for holder in taken[other]:
                        before[holder] = slot, other
                        queue.append(holder)
        if end is None:
            return None
        slot, other = end
        while True:
            if peer[slot] >= 0:
                taken[peer[slot]].remove(slot)
            taken[other].append(slot)
            peer[slot] = other
            if slot == start:
                break
            slot, other = before[slot]
    return tuple(peer)
