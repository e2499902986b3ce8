"""Plays the agent of a node's workers: records, environments and folders, for a generation at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_robust.checkpoint.local import seal_key
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.worker.step_record import StepRecord
from tests.builders.workers import worker

RUN = "11-cafe"


class Node:
    """``folder`` is for files, ``memory`` a folder in shared memory for the job's copies."""

    def __init__(self, folder: Path, memory: Path, world_size: int = 1) -> None:
        self.folder = folder
        self.copies = MemoryFolder.create(RUN, memory)
        self.copies.seal_key.write_bytes(seal_key("secret"))
        self.store = CheckpointStore(folder / "ckpt")
        self.local = folder / "local"
        self.world_size = world_size
        self.records: dict[int, StepRecord] = {}

    def environ(
        self,
        generation: int,
        rank: int = 0,
        *,
        restore: str = "",
        tier: str = "storage",
        layout: str = "tp1",
        **more: Any,
    ) -> dict[str, str]:
        """The variables of a worker, whose record is made anew; ``more``: of its environment."""
        self.records[rank], environment = worker(
            self.folder,
            generation,
            rank,
            run_id=RUN,
            restore=CheckpointId.parse(restore) if restore else None,
            places={Tier.LOCAL: str(self.local), Tier.STORAGE: str(self.store.path)},
            layout=layout,
            copies=str(self.copies.path),
            restore_tier=Tier(tier),
            **more,
        )
        return {
            **environment.to_env(),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
        }
