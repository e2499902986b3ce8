"""Checkpoints of one rank on shared storage: what a training saves there and gets back."""

from __future__ import annotations

from slurm_robust.checkpoint.errors import (
    EntryMismatch,
    ForeignPart,
    MissingCheckpoint,
    NotWritten,
    WorldSizeMismatch,
)
from slurm_robust.checkpoint.part import PartHeader, read_part, write_part
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointRef, CheckpointStore


class DiskTier:
    """One rank's view of a :class:`CheckpointStore`.

    Rank 0's part holds the shared state too, and every rank reads it from there.
    """

    def __init__(self, store: CheckpointStore, *, run_id: str, rank: int, world_size: int) -> None:
        self.store = store
        self._run_id = run_id
        self._rank = rank
        self._world_size = world_size

    def save(self, ref: CheckpointRef, snapshot: Snapshot) -> None:
        """Publish this rank's part of ``ref``; durable on return. Raises :class:`NotWritten`."""
        header = PartHeader(
            run_id=self._run_id,
            generation=ref.generation,
            step=ref.step,
            rank=self._rank,
            world_size=self._world_size,
            entries=tuple(snapshot.own),
        )
        try:
            with self.store.publishing(ref, self._rank, self._world_size) as path:
                write_part(path, header, snapshot, with_shared=self._rank == 0)
        except OSError as error:
            raise NotWritten(str(error)) from error

    def load(self, ref: CheckpointRef, entries: tuple[str, ...]) -> Snapshot:
        """This rank's state at ``ref``, verified. Tensors lie in mapped files.

        Raises a :class:`~slurm_robust.checkpoint.errors.CheckpointError` that says what to do, or
        ``OSError`` if the storage does not answer.
        """
        self._check_world_size(ref)
        snapshot = self._read(ref, self._rank, entries)
        if self._rank == 0:
            return snapshot
        shared = self._read(ref, 0, entries).shared
        return Snapshot(own=snapshot.own, shared=shared, rng=snapshot.rng)

    def _read(self, ref: CheckpointRef, rank: int, entries: tuple[str, ...]) -> Snapshot:
        path = self.store.part_path(ref, rank, self._world_size)
        header, snapshot = read_part(path)
        expected = PartHeader(
            run_id=self._run_id,
            generation=ref.generation,
            step=ref.step,
            rank=rank,
            world_size=self._world_size,
            entries=header.entries,
        )
        if header != expected:
            raise ForeignPart(
                f"{path} is not what its name says: it is of run {header.run_id or '(none)'}, "
                f"generation {header.generation}, step {header.step}, rank {header.rank} of "
                f"{header.world_size}; here is run {self._run_id or '(none)'}. "
                f"Somebody moved it: remove the folder {path.parent}"
            )
        if set(header.entries) != set(entries):
            raise EntryMismatch(
                f"{path} holds the entries {', '.join(header.entries)}, the script names "
                f"{', '.join(entries)}: name the same entries, or start afresh in another checkpoint folder"
            )
        return snapshot

    def _check_world_size(self, ref: CheckpointRef) -> None:
        if self.store.part_path(ref, self._rank, self._world_size).exists():
            return  # read_part looks closely
        try:
            written = self.store.world_size(ref)
        except MissingCheckpoint:
            raise MissingCheckpoint(
                f"checkpoint {ref.token()} is not complete in {self.store.path}: check that every node sees "
                "this folder; 'srobust run' goes on from an older one by itself"
            ) from None
        if written != self._world_size:
            raise WorldSizeMismatch(
                f"checkpoint {ref.token()} in {self.store.path} was written by {written} ranks and this run "
                f"has {self._world_size}: run with {written} ranks, or start afresh in another folder"
            )
