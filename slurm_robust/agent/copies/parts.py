"""The copies of parts that this node holds, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.checkpoint.errors import MissingCheckpoint
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.tiers import KeptTier, NodeTier, nearest
from slurm_robust.model.copies import CheckpointId


class NodeParts:
    """Memory before the other tiers. For several threads."""

    def __init__(self, memory: MemoryFolder, kept: Sequence[KeptTier] = ()) -> None:
        self.memory = memory
        self.kept = kept
        self.tiers: tuple[NodeTier, ...] = (memory, *kept)

    def open(self, rank: int, ref: CheckpointId) -> Image:
        """The whole image of a part, held until it is closed.

        Raises :class:`MissingCheckpoint`, :class:`CorruptPart` or ``OSError``.
        """
        path = nearest(self.tiers, rank, ref)
        if path is None:
            raise MissingCheckpoint(f"there is no copy of rank {rank} of {ref} here any more")
        image = open_image(path)
        if (image.header.rank, image.header.checkpoint) != (rank, ref):
            image.close()
            raise MissingCheckpoint(f"{path} was refilled meanwhile")
        return image
