"""Plain data as bytes and a list of tensors, and back: how an image holds a tree.

The bytes are MessagePack, so reading them executes nothing. Numbers, strings, bytes, None and dicts whose
keys are strings stand for themselves; everything else is an array that begins with a tag::

    ["[", items…]  list    ["(", items…]  tuple      ["{", items…]  set      ["d", key, value, …]  dict
    ["o", …]  OrderedDict  ["c", …]  Counter         ["m", dict, _metadata]  dict with ``_metadata``
    ["t", number]  tensor  ["t", number, order]      tensor whose dimensions are in this order in memory
    ["i", bytes]  int      ["u", bytes]  str         integers beyond 64 bits, strings beyond UTF-8
    ["j", real, imaginary] ["T", name]  dtype        ["D", name]  device     ["S", sizes…]  Size

Every tensor is stored in the order of its memory, so copying one is copying a block, and one
in ``channels_last`` comes back so. Tensors that share memory are stored each for itself.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import torch

from slurm_robust.checkpoint.errors import CorruptPart, UnsupportedState
from slurm_robust.checkpoint.image import TensorSpec
from slurm_robust.model.copies import SHARED

_INTS = (-(2**63), 2**64)  # what MessagePack's integers hold
_ITEMS: dict[Any, str] = {list: "[", tuple: "(", set: "{", torch.Size: "S"}
_DICTS: dict[Any, str] = {dict: "d", OrderedDict: "o", Counter: "c"}


def flatten(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Return plain data (:mod:`slurm_robust.checkpoint.plain`) as a tree and its tensors.

    The tensors share memory with those in ``value`` wherever these fill their memory without gaps.
    Raises :class:`UnsupportedState` for tensors that are no block of numbers.
    """
    tensors: list[torch.Tensor] = []
    try:
        return msgspec.msgpack.encode(_packed(value, tensors)), tensors
    except _NoBlock as error:
        raise UnsupportedState(
            f"{path_of(value, len(tensors))} is a {error} tensor, which cannot be stored as a block of "
            "numbers: let state_dict() return a dense one, or its parts"
        ) from None


def unflatten(tree: bytes, tensors: list[torch.Tensor], keys: Collection[str] = ()) -> Any:
    """Return the inverse of :func:`flatten`; the result holds these tensors. Raises :class:`CorruptPart`.

    If ``keys`` are given it must be a dict that has them, and their values are dicts or booleans.
    """
    try:
        value = _unpacked(msgspec.msgpack.decode(tree), tensors)
        if keys and not (type(value) is dict and all(type(value.get(key)) in (dict, bool) for key in keys)):
            raise CorruptPart(
                "the tree of an image holds something else than a rank's state: remove the image"
            )
        return value
    except CorruptPart:
        raise
    except Exception as error:  # whole, and yet no tree: it raises anything then
        raise CorruptPart(f"the tree of an image cannot be read ({error}): remove the image") from error


def keys_of(rank: int) -> tuple[str, ...]:
    """Return what the tree of a rank's part has, or, for SHARED, that of the shared part."""
    return ("shared",) if rank == SHARED else ("own", "rng", "has_shared")


def path_of(value: Any, number: int) -> str:
    """Return the path of tensor ``number`` of :func:`flatten`, like ``['own']['model']['weight']``."""
    for index, path in enumerate(_paths(value, "")):
        if index == number:
            return path
    return f"tensor {number}"


def specs_of(tensors: list[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Return the table of an image for these tensors."""
    return tuple(
        TensorSpec(dtype=_name(tensor.dtype), shape=tuple(tensor.shape), nbytes=tensor.nbytes)
        for tensor in tensors
    )


def tensor_in(data: memoryview, spec: TensorSpec) -> torch.Tensor:
    """Return the tensor of the table whose bytes are ``data``; it lies there. Raises :class:`CorruptPart`."""
    dtype = _dtype(spec.dtype)
    try:
        if math.prod(spec.shape) * dtype.itemsize != spec.nbytes:
            raise ValueError("its bytes are not those of its shape")
        if not spec.nbytes:
            return torch.empty(spec.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(spec.shape)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise CorruptPart(f"{spec} in the table of an image contradicts itself ({error})") from error


class _NoBlock(Exception):
    """A tensor whose values are not one after the other in memory; the text is its kind."""


def _packed(value: Any, tensors: list[torch.Tensor]) -> Any:
    kind: type[Any] = type(value)
    if kind is torch.Tensor:
        return _packed_tensor(value, tensors)
    if kind in _DICTS:
        return _packed_dict(value, tensors)
    if value is None or kind in (float, bool, bytes):
        return value
    if kind is int:
        inside = _INTS[0] <= value < _INTS[1]
        return value if inside else ["i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]
    if kind is str:
        return value if _is_utf8(value) else ["u", value.encode("utf-8", "surrogatepass")]
    if kind in _ITEMS:
        if _all_small_ints(value):  # the state of a generator is hundreds of them
            return [_ITEMS[kind], *value]
        return [_ITEMS[kind], *(_packed(item, tensors) for item in value)]
    if kind is complex:
        return ["j", value.real, value.imag]
    if kind is torch.dtype:
        return ["T", _name(value)]
    if kind is torch.device:
        return ["D", str(value)]
    raise TypeError(f"{kind.__qualname__} is not plain data")  # the caller has not called plain()


def _packed_dict(value: dict[Any, Any], tensors: list[torch.Tensor]) -> Any:
    if hasattr(value, "_metadata"):
        made: Any = type(value)(value)
        return ["m", _packed_dict(made, tensors), _packed(value._metadata, tensors)]
    if type(value) is dict and all(type(key) is str and _is_utf8(key) for key in value):
        return {key: _packed(item, tensors) for key, item in value.items()}
    packed: list[Any] = [_DICTS[type(value)]]
    for key, item in value.items():
        packed += (_packed(key, tensors), _packed(item, tensors))
    return packed


def _packed_tensor(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> list[Any]:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise _NoBlock("quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch."))
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    packed: list[Any] = ["t", len(tensors)]
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        turned = tensor.permute(order)
        if turned.is_contiguous():
            tensor = turned
            packed.append(order)
    tensors.append(tensor)
    return packed


def _unpacked(packed: Any, tensors: list[torch.Tensor]) -> Any:
    if type(packed) is dict:
        return {key: _unpacked(item, tensors) for key, item in packed.items()}
    if type(packed) is not list:
        return packed
    tag, *rest = packed
    match tag:
        case "t":
            return tensors[rest[0]] if len(rest) == 1 else _turned_back(tensors[rest[0]], rest[1])
        case "d" | "o" | "c":
            items = [_unpacked(item, tensors) for item in rest]
            return _dict_of(tag, zip(items[::2], items[1::2], strict=True))
        case "[" | "(" | "{" | "S":
            kind = next(kind for kind, sign in _ITEMS.items() if sign == tag)
            return kind(_unpacked(item, tensors) for item in rest)
        case "m":
            made = _unpacked(rest[0], tensors)
            made._metadata = _unpacked(rest[1], tensors)
            return made
    return _unpacked_atom(tag, rest)


def _unpacked_atom(tag: str, rest: list[Any]) -> Any:
    match tag:
        case "i":
            return int.from_bytes(rest[0], "little", signed=True)
        case "u":
            return rest[0].decode("utf-8", "surrogatepass")
        case "j":
            return complex(*rest)
        case "T":
            return _dtype(rest[0])
        case "D":
            return torch.device(rest[0])
    raise ValueError(f"unknown tag {tag!r}")


def _dict_of(tag: str, items: Iterator[tuple[Any, Any]]) -> Any:
    kind = next(kind for kind, sign in _DICTS.items() if sign == tag)
    made = kind()
    for key, item in items:  # Counter(items) would count them
        made[key] = item
    return made


def _turned_back(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    back = [0] * len(order)
    for position, dim in enumerate(order):
        back[dim] = position
    return tensor.permute(back)


def _paths(value: Any, path: str) -> Iterator[str]:
    """Yield the place of every tensor, in the order in which :func:`flatten` meets them."""
    if isinstance(value, torch.Tensor):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, f"{path}[{key!r}]")
        yield from _paths(getattr(value, "_metadata", None), f"{path}._metadata")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _paths(item, f"{path}[{index}]")


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in file names that are no UTF-8
        return False
    return True


def _all_small_ints(items: Any) -> bool:
    return set(map(type, items)) == {int} and min(items) >= _INTS[0] and max(items) < _INTS[1]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptPart(f"torch {torch.__version__} has no dtype {name!r}: use the torch that wrote it")
    return dtype
