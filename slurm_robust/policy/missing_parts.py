"""A newer checkpoint of which some parts are out of reach: which parts, and on which nodes. Pure.

If two nodes are lost together, the remaining nodes still hold their parts, which are worth naming before they
are given away.
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

MAX_REPEATED_S = 60.0
"""Training of this length is repeated from memory rather than to go on with parts made anew."""


class MissingParts(Record):
    """A checkpoint that is not whole within reach."""

    ref: CheckpointId
    ranks: tuple[int, ...]
    """Whose own part is missing."""
    nodes: tuple[str, ...]
    """Nodes out of reach that ran these ranks; all nodes out of reach if only the shared part is missing.
    """
    shared: bool = False
    """The part that is equal on all ranks is missing, too."""
    source: int = -1
    """A rank whose part is in reach beside the shared one, so that the missing parts could be made from it,
    with new random generators; -1 for none.
    """

    @property
    def anew(self) -> dict[int, int]:
        """For each missing part the rank from whose part it could be made; empty if they cannot be made."""
        return dict.fromkeys(self.ranks, self.source) if self.source >= 0 else {}

    def describe(self) -> str:
        """Return a text such as ``step 24 is not whole: the parts of ranks 1-2 are on n[2-3]``."""
        parts = "the part" if len(self.ranks) == 1 else "the parts"
        own = f"{parts} of {named_ranks(self.ranks)}" if self.ranks else ""
        what = " and ".join(filter(None, (own, "the shared part" if self.shared else "")))
        verb = "is" if len(self.ranks) + self.shared == 1 else "are"
        where = f"on {fold(self.nodes)}" if self.nodes else "on no node that answers"
        return f"step {self.ref.step} is not whole: {what} {verb} {where}"


def missing_parts(
    generation: int,
    holdings: Collection[Holding],
    placement: Placement,
    *,
    shared: bool,
    after: int = -1,
    newest: int | None = None,
    gone: Collection[str] = (),
) -> MissingParts | None:
    """Return the newest step of ``generation`` that nodes in reach have and that needs others, None for none.

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
        ran = [placement.node_of(rank) for rank in lacks] or placement.slots  # each node has the shared part
        nodes = dict.fromkeys(node for node in ran if node in gone)
        return MissingParts(
            ref=CheckpointId(step=step, generation=generation),
            ranks=lacks,
            nodes=tuple(nodes),
            shared=lacks_shared,
            source=_source(step, generation, holdings) if shared and here else -1,
        )
    return None


def _source(step: int, generation: int, holdings: Iterable[Holding]) -> int:
    """Return the lowest rank whose part a node has beside the shared one, which is written with rank 0's."""
    found: list[int] = []
    for holder in holdings:
        ranks = {c.rank for c in holder.copies if (c.step, c.generation) == (step, generation)}
        found += ranks - {SHARED} if SHARED in ranks else ()
    return min(found, default=-1)


def are_worth_making(missing: MissingParts, whole: int, step_s: float) -> bool:
    """Return whether training rather goes on with parts made anew than from ``whole``.

    ``whole``: the newest step of which memory has every part, -1 for none: it changes no bit and costs the
    steps after it, of ``step_s`` seconds each.
    """
    return whole < 0 or (missing.ref.step - whole) * step_s > MAX_REPEATED_S
