"""Restoring a rank from images: in this node's memory, fetched by its agent, or on its disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from slurm_robust.checkpoint.errors import CorruptPart, MissingCheckpoint
from slurm_robust.checkpoint.fit import refuse_misfit, refuse_other_names
from slurm_robust.checkpoint.gpus import CUDA, Gpus
from slurm_robust.checkpoint.header import PartHeader, check_header
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.inplace import fill, moved, places_for
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Snapshot, Training
from slurm_robust.checkpoint.tiers import NodeTier, kept_tiers
from slurm_robust.checkpoint.tree import keys_of, tensor_in, unflatten
from slurm_robust.model.copies import SHARED, CheckpointId, Tier, transfer_s
from slurm_robust.util.ours import read_ours
from slurm_robust.worker.environment import WorkerEnvironment

# How often to check whether the agent has fetched a part.
POLL_S = 0.01

# The rank has nothing else to do meanwhile, and one thread sums up 5 to 7 GB/s (measured).
_READ_THREADS = 4


@dataclass(frozen=True)
class _Part:
    """An image and its state, whose tensors are in it."""

    image: Image
    tensors: list[torch.Tensor]
    tree: dict[str, Any]


class ImageReader:
    """Reads this rank's state from whole copies. They stay locked until :meth:`close`."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        rank: int,
        world_size: int,
        *,
        patience: Callable[[int], float] = transfer_s,
        gpus: Gpus = CUDA,
    ) -> None:
        """``patience``: seconds that the agent has for fetching a part of that many bytes (0: not known yet).

        The agent reports immediately when nothing arrives any more.
        """
        self._environment = environment
        self._rank = rank
        self._world_size = world_size
        self._patience = patience
        self._gpus = gpus
        self._folder = MemoryFolder(environment.copies, environment.run_id) if environment.copies else None
        self._tiers = self._node_tiers()
        self._images: list[Image] = []

    def load(
        self,
        checkpoint: CheckpointId,
        training: Training,
        found: Callable[[list[Image]], None] = lambda _: None,
    ) -> Snapshot:
        """Return the verified state at ``checkpoint``, in the live tensors if it fits there, else in images.

        ``found`` is called before that with its images, the own part's first, since reading takes seconds.

        A damaged copy is removed, so that the next choice does without it; the live tensors may hold what
        is damaged then. Raises a
        :class:`~slurm_robust.checkpoint.errors.CheckpointError` that says what to do, or ``OSError``.
        """
        own = self._part(self._rank, checkpoint, wait=self._environment.restore_tier is Tier.PEER)
        names = own.tree["own"]
        refuse_other_names(f"checkpoint {checkpoint} of rank {self._rank}", names, training)
        parts = [own, self._part(SHARED, checkpoint, wait=True)] if own.tree["has_shared"] else [own]
        shared = parts[1].tree["shared"] if own.tree["has_shared"] else {}
        stored = Snapshot(own=names, shared=shared, rng=own.tree["rng"])
        refuse_misfit(f"checkpoint {checkpoint}", stored, training)
        found([part.image for part in parts])
        places = places_for(stored, training, self._gpus)
        for part in parts:
            with _removed_if_damaged(part.image):
                fill(part.image, part.tensors, places, self._gpus, _READ_THREADS)
        return moved(stored, places)

    def close(self) -> None:
        """Let go of the images: the state is in place."""
        for image in self._images:
            image.close()
        self._images.clear()

    def _part(self, rank: int, checkpoint: CheckpointId, *, wait: bool) -> _Part:
        image = self._open(rank, checkpoint, wait=wait)
        self._images.append(image)
        check_header(image.header, self._expected(rank, checkpoint), image.path)
        with _removed_if_damaged(image):
            tensors = [tensor_in(data, spec) for data, spec in zip(image.data(), image.tensors, strict=True)]
            return _Part(image, tensors, tree=unflatten(image.tree, tensors, keys_of(rank)))

    def _open(self, rank: int, checkpoint: CheckpointId, *, wait: bool) -> Image:
        """Return the nearest whole copy, as soon as there is one."""
        pause, began = threading.Event(), time.monotonic()
        while True:
            for tier in self._tiers:
                try:
                    path = tier.find(rank, checkpoint)
                except OSError:
                    path = None  # no disk, or a folder of another user
                if path is None:
                    continue
                try:
                    return open_image(path)
                except MissingCheckpoint:
                    continue  # it is just being published, or refilled
                except CorruptPart:
                    path.unlink(missing_ok=True)
                    raise
            self._raise_if_not_fetched(rank, checkpoint)
            if not wait or time.monotonic() - began >= self._patience(self._on_its_way(rank)):
                raise MissingCheckpoint(self._missing(rank, checkpoint))
            pause.wait(POLL_S)

    def _node_tiers(self) -> tuple[NodeTier, ...]:
        """Return this node's tiers, memory first, unless the part must come from this node's disk."""
        if self._folder is None:
            return ()
        own = self._environment
        try:
            key = read_ours(self._folder.seal_key)
        except OSError:
            return (self._folder,)  # there is no disk
        kept = kept_tiers(own.places, own.run_id, key)
        return (self._folder, *kept) if own.restore_tier.in_memory else (*kept, self._folder)

    def _raise_if_not_fetched(self, rank: int, checkpoint: CheckpointId) -> None:
        if self._folder is None:
            return
        try:
            reason = self._folder.fetch_error(rank).read_text()
        except FileNotFoundError:
            return
        raise MissingCheckpoint(
            f"{_part_name(rank)} of checkpoint {checkpoint} was not fetched: {reason.strip()}"
        )

    def _on_its_way(self, rank: int) -> int:
        """Return bytes of the part of ``rank`` that is being fetched, 0 while that is not known."""
        try:
            return int(self._folder.fetch_size(rank).read_text()) if self._folder else 0
        except FileNotFoundError:
            return 0

    def _missing(self, rank: int, checkpoint: CheckpointId) -> str:
        places = [str(tier.path) for tier in self._tiers]
        return (
            f"{_part_name(rank)} of checkpoint {checkpoint} is not in {' or '.join(places) or 'any folder'}: "
            "'srobust run' goes on from another copy or an older one by itself"
        )

    def _expected(self, rank: int, checkpoint: CheckpointId) -> PartHeader:
        own = self._environment
        return PartHeader.of(
            checkpoint, rank, run_id=own.run_id, layout=own.layout, world_size=self._world_size
        )


@contextmanager
def _removed_if_damaged(image: Image) -> Iterator[None]:
    try:
        yield
    except CorruptPart:
        image.path.unlink(missing_ok=True)
        raise


def _part_name(rank: int) -> str:
    return "the shared part" if rank == SHARED else f"the part of rank {rank}"
