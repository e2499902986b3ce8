"""Sharded tensors (DTensor, as FSDP2 makes them): each rank stores the shard that it holds.

A shard is stored as an ordinary tensor beside the shape and the placements of the whole and its own place in
it, and becomes a DTensor again on the mesh that the restored program built. The sharding must be the same as
before; ``torch.distributed.checkpoint`` can load it into another one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from slurm_robust.checkpoint.errors import EntryMismatch, UnsupportedState
from slurm_robust.checkpoint.plain import map_tensors

_SHARD = "slurm_robust local shard"


class Placed(NamedTuple):
    """A stored shard."""

    local: torch.Tensor
    whole: tuple[int, ...]
    """The shape of the tensor that it belongs to."""
    at: tuple[int, ...] | None
    """Its offsets there; None for the empty shard of a rank that is not on the mesh."""


def localised(target: object, state: Any) -> Any:
    """Return ``state`` of ``target`` with every DTensor of a module or optimizer as its local shard.

    Raises :class:`UnsupportedState` for an optimizer whose state is sharded otherwise than its
    parameter, because then the parameter does not say how to put it together.
    """
    kind = dtensor()
    if kind is None or not isinstance(target, nn.Module | Optimizer):
        return state

    def localise(tensor: torch.Tensor) -> Any:
        if not isinstance(tensor, kind):
            return tensor
        return {_SHARD: tensor.detach().to_local(), **_layout(tensor), "offsets": _offsets(tensor)}

    if isinstance(target, Optimizer):
        _check_like_parameters(target, state, kind)
    return map_tensors(localise, state)


def globalised(target: object, tree: Any, placed: Set[int] = frozenset()) -> Any:
    """Return the inverse of :func:`localised`, for the modules and optimizers of the restored program.

    Shards are copied, once, but for those whose storage's address is in ``placed``.
    Raises :class:`EntryMismatch` if they are sharded in another way.
    """
    if isinstance(target, nn.Module) and any(map(is_shard, tree.values())):
        now = target.state_dict()
        for name, value in tree.items():
            if is_shard(value):
                tree[name] = _revived(value, now.get(name), name, placed)
    elif isinstance(target, Optimizer):
        parameters = dict(numbered(target, tree))
        for number, state in tree.get("state", {}).items():
            for name, value in state.items():
                if is_shard(value):
                    what = f"{name} of parameter {number}"
                    state[name] = _revived(value, parameters.get(number), what, placed)
    return tree


def is_shard(value: Any) -> bool:
    """Return whether ``value`` is a shard as :func:`localised` stores it."""
    return isinstance(value, dict) and _SHARD in value


def placed(value: Any) -> Placed:
    """Return what :func:`localised` stored."""
    at = tuple(value["offsets"])
    whole = tuple(value["shape"])
    return Placed(local=value[_SHARD], whole=whole, at=at if len(at) == len(whole) else None)


def local(value: Any) -> Any:
    """Return this rank's block of what :func:`localised` stored."""
    return value[_SHARD]


def region(like: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the beginning and sizes of this rank's block of a live tensor; all of an ordinary tensor."""
    kind = dtensor()
    if kind is None or not isinstance(like, kind):
        return tuple(0 for _ in like.shape), tuple(like.shape)
    sizes = tuple(like.detach().to_local().shape)
    at = tuple(_offsets(like))
    return (at if len(at) == len(sizes) else tuple(0 for _ in sizes)), sizes


def stored_as(like: torch.Tensor, block: torch.Tensor) -> Any:
    """Return ``block`` as :func:`localised` stores a tensor that is sharded like the live one."""
    kind = dtensor()
    if kind is None or not isinstance(like, kind):
        return block
    return {_SHARD: block, **_layout(like), "offsets": _offsets(like)}


def numbered(optimizer: Optimizer, state: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each parameter with the number that it has in ``state``, the optimizer's ``state_dict``."""
    for group, packed in zip(optimizer.param_groups, state.get("param_groups", ()), strict=False):
        yield from zip(packed["params"], group["params"], strict=False)


def dtensor() -> type[Any] | None:
    """Return the class of DTensors; None in a process that has none."""
    package = _package()
    return None if package is None else package.DTensor


def _package() -> Any:
    """Return PyTorch's package of DTensors, imported if any exists; torch 2.4 knows the second name."""
    names = ("torch.distributed.tensor", "torch.distributed._tensor")
    return next((it for name in names if hasattr(it := sys.modules.get(name), "DTensor")), None)


def _layout(tensor: Any) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "placements": [str(placement) for placement in tensor.placements],
        "mesh": list(tensor.device_mesh.shape),
    }


def _offsets(tensor: Any) -> list[int]:
    mesh = tensor.device_mesh
    place = tuple(mesh.get_coordinate() or ())
    return list(_offsets_in(tuple(tensor.shape), mesh, tuple(tensor.placements), place))


@lru_cache(maxsize=65536)  # asked for every tensor in every step
def _offsets_in(
    shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...], place: tuple[int, ...]
) -> tuple[int, ...]:
    """Return this rank's offsets; ``place``, its coordinates, does not count when two meshes are compared."""
    utils = importlib.import_module(f"{_package().__name__}._utils")
    return tuple(utils.compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)[1])


def _check_like_parameters(optimizer: Optimizer, state: Any, kind: type[Any]) -> None:
    for number, parameter in numbered(optimizer, state):
        for name, value in state["state"].get(number, {}).items():
            if isinstance(value, kind) and (
                not isinstance(parameter, kind) or _layout(value) != _layout(parameter)
            ):
                raise UnsupportedState(
                    f"{type(optimizer).__name__} keeps {name!r} of parameter {number} as a DTensor that is "
                    "sharded otherwise than the parameter: use an optimizer whose state is sharded like its "
                    "parameters (AdamW, SGD), or store it by an entry of your own"
                )


def _revived(value: dict[str, Any], like: Any, what: str, placed: Set[int]) -> Any:
    kind = dtensor()
    stored = {name: item for name, item in value.items() if name not in (_SHARD, "offsets")}
    if kind is None or not isinstance(like, kind) or _layout(like) != stored:
        now = _layout(like) if kind is not None and isinstance(like, kind) else "not sharded"
        raise EntryMismatch(f"{what} was sharded as {stored} and is now {now}: shard it as before")
    local = value[_SHARD].to(like.device)  # to a GPU that is the copy
    if local is value[_SHARD] and local.untyped_storage().data_ptr() not in placed:
        local = local.clone()
    return kind.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
