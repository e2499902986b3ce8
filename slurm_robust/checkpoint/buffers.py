"""The buffers of the parts that one rank writes, its own and on each node's first rank the shared one.

One process fills a part's buffers in turn; :func:`refill_order` says in which order.

While step N+1 is written, a rank that is killed must leave a step that all others have too. A collective of
step N+1 lies between, so the others have committed N or N-1: these two are kept. Peers get the steps that
are multiples of the stride, so the newest two of these are kept as well: a node's loss then finds a step
that all have, own or peer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from slurm_robust.checkpoint import budget
from slurm_robust.checkpoint.devices import pieces
from slurm_robust.checkpoint.errors import NotWritten
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import (
    Buffer,
    BufferInUse,
    NotReserved,
    OnMap,
    TensorSpec,
    image_bytes,
    read_header,
)
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.tree import flatten, specs_of, tensor_in
from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.model.record import Record


def refill_order(
    held: Mapping[int, CheckpointId | None],
    *,
    cap: int,
    generation: int,
    restored: CheckpointId | None,
    stride: int = 1,
    flush: int = -1,
) -> list[int]:
    """Buffers that may take the next snapshot, best first; one that is locked is passed over. Pure.

    ``held``: what each buffer holds whole, None for nothing usable. A number that is not among them is a
    buffer still to be made: at most one is offered, and only while there are fewer than ``cap``.
    ``generation`` is the running one, ``restored`` what it went on from (None: a fresh start); what earlier
    generations did after that is dead. The newest step is offered only if ``cap`` is 1.
    """
    dead = sorted(
        (checkpoint, n)
        for n, checkpoint in held.items()
        if checkpoint and _is_dead(checkpoint, generation, restored)
    )
    empty = sorted(n for n, checkpoint in held.items() if checkpoint is None)
    gone = {n for _, n in dead}
    alive = sorted(
        ((checkpoint, n) for n, checkpoint in held.items() if checkpoint and n not in gone), reverse=True
    )
    kept = _kept(alive, stride, flush)
    order = [*empty, *(n for _, n in dead), *(n for _, n in reversed(alive) if n not in kept)]
    if len(held) < cap:
        order.append(next(n for n in range(len(held) + 1) if n not in held))
    # The last resort costs protection, most important last. Without it a part whose buffers are locked would
    # fall behind the others until no step is left that all have.
    return [*order, *reversed(kept[0 if cap == 1 else 1 :])]


def _is_dead(checkpoint: CheckpointId, generation: int, restored: CheckpointId | None) -> bool:
    return checkpoint.generation != generation and (restored is None or checkpoint.step > restored.step)


def _kept(alive: list[tuple[CheckpointId, int]], stride: int, flush: int) -> list[int]:
    """Numbers of the buffers to keep, most important first; ``alive`` is sorted, newest first."""
    multiples = [n for checkpoint, n in alive if checkpoint.step % stride == 0]
    wanted = [n for checkpoint, n in alive if checkpoint.step == flush]
    return list(dict.fromkeys([*(n for _, n in alive[:2]), *multiples[:2], *wanted]))


_MAX_BUFFERS = 16  # buffers that can exist; a plan has five at most


@dataclass
class Target:
    """Where one tensor of an image belongs."""

    whole: torch.Tensor
    parts: Sequence[torch.Tensor]  # the same memory in pieces


@dataclass
class Filling:
    """A buffer that is being filled. Either :meth:`commit` or :meth:`discard` ends it."""

    owner: PartBuffers
    number: int
    checkpoint: CheckpointId
    buffer: Buffer
    targets: list[Target]
    tree: bytes
    stride: int  # this and ``flush`` are what it was begun with
    flush: int

    def replace_tree(self, tree: bytes) -> bool:
        """Put in another tree; False if there is no room for it."""
        fits = self.buffer.replace_tree(tree)
        if fits:
            self.tree = tree
        return fits

    def commit(self) -> None:
        """All tensors are in place: sum them up, and the image is whole."""
        self.buffer.commit()
        self.owner.held[self.number] = self.checkpoint

    def discard(self) -> None:
        """Leave the buffer empty."""
        self.buffer.discard()


@dataclass(frozen=True)
class UnreservedBuffer:
    """A buffer for which memory is still to be reserved."""

    owner: PartBuffers
    number: int
    total: int  # bytes

    def reserve(self) -> None:
        """Reserve it, which takes seconds. Raises :class:`NotWritten`."""
        self.owner.reserve(self.number, self.total)


@dataclass
class PartBuffers:
    """Buffers ``own-<rank>.<number>`` (or ``shared.<number>``) in a folder of copies.

    Not for several threads at once, but for :meth:`reserve`, beside which no other method may run.
    """

    folder: MemoryFolder
    header: PartHeader  # of all images, but for the step
    restored: CheckpointId | None  # what this generation went on from, None for a fresh start
    on_map: OnMap = lambda _: lambda: None
    cap: int = 0  # buffers that may be used
    held: dict[int, CheckpointId | None] = field(default_factory=dict)  # whole images by number, None: empty
    _open: dict[int, Buffer] = field(default_factory=dict)
    _targets: dict[int, tuple[tuple[TensorSpec, ...], int, list[Target]]] = field(default_factory=dict)

    def scan(self) -> None:
        """Take over the buffers that processes before this one left."""
        for number in range(_MAX_BUFFERS):
            path = self.folder.own(self.header.rank, number)
            if path.exists():
                header = read_header(path)
                ours = header is not None and self._is_ours(header)
                self.held[number] = header.checkpoint if header and ours else None

    def limit(self, cap: int) -> None:
        """Use at most ``cap`` buffers, and give back the memory of those beyond, least wanted first."""
        self.cap = cap
        surplus = max(0, len(self.held) - cap) if cap else 0
        for number in [n for n in self._order(1, -1) if n in self.held][:surplus]:
            self._forget(number)

    def begin(
        self, step: int, specs: tuple[TensorSpec, ...], tree: bytes, *, stride: int, flush: int
    ) -> Filling | UnreservedBuffer:
        """Give up the image that is needed least and lay out the next one; or what must be reserved before.

        Raises :class:`NotWritten` if all buffers are being read or cannot be made.
        """
        header = msgspec.structs.replace(self.header, step=step)
        for number in self._order(stride, flush):
            try:
                buffer = self._buffer(number)
                views = buffer.begin(header, specs, tree, reserved=True)
            except BufferInUse:
                continue
            except NotReserved:
                return UnreservedBuffer(self, number, buffer.total)
            except OSError as error:
                raise self._not_written(number, error) from error
            self.held[number] = None
            targets = self._targets_in(number, specs, views)
            return Filling(self, number, header.checkpoint, buffer, targets, tree, stride, flush)
        raise NotWritten(
            f"all {len(self.held)} snapshots of rank {header.rank} are being read: copying them to peers or "
            "storage takes longer than the steps"
        )

    def reserve(self, number: int, total: int) -> None:
        """Have memory for an image of ``total`` bytes. Raises :class:`NotWritten`.

        The kernel clears that memory, and a GPU's driver registers it, which takes longer than copying.
        """
        try:
            self._buffer(number).reserve(total)
        except BufferInUse:
            pass  # somebody reads it meanwhile: another one is next
        except OSError as error:
            raise self._not_written(number, error) from error

    def wanted(self, total: int, *, stride: int = 1, flush: int = -1) -> UnreservedBuffer | None:
        """The buffer that an image of ``total`` bytes takes next, if it still needs memory."""
        number = next(iter(self._order(stride, flush)), None)
        if number is None or (number in self._open and self._open[number].mapped >= total):
            return None
        return UnreservedBuffer(self, number, total)

    def close(self) -> None:
        """Let go of the buffers; the images in them stay."""
        self._targets.clear()
        for buffer in self._open.values():
            buffer.close()
        self._open.clear()

    def _order(self, stride: int, flush: int) -> list[int]:
        return refill_order(
            self.held,
            cap=self.cap,
            generation=self.header.generation,
            restored=self.restored,
            stride=max(1, stride),
            flush=flush,
        )

    def _is_ours(self, header: PartHeader) -> bool:
        fields = {"generation": header.generation, "step": header.step, "library": header.library}
        return msgspec.structs.replace(self.header, **fields) == header

    def _buffer(self, number: int) -> Buffer:
        if number not in self._open:
            self._open[number] = Buffer(self.folder.own(self.header.rank, number), self.on_map)
            self.held.setdefault(number, None)
        return self._open[number]

    def _targets_in(
        self, number: int, specs: tuple[TensorSpec, ...], views: list[memoryview]
    ) -> list[Target]:
        """The tensors that are in a buffer; making thousands takes milliseconds, so they are kept."""
        address = next((_address(view) for view in views if len(view)), 0)
        known = self._targets.get(number)
        if known is None or known[:2] != (specs, address):
            made = [tensor_in(view, spec) for view, spec in zip(views, specs, strict=True)]
            known = specs, address, [Target(tensor, pieces(tensor)) for tensor in made]
            self._targets[number] = known
        return known[2]

    def _not_written(self, number: int, error: OSError) -> NotWritten:
        return NotWritten(
            f"{self.folder.own(self.header.rank, number)}: {os.strerror(error.errno or 0)}; give the job "
            "more memory (--mem), the node a larger /dev/shm, or set checkpoint.memory to false"
        )

    def _forget(self, number: int) -> None:
        self._targets.pop(number, None)
        if number in self._open:
            self._open.pop(number).close()
        del self.held[number]
        self.folder.own(self.header.rank, number).unlink(missing_ok=True)


def _address(view: memoryview) -> int:
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


class TensorPlace(Record):
    """Whose snapshots, and the ranks and nodes around."""

    header: PartHeader
    """Of the images, without the step."""
    first_on_node: bool
    """This rank writes the shared part too."""
    ranks_on_node: int
    nodes: int
    restored: CheckpointId | None = None
    """The checkpoint that this generation went on from, None for a fresh start."""


class Contents(NamedTuple):
    """A state as images hold it: of the own part and, where this rank writes it, of the shared part."""

    values: list[Any]  # where the tensors come from, to name one
    trees: list[bytes]
    tensors: list[list[torch.Tensor]]


class Table(NamedTuple):
    """What an image holds."""

    specs: tuple[TensorSpec, ...]
    tree: bytes  # to which the tensors belong


class RankParts:
    """The parts that one rank writes.

    ``gather`` says how much there is; ``on_map`` is called as by :class:`PartBuffers`.
    """

    def __init__(
        self,
        folder: MemoryFolder,
        place: TensorPlace,
        gather: Callable[[Path], tuple[budget.Room, ...]],
        on_map: OnMap,
    ) -> None:
        self.active = True  # False if there is no memory for any
        self._folder = folder
        self._place = place
        self._gather = gather
        self._own = self._part(place.header.rank, on_map)
        self._shared = self._part(SHARED, on_map) if place.first_on_node else None
        self._planned = (0, 0)

    def contents(self, snapshot: Snapshot) -> Contents:
        """What this rank writes of a state. Raises ``UnsupportedState``."""
        own = {"own": snapshot.own, "rng": snapshot.rng, "has_shared": bool(snapshot.shared)}
        values = [own | {"bound": sorted(snapshot.bound)}]
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
