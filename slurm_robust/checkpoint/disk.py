"""Checkpoints of one rank on shared storage: what a training saves there and gets back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.checkpoint import dcp
from slurm_robust.checkpoint.errors import (
    CheckpointError,
    EntryMismatch,
    ForeignPart,
    MissingCheckpoint,
    NotWritten,
    WorldSizeMismatch,
)
from slurm_robust.checkpoint.part import (
    PartHeader,
    Sidecar,
    corrupt,
    encode_sidecar,
    read_sidecar,
    verify_items,
)
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import METADATA, CheckpointRef, CheckpointStore, publishing
from slurm_robust.checkpoint.tree import unflatten
from slurm_robust.version import __version__

_log = logging.getLogger(__name__)

# What read_part() takes out of a part.
OWN, SHARED, ALL = "own", "shared", "all"


class DiskTier:
    """One rank's view of a :class:`CheckpointStore`.

    Rank 0's part holds the shared state too, and every rank reads it from there. ``layout`` is the identity
    of the parallel layout; with "" any is accepted.
    """

    def __init__(
        self, store: CheckpointStore, *, run_id: str, rank: int, world_size: int, layout: str = ""
    ) -> None:
        self.store = store
        self._run_id = run_id
        self._rank = rank
        self._world_size = world_size
        self._layout = layout

    def save(self, ref: CheckpointRef, snapshot: Snapshot) -> None:
        """Publish this rank's part of ``ref``; durable on return. Raises :class:`NotWritten`.

        A part that is there already stays as it is. Whoever publishes the last part also writes what others
        need: ``.metadata`` and the ``latest`` pointer; it is logged if that fails.
        """
        header = self._header(ref, self._rank, tuple(snapshot.own))
        try:
            if not self._is_published(ref, header):
                write_part(self.store, ref, header, snapshot)
        except OSError as error:
            raise NotWritten(f"{self.store.folder(ref)}: {error}") from error
        try:
            if len(self.store.parts(ref)) >= self._world_size:
                finish(self.store)
        except (OSError, CheckpointError) as error:
            _log.warning("checkpoint %s is whole, but %s was not updated: %s", ref.token(), METADATA, error)

    def load(self, ref: CheckpointRef, entries: tuple[str, ...]) -> Snapshot:
        """This rank's state at ``ref``, verified. Tensors lie in mapped files.

        Raises a :class:`~slurm_robust.checkpoint.errors.CheckpointError` that says what to do, or
        ``OSError`` if the storage does not answer.
        """
        self._check_world_size(ref)
        if self._rank == 0:
            return self._read(ref, 0, entries, ALL)
        snapshot = self._read(ref, self._rank, entries, OWN)
        shared = self._read(ref, 0, entries, SHARED).shared
        return Snapshot(own=snapshot.own, shared=shared, rng=snapshot.rng)

    def _header(self, ref: CheckpointRef, rank: int, entries: tuple[str, ...]) -> PartHeader:
        return PartHeader(
            run_id=self._run_id,
            layout=self._layout,
            generation=ref.generation,
            step=ref.step,
            rank=rank,
            world_size=self._world_size,
            entries=entries,
        )

    def _is_published(self, ref: CheckpointRef, header: PartHeader) -> bool:
        """Whether the same part is there: an order may come twice, and the state of a step is one."""
        try:
            found = read_sidecar(self.store.part_path(ref, self._rank, self._world_size)).header
        except CheckpointError:
            return False
        return msgspec.structs.replace(found, library="") == header

    def _read(self, ref: CheckpointRef, rank: int, entries: tuple[str, ...], what: str) -> Snapshot:
        path = self.store.part_path(ref, rank, self._world_size)
        sidecar = read_sidecar(path)
        header = sidecar.header
        check_place(path, header, self._header(ref, rank, entries))
        if set(header.entries) != set(entries):
            raise EntryMismatch(
                f"{path} holds the entries {', '.join(header.entries)}, the script names "
                f"{', '.join(entries)}: name the same entries, or start afresh in another checkpoint folder"
            )
        return read_part(path, sidecar, what)

    def _check_world_size(self, ref: CheckpointRef) -> None:
        if self.store.part_path(ref, self._rank, self._world_size).exists():
            return  # read_sidecar looks closely
        if self.store.outdated(ref):
            raise ForeignPart(
                f"{self.store.folder(ref)} holds rank-*.pt files, a format of version 1, which "
                "this slurm_robust does not read: continue with the one that wrote it, or remove the folder"
            )
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


def write_part(store: CheckpointStore, ref: CheckpointRef, header: PartHeader, snapshot: Snapshot) -> None:
    """Publish one part: its data, then its sidecar. After an error nothing of it is left.

    Raises :class:`NotWritten` or ``OSError``.
    """
    rank = header.rank
    with_shared = rank == 0 and bool(snapshot.shared)
    data = store.data_path(ref, rank)
    try:
        with store.publishing_data(ref, rank) as path, path.open("wb", buffering=2**20) as file:
            items = dcp.write_items(file, snapshot.own)
            items += dcp.write_items(file, snapshot.rng, (f"rank-{rank:05d}", "rng"))
            if with_shared:
                items += dcp.write_items(file, snapshot.shared, shared=True)
            file.flush()
            data_bytes = file.tell()
        sidecar = Sidecar(
            header=msgspec.structs.replace(header, library=__version__),
            data=data.name,
            data_bytes=data_bytes,
            items=tuple(items),
            own=dcp.skeleton({"own": snapshot.own, "rng": snapshot.rng}),
            shared=dcp.skeleton(snapshot.shared) if with_shared else b"",
        )
        with store.publishing(ref, rank, header.world_size) as path:
            path.write_bytes(encode_sidecar(sidecar))
    except BaseException:
        data.unlink(missing_ok=True)
        raise


def read_part(path: Path, sidecar: Sidecar, what: str = ALL) -> Snapshot:
    """What a part holds (OWN, SHARED or ALL of it), verified. Its tensors lie in the mapped file.

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
            raise corrupt(path, "its shared part is none")
    return Snapshot(own=own["own"], shared=shared, rng=own["rng"])


def finish(store: CheckpointStore) -> None:
    """Write ``.metadata`` of all complete checkpoints that lack it, and let ``latest`` name the newest.

    Every rank may do so at any time. Raises :class:`CheckpointError` if a sidecar is damaged or foreign, or
    ``OSError``.
    """
    failure: CheckpointError | None = None
    for ref in store.complete():
        if not (store.folder(ref) / METADATA).exists():
            try:
                write_metadata(store, ref)
            except CheckpointError as error:
                failure = error  # the others do not suffer for it
    store.point_latest()
    if failure is not None:
        raise failure


def write_metadata(store: CheckpointStore, ref: CheckpointRef) -> None:
    """Derive ``.metadata`` of a complete checkpoint from its sidecars.

    Raises :class:`CheckpointError` if one of these is damaged or foreign, or ``OSError``.
    """
    sidecars = _sidecars(store, ref)
    with publishing(store.folder(ref) / METADATA) as path:
        dcp.write_metadata(path, sidecars)


def check_place(path: Path, header: PartHeader, expected: PartHeader) -> None:
    """Raise :class:`ForeignPart` unless a part is what its place says (entries and versions may differ)."""
    layout = expected.layout or header.layout
    same = msgspec.structs.replace(
        header, entries=expected.entries, library=expected.library
    ) == msgspec.structs.replace(expected, layout=layout)
    if not same:
        raise ForeignPart(
            f"{path} is not what its name says: it is of run {header.run_id or '(none)'}, "
            f"layout {header.layout or '(none)'}, generation {header.generation}, step {header.step}, rank "
            f"{header.rank} of {header.world_size}; here is run {expected.run_id or '(none)'}, "
            f"layout {layout or '(none)'}. Somebody moved it: remove the folder {path.parent}"
        )


def _sidecars(store: CheckpointStore, ref: CheckpointRef) -> list[Sidecar]:
    size = store.world_size(ref)
    found: list[Sidecar] = []
    for rank in range(size):
        path = store.part_path(ref, rank, size)
        sidecar = read_sidecar(path)
        run_id = found[0].header.run_id if found else sidecar.header.run_id
        expected = PartHeader(
            run_id=run_id,
            layout="",
            generation=ref.generation,
            step=ref.step,
            rank=rank,
            world_size=size,
            entries=(),
        )
        check_place(path, sidecar.header, expected)
        found.append(sidecar)
    return found
