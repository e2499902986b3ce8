"""The buffers of the parts that one rank writes, its own and on each node's first rank the shared one.

One process fills a part's buffers in turn; :func:`refill_order` says in which order.

While step N+1 is written, a rank that is killed must leave a step that all others have too. A collective of
step N+1 lies between, so the others have committed N or N-1: these two are kept. Peers get the steps that
are multiples of the stride, so the newest two of these are kept as well: a node's loss then finds a step
that all have, own or peer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    Image,
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
    """Return the buffers that may take the next snapshot, best first; one that is locked is passed over.

    Pure. ``held``: what each buffer holds whole, None for nothing usable. A number that is not among them is
    a buffer still to be made: at most one is offered, and only while there are fewer than ``cap``.
    ``generation`` is the running one, ``restored`` what it went on from (None: a fresh start); what earlier
    generations did after that is dead. The newest step is offered only if ``cap`` is 1.
    """
    dead = sorted(
        (checkpoint, n)
        for n, checkpoint in held.items()
        if checkpoint
        and checkpoint.generation != generation
        and (restored is None or checkpoint.step > restored.step)
    )
    empty = sorted(n for n, checkpoint in held.items() if checkpoint is None)
    gone = {n for _, n in dead}
    alive = sorted(
        ((checkpoint, n) for n, checkpoint in held.items() if checkpoint and n not in gone), reverse=True
    )
    multiples = [n for checkpoint, n in alive if checkpoint.step % stride == 0]
    wanted = [n for checkpoint, n in alive if checkpoint.step == flush]
    kept = list(dict.fromkeys([*(n for _, n in alive[:2]), *multiples[:2], *wanted]))  # most important first
    order = [*empty, *(n for _, n in dead), *(n for _, n in reversed(alive) if n not in kept)]
    if len(held) < cap:
        order.append(next(n for n in range(len(held) + 1) if n not in held))
    # The last resort costs protection, most important last. Without it a part whose buffers are locked would
    # fall behind the others until no step is left that all have.
    return [*order, *reversed(kept[0 if cap == 1 else 1 :])]


_MAX_BUFFERS = 16  # buffers that can exist; a plan has five at most


@dataclass
class Target:
    """The place of one tensor of an image."""

    whole: torch.Tensor
    parts: Sequence[torch.Tensor]  # the same memory in pieces


class TensorBuffer(Buffer):
    """A buffer and the tensors in it; making thousands takes milliseconds, so they are kept."""

    targets: Sequence[Target] = ()
    _targets_of: tuple[tuple[TensorSpec, ...], int] = ((), 0)

    def lay_out(self, header: PartHeader, specs: tuple[TensorSpec, ...], tree: bytes) -> None:
        """Begin an image whose tensors are :attr:`targets`; raises as :meth:`begin` with ``reserved``."""
        views = self.begin(header, specs, tree, reserved=True)
        memory = next((torch.frombuffer(view, dtype=torch.uint8) for view in views if len(view)), None)
        made_of = specs, 0 if memory is None else memory.data_ptr()
        if self._targets_of != made_of:
            tensors = [tensor_in(view, spec) for view, spec in zip(views, specs, strict=True)]
            self.targets = [Target(tensor, pieces(tensor)) for tensor in tensors]
            self._targets_of = made_of

    def close(self) -> None:
        """Unmap and close; the file and a whole image in it stay."""
        self.targets, self._targets_of = (), ((), 0)
        super().close()


class TensorPlace(Record):
    """Whose snapshots, and the ranks and nodes around."""

    header: PartHeader
    """Headers of the images, without the step."""
    first_on_node: bool
    """This rank writes the shared part too."""
    ranks_on_node: int
    nodes: int
    restored: CheckpointId | None = None
    """The checkpoint that this generation went on from, None for a fresh start."""


class Contents(NamedTuple):
    """A state as images hold it: of the own part and, if this rank writes it, of the shared part."""

    values: list[Any]  # the origins of the tensors, to name one
    trees: list[bytes]
    tensors: list[list[torch.Tensor]]


Reserve = Callable[[], None]
"""Reserves memory for one buffer, which takes seconds. Raises :class:`NotWritten`."""


@dataclass
class _Part:
    """What of one part stays from snapshot to snapshot."""

    header: PartHeader  # of all images, but for the step
    buffers: dict[int, TensorBuffer] = field(default_factory=dict)
    signature: list[tuple[torch.dtype, torch.Size]] = field(default_factory=list)
    specs: tuple[TensorSpec, ...] = ()
    nbytes: int = 0


class RankBuffers:
    """The buffers that one rank fills: of its own part and, if it is a node's first, of the shared part.

    Not for several threads at a time; while a :data:`Reserve` is called, no method may run. ``gather`` says
    how much memory there is; ``on_map`` is called as by :class:`Buffer`.
    """

    def __init__(
        self,
        folder: MemoryFolder,
        place: TensorPlace,
        gather: Callable[[Path], tuple[budget.Room, ...]],
        on_map: OnMap,
    ) -> None:
        self.number = 1  # snapshots of each part for which there is memory; 1 as long as that is not known
        self._folder = folder
        self._place = place
        self._gather = gather
        self._on_map = on_map
        self._planned = (0, 0)
        self._parts: list[_Part] = []
        for rank in (place.header.rank, SHARED) if place.first_on_node else (place.header.rank,):
            part = _Part(msgspec.structs.replace(place.header, rank=rank))
            self._parts.append(part)
            for number in range(_MAX_BUFFERS):  # buffers that earlier processes left
                path = folder.own(rank, number)
                if path.exists():
                    buffer, found = self._buffer(part, number), read_header(path)
                    if found is not None and found.matches(
                        msgspec.structs.replace(part.header, generation=found.generation, step=found.step)
                    ):
                        buffer.checkpoint = found.checkpoint

    def contents(self, snapshot: Snapshot) -> Contents:
        """Return what this rank writes of a state. Raises ``UnsupportedState``."""
        own = {"own": snapshot.own, "rng": snapshot.rng, "has_shared": bool(snapshot.shared)}
        values = [own | {"bound": sorted(snapshot.bound)}]
        if len(self._parts) > 1 and snapshot.shared:
            values.append({"shared": snapshot.shared})
        trees, tensors = zip(*map(flatten, values), strict=True)
        return Contents(values, list(trees), list(tensors))

    def describe(self, contents: Contents) -> bool:
        """Bring the tables of the parts up to date; True if the state has other tensors than before."""
        first, changed = not self._parts[0].signature, False
        for part, tree, tensors in zip(self._parts, contents.trees, contents.tensors, strict=False):
            signature = [(tensor.dtype, tensor.shape) for tensor in tensors]
            if signature != part.signature:
                changed, part.signature = True, signature
                part.specs = specs_of(tensors)
                part.nbytes = image_bytes(part.specs, tree)
        return changed and not first

    @property
    def active(self) -> bool:
        """Whether there is memory for any, by what is known."""
        return self.number > 0

    def make_room(self, snapshot: Snapshot) -> str:
        """Plan for the state when it has become larger, or there was no memory for it; why there are fewer
        buffers than it takes, if so.

        Raises :class:`NotWritten`.
        """
        own, *others = (part.nbytes for part in self._parts)
        if self.active and own <= self._planned[0] and sum(others) <= self._planned[1]:
            return ""
        shared = sum(tensor.nbytes for tensor in flatten(snapshot.shared)[1])
        return self._plan(own, max([shared, *others]))

    def expect(self, images: Sequence[Image]) -> tuple[list[Reserve], str]:
        """Plan for a state of which only these images are known: what to reserve, and as :meth:`make_room`.

        Raises :class:`NotWritten`.
        """
        sizes = [image_bytes(image.tensors, image.tree) for image in images]
        for part, image, size in zip(self._parts, images, sizes, strict=False):
            part.specs, part.nbytes = image.tensors, size
        reason = self._plan(sizes[0], sum(sizes[1:]))
        return self.wanted(sizes), reason

    def begin(
        self, step: int, trees: list[bytes], *, stride: int, flush: int
    ) -> list[TensorBuffer] | Reserve:
        """Lay out the next image of each part in the buffer that is needed least; or what to reserve before.

        Raises :class:`NotWritten` if all buffers of a part are being read or cannot be made.
        """
        begun: list[TensorBuffer] = []
        try:
            for part, tree in zip(self._parts, trees, strict=False):  # there may be nothing to share
                found = self._begin(part, step, tree, stride=stride, flush=flush)
                if not isinstance(found, TensorBuffer):
                    return found
                begun.append(found)
            return begun
        finally:
            if len(begun) < len(trees):
                for buffer in begun:
                    buffer.discard()

    def wanted(self, sizes: Sequence[int], *, stride: int = 1, flush: int = -1) -> list[Reserve]:
        """Return what to reserve before images of these sizes are begun, the own part's first."""
        found: list[Reserve] = []
        for part, size in zip(self._parts, sizes, strict=False):
            number = next(iter(self._order(part, stride, flush)), None)
            if number is not None and not (number in part.buffers and part.buffers[number].mapped >= size):
                found.append(partial(self._reserve, part, number, size))
        return found

    def close(self) -> None:
        """Let go of the buffers; the images in them stay."""
        for part in self._parts:
            for buffer in part.buffers.values():
                buffer.close()
            part.buffers.clear()

    def _begin(
        self, part: _Part, step: int, tree: bytes, *, stride: int, flush: int
    ) -> TensorBuffer | Reserve:
        header = msgspec.structs.replace(part.header, step=step)
        for number in self._order(part, stride, flush):
            try:
                buffer = self._buffer(part, number)
                buffer.lay_out(header, part.specs, tree)
            except BufferInUse:
                continue
            except NotReserved:
                return partial(self._reserve, part, number, buffer.total)
            except OSError as error:
                raise self._not_written(part, number, error) from error
            return buffer
        raise NotWritten(
            f"all {len(part.buffers)} snapshots of rank {header.rank} are being read: copying them to peers "
            "or storage takes longer than the steps"
        )

    def _reserve(self, part: _Part, number: int, total: int) -> None:
        """Have the kernel clear the memory and a GPU's driver register it; both take longer than copying."""
        try:
            self._buffer(part, number).reserve(total)
        except BufferInUse:
            pass  # another process reads it meanwhile: take the next buffer
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._make_do(part, number)
            raise self._not_written(part, number, error) from error

    def _make_do(self, part: _Part, number: int) -> None:
        """Go on with the buffers that are there: others have taken the memory for one more."""
        buffer = part.buffers.pop(number)
        buffer.close()
        buffer.path.unlink(missing_ok=True)
        self.number = min(len(part.buffers), self.number)

    def _plan(self, own: int, shared: int) -> str:
        place = self._place
        try:
            rooms = self._gather(self._folder.path)
            plan = budget.plan(
                own=own, shared=shared, ranks=place.ranks_on_node, nodes=place.nodes, rooms=rooms
            )
            self.number = plan.own_buffers
            for part in self._parts if self.active else ():  # the memory of those beyond is given back
                surplus = max(0, len(part.buffers) - self.number)
                for number in [n for n in self._order(part, 1, -1) if n in part.buffers][:surplus]:
                    buffer = part.buffers.pop(number)
                    buffer.close()
                    buffer.path.unlink(missing_ok=True)
            self._tell(plan)
        except OSError as error:
            self.number = 0
            raise NotWritten(f"{self._folder.path}: {error.strerror}") from error
        self._planned = own, shared
        return plan.reason

    def _tell(self, plan: budget.MemoryPlan) -> None:
        """Leave the plan for the agent, if there is room for that much."""
        try:
            budget.write_plan(self._folder.path, self._place.header.rank, plan)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def _order(self, part: _Part, stride: int, flush: int) -> list[int]:
        return refill_order(
            {number: buffer.checkpoint for number, buffer in part.buffers.items()},
            cap=self.number,
            generation=part.header.generation,
            restored=self._place.restored,
            stride=max(1, stride),
            flush=flush,
        )

    def _buffer(self, part: _Part, number: int) -> TensorBuffer:
        if number not in part.buffers:
            part.buffers[number] = TensorBuffer(self._folder.own(part.header.rank, number), self._on_map)
        return part.buffers[number]

    def _not_written(self, part: _Part, number: int, error: OSError) -> NotWritten:
        return NotWritten(
            f"{self._folder.own(part.header.rank, number)}: {os.strerror(error.errno or 0)}; give the job "
            "more memory (--mem), the node a larger /dev/shm, or set checkpoint.memory to false"
        )
