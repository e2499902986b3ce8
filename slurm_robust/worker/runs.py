"""Where a training belongs: to a run of ``srobust run``, or to nobody but its own checkpoint folder."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.errors import (
    CheckpointError,
    CorruptPart,
    ForeignPart,
    MissingCheckpoint,
    WrongUse,
)
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointRef, CheckpointStore
from slurm_robust.wire.record import StepRecord
from slurm_robust.worker.environment import WorkerEnvironment

_log = logging.getLogger(__name__)
_UNUSABLE = (CorruptPart, ForeignPart, MissingCheckpoint)


class Run(Protocol):
    """What a ``Checkpointer`` asks of the run around it."""

    def load(self, entries: tuple[str, ...]) -> tuple[int, Snapshot] | None:
        """The step and state to go on from, None for a fresh start. Called once, first.

        Raises :class:`~slurm_robust.checkpoint.errors.CheckpointError` or ``OSError``.
        """

    def restored(self) -> None:
        """The state is in place."""

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """``step`` was completed."""

    def wants(self, step: int) -> bool:
        """A checkpoint after ``step`` is wanted beyond the script's own plan."""

    def save(self, step: int, snapshot: Snapshot) -> None:
        """Publish this rank's part. Raises :class:`~slurm_robust.checkpoint.errors.NotWritten`."""

    def close(self) -> None:
        """Let go of what is held open."""


class ManagedRun:
    """Under ``srobust run``: the controller chose what to restore and prunes; progress is recorded.

    Workers never remove anything: a rank that lives on beyond a cut network would otherwise delete what
    its successors need.
    """

    def __init__(self, environment: WorkerEnvironment, environ: Mapping[str, str]) -> None:
        self._environment = environment
        self._environ = environ
        self._record = StepRecord.open(environment.record)
        self._record.announce_reports()
        self._tier: DiskTier | None = None

    def load(self, entries: tuple[str, ...]) -> tuple[int, Snapshot] | None:
        """Exactly the checkpoint that the environment names."""
        if not self._environment.restore:
            return None
        ref = CheckpointRef.from_token(self._environment.restore)
        return ref.step, self._disk().load(ref, entries)

    def restored(self) -> None:
        """Tell how long it took since the agent made the record."""
        self._record.set_restored(time.monotonic() - self._record.created)

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Write it into the step record."""
        self._record.report(step, loss, grad_norm)

    def wants(self, step: int) -> bool:
        """The controller asked for this step."""
        return self._record.requested_checkpoint == step

    def save(self, step: int, snapshot: Snapshot) -> None:
        """Publish under this generation."""
        self._disk().save(CheckpointRef(generation=self._environment.generation, step=step), snapshot)
        self._record.set_checkpoint(step)

    def close(self) -> None:
        """Unmap the record."""
        self._record.close()

    def _disk(self) -> DiskTier:
        if self._tier is None:
            rank, world_size = _place(self._environ)
            store = CheckpointStore(self._environment.checkpoint_dir)
            self._tier = DiskTier(store, run_id=self._environment.run_id, rank=rank, world_size=world_size)
        return self._tier


class OwnFolder:
    """Outside of ``srobust run``: the ranks agree on the newest usable checkpoint, and rank 0 prunes."""

    def __init__(self, path: Path, keep: int, environ: Mapping[str, str]) -> None:
        self._store = CheckpointStore(path)
        self._keep = keep
        self._environ = environ
        self._generation = 0
        self._rank = 0
        self._tier: DiskTier | None = None

    def load(self, entries: tuple[str, ...]) -> tuple[int, Snapshot] | None:
        """The newest complete checkpoint that every rank can read. A collective call."""
        self._rank, world_size = _place(self._environ)
        if world_size > 1 and not _initialized():
            raise WrongUse(
                f"there are {world_size} ranks (WORLD_SIZE) that cannot agree on a checkpoint yet: call "
                "torch.distributed.init_process_group() before restore()"
            )
        self._tier = DiskTier(self._store, run_id="", rank=self._rank, world_size=world_size)
        # Rank 0 looks, all follow: what each rank sees of a shared folder may differ for a moment.
        self._generation = _from_rank_0(self._store.newest_generation() + 1)
        refs = self._store.complete() if self._rank == 0 else []
        for number in range(_from_rank_0(len(refs))):
            mine = refs[number] if self._rank == 0 else CheckpointRef(generation=0, step=0)
            ref = CheckpointRef(generation=_from_rank_0(mine.generation), step=_from_rank_0(mine.step))
            snapshot = self._try(ref, entries)
            if _on_all_ranks(snapshot is not None) and snapshot is not None:
                return ref.step, snapshot
        return None

    def restored(self) -> None:
        """Nobody asks."""

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Nobody asks."""

    def wants(self, step: int) -> bool:
        """Nobody asks for more than the script's plan."""
        return False

    def save(self, step: int, snapshot: Snapshot) -> None:
        """Publish this rank's part; rank 0 removes what is no longer needed."""
        assert self._tier is not None  # Checkpointer.step() comes after restore()
        self._tier.save(CheckpointRef(generation=self._generation, step=step), snapshot)
        if self._rank == 0:
            try:
                self._store.prune(self._keep, generation=self._generation)
            except OSError as error:
                _log.warning("old checkpoints in %s were not removed: %s", self._store.path, error)

    def close(self) -> None:
        """Nothing is held open."""

    def _try(self, ref: CheckpointRef, entries: tuple[str, ...]) -> Snapshot | None:
        """The state at ``ref``; None if this rank finds its files unusable, which all must know of."""
        assert self._tier is not None
        failure: Exception | None = None
        snapshot = None
        try:
            snapshot = self._tier.load(ref, entries)
        except _UNUSABLE as error:
            _log.warning("checkpoint %s is passed over: %s", ref.token(), error)
        except (CheckpointError, OSError) as error:
            failure = error
        if not _on_all_ranks(failure is None):
            raise failure or WrongUse(
                f"another rank cannot take checkpoint {ref.token()}: its own message says why"
            )
        return snapshot


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank and world size: torch.distributed's, or before it is initialised those of the environment."""
    if _initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))


def run_of(environ: Mapping[str, str], path: Path, keep: int) -> Run:
    """The run that ``environ`` says this process belongs to."""
    environment = WorkerEnvironment.from_env(environ)
    if environment is None:
        return OwnFolder(path, keep, environ)
    return ManagedRun(environment, environ)


def own_environ() -> Mapping[str, str]:
    """The environment of this process."""
    return os.environ


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _from_rank_0(number: int) -> int:
    if not _initialized():
        return number
    cell = torch.tensor([number], dtype=torch.int64, device=_device())
    dist.broadcast(cell, src=0)
    return int(cell)


def _on_all_ranks(good: bool) -> bool:
    if not _initialized():
        return good
    cell = torch.tensor([int(good)], dtype=torch.int64, device=_device())
    dist.all_reduce(cell, op=dist.ReduceOp.MIN)
    return bool(int(cell))


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
