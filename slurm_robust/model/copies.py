"""Copies of checkpoint parts: which part, of which step, in which tier.

A checkpoint consists of one *own* part per rank and, if training replicates state (DDP), one *shared* part
that is equal on all ranks and therefore kept once per node.
"""

from __future__ import annotations

import re
from enum import Enum

from slurm_robust.model.record import Record

# In place of a rank: the part that is equal on all ranks.
SHARED = -1

_ID = re.compile(r"gen-(\d{4,})/step-(\d{8,})")


class CheckpointId(Record, order=True, gc=False):
    """Which checkpoint. Ordered by step, then generation: the greater one is the newer.

    Its text, ``gen-0003/step-00000120``, is also its path inside a folder of checkpoints.
    """

    step: int
    """The step after which it was taken."""
    generation: int
    """The generation that took it."""

    def __str__(self) -> str:
        return f"gen-{self.generation:04d}/step-{self.step:08d}"

    @classmethod
    def parse(cls, text: str) -> CheckpointId:
        """Parse what ``str`` gives. Raises ``ValueError`` for anything else."""
        if match := _ID.fullmatch(text):
            found = cls(generation=int(match[1]), step=int(match[2]))
            if str(found) == text:
                return found
        raise ValueError(f"{text!r} names no checkpoint: expected something like 'gen-0003/step-00000120'")


class Tier(str, Enum):
    """The place of a copy, nearest first (paper, section 5.1; the order of the restore ladder)."""

    MEMORY = "memory"  # in the memory of the node on which the rank ran
    PEER = "peer"  # in the memory of another node
    LOCAL = "local"  # on the disk of a node
    STORAGE = "storage"  # on storage that all nodes share

    @property
    def is_shared(self) -> bool:
        """Whether all nodes reach it; a checkpoint is restored from there whole or not at all."""
        return self in _SHARED_TIERS

    @property
    def in_memory(self) -> bool:
        """Whether copies there are in a node's memory."""
        return self in (Tier.MEMORY, Tier.PEER)

    @property
    def distance(self) -> int:
        """How far copies are on the node that has them: the order of the tiers, all memory alike."""
        return 0 if self.in_memory else _TIERS.index(self)


_TIERS = tuple(Tier)
_SHARED_TIERS = frozenset({Tier.STORAGE})


class Copy(Record, array_like=True, gc=False):
    """One whole copy of one part."""

    rank: int
    """:data:`SHARED` for the shared part."""
    generation: int
    step: int
    tier: Tier
    nbytes: int = 0

    @property
    def checkpoint(self) -> CheckpointId:
        """Which checkpoint it is a part of."""
        return CheckpointId(step=self.step, generation=self.generation)


class RestoreSource(Record):
    """The source from which a node gets the part of ``rank`` for a restore."""

    rank: int
    tier: Tier
    address: str = ""
    """Address of the agent that holds it, "" for this node itself."""
    port: int = 0


class Peer(Record):
    """The agent to which a node streams the copies of ``rank``."""

    rank: int
    node: str
    address: str
    port: int


# -- how long a transfer may take -------------------------------------------------------------------

WORK_BYTES_S = 100e6
"""What the other side may need per byte for reserving memory, or for its sums, at the very worst."""

_TRANSFER_S = 60.0


def transfer_s(nbytes: int) -> float:
    """Return the seconds that fetching an image of ``nbytes`` may take in all, as long as bytes arrive."""
    return _TRANSFER_S + nbytes / WORK_BYTES_S
