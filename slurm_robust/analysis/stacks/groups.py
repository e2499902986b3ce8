"""Parallel groups as they are evicted: whole nodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator

from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.util.text import fold_ranks


class RankGroup(Record):
    """A parallel group, rounded up to whole nodes.

    ``dimensions`` are those along which its ranks differ, as ``pp`` or ``tp-pp``; ``node`` for one node.
    """

    dimensions: str
    ranks: frozenset[int]
    nodes: int
    size: int

    @property
    def name(self) -> str:
        """``pp 24-31``."""
        return f"{self.dimensions} {fold_ranks(self.ranks)}"


def nodes_of(ranks: Iterable[int], layout: ParallelLayout) -> frozenset[int]:
    """Slots on which ``ranks`` run."""
    return frozenset(rank // layout.nproc_per_node for rank in ranks)


def node_count(layout: ParallelLayout) -> int:
    """How many nodes the world has."""
    return math.ceil(layout.world_size / layout.nproc_per_node)


def covering(ranks: Collection[int], layout: ParallelLayout, most_nodes: float) -> list[RankGroup]:
    """All groups of at most ``most_nodes`` nodes that hold ``ranks``, the smallest first.

    Of equal ones those of fewer dimensions come first, then the one that changes faster with the rank.
    """
    wanted = nodes_of(ranks, layout)
    if not wanted or len(wanted) > most_nodes:
        return []
    first = _ranks_on(min(wanted), layout)
    found: dict[tuple[str, frozenset[int]], RankGroup] = {}
    if len(wanted) == 1:
        found["node", frozenset(first)] = RankGroup(
            dimensions="node", ranks=frozenset(first), nodes=1, size=len(first)
        )
    for names, rank in itertools.product(_combinations(layout, len(first), most_nodes), first):
        raw = _members(rank, names, layout)
        nodes = nodes_of(raw, layout)
        # A part of a node is evicted as the node.
        if wanted <= nodes and len(nodes) <= most_nodes and (len(nodes) > 1 or len(raw) == len(first)):
            whole = frozenset(itertools.chain.from_iterable(_ranks_on(n, layout) for n in nodes))
            group = RankGroup(dimensions="-".join(names), ranks=whole, nodes=len(nodes), size=len(raw))
            found.setdefault((group.dimensions, whole), group)
    order = [name for name, _ in layout.sizes]

    def rank_of(group: RankGroup) -> tuple[object, ...]:
        names = group.dimensions.split("-")
        places = [order.index(name) if name in order else len(order) for name in names]
        return group.nodes, group.size, len(names), places, sorted(group.ranks)

    return sorted(found.values(), key=rank_of)


def _combinations(layout: ParallelLayout, per_node: int, most_nodes: float) -> Iterator[tuple[str, ...]]:
    """Dimensions whose groups may fit into ``most_nodes``; never all, which would be the world."""
    sizes = {name: size for name, size in layout.sizes if size > 1}
    for count in range(1, len(sizes)):
        for names in itertools.combinations(sizes, count):
            if math.prod(sizes[name] for name in names) <= most_nodes * per_node:
                yield names


def _members(rank: int, names: Collection[str], layout: ParallelLayout) -> set[int]:
    """The ranks that differ from ``rank`` in the dimensions ``names`` only."""
    found, stride = {rank}, 1
    for name, size in layout.sizes:
        if name in names:
            found = {r - r // stride % size * stride + i * stride for r in found for i in range(size)}
        stride *= size
    return found


def _ranks_on(node: int, layout: ParallelLayout) -> range:
    first = node * layout.nproc_per_node
    return range(first, min(first + layout.nproc_per_node, layout.world_size))
