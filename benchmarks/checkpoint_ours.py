"""Our own side of the checkpoint benchmark: the Checkpointer as a training under ``srobust run`` has it."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import common
from benchmarks.checkpoint_state import Contender, Training
from slurm_robust.checkpoint import snapshot
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.worker.api import Checkpointer  # as the zygote has it, before a worker begins
from slurm_robust.worker.environment import WorkerEnvironment
from slurm_robust.worker.step_record import StepRecord

# Warming up makes the buffers, whatever that takes: no snapshot is passed over for it.
snapshot.RESERVE_S = 60.0

RUN = "bench"
CHECKPOINTS = "checkpoints"
DRAIN_S = 60.0


class Ours(Contender):
    """``Checkpointer`` with ``every=1`` and a folder of copies, no agent beside it.

    ``restore``: the token of the checkpoint to go on from, which is in ``tier``.
    """

    warm = 6  # a buffer more than there can be

    def __init__(
        self, training: Training, disk: Path, shm: Path, *, restore: str = "", tier: Tier = Tier.MEMORY
    ) -> None:
        restored = CheckpointId.parse(restore) if restore else None
        generation = restored.generation + 1 if restored else 1
        self._folder = MemoryFolder.create(RUN, shm)
        self._ref = CheckpointId(generation=generation, step=-1)
        record = shm / "record-00000"
        StepRecord.create(record, generation=generation, rank=0).close()
        environment = WorkerEnvironment(
            job_dir=str(disk / "job"),  # none: checkpoints are beside it
            run_id=RUN,
            generation=generation,
            record=str(record),
            places={Tier.STORAGE: str(disk / CHECKPOINTS)},
            restore=restored,
            restore_tier=tier,
            copies=str(self._folder.path),
        )
        ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        os.environ.update(environment.to_env() | ranks)
        self.checkpointer = Checkpointer({"model": training.model, "optimizer": training.optimizer})
        if not restore:
            self.checkpointer.restore()

    def save(self, step: int) -> None:
        self._ref = CheckpointId(generation=self._ref.generation, step=step)
        self.checkpointer.step(step)

    def drain(self) -> None:
        if self.checkpointer.skipped:
            # They would look as if they cost nothing.
            raise common.BenchmarkFailed(f"{self.checkpointer.skipped} snapshots were skipped")
        if self._ref.step >= 0:
            common.wait_for(self._whole, DRAIN_S, f"no whole copy of {self._ref}", every_s=0.001)

    def close(self) -> None:
        self.checkpointer.close()

    @property
    def ref(self) -> CheckpointId:
        """The newest checkpoint."""
        return self._ref

    def image(self) -> Path | None:
        """Where it lies whole, None as long as it does not."""
        return self._folder.find(0, self._ref)

    def _whole(self) -> bool:
        return self.image() is not None
