"""What an agent and its storage writer (:mod:`slurm_robust.checkpoint.flush`) say to each other."""

from __future__ import annotations

from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.record import Record


class FlushOrder(Record):
    """Put these images on storage. They have to be of this run, checkpoint and layout."""

    images: dict[int, str]  # paths by rank, :data:`~slurm_robust.model.copies.SHARED` for the shared part
    checkpoint: CheckpointId
    world_size: int
    places: dict[Tier, str]  # those of the run's shared tiers, all of which get them
    job_dir: str  # the job's folder, which is not made here
    run_id: str
    layout: str | None = None  # None: any
    anew: dict[int, int] = {}  # ranks whose parts are lost: of which rank the image is that each is made from


class FlushAnswer(Record):
    """The result of an order."""

    ok: bool  # all parts are published
    error: str = ""  # else what went wrong
