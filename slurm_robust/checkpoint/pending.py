"""One snapshot on its way: what is copied of it when, and whether that stayed as it was."""

from __future__ import annotations

import concurrent.futures
import operator
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from slurm_robust.checkpoint import devices
from slurm_robust.checkpoint.buffers import Filling, Target
from slurm_robust.checkpoint.gpus import GpuEvent, Gpus
from slurm_robust.checkpoint.rankparts import Contents
from slurm_robust.checkpoint.state import key_of
from slurm_robust.checkpoint.tree import path_of


class PlacedTensor(NamedTuple):
    """A tensor and its place: 0 for the own part, 1 for the shared one, and the number in its table."""

    part: int
    number: int
    source: devices.SourceTensor
    on_gpu: bool

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.source.tensor.device


Owners = Mapping[tuple[int, int], torch.Tensor]
"""Tensors that only optimizers change, by :func:`~slurm_robust.checkpoint.state.key_of` their memory."""


@dataclass(frozen=True)
class Late:
    """Tensors that are copied beside the training, and the live ones whose versions count their changes.

    The rest says what they were found in, so that the same state need not be sorted again.
    """

    entries: list[PlacedTensor] = field(default_factory=list)
    live: list[torch.Tensor] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    early: list[tuple[int, int]] = field(default_factory=list)  # part and number of all others
    sizes: list[int] = field(default_factory=list)  # tensors of each part
    owners: Owners = field(default_factory=dict)

    def versions(self) -> list[int]:
        """How often each was changed in place."""
        return [tensor._version for tensor in self.live]

    def is_in_place(self) -> bool:
        """No tensor's memory was given up or replaced (``resize_``); the tensors keep it otherwise."""
        return [entry.source.tensor.data_ptr() for entry in self.entries] == self.addresses

    def is_of(self, tensors: list[list[torch.Tensor]], owners: Owners) -> bool:
        """The same memory, of the same owners, is to be copied to the same places of these tensors."""
        return (
            self.sizes == [len(its) for its in tensors]
            and self.owners.keys() == owners.keys()
            and all(map(operator.is_, self.owners.values(), owners.values()))
            and all(_is_block(tensors[part][number], of.tensor) for part, number, of, _ in self.entries)
        )


def sort_out(
    tensors: list[list[torch.Tensor]], owners: Owners, gpus: Gpus, before: Late | None = None
) -> tuple[list[PlacedTensor], Late]:
    """What must be copied at once, and what may be copied late: that of which ``owners`` has the memory.

    Where the late ones are those of ``before``, it is returned itself: they are cut into pieces already.
    """
    late = before
    if late is None or not late.is_of(tensors, owners):
        late = Late(sizes=[len(its) for its in tensors], owners=owners)
        for part, its in enumerate(tensors):
            for number, tensor in enumerate(its):
                owner = owners.get(key_of(tensor)) if tensor.device.type in ("cpu", "cuda") else None
                if owner is None:
                    late.early.append((part, number))
                else:
                    late.entries.append(
                        PlacedTensor(part, number, devices.SourceTensor(tensor), gpus.has(tensor))
                    )
                    late.live.append(owner)
                    late.addresses.append(tensor.data_ptr())
    others = [(part, number, tensors[part][number]) for part, number in late.early]
    early = [
        PlacedTensor(part, number, devices.SourceTensor(one), gpus.has(one)) for part, number, one in others
    ]
    return early, late


@dataclass
class PendingSnapshot:
    """One snapshot on its way."""

    step: int
    fillings: list[Filling]
    values: list[Any]
    late: Late
    versions: list[int] = field(default_factory=list)
    events: list[tuple[devices.GpuCopies, GpuEvent]] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)  # the thread needs no lock any more
    may_sum: threading.Event = field(default_factory=threading.Event)  # no update is waiting or under way
    copying: concurrent.futures.Future[None] = field(init=False)  # of late tensors, by the thread
    done: concurrent.futures.Future[None] | None = None  # the thread's whole work
    torn: str = ""  # the tensor that was changed while it was copied
    given_up: bool = False
    abandoned: bool = False  # it was begun ahead of a state that turned out to be another one
    held_up: bool = False  # an update had to wait for the copy
    captured: bool = False  # the update went into a CUDA graph, so nobody knows when the tensors change
    checked: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.versions = self.late.versions()
        self.may_sum.set()

    def copy_late(self) -> None:
        """Copy the late tensors of the CPU. In the thread."""
        devices.copy(self.cpu(self.late.entries), self.begun)

    def cpu(
        self, entries: Iterable[PlacedTensor]
    ) -> Iterator[tuple[Sequence[torch.Tensor], devices.SourceTensor]]:
        """Those in this machine's memory, with the pieces of the buffer where they belong."""
        for entry in entries:
            if not entry.on_gpu:
                yield self.target(entry).parts, entry.source

    def target(self, entry: PlacedTensor) -> Target:
        """Where it belongs."""
        return self.fillings[entry.part].targets[entry.number]

    def turn_into(self, contents: Contents) -> bool:
        """Take the rest of another state's contents; False if there is no room for its trees."""
        self.values = contents.values
        pairs = zip(self.fillings, contents.trees, strict=True)
        return all(filling.replace_tree(tree) for filling, tree in pairs)

    def check(self) -> None:
        """See whether a late tensor was changed since the snapshot was begun. Only the first call counts.

        It comes from the hook, before the update, or from the thread, when all is copied: whichever is first.
        """
        with self._lock:
            if self.checked:
                return
            self.checked = True
            for entry, live, version in zip(self.late.entries, self.late.live, self.versions, strict=True):
                if live._version != version:
                    self.torn = path_of(self.values[entry.part], entry.number)
                    return


def _is_block(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors, at least one of them alive, are the same memory read in the same way."""
    return (
        a.data_ptr() == b.data_ptr()
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
    )
