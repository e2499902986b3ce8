"""Slots, the nodes under them, the ranks that belong to them, and their parallel groups."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property

from slurm_robust.model.record import Record

DATA = "dp"
"""The dimension whose size may change from one generation to the next: its ranks hold the same, or shards."""

_SIZE = re.compile(r"([a-z]+)(\d+)")
_IDENTITY = re.compile(r"(?P<world>\d+)x(?P<nproc>\d+):(?P<sizes>[a-z]+\d+(?:-[a-z]+\d+)*)")


class DoesNotDivide(ValueError):
    """The sizes of the parallel dimensions do not divide the number of ranks."""


class ParallelLayout(Record):
    """How ranks are arranged in parallel dimensions; ranks that differ in one only are a *group* of it."""

    nproc_per_node: int
    sizes: tuple[tuple[str, int], ...]
    """Each dimension with its size; the dimension that changes fastest with the rank comes first
    (Megatron-LM's order ``tp-cp-ep-dp-pp`` is such a list).
    """

    @classmethod
    def fit(
        cls, world_size: int, nproc_per_node: int, sizes: Mapping[str, int], order: str
    ) -> ParallelLayout:
        """Return the layout of ``world_size`` ranks; data parallelism (``dp``) takes what ``sizes`` leave.

        Raises :class:`DoesNotDivide`.
        """
        used = math.prod(sizes.values())
        if world_size % used:
            product = " * ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
            raise DoesNotDivide(f"{product} = {used} does not divide the world of {world_size} ranks")
        every = {**sizes, "dp": world_size // used}
        return cls(
            nproc_per_node=nproc_per_node, sizes=tuple((name, every[name]) for name in order.split("-"))
        )

    @classmethod
    def from_identity(cls, identity: str) -> ParallelLayout:
        """Parse what :meth:`identity` gives. Raises ``ValueError`` for any other text."""
        match = _IDENTITY.fullmatch(identity)
        if match is None:
            raise ValueError(f"{identity!r} is not a layout, such as 16x2:tp2-cp1-ep1-dp2-pp4")
        sizes = tuple((name, int(size)) for name, size in _SIZE.findall(match["sizes"]))
        found = cls(nproc_per_node=int(match["nproc"]), sizes=sizes)
        if found.world_size != int(match["world"]):
            raise ValueError(f"{identity!r} has {found.world_size} ranks, not {match['world']}")
        return found

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(size for _, size in self.sizes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Place of ``rank`` in each dimension."""
        found = {}
        for name, size in self.sizes:
            rank, found[name] = divmod(rank, size)
        return found

    def rank_at(self, place: Mapping[str, int]) -> int:
        """Return the rank at ``place``, the inverse of :meth:`coordinates`."""
        rank, stride = 0, 1
        for name, size in self.sizes:
            rank += place.get(name, 0) * stride
            stride *= size
        return rank

    @property
    def fixed(self) -> tuple[tuple[str, int], ...]:
        """The sizes beyond data parallelism, in order; dimensions of one rank have no place in the order."""
        return tuple((name, size) for name, size in self.sizes if name != DATA and size > 1)

    def groups_of(self, rank: int) -> tuple[tuple[str, int], ...]:
        """Return the names of the groups that ``rank`` is in: the dimension and the group's lowest rank.

        A group has two ranks at least.
        """
        found, stride = [], 1
        for name, size in self.sizes:
            if size > 1:
                found.append((name, rank - rank // stride % size * stride))
            stride *= size
        return tuple(found)

    def groups(self, name: str) -> list[tuple[int, ...]]:
        """Return all groups of one dimension, each with its ranks in order."""
        stride = 1
        for other, size in self.sizes:
            if other == name:
                starts = [r for r in range(self.world_size) if r // stride % size == 0]
                return [tuple(range(s, s + size * stride, stride)) for s in starts]
            stride *= size
        raise KeyError(name)

    def identity(self) -> str:
        """Return a short text that is equal for equal layouts only, ``16x2:tp2-cp1-ep1-dp2-pp4``.

        It is stamped on every copy of a checkpoint: state that was cut up in another way is of no use.
        """
        return f"{self.world_size}x{self.nproc_per_node}:" + "-".join(f"{n}{s}" for n, s in self.sizes)


def replicated(world_size: int) -> str:
    """Return the identity of a layout with data parallelism alone, of ranks of which no more is known."""
    return ParallelLayout(nproc_per_node=1, sizes=((DATA, world_size),)).identity()


def source_rank(rank: int, old: ParallelLayout, new: ParallelLayout) -> int | None:
    """Return the rank of ``old`` with the place of ``rank`` of ``new`` in every dimension; None if it is new.

    Raises :class:`DoesNotDivide` if the layouts differ in more than data parallelism.
    """
    if old.fixed != new.fixed:
        raise DoesNotDivide("the layouts differ in more than data parallelism")
    place = new.coordinates(rank)
    return old.rank_at(place) if place.get(DATA, 0) < dict(old.sizes).get(DATA, 1) else None


def replicas(rank: int, old: ParallelLayout, new: ParallelLayout) -> tuple[int, ...]:
    """Return the ranks of ``old`` that differ from ``rank`` of ``new`` in data parallelism alone."""
    place = new.coordinates(rank)
    return tuple(old.rank_at({**place, DATA: number}) for number in range(dict(old.sizes).get(DATA, 1)))


class Placement(Record, dict=True):
    """Which node stands in which slot. Ranks belong to slots, so a spare inherits coordinates."""

    slots: tuple[str, ...]
    """The node of each slot."""
    nproc_per_node: int
    """Ranks of each slot, numbered as torchrun numbers them: rank = slot * nproc_per_node + local rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks that train together."""
        return len(self.slots) * self.nproc_per_node

    def ranks_of(self, node: str) -> tuple[int, ...]:
        """Return the global ranks on ``node``, in order of local rank; empty for a node without a slot."""
        if node not in self._numbers:
            return ()
        first = self._numbers[node] * self.nproc_per_node
        return tuple(range(first, first + self.nproc_per_node))

    def holds(self, node: str) -> bool:
        """Return whether ``node`` has a slot."""
        return node in self._numbers

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {node: slot for slot, node in enumerate(self.slots)}

    def node_of(self, rank: int) -> str:
        """Return the node on which ``rank`` runs."""
        return self.slots[rank // self.nproc_per_node]
