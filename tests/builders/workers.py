"""What an agent prepares for a worker: its record, and the variables that lead to it."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from slurm_robust.model.copies import Tier
from slurm_robust.worker.environment import WorkerEnvironment
from slurm_robust.worker.step_record import StepRecord


def worker(
    folder: Path, generation: int = 1, rank: int = 0, *, run_id: str = "run", **changes: object
) -> tuple[StepRecord, WorkerEnvironment]:
    """Return the new record of a worker whose job is in ``folder`` and stores there, and its environment."""
    (folder / "job.json").write_text(f'{{"run_id": "{run_id}"}}')
    record = StepRecord.create(folder / f"record-{generation}-{rank}", generation=generation, rank=rank)
    environment = WorkerEnvironment(
        job_dir=str(folder),
        run_id=run_id,
        generation=generation,
        record=str(record.path),
        places={Tier.STORAGE: str(folder / "ckpt")},
    )
    return record, structs.replace(environment, **changes)
