"""A newer checkpoint of which some parts are out of reach: which parts, and on which nodes they are. Pure.

Where two nodes are lost at once, the nodes that are left still hold theirs, and what they hold is worth
naming before it is given away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.model.layout import Placement
from slurm_robust.model.record import Record
from slurm_robust.policy.restore import Holding
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import named_ranks


class MissingParts(Record):
    """A checkpoint that is not whole within reach."""

    ref: CheckpointId
    ranks: tuple[int, ...]
    """Whose own part is missing."""
    nodes: tuple[str, ...]
    """On which these ranks ran, as far as they are out of reach."""
    shared: bool = False
    """The part that is equal on all ranks is missing, too."""
    is_reseedable: bool = False
    """Training could go on from it with new parts for these ranks: the shared part is in reach, and that of a
    rank."""

    def describe(self) -> str:
        """``step 24 is not whole: the parts of ranks 1-2 are on n[2-3]``."""
        parts = "the part" if len(self.ranks) == 1 else "the parts"
        own = f"{parts} of {named_ranks(self.ranks)}" if self.ranks else ""
        what = " and ".join(filter(None, (own, "the shared part" if self.shared else "")))
        verb = "is" if len(self.ranks) + self.shared == 1 else "are"
        where = f"on {fold(self.nodes)}" if self.nodes else "on no node that answers"
        return f"step {self.ref.step} is not whole: {what} {verb} {where}"


def missing_parts(
    generation: int,
    holdings: Iterable[Holding],
    placement: Placement,
    *,
    shared: bool,
    after: int = -1,
    newest: int | None = None,
    gone: Collection[str] = (),
) -> MissingParts | None:
    """The newest step of ``generation`` that all nodes in reach have and that needs others; None for none.

    ``holdings``: nodes in reach; ``gone``: nodes out of reach; ``after``: only later steps, since that one
    can be restored; ``newest``: no later step counts. A step counts if each rank of a node in reach has its
    part in reach: of the others that is not to be expected.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for holder in holdings:
        for copy in holder.copies:
            if copy.generation == generation and copy.step > after:
                found[copy.step].add(copy.rank)
    here = {r for node in placement.slots if node not in gone for r in placement.ranks_of(node)}
    for step in sorted(found, reverse=True):
        parts = found[step]
        lacks = tuple(rank for rank in range(placement.world_size) if rank not in parts)
        lacks_shared = shared and SHARED not in parts
        if (newest is not None and step > newest) or not here <= parts or not (lacks or lacks_shared):
            continue
        nodes = dict.fromkeys(node for rank in lacks if (node := placement.node_of(rank)) in gone)
        return MissingParts(
            ref=CheckpointId(step=step, generation=generation),
            ranks=lacks,
            nodes=tuple(nodes),
            shared=lacks_shared,
            is_reseedable=bool(here) and shared and not lacks_shared,
        )
    return None
