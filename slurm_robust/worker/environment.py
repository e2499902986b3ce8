"""What an agent tells its workers, as environment variables beside those that torchrun gives."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.record import Record

JOB_DIR = "SROBUST_JOB_DIR"
RUN_ID = "SROBUST_RUN_ID"
GENERATION = "SROBUST_GENERATION"
RECORD = "SROBUST_RECORD"
RESTORE = "SROBUST_RESTORE"
CHECKPOINT_DIR = "SROBUST_CHECKPOINT_DIR"
LAYOUT = "SROBUST_LAYOUT"
COPIES = "SROBUST_COPIES"
LOCAL = "SROBUST_LOCAL"
RESTORE_TIER = "SROBUST_RESTORE_TIER"


class BadWorkerEnvironment(ValueError):
    """Some of the variables are there and others are missing or no good: the message names which."""


class WorkerEnvironment(Record):
    """One worker's place in its run.

    ``record`` is the path of its step record (:mod:`slurm_robust.worker.step_record`); ``restore`` the
    checkpoint to continue from, None for a fresh start;
    ``checkpoint_dir`` the folder of the run's checkpoints on shared storage. ``layout`` is the identity of
    the parallel layout; ``copies`` the folder of snapshots in this node's memory, "" for none; ``local`` the
    folder of copies on this node's disk, "" for none; ``restore_tier`` where this rank's parts of
    ``restore`` are or will appear: a :class:`~slurm_robust.model.copies.Tier`'s value, "" for storage.
    """

    job_dir: str
    run_id: str
    generation: int
    record: str
    checkpoint_dir: str
    restore: CheckpointId | None = None
    layout: str = ""
    copies: str = ""
    local: str = ""
    restore_tier: str = ""

    def to_env(self) -> dict[str, str]:
        """The variables to set; :meth:`from_env` reads them back."""
        return {
            JOB_DIR: self.job_dir,
            RUN_ID: self.run_id,
            GENERATION: str(self.generation),
            RECORD: self.record,
            RESTORE: str(self.restore) if self.restore else "",
            CHECKPOINT_DIR: self.checkpoint_dir,
            LAYOUT: self.layout,
            COPIES: self.copies,
            LOCAL: self.local,
            RESTORE_TIER: self.restore_tier,
        }

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> WorkerEnvironment | None:
        """The place that ``environ`` describes; None outside of ``srobust run``.

        Raises :class:`BadWorkerEnvironment` when only a part of it is there.
        """
        if RUN_ID not in environ:
            return None
        missing = [n for n in (JOB_DIR, GENERATION, RECORD, CHECKPOINT_DIR) if not environ.get(n)]
        if missing:
            raise BadWorkerEnvironment(
                f"{RUN_ID} is set but {', '.join(missing)} is not: start workers by 'srobust run', "
                f"or unset {RUN_ID} to run without it"
            )
        restore = environ.get(RESTORE)
        changed = "'srobust run' sets it, so something between it and this process changed it"
        try:
            generation = int(environ[GENERATION])
        except ValueError:
            raise BadWorkerEnvironment(
                f"{GENERATION}={environ[GENERATION]!r} is not a whole number: {changed}"
            ) from None
        try:
            checkpoint = CheckpointId.parse(restore) if restore else None
        except ValueError as error:
            raise BadWorkerEnvironment(f"{RESTORE}: {error}: {changed}") from None
        return cls(
            job_dir=environ[JOB_DIR],
            run_id=environ[RUN_ID],
            generation=generation,
            record=environ[RECORD],
            restore=checkpoint,
            checkpoint_dir=environ[CHECKPOINT_DIR],
            layout=environ.get(LAYOUT, ""),
            copies=environ.get(COPIES, ""),
            local=environ.get(LOCAL, ""),
            restore_tier=environ.get(RESTORE_TIER, ""),
        )
