"""Slots, the nodes under them, and the ranks that belong to them."""

from __future__ import annotations

from slurm_robust.model.record import Record


class Placement(Record):
    """Which node stands in which slot. Ranks belong to slots, so a spare inherits coordinates.

    ``slots[i]`` is the name of the node in slot ``i``; every slot holds ``nproc_per_node`` ranks,
    numbered slot by slot as torchrun numbers them (rank = slot * nproc_per_node + local rank).
    """

    slots: tuple[str, ...]
    nproc_per_node: int

    @property
    def world_size(self) -> int:
        """Number of ranks in the training world."""
        return len(self.slots) * self.nproc_per_node

    def ranks_of(self, node: str) -> tuple[int, ...]:
        """Global ranks on ``node``, in order of local rank; empty for a node without a slot."""
        if node not in self.slots:
            return ()
        first = self.slots.index(node) * self.nproc_per_node
        return tuple(range(first, first + self.nproc_per_node))

    def node_of(self, rank: int) -> str:
        """Node on which ``rank`` runs."""
        return self.slots[rank // self.nproc_per_node]

    def replace(self, node: str, standby: str) -> Placement:
        """The same placement with ``standby`` in the slot of ``node``."""
        if node not in self.slots:
            raise ValueError(f"{node} has no slot; slots are {', '.join(self.slots)}")
        if standby in self.slots:
            raise ValueError(f"{standby} already has a slot")
        return Placement(
            slots=tuple(standby if n == node else n for n in self.slots),
            nproc_per_node=self.nproc_per_node,
        )
