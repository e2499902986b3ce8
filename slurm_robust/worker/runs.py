"""What a script belongs to: a run of ``srobust run``, or only its own checkpoint folder."""

from __future__ import annotations

import logging
import math
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
import xxhash

from slurm_robust.checkpoint.buffers import TensorPlace
from slurm_robust.checkpoint.devices import Captures
from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.errors import (
    CheckpointError,
    CorruptPart,
    EntryMismatch,
    ForeignPart,
    MissingCheckpoint,
    WrongUse,
)
from slurm_robust.checkpoint.fit import follow_schedules, with_left_out, without_optimizers
from slurm_robust.checkpoint.gpus import CUDA
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Image
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.rank_tiers import RankTier, rank_tiers
from slurm_robust.checkpoint.snapshot import Snapshotter
from slurm_robust.checkpoint.state import Snapshot, Training, capture
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.progress import CHECKPOINT, FINISHED, RESTORE, RETURNED, UPDATE, SnapshotTimes
from slurm_robust.model.record import Record
from slurm_robust.version import __version__
from slurm_robust.worker import phases
from slurm_robust.worker.environment import REHEARSAL, Fitting, WorkerEnvironment
from slurm_robust.worker.images import ImageReader
from slurm_robust.worker.replay import REPLAY, Loss, add_line
from slurm_robust.worker.returning import when_returned
from slurm_robust.worker.step_record import Mark, StepRecord

_log = logging.getLogger(__name__)

HOLD_POLL_S = 0.01
"""How often a rank looks whether it is still held."""

_UNUSABLE = (CorruptPart, ForeignPart, MissingCheckpoint)


class SnapshotCost(Record):
    """What snapshots in memory have cost a rank."""

    blocked_s: float = 0.0  # for which the newest one held training up
    skipped: int = 0  # that were not taken, or not usable


class TrainingRun(Protocol):
    """What a ``Checkpointer`` asks of the run around it."""

    def load(self, training: Training) -> tuple[int, Snapshot] | None:
        """Return the step and state to go on from, None for a fresh start. Called once, first.

        Tensors of the state may be the script's own, which then hold it already, also after an error. Raises
        :class:`~slurm_robust.checkpoint.errors.CheckpointError` or ``OSError``.
        """

    def restored(self) -> None:
        """Note that the state is in place."""

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Report that ``step`` was completed."""

    def due(self, step: int) -> bool:
        """Return whether a checkpoint of some kind is due after ``step``."""

    def save(self, step: int, training: Training) -> None:
        """Take it. Raises :class:`~slurm_robust.checkpoint.errors.NotWritten` or ``UnsupportedState``."""

    def hold(self, step: int) -> None:
        """Wait as long as no step after ``step``, whose checkpoint was taken, may begin."""

    def cost(self) -> SnapshotCost:
        """Return what snapshots in memory have cost."""

    def close(self) -> None:
        """Let go of what is held open."""


class ManagedRun:
    """Under ``srobust run``: the controller chose what to restore and prunes; progress is recorded.

    Workers never remove anything: a rank that lives on beyond a cut network would otherwise delete what
    its successors need.
    """

    def __init__(
        self, environment: WorkerEnvironment, environ: Mapping[str, str], *, every: int, overlap: bool
    ) -> None:
        self._environment = environment
        self._environ = environ
        self._every = every
        self._overlap = overlap
        self._record = StepRecord.open(environment.record)
        self._record.announce_reports()
        if self._record.phase.name == FINISHED:  # the script has closed another one, and goes on
            phases.begin(self._record, "")
        self._tiers: dict[Tier, RankTier] | None = None
        self._reader: ImageReader | None = None
        self._memory: Snapshotter | None = None
        # From the beginning: a graph may be captured before the first snapshot is taken.
        self._captures = Captures(CUDA) if environment.copies else None
        self._restored: CheckpointId | None = None
        self._local_stride = 1  # at which the newest snapshots were taken
        self._training: Training | None = None
        self._left_out: tuple[int, int] | None = None  # the newest step, if no multiple; updates until then
        self._forget_return = when_returned(self._keep_last)
        self._is_unaccounted = False  # the update may still wait for the newest snapshot

    def load(self, training: Training) -> tuple[int, Snapshot] | None:
        """Load exactly the checkpoint that the environment names."""
        self._record.mark(Mark.RESTORES)
        self._training = training
        checkpoint = self._environment.restore
        if checkpoint is None:
            return None
        with phases.announced(self._record, RESTORE):
            if not self._environment.discard_optimizer:
                return self._load(checkpoint, training)
            step, snapshot = self._load(checkpoint, without_optimizers(training))
            return step, with_left_out(snapshot, training)

    def _load(self, checkpoint: CheckpointId, training: Training) -> tuple[int, Snapshot]:
        self._restored = checkpoint
        environment = self._environment
        tier = environment.restore_tier
        if tier.is_shared or not os.path.isdir(environment.copies):
            shared = self._shared()
            store = shared.get(tier, shared[Tier.STORAGE])
            if old := environment.restore_layout:
                return checkpoint.step, store.load_resharded(checkpoint, training, old, environment.layout)
            return checkpoint.step, store.load(checkpoint, training)
        self._reader = ImageReader(self._environment, *_place(self._environ))

        def expect(images: list[Image]) -> None:
            if self._uses_memory():
                self._memory = self._snapshotter()
                self._memory.expect(images, training)

        return checkpoint.step, self._reader.load(checkpoint, training, expect)

    def restored(self) -> None:
        """Let go of what was read, and mark that the state is in place."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._training is not None and self._restored is not None and self._environment.discard_optimizer:
            follow_schedules(self._training)
        self._record.mark(Mark.RESTORED)

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Write it into the step record, and for how long the newest snapshot has held training up."""
        if self._memory is not None and self._is_unaccounted:
            self._is_unaccounted = False
            self._record.spend(CHECKPOINT, self._memory.blocked_s)
        self._left_out = None
        if self._memory is not None and self._is_left_out(step):
            self._left_out = step, self._memory.updates
        self._record.report(step, loss, grad_norm)

    def due(self, step: int) -> bool:
        """Return whether one is due in memory or on storage."""
        return self._due_in_memory(step) or self._due_on_storage(step)

    def save(self, step: int, training: Training) -> None:
        """Take a snapshot in memory, and write this rank's part to storage if the controller asks for it."""
        stores = self._due_on_storage(step)
        try:
            if self._due_in_memory(step):
                if self._memory is None:
                    self._memory = self._snapshotter()
                try:
                    self._memory.take(step, training, stride=self._record.stride, flush=self._record.flush)
                finally:
                    self._is_unaccounted = True
                    self._record.show_buffers(self._memory.buffers)
                    self._show_times(self._memory)
        finally:
            # Asked again: the snapshot may have found that there is no memory for any.
            if stores or self._due_on_storage(step):
                with phases.announced(self._record, CHECKPOINT):
                    snapshot = capture(training.entries, deduplicate=training.deduplicate)
                    checkpoint = CheckpointId(generation=self._environment.generation, step=step)
                    for tier in self._shared().values():
                        tier.save(checkpoint, snapshot)
                self._record.set_checkpoint(step)

    def hold(self, step: int) -> None:
        """Begin no other step while the controller asks for that: the agent is about to end this process.

        The snapshot of ``step`` is made whole, though no update follows that would wait for it.
        """
        record, memory = self._record, self._memory
        if not record.hold_s(step):
            return
        begun, is_over = time.monotonic(), memory is None
        with phases.announced(record, UPDATE):
            while time.monotonic() - begun < record.hold_s(step):
                if memory is not None and not is_over:
                    is_over = self._make_whole(memory, step)
                time.sleep(HOLD_POLL_S)

    def _make_whole(self, memory: Snapshotter, step: int) -> bool:
        """Complete the snapshot of ``step`` and show that; False if its memory is still being reserved."""
        try:
            memory.settle()
            if memory.newest < step and self._training is not None:  # no memory was there for it
                memory.take(step, self._training, stride=self._record.stride, flush=self._record.flush)
                memory.settle()
        except (CheckpointError, RuntimeError) as error:
            _log.warning("step %d, at which training is stopped, is not kept in memory: %s", step, error)
            return True
        if memory.newest == step:
            self._record.set_checkpoint(step)
        return not memory.reserving

    def _show_times(self, memory: Snapshotter) -> None:
        """Show what snapshots take, by which the controller says after how many steps one is taken."""
        local = self._record.local_stride
        if local != self._local_stride:
            self._local_stride = local
            memory.timings.forget()
        typical = memory.timings.typical
        if typical is not None:
            apart_s = typical.step_s * math.lcm(self._every, local)
            times = SnapshotTimes(
                stride=local,
                apart_s=apart_s,
                whole_s=typical.whole_s,
                blocked_s=typical.blocked_s,
                every=self._every,
            )
            self._record.show_snapshots(times)

    def _keep_last(self) -> None:
        """Take the snapshot of the last step, though it is no multiple of the local stride.

        It is left out if an optimizer has changed anything since.
        """
        memory, left_out, self._left_out = self._memory, self._left_out, None
        if memory is None or left_out is None or self._training is None:
            return
        step, updates = left_out
        if memory.updates != updates or not memory.active or step == self._record.flush:
            return
        try:
            memory.take(step, self._training, stride=self._record.stride, flush=self._record.flush)
            memory.settle()
        except (CheckpointError, RuntimeError) as error:
            _log.warning("the last step, %d, is not kept in memory: %s", step, error)

    def cost(self) -> SnapshotCost:
        """Return that of the snapshots so far."""
        if self._memory is None:
            return SnapshotCost()
        return SnapshotCost(blocked_s=self._memory.blocked_s, skipped=self._memory.skipped)

    def close(self) -> None:
        """Finish the newest snapshot, say that no more steps will come, and unmap the record."""
        self._forget_return()
        if sys.exc_info()[0] is None:  # else it may be in the middle of the next step
            self._keep_last()
        if self._captures is not None:
            self._captures.close()
        if self._memory is not None:
            self._memory.close()
        if not self._record.closed and self._record.phase.name != RETURNED:
            phases.begin(self._record, FINISHED)
        self._record.close()

    def _uses_memory(self) -> bool:
        return bool(self._environment.copies) and (self._memory is None or self._memory.active)

    def _due_in_memory(self, step: int) -> bool:
        # Multiples, and not the steps before them as on storage: the strides of peers are multiples too.
        if not self._uses_memory():  # what goes to storage is the time to look whether there is room now
            return bool(self._environment.copies) and step == self._record.flush
        is_multiple = step % self._every == 0 and not self._is_left_out(step)
        return is_multiple or step == self._record.flush or self._record.hold_s(step) > 0

    def _is_left_out(self, step: int) -> bool:
        return step % self._every == 0 and step % max(1, self._record.local_stride) > 0

    def _due_on_storage(self, step: int) -> bool:
        if step == self._record.requested_checkpoint:
            # Of what stays on these nodes a snapshot is enough, and takes less time.
            return not (self._record.hold_s(step) and self._uses_memory())
        # A rank without snapshots writes itself what the agents of others write for them: of the same steps,
        # since one that some ranks keep in memory and others on storage is whole nowhere.
        if self._uses_memory():
            return False
        by_itself = not self._environment.copies and (step + 1) % self._every == 0
        return by_itself or step == self._record.flush

    def _snapshotter(self) -> Snapshotter:
        environment = self._environment
        rank, world_size = _place(self._environ)
        ranks_on_node = int(self._environ.get("LOCAL_WORLD_SIZE", world_size))
        place = TensorPlace(
            header=PartHeader(
                run_id=environment.run_id,
                layout=environment.layout,
                generation=environment.generation,
                step=0,
                rank=rank,
                world_size=world_size,
                library=__version__,
                release=environment.release,
            ),
            first_on_node=int(self._environ.get("LOCAL_RANK", rank)) == 0,
            ranks_on_node=ranks_on_node,
            nodes=-(-world_size // ranks_on_node),
            restored=self._restored,
        )
        folder = MemoryFolder(environment.copies, environment.run_id)
        return Snapshotter(
            folder, place, overlap=self._overlap, captures=self._captures, announce=self._record.reserving
        )

    def _shared(self) -> dict[Tier, RankTier]:
        if self._tiers is None:
            rank, world_size = _place(self._environ)
            own = self._environment
            self._tiers = rank_tiers(
                own.places,
                job_dir=own.job_dir,
                run_id=own.run_id,
                rank=rank,
                world_size=world_size,
                layout=own.layout,
                earlier=own.earlier,
                release=own.release,
            )
        return self._tiers


class OwnFolder:
    """Outside of ``srobust run``: the ranks agree on the newest usable checkpoint, and rank 0 prunes."""

    def __init__(self, path: Path, keep: int, environ: Mapping[str, str], *, every: int) -> None:
        self._store = CheckpointStore(path)
        self._keep = keep
        self._every = every
        self._environ = environ
        self._generation = 0
        self._rank = 0
        self._tier: DiskTier | None = None

    def load(self, training: Training) -> tuple[int, Snapshot] | None:
        """Return the newest complete checkpoint that every rank can read. A collective call."""
        self._rank, world_size = _place(self._environ)
        if world_size > 1 and not _initialized():
            raise WrongUse(
                f"there are {world_size} ranks (WORLD_SIZE) that cannot agree on a checkpoint yet: call "
                "torch.distributed.init_process_group() before restore()"
            )
        self._tier = DiskTier(self._store, run_id="", rank=self._rank, world_size=world_size)
        # Rank 0 lists, all follow: what each rank sees of a shared folder may differ for a moment.
        self._generation = _from_rank_0(self._store.newest_generation() + 1)
        refs = self._store.complete() if self._rank == 0 else []
        for number in range(_from_rank_0(len(refs))):
            mine = refs[number] if self._rank == 0 else CheckpointId(generation=0, step=0)
            checkpoint = CheckpointId(generation=_from_rank_0(mine.generation), step=_from_rank_0(mine.step))
            assert self._tier is not None
            failure: Exception | None = None
            snapshot = None
            try:
                snapshot = self._tier.load(checkpoint, training)
            except _UNUSABLE as error:
                # This rank cannot use its files, as all must know.
                _log.warning("checkpoint %s is passed over: %s", checkpoint, error)
            except (CheckpointError, OSError) as error:
                failure = error
            if not _on_all_ranks(failure is None):
                raise failure or WrongUse(
                    f"another rank cannot take checkpoint {checkpoint}: its own message says why"
                )
            if _on_all_ranks(snapshot is not None) and snapshot is not None:
                return checkpoint.step, snapshot
        return None

    def restored(self) -> None:
        """Do nothing: no agent waits for it."""

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Do nothing: no agent reads step reports."""

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due: after every ``every`` steps, counted from step 0."""
        return (step + 1) % self._every == 0

    def save(self, step: int, training: Training) -> None:
        """Publish this rank's part; rank 0 removes what is no longer needed."""
        assert self._tier is not None  # Checkpointer.step() comes after restore()
        snapshot = capture(training.entries, deduplicate=training.deduplicate)
        self._tier.save(CheckpointId(generation=self._generation, step=step), snapshot)
        if self._rank == 0:
            try:
                self._store.prune(self._keep, generation=self._generation)
            except OSError as error:
                _log.warning("old checkpoints in %s were not removed: %s", self._store.path, error)

    def hold(self, step: int) -> None:
        """Do nothing: no controller asks for it."""

    def cost(self) -> SnapshotCost:
        """Return no cost: there are no snapshots in memory."""
        return SnapshotCost()

    def close(self) -> None:
        """Do nothing: nothing is held open."""


class TrialRun:
    """While nothing counts: starts afresh and saves nothing."""

    def __init__(self, fitting: Fitting | None = None, environ: Mapping[str, str] | None = None) -> None:
        """``fitting``: a checkpoint that model and optimizer have to fit."""
        self._fitting = fitting
        self._environ = environ or {}

    def load(self, training: Training) -> tuple[int, Snapshot] | None:
        """Return None: a smaller model has no checkpoint, and a rehearsal only compares with one.

        Raises :class:`~slurm_robust.checkpoint.errors.EntryMismatch`.
        """
        if self._fitting is not None:
            self._compare(self._fitting, training)
        return None

    def _compare(self, fitting: Fitting, training: Training) -> None:
        if fitting.discard_optimizer:
            training = without_optimizers(training)
        rank, world_size = _place(self._environ)
        tiers = rank_tiers(
            fitting.places,
            job_dir=fitting.job_dir,
            run_id=fitting.run_id,
            rank=rank,
            world_size=world_size,
            layout="",
            earlier=fitting.earlier,
        )
        try:
            for checkpoint in self._alike(fitting, world_size):
                with suppress(MissingCheckpoint):  # it was pruned meanwhile
                    tiers[Tier.STORAGE].check(checkpoint, training)
                    return
            _log.warning("whether checkpoint %s fits cannot be said: it is gone", fitting.checkpoint)
        except EntryMismatch:
            raise
        except (CheckpointError, OSError) as error:
            _log.warning("whether checkpoint %s fits cannot be said: %s", fitting.checkpoint, error)

    def _alike(self, fitting: Fitting, world_size: int) -> Iterator[CheckpointId]:
        """Yield the checkpoint, then others that the same ranks have written since: it may be gone by now."""
        yield fitting.checkpoint
        for ref in CheckpointStore(fitting.places[Tier.STORAGE]).complete(world_size):
            if ref.generation == fitting.checkpoint.generation:
                yield ref

    def restored(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Do nothing: no agent reads step reports."""

    def due(self, step: int) -> bool:
        """Return False: a rehearsal takes no checkpoint."""
        return False

    def save(self, step: int, training: Training) -> None:
        """Do nothing; never called."""

    def hold(self, step: int) -> None:
        """Do nothing: no controller asks for it."""

    def cost(self) -> SnapshotCost:
        """Return no cost: there are no snapshots."""
        return SnapshotCost()

    def close(self) -> None:
        """Do nothing: nothing is held open."""


class ReplayRun(TrialRun):
    """While the script is being replayed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Record the bits of both numbers."""
        values = [math.nan if value is None else value for value in (loss, grad_norm)]
        said = [value for value in (loss, grad_norm) if value is not None]
        digest = xxhash.xxh3_64_hexdigest(struct.pack("<dd", *values))
        add_line(self._path, Loss(step=step, digest=digest, is_finite=all(map(math.isfinite, said))))


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank and world size: torch.distributed's, or before it is initialised those of the
    environment.
    """
    if _initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))


def run_of(environ: Mapping[str, str], path: Path, *, keep: int, every: int, overlap: bool) -> TrainingRun:
    """Return the run that ``environ`` says this process belongs to."""
    if environ.get(REPLAY):
        return ReplayRun(environ[REPLAY])
    if environ.get(REHEARSAL):
        return TrialRun(Fitting.from_env(environ), environ)
    environment = WorkerEnvironment.from_env(environ)
    if environment is None:
        return OwnFolder(path, keep, environ, every=every)
    return ManagedRun(environment, environ, every=every, overlap=overlap)


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
