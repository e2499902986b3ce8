"""The shared tiers as one rank sees them: what it saves there and gets back. Imports torch."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Protocol

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.state import Snapshot, Training
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tiers import Places
from slurm_robust.jobdir.place import make_in_job
from slurm_robust.model.copies import CheckpointId, Tier


class RankTier(Protocol):
    """One rank's view of a shared tier."""

    def save(self, checkpoint: CheckpointId, snapshot: Snapshot) -> None:
        """Publish this rank's part, durable on return; one that is there already stays as it is.

        Raises :class:`~slurm_robust.checkpoint.errors.NotWritten`.
        """

    def load(self, checkpoint: CheckpointId, training: Training) -> Snapshot:
        """Return this rank's state, verified to its last byte.

        Raises :class:`~slurm_robust.checkpoint.errors.CheckpointError` or ``OSError``.
        """

    def check(self, checkpoint: CheckpointId, training: Training) -> None:
        """Raise :class:`~slurm_robust.checkpoint.errors.EntryMismatch` if a load certainly would.

        No data are read. Raises another ``CheckpointError`` or ``OSError`` if that cannot be said.
        """

    def load_resharded(self, checkpoint: CheckpointId, training: Training, old: str, new: str) -> Snapshot:
        """Return this rank's state from a checkpoint of other ranks: from the layout ``old`` into ``new``.

        Raises :class:`~slurm_robust.checkpoint.errors.CheckpointError` or ``OSError``.
        """


def rank_tiers(
    places: Places,
    *,
    job_dir: str,
    run_id: str,
    rank: int,
    world_size: int,
    layout: str,
    earlier: Collection[str] = (),
    release: str = "",
) -> dict[Tier, RankTier]:
    """Return a rank's view of the shared tiers, nearest first. ``job_dir``: the job's.

    ``earlier``: runs of earlier jobs whose checkpoints are read, too; ``release``: what writes to them.
    """
    store = CheckpointStore(places[Tier.STORAGE], partial(make_in_job, Path(job_dir), run_id))
    tier = DiskTier(
        store,
        run_id=run_id,
        rank=rank,
        world_size=world_size,
        layout=layout,
        earlier=earlier,
        release=release,
    )
    return {Tier.STORAGE: tier}
