"""Checkpoints of one rank on shared storage: what a rank saves there and gets back."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch

from slurm_robust.checkpoint import dcp
from slurm_robust.checkpoint.errors import (
    ANEW,
    CheckpointError,
    MissingCheckpoint,
    NotWritten,
    WorldSizeMismatch,
)
from slurm_robust.checkpoint.fit import refuse_misfit, refuse_other_names
from slurm_robust.checkpoint.header import PartHeader, check_header
from slurm_robust.checkpoint.part import Sidecar, corrupt, encode_sidecar, read_sidecar, verify_items
from slurm_robust.checkpoint.reshard import load_resharded
from slurm_robust.checkpoint.state import Snapshot, Training
from slurm_robust.checkpoint.store import METADATA, CheckpointStore
from slurm_robust.checkpoint.tree import unflatten
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.util.files import replacing
from slurm_robust.version import __version__

_log = logging.getLogger(__name__)

_Part: TypeAlias = tuple[Path, Sidecar]

# What read_part() takes out of a part.
OWN, SHARED, ALL = "own", "shared", "all"


class DiskTier:
    """One rank's view of a :class:`CheckpointStore`.

    Rank 0's part holds the shared state too, and every rank reads it from there. ``layout`` is the identity
    of the parallel layout; with "" any is accepted. ``earlier``: runs whose checkpoints are read, too;
    ``release``: what writes.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        run_id: str,
        rank: int,
        world_size: int,
        layout: str = "",
        earlier: Collection[str] = (),
        release: str = "",
    ) -> None:
        self.store = store
        self._run_id = run_id
        self._earlier = earlier
        self._rank = rank
        self._world_size = world_size
        self._layout = layout
        self._release = release

    def save(self, checkpoint: CheckpointId, snapshot: Snapshot) -> None:
        """Publish this rank's part of ``checkpoint``; durable on return. Raises :class:`NotWritten`.

        A part that is there already stays as it is, also another run's. The rank that publishes the last part
        also writes what others need: ``.metadata`` and the ``latest`` pointer; it is logged if that fails.
        """
        header = msgspec.structs.replace(self._header(checkpoint, self._rank), release=self._release)
        try:
            if not self._is_published(checkpoint, header, tuple(snapshot.own)):
                write_part(self.store, checkpoint, header, snapshot)
        except OSError as error:
            raise NotWritten(f"{self.store.folder(checkpoint)}: {error}") from error
        try:
            if len(self.store.parts(checkpoint)) >= self._world_size:
                finish(self.store)
        except (OSError, CheckpointError) as error:
            _log.warning("checkpoint %s is whole, but %s was not updated: %s", checkpoint, METADATA, error)

    def load(self, checkpoint: CheckpointId, training: Training) -> Snapshot:
        """Return this rank's state at ``checkpoint``, verified. Tensors are in mapped files.

        Raises a :class:`~slurm_robust.checkpoint.errors.CheckpointError` that says what to do, or
        ``OSError`` if the storage does not answer.
        """
        (path, own), (first_path, first) = self._fitting(checkpoint, training)
        if self._rank == 0:
            return read_part(path, own)
        return replace(read_part(path, own, OWN), shared=read_part(first_path, first, SHARED).shared)

    def check(self, checkpoint: CheckpointId, training: Training) -> None:
        """Raise :class:`EntryMismatch` if :meth:`load` certainly would; no data are read."""
        self._fitting(checkpoint, training)

    def load_resharded(self, checkpoint: CheckpointId, training: Training, old: str, new: str) -> Snapshot:
        """Load a checkpoint that ranks of the layout ``old`` wrote, as :meth:`load`; ``new``: that of these.

        Raises :class:`~slurm_robust.checkpoint.errors.CannotReshard`, too.
        """
        return load_resharded(
            self.store,
            checkpoint,
            training,
            runs=(self._run_id, *self._earlier),
            rank=self._rank,
            old=ParallelLayout.from_identity(old),
            new=ParallelLayout.from_identity(new),
        )

    def _header(self, checkpoint: CheckpointId, rank: int) -> PartHeader:
        return PartHeader.of(
            checkpoint, rank, run_id=self._run_id, layout=self._layout, world_size=self._world_size
        )

    def _is_published(self, checkpoint: CheckpointId, header: PartHeader, entries: tuple[str, ...]) -> bool:
        """Return whether the same part is there: an order may come twice, and the state of a step is one."""
        try:
            found = read_sidecar(self.store.part_path(checkpoint, self._rank, self._world_size))
        except CheckpointError:
            return False
        if found.header.run_id not in (self._run_id, *self._earlier):
            raise NotWritten(
                f"{self.store.folder(checkpoint)} is of another run ({found.header.run_id}), which writes to "
                "the same folder: give each training one of its own (checkpoint.directory)"
            )
        return found.header.matches(header) and found.entries == entries

    def _fitting(self, checkpoint: CheckpointId, training: Training) -> tuple[_Part, _Part]:
        """Return this rank's part and rank 0's if they fit. Raises ``CheckpointError`` or ``OSError``."""
        self._check_world_size(checkpoint)
        own = self._sidecar(checkpoint, self._rank)
        first = own if self._rank == 0 else self._sidecar(checkpoint, 0)
        stored = outline(own[1], first[1])
        refuse_other_names(str(own[0]), stored.own, training)
        refuse_misfit(f"checkpoint {checkpoint}", stored, training)
        return own, first

    def _sidecar(self, checkpoint: CheckpointId, rank: int) -> _Part:
        path = self.store.part_path(checkpoint, rank, self._world_size)
        sidecar = read_sidecar(path)
        expected = self._header(checkpoint, rank)
        if (run_id := sidecar.header.run_id) in self._earlier:
            expected = msgspec.structs.replace(expected, run_id=run_id)
        _check_place(path, sidecar.header, expected)
        return path, sidecar

    def _check_world_size(self, checkpoint: CheckpointId) -> None:
        if self.store.part_path(checkpoint, self._rank, self._world_size).exists():
            return  # read_sidecar checks it
        try:
            written = self.store.world_size(checkpoint)
        except MissingCheckpoint:
            raise MissingCheckpoint(
                f"checkpoint {checkpoint} is not complete in {self.store.path}: check that every node sees "
                "this folder; 'srobust run' goes on from an older one by itself"
            ) from None
        if written != self._world_size:
            raise WorldSizeMismatch(
                f"checkpoint {checkpoint} in {self.store.path} was written by {written} ranks and this run "
                f"has {self._world_size}: run with {written} ranks; {ANEW}"
            )


def write_part(
    store: CheckpointStore, checkpoint: CheckpointId, header: PartHeader, snapshot: Snapshot
) -> None:
    """Publish one part: its data, then its sidecar. After an error nothing of it is left.

    Raises :class:`NotWritten` or ``OSError``.
    """
    rank = header.rank
    with_shared = rank == 0 and bool(snapshot.shared)
    data = store.data_path(checkpoint, rank)
    try:
        with store.publishing_data(checkpoint, rank) as path, path.open("wb", buffering=2**20) as file:
            items = dcp.write_items(file, snapshot.own)
            items += dcp.write_items(file, snapshot.rng, (f"rank-{rank:05d}", "rng"))
            if with_shared:
                items += dcp.write_items(file, snapshot.shared, shared=True)
            file.flush()
            data_bytes = file.tell()
        sidecar = Sidecar(
            header=msgspec.structs.replace(header, library=__version__),
            entries=tuple(snapshot.own),
            data=data.name,
            data_bytes=data_bytes,
            items=tuple(items),
            own=dcp.skeleton({"own": snapshot.own, "rng": snapshot.rng}),
            shared=dcp.skeleton(snapshot.shared) if with_shared else b"",
        )
        with store.publishing(checkpoint, rank, header.world_size) as path:
            path.write_bytes(encode_sidecar(sidecar))
    except BaseException:
        data.unlink(missing_ok=True)
        raise


def outline(own: Sidecar, first: Sidecar) -> Snapshot:
    """Return what ``own`` holds, with the shared state of rank 0's ``first``; tensors are on the meta device.

    Raises :class:`CorruptPart`.
    """
    tree = unflatten(own.own, _without_data(own, shared=False), ("own", "rng"))
    shared = unflatten(first.shared, _without_data(first, shared=True)) if first.shared else {}
    return Snapshot(own=tree["own"], shared=shared, rng=tree["rng"])


def _without_data(sidecar: Sidecar, *, shared: bool) -> list[torch.Tensor]:
    return [
        torch.empty(item.shape, dtype=getattr(torch, item.dtype), device="meta")
        for item in sidecar.items
        if item.dtype and item.shared is shared
    ]


def read_part(path: Path, sidecar: Sidecar, what: str = ALL) -> Snapshot:
    """Return what a part holds (OWN, SHARED or ALL of it), verified. Its tensors are in the mapped file.

    Raises :class:`CorruptPart`, :class:`MissingCheckpoint` or ``OSError``.
    """
    own_items = [item for item in sidecar.items if not item.shared and what != SHARED]
    shared_items = [item for item in sidecar.items if item.shared and what != OWN]
    verify_items(path, sidecar, own_items + shared_items)
    own: dict[str, Any] = {"own": {}, "rng": {}}
    shared: dict[str, Any] = {}
    if what != SHARED:
        own = unflatten(sidecar.own, dcp.read_tensors(path, sidecar, own_items), ("own", "rng"))
    if what != OWN and sidecar.shared:
        shared = unflatten(sidecar.shared, dcp.read_tensors(path, sidecar, shared_items))
        if not isinstance(shared, dict):
            raise corrupt(path, "its shared part is not a dict")
    return Snapshot(own=own["own"], shared=shared, rng=own["rng"])


def finish(store: CheckpointStore) -> None:
    """Write ``.metadata`` of all complete checkpoints that lack it, and let ``latest`` name the newest.

    Every rank may do so at any time. Raises :class:`CheckpointError` if a sidecar is damaged or foreign, or
    ``OSError``.
    """
    failure: CheckpointError | None = None
    for checkpoint in store.complete():
        if not (store.folder(checkpoint) / METADATA).exists():
            try:
                write_metadata(store, checkpoint)
            except CheckpointError as error:
                failure = error  # the others do not suffer for it
    store.point_latest()
    if failure is not None:
        raise failure


def write_metadata(store: CheckpointStore, checkpoint: CheckpointId) -> None:
    """Derive ``.metadata`` of a complete checkpoint from its sidecars.

    Raises :class:`CheckpointError` if one of these is damaged or foreign, or ``OSError``.
    """
    sidecars = _sidecars(store, checkpoint)
    with replacing(store.folder(checkpoint) / METADATA, durable=True) as path:
        dcp.write_metadata(path, sidecars)


def _sidecars(store: CheckpointStore, checkpoint: CheckpointId) -> list[Sidecar]:
    size = store.world_size(checkpoint)
    found: list[Sidecar] = []
    for rank in range(size):
        path = store.part_path(checkpoint, rank, size)
        sidecar = read_sidecar(path)
        run_id = found[0].header.run_id if found else sidecar.header.run_id
        expected = PartHeader.of(checkpoint, rank, run_id=run_id, layout="", world_size=size)
        _check_place(path, sidecar.header, expected)
        found.append(sidecar)
    return found


def _check_place(path: Path, header: PartHeader, expected: PartHeader) -> None:
    fix = f"it was moved: remove the folder {path.parent}"
    check_header(header, expected, path, any_layout=not expected.layout, fix=fix)
