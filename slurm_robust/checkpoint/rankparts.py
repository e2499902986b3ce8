"""The parts of a checkpoint that one rank writes: its own, and on each node's first rank the shared one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from slurm_robust.checkpoint import budget
from slurm_robust.checkpoint.buffers import Filling, PartBuffers, UnreservedBuffer
from slurm_robust.checkpoint.errors import NotWritten
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import OnMap, TensorSpec, image_bytes
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.tree import flatten, specs_of
from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.model.record import Record


class TensorPlace(Record):
    """Whose snapshots: header of the images (without the step), and the ranks and nodes around.

    ``first_on_node``: this rank writes the shared part too.
    """

    header: PartHeader
    first_on_node: bool
    ranks_on_node: int
    nodes: int
    restored: CheckpointId | None = None


class Contents(NamedTuple):
    """A state as images hold it: of the own part and, where this rank writes it, of the shared part."""

    values: list[Any]  # where the tensors come from, to name one
    trees: list[bytes]
    tensors: list[list[torch.Tensor]]


class Table(NamedTuple):
    """What an image holds: its tensors' kinds and sizes, and the tree to which they belong."""

    specs: tuple[TensorSpec, ...]
    tree: bytes


class RankParts:
    """The parts that one rank writes. ``active`` is False if there is no memory for any.

    ``gather`` says how much there is; ``on_map`` is called as by :class:`PartBuffers`.
    """

    def __init__(
        self,
        folder: MemoryFolder,
        place: TensorPlace,
        gather: Callable[[Path], tuple[budget.Room, ...]],
        on_map: OnMap,
    ) -> None:
        self.active = True
        self._folder = folder
        self._place = place
        self._gather = gather
        self._own = self._part(place.header.rank, on_map)
        self._shared = self._part(SHARED, on_map) if place.first_on_node else None
        self._planned = (0, 0)

    def contents(self, snapshot: Snapshot) -> Contents:
        """What this rank writes of a state. Raises ``UnsupportedState``."""
        values = [{"own": snapshot.own, "rng": snapshot.rng, "has_shared": bool(snapshot.shared)}]
        if self._shared is not None and snapshot.shared:
            values.append({"shared": snapshot.shared})
        trees, tensors = zip(*map(flatten, values), strict=True)
        return Contents(values, list(trees), list(tensors))

    def describe(self, contents: Contents) -> bool:
        """See what the state is made of; True if that is not what it was."""
        first = not self._own.signature
        parts = zip(self._parts(), contents.trees, contents.tensors, strict=False)
        changed = [part.describe(tree, tensors) for part, tree, tensors in parts]
        return any(changed) and not first

    def make_room(self, snapshot: Snapshot) -> str:
        """Plan for the state when it has become larger; why there are fewer buffers than it takes, if so.

        Raises :class:`NotWritten`.
        """
        if self._own.nbytes <= self._planned[0] and (
            self._shared is None or self._shared.nbytes <= self._planned[1]
        ):
            return ""
        shared = sum(tensor.nbytes for tensor in flatten(snapshot.shared)[1])
        return self._planned_for(self._own.nbytes, max(shared, self._shared.nbytes if self._shared else 0))

    def begin(
        self, step: int, trees: list[bytes], *, stride: int, flush: int
    ) -> list[Filling] | UnreservedBuffer:
        """Lay out each part's next buffer, or what must be reserved before. Raises :class:`NotWritten`."""
        fillings: list[Filling] = []
        found: Filling | UnreservedBuffer | None = None
        try:
            for part, tree in zip(self._parts(), trees, strict=False):  # there may be nothing to share
                found = part.buffers.begin(step, part.specs, tree, stride=stride, flush=flush)
                if isinstance(found, UnreservedBuffer):
                    return found
                fillings.append(found)
            return fillings
        finally:
            if len(fillings) < len(trees):
                for filling in fillings:
                    filling.discard()

    def expect(self, tables: list[Table]) -> tuple[list[UnreservedBuffer], str]:
        """What to reserve for a state of which only these tables are known; and what :meth:`make_room` says.

        Raises :class:`NotWritten`.
        """
        sizes = [image_bytes(table.specs, table.tree) for table in tables]
        for part, table, size in zip(self._parts(), tables, sizes, strict=False):
            part.specs, part.nbytes = table.specs, size
        reason = self._planned_for(sizes[0], sum(sizes[1:]))
        wanted = [part.buffers.wanted(size) for part, size in zip(self._parts(), sizes, strict=False)]
        return [one for one in wanted if one is not None], reason

    def close(self) -> None:
        """Let go of the buffers; the images in them stay."""
        for part in self._parts():
            part.buffers.close()

    def _planned_for(self, own: int, shared: int) -> str:
        try:
            return self._plan(own, shared)
        except OSError as error:
            raise NotWritten(f"{self._folder.path}: {error.strerror}") from error

    def _plan(self, own: int, shared: int) -> str:
        place = self._place
        rooms = self._gather(self._folder.path)
        plan = budget.plan(own=own, shared=shared, ranks=place.ranks_on_node, nodes=place.nodes, rooms=rooms)
        self.active = plan.own_buffers > 0
        for part in self._parts():
            part.buffers.limit(plan.own_buffers)
        budget.write_plan(self._folder.path, place.header.rank, plan)
        self._planned = own, shared
        return plan.reason

    def _part(self, rank: int, on_map: OnMap) -> _Part:
        header = msgspec.structs.replace(self._place.header, rank=rank)
        buffers = PartBuffers(self._folder, header, self._place.restored, on_map)
        buffers.scan()
        return _Part(buffers)

    def _parts(self) -> Iterator[_Part]:
        yield self._own
        if self._shared is not None:
            yield self._shared


@dataclass
class _Part:
    """What of one part stays from snapshot to snapshot."""

    buffers: PartBuffers
    signature: list[tuple[torch.dtype, torch.Size]] = field(default_factory=list)
    specs: tuple[TensorSpec, ...] = ()
    nbytes: int = 0

    def describe(self, tree: bytes, tensors: list[torch.Tensor]) -> bool:
        """Bring the table up to date; True if it is another one than before."""
        signature = [(tensor.dtype, tensor.shape) for tensor in tensors]
        changed = signature != self.signature
        if changed:
            self.signature, specs = signature, specs_of(tensors)
            if specs != self.specs:  # else they are known by a state that was restored
                self.specs = specs
            self.nbytes = image_bytes(self.specs, tree)
        return changed
