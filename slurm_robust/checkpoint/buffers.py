"""The buffers of one part, which one process fills in turn; :func:`refill_order` says in which order.

While step N+1 is written, a rank that is killed must leave a step that all others have too. A collective of
step N+1 lies between, so the others have committed N or N-1: these two are kept. Peers get the steps that
are multiples of the stride, so the newest two of these are kept as well: a node's loss then finds a step
that all have, own or peer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from slurm_robust.checkpoint.devices import pieces
from slurm_robust.checkpoint.errors import NotWritten
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, BufferInUse, NotReserved, OnMap, TensorSpec, read_header
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.tree import tensor_in
from slurm_robust.model.copies import CheckpointId


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


_MOST = 16  # buffers that can exist; a plan has five at most


@dataclass
class Target:
    """Where one tensor of an image belongs: the tensor there, and the same in pieces."""

    whole: torch.Tensor
    parts: Sequence[torch.Tensor]


@dataclass
class Filling:
    """A buffer that is being filled. Either :meth:`commit` or :meth:`discard` ends it.

    ``stride`` and ``flush`` are what it was begun with.
    """

    owner: PartBuffers
    number: int
    checkpoint: CheckpointId
    buffer: Buffer
    targets: list[Target]
    tree: bytes
    stride: int
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
    """A buffer for which memory is still to be reserved, and how much."""

    owner: PartBuffers
    number: int
    total: int

    def reserve(self) -> None:
        """Reserve it, which takes seconds. Raises :class:`NotWritten`."""
        self.owner.reserve(self.number, self.total)


@dataclass
class PartBuffers:
    """Buffers ``own-<rank>.<number>`` (or ``shared.<number>``) in a folder of copies.

    ``header`` is that of all images, but for the step. ``restored`` is the checkpoint that this generation
    went on from, None for a fresh start. ``on_map`` is called as
    :class:`~slurm_robust.checkpoint.image.SharedFile` calls it.

    Not for several threads at once, but for :meth:`reserve`, beside which no other method may run.
    """

    folder: MemoryFolder
    header: PartHeader
    restored: CheckpointId | None
    on_map: OnMap = lambda _: lambda: None
    cap: int = 0
    held: dict[int, CheckpointId | None] = field(default_factory=dict)
    _open: dict[int, Buffer] = field(default_factory=dict)
    _targets: dict[int, tuple[tuple[TensorSpec, ...], int, list[Target]]] = field(default_factory=dict)

    def scan(self) -> None:
        """Take over the buffers that processes before this one left."""
        for number in range(_MOST):
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
