"""The places of a stored state's bytes in the live objects, so that they are read straight into them."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from slurm_robust.checkpoint.gpus import Gpus
from slurm_robust.checkpoint.image import Image, Target
from slurm_robust.checkpoint.plain import map_tensors
from slurm_robust.checkpoint.staging import GpuStaging
from slurm_robust.checkpoint.state import Snapshot, Training, live_state, unwrapped

Places = Mapping[int, torch.Tensor]


def places_for(stored: Snapshot, training: Training, gpus: Gpus) -> Places:
    """Return the tensors that take the bytes of stored ones, by the address of these (``data_ptr``).

    That is the live tensor at the same place of the tree if it is in memory, or on a GPU, as the stored one
    does, and shares none with another that takes bytes (of tied weights the first does). An optimizer on the
    CPU that has no state yet gets tensors in new memory, which it keeps.
    """
    found: dict[int, torch.Tensor] = {}
    spans: list[tuple[int, int]] = []
    for tensor, live in _pairs_of(stored, live_state(training)):
        if _lie_alike(tensor, live, gpus) and _claim(spans, live):
            found[tensor.data_ptr()] = live
    for name, entry in training.entries.items():
        if _keeps_cpu_tensors(unwrapped(entry)):
            for tensor in _tensors([stored.own[name], stored.shared.get(name)]):
                if tensor.nbytes and tensor.data_ptr() not in found:
                    found[tensor.data_ptr()] = torch.empty_like(tensor)
    return found


def fill(image: Image, tensors: Sequence[torch.Tensor], places: Places, gpus: Gpus, threads: int = 1) -> None:
    """Put the data of an image, in which ``tensors`` lie, to their places, and verify all of them.

    What belongs to a GPU is copied chunk by chunk, as soon as the chunk is verified. Raises
    :class:`~slurm_robust.checkpoint.errors.CorruptPart`, ``OSError``, or ``RuntimeError`` if a GPU fails.
    """
    takers = [places.get(tensor.data_ptr()) for tensor in tensors]
    devices = {taker.device for taker in takers if taker is not None and gpus.has(taker)}
    targets: list[Target] = [
        None if taker is None else in_order(taker) if gpus.has(taker) else bytes_of(taker) for taker in takers
    ]
    if not devices:
        image.fill(targets, threads)
        return
    with GpuStaging(gpus, devices, rooms=2 * threads) as staging:
        image.fill(targets, threads, staging)


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor without gaps, in the order of its memory; shape [nbytes], uint8."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return :func:`in_order` of a tensor in this machine's memory."""
    view: memoryview = in_order(tensor).numpy().data
    return view


def moved(stored: Snapshot, places: Places) -> Snapshot:
    """Return ``stored`` with the tensors that took the bytes of others in their stead."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return places.get(tensor.data_ptr(), tensor)

    return replace(
        stored,
        own=map_tensors(move, stored.own),
        shared=map_tensors(move, stored.shared),
        placed=frozenset(tensor.untyped_storage().data_ptr() for tensor in places.values()),
    )


def _pairs_of(stored: Snapshot, live: Snapshot) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for name, own in live.own.items():
        # Modules of other versions convert what they load, so it may belong elsewhere.
        if getattr(stored.own[name], "_metadata", None) == getattr(own, "_metadata", None):
            yield from _pairs(stored.own[name], own)
            yield from _pairs(stored.shared.get(name), live.shared.get(name))


def _pairs(stored: Any, live: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the tensors that are at the same place in both trees."""
    if isinstance(stored, torch.Tensor):
        if isinstance(live, torch.Tensor):
            yield stored, live
    elif isinstance(stored, dict) and isinstance(live, dict):
        for key, item in stored.items():
            yield from _pairs(item, live.get(key))
    elif type(stored) in (list, tuple) and type(live) is type(stored):
        for item, other in zip(stored, live, strict=False):
            yield from _pairs(item, other)


def _lie_alike(stored: torch.Tensor, live: torch.Tensor, gpus: Gpus) -> bool:
    """Return whether the same bytes in the same order mean the same in both; a stored tensor has no gaps."""
    if not (live.device.type == "cpu" or gpus.has(live)):
        return False
    if live.layout != torch.strided or live.is_conj() or live.is_neg():
        return False
    if not stored.nbytes or (stored.dtype, stored.shape) != (live.dtype, live.shape):
        return False
    strides = zip(stored.shape, stored.stride(), live.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in strides)


def _claim(spans: list[tuple[int, int]], tensor: torch.Tensor) -> bool:
    """Add the memory of ``tensor`` to the sorted ``spans``, unless a part of it is in one of them."""
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    at = bisect(spans, (begin, end))
    if (at and spans[at - 1][1] > begin) or (at < len(spans) and spans[at][0] < end):
        return False
    spans.insert(at, (begin, end))
    return True


def _keeps_cpu_tensors(target: object) -> bool:
    return isinstance(target, Optimizer) and all(
        parameter.device.type == "cpu" for group in target.param_groups for parameter in group["params"]
    )


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(item)
