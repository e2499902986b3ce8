"""What an agent passes to its workers: environment variables beside those of torchrun."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.record import UNREADABLE, Record

JOB_DIR = "SROBUST_JOB_DIR"
RUN_ID = "SROBUST_RUN_ID"
GENERATION = "SROBUST_GENERATION"
RECORD = "SROBUST_RECORD"
RESTORE = "SROBUST_RESTORE"
TIERS = "SROBUST_TIERS"
LAYOUT = "SROBUST_LAYOUT"
RESTORE_LAYOUT = "SROBUST_RESTORE_LAYOUT"
COPIES = "SROBUST_COPIES"
RESTORE_TIER = "SROBUST_RESTORE_TIER"
EARLIER = "SROBUST_EARLIER_RUNS"
RELEASE = "SROBUST_RELEASE"
DISCARD_OPTIMIZER = "SROBUST_DISCARD_OPTIMIZER"
CODE = "SROBUST_CODE"

REHEARSAL = "SROBUST_REHEARSAL"
"""Set in a rehearsal, which is no run of the job; a script may ask for it."""

FITS = "SROBUST_FITS"
"""A :class:`Fitting` of a rehearsal, as JSON."""

OF_A_RUN = (RUN_ID, JOB_DIR, RECORD, GENERATION)
"""A process that lacks these restores nothing, writes no checkpoint and reports to no agent."""


class BadWorkerEnvironment(ValueError):
    """Some of the variables are there and others are missing or no good: the message names which."""


class WorkerEnvironment(Record):
    """One worker's place in its run."""

    job_dir: str
    run_id: str
    generation: int
    record: str  # path of its step record, :mod:`slurm_robust.worker.step_record`
    places: dict[Tier, str]  # folders of the tiers of the run's checkpoints beyond the nodes' memory
    restore: CheckpointId | None = None  # the checkpoint to continue from, None for a fresh start
    layout: str = ""  # identity of the parallel layout
    restore_layout: str = ""  # that of ``restore`` if it is another one
    copies: str = ""  # the folder of snapshots in this node's memory, "" for none
    restore_tier: Tier = Tier.STORAGE  # in which this rank's parts of ``restore`` are or will appear
    earlier: tuple[str, ...] = ()  # runs of earlier jobs, whose checkpoints may be restored
    release: str = ""  # what it runs, stamped on every checkpoint; "" for the code in its place
    discard_optimizer: bool = False  # the state of optimizers in ``restore`` is left out

    def to_env(self) -> dict[str, str]:
        """Return the variables to set; :meth:`from_env` reads them back."""
        return {
            JOB_DIR: self.job_dir,
            RUN_ID: self.run_id,
            GENERATION: str(self.generation),
            RECORD: self.record,
            RESTORE: str(self.restore) if self.restore else "",
            TIERS: msgspec.json.encode(self.places).decode(),
            LAYOUT: self.layout,
            RESTORE_LAYOUT: self.restore_layout,
            COPIES: self.copies,
            RESTORE_TIER: self.restore_tier.value,
            EARLIER: " ".join(self.earlier),
            RELEASE: self.release,
            DISCARD_OPTIMIZER: "1" if self.discard_optimizer else "",
        }

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> WorkerEnvironment | None:
        """Return the place that ``environ`` describes; None outside of ``srobust run``.

        Raises :class:`BadWorkerEnvironment` when only a part of it is there.
        """
        if RUN_ID not in environ:
            return None
        missing = [n for n in (JOB_DIR, GENERATION, RECORD, TIERS) if not environ.get(n)]
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
        try:
            places = msgspec.json.decode(environ[TIERS], type=dict[Tier, str])
            tier = Tier(environ.get(RESTORE_TIER) or Tier.STORAGE)
        except (ValueError, *UNREADABLE) as error:
            raise BadWorkerEnvironment(f"{TIERS}, {RESTORE_TIER}: {error}: {changed}") from None
        return cls(
            job_dir=environ[JOB_DIR],
            run_id=environ[RUN_ID],
            generation=generation,
            record=environ[RECORD],
            restore=checkpoint,
            places=places,
            layout=environ.get(LAYOUT, ""),
            restore_layout=environ.get(RESTORE_LAYOUT, ""),
            copies=environ.get(COPIES, ""),
            restore_tier=tier,
            earlier=tuple(environ.get(EARLIER, "").split()),
            release=environ.get(RELEASE, ""),
            discard_optimizer=environ.get(DISCARD_OPTIMIZER) == "1",
        )


class Fitting(Record):
    """A checkpoint on storage that the model and the optimizer of a rehearsal have to fit."""

    checkpoint: CheckpointId
    job_dir: str
    run_id: str
    places: dict[Tier, str]
    earlier: tuple[str, ...] = ()
    """Runs of earlier jobs, one of which may have written it."""
    discard_optimizer: bool = False
    """The optimizer need not fit."""

    def to_env(self) -> dict[str, str]:
        """Return the variable to set; :meth:`from_env` reads it back."""
        return {FITS: msgspec.json.encode(self).decode()}

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Fitting | None:
        """Return what ``environ`` names; None if there is nothing, or nothing that can be read."""
        try:
            return msgspec.json.decode(environ.get(FITS, ""), type=cls)
        except UNREADABLE:
            return None
