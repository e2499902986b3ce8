"""The tiers of a job's checkpoints, and what the controller, the agents and the workers ask of each.

:class:`~slurm_robust.model.copies.Tier` names them, nearest first. There are two kinds. On a *node tier* a
copy of one part belongs to one node and is a whole image (:mod:`slurm_robust.checkpoint.image`): agents
report it in their heartbeats, and other nodes fetch it from there. All nodes reach a *shared tier*, from
which a checkpoint is restored whole or not at all; the controller lists and prunes it.

docs/storage-format.md#adding-a-tier says what a new one takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from slurm_robust.checkpoint.errors import MissingCheckpoint
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.local import LocalCopies
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId, Copy, Tier

Places = Mapping[Tier, str]
"""The place of each tier of a job: a folder, or whatever the tier's own class understands."""


class NodeTier(Protocol):
    """One run's copies on one node. Holds nothing open; every call reads anew. For several threads."""

    path: Path
    """The folder that holds them, and goes with the job."""

    def inventory(self) -> tuple[Copy, ...]:
        """Return the whole copies here. Raises ``OSError`` when the node's disk does not answer."""

    def find(self, rank: int, checkpoint: CheckpointId) -> Path | None:
        """Return the image of one part if a whole one of this run is here. Raises ``OSError``."""


class KeptTier(NodeTier, Protocol):
    """A node tier that gets a copy of what goes to shared tiers."""

    def publish(self, image: Image, keep: int) -> Path:
        """Copy an image that the caller holds open, durably; then keep the newest ``keep`` of its part.

        Raises ``OSError``; then nothing has changed.
        """


class SharedTier(Protocol):
    """The checkpoints of one job on storage that all nodes reach. Imports no torch."""

    def complete(self, world_size: int | None = None) -> list[CheckpointId]:
        """Return the complete checkpoints, newest first; with ``world_size`` only those of so many ranks.

        Raises ``OSError``.
        """

    def prune(
        self,
        keep: int,
        protect: Collection[CheckpointId],
        generation: int | None,
        keep_every: int | None,
    ) -> list[CheckpointId]:
        """Remove old ones, as :meth:`.store.CheckpointStore.prune` says; returns them. Raises ``OSError``."""


def kept_tiers(places: Places, run_id: str, key: bytes) -> tuple[KeptTier, ...]:
    """Return the node tiers beyond memory, nearest first. ``key``: of the seals of this job's copies."""
    found: list[KeptTier] = []
    if directory := places.get(Tier.LOCAL):
        found.append(LocalCopies(directory, run_id, key))
    return tuple(found)


def shared_tiers(places: Places, runs: Collection[str] = ()) -> dict[Tier, SharedTier]:
    """Return the shared tiers, nearest first. ``runs``: the job's, if others write there, too; () for all."""
    return {Tier.STORAGE: CheckpointStore(places[Tier.STORAGE], runs=runs)}


class SharedTiers:
    """All shared tiers of a job as the controller sees them."""

    def __init__(self, tiers: Mapping[Tier, SharedTier]) -> None:
        """Use :func:`shared_tiers`."""
        self._tiers = tiers

    def complete(self, world_size: int | None = None) -> dict[CheckpointId, Tier]:
        """Return what is complete on any of them, with the nearest one that has it. Raises ``OSError``."""
        found: dict[CheckpointId, Tier] = {}
        for tier, shared in self._tiers.items():
            for checkpoint in shared.complete(world_size):
                found.setdefault(checkpoint, tier)
        return found

    def prune(
        self,
        keep: int,
        protect: Collection[CheckpointId],
        generation: int | None,
        keep_every: int | None,
    ) -> None:
        """Remove old checkpoints from all of them. Raises ``OSError``."""
        for shared in self._tiers.values():
            shared.prune(keep, protect, generation, keep_every)


class NodeTiers:
    """All copies that one node holds, memory before the other tiers. For several threads."""

    def __init__(self, memory: MemoryFolder, kept: Sequence[KeptTier] = ()) -> None:
        self.memory = memory
        self.kept = kept

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folders that hold them."""
        return (self.memory.path, *(tier.path for tier in self.kept))

    def open(self, rank: int, checkpoint: CheckpointId) -> Image:
        """Return the nearest whole image of a part, held until it is closed.

        Raises :class:`MissingCheckpoint`, :class:`CorruptPart` or ``OSError``.
        """
        found = (tier.find(rank, checkpoint) for tier in (self.memory, *self.kept))
        path = next((path for path in found if path is not None), None)
        if path is None:
            raise MissingCheckpoint(f"there is no copy of rank {rank} of {checkpoint} here any more")
        image = open_image(path)
        if (image.header.rank, image.header.checkpoint) != (rank, checkpoint):
            image.close()
            raise MissingCheckpoint(f"{path} was refilled meanwhile")
        return image
