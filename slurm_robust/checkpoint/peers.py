"""Which node keeps the second copies of a node's ranks (ByteRobust paper, section 5.1). Pure.

What fails together must not hold both copies. Nodes fail one at a time, and all nodes of one parallel
group are evicted together when nobody can tell which of them is at fault. So two nodes are *linked* by
every parallel group that has ranks on both, and the best peer is a node without any link.

That cannot always be had. With data parallelism alone, every node is linked with every other by the one
group there is; a pipeline that spans all nodes links them all; two nodes have no choice at all. Then the
node with the fewest links is taken, so the copies survive the loss of a node, and what survives the
eviction of a whole group is what lies on storage.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import lru_cache

from slurm_robust.model.layout import ParallelLayout


def peer_slots(layout: ParallelLayout, switches: Sequence[str] = ()) -> tuple[int, ...]:
    """For each slot the slot whose node keeps the copies of its ranks; empty for a single slot.

    ``switches``: name of the leaf switch of each slot's node, empty if not known; among equally good
    peers one at another switch is better. Each slot gets a peer with the fewest links that any has for
    it, and under that condition the most loaded peer keeps as few as possible (one slot's copies, where
    that can be). Equal input gives equal output.
    """
    return _peer_slots(layout, tuple(switches))


def peers_of(layout: ParallelLayout, switches: Sequence[str] = ()) -> Mapping[int, int]:
    """For each rank the slot whose node keeps its second copy; empty for a world on one node."""
    nproc = layout.nproc_per_node
    return {
        slot * nproc + local: peer
        for slot, peer in enumerate(peer_slots(layout, switches))
        for local in range(nproc)
    }


def links(layout: ParallelLayout) -> list[Counter[int]]:
    """For each slot: how many parallel groups have ranks there and on each of the other slots."""
    nproc = layout.nproc_per_node
    slots = layout.world_size // nproc
    groups = [
        {g for r in range(s * nproc, (s + 1) * nproc) for g in layout.groups_of(r)} for s in range(slots)
    ]
    members: dict[tuple[str, int], list[int]] = {}
    for slot, names in enumerate(groups):
        for name in names:
            members.setdefault(name, []).append(slot)
    found = []
    for slot, names in enumerate(groups):
        count = Counter(other for name in names for other in members[name])
        del count[slot]
        found.append(count)
    return found


@lru_cache(maxsize=8)
def _peer_slots(layout: ParallelLayout, switches: tuple[str, ...]) -> tuple[int, ...]:
    slots = layout.world_size // layout.nproc_per_node
    if slots < 2:
        return ()
    candidates = [_best(slot, slots, count, switches) for slot, count in enumerate(links(layout))]
    load = 1
    while (found := _match(candidates, load)) is None:
        load += 1
    return found


def _best(slot: int, slots: int, links: Counter[int], switches: tuple[str, ...]) -> list[int]:
    """The slots that are the best peers of ``slot``, half the world away first."""

    def cost(other: int) -> tuple[int, bool]:
        return links[other], bool(switches) and switches[other] == switches[slot]

    # From half the world away on: neighbours tend to share a switch, a rack, a power supply.
    others = [other for i in range(slots) if (other := (slot + slots // 2 + i) % slots) != slot]
    least = min(map(cost, others))
    return [other for other in others if cost(other) == least]


def _match(candidates: list[list[int]], load: int) -> tuple[int, ...] | None:
    """One of its candidates for each slot, none taken more than ``load`` times; None if impossible.

    Augmenting paths (Kuhn's algorithm), breadth first.
    """
    taken: list[list[int]] = [[] for _ in candidates]
    peer = [-1] * len(candidates)
    for start in range(len(candidates)):
        before: dict[int, tuple[int, int]] = {}  # a slot that is to move: who takes its peer, and which
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
