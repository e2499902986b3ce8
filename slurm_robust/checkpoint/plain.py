"""Plain data: what a checkpoint may hold, so that reading one back executes nothing.

Numbers, strings, bytes, None, tensors, and lists, tuples, sets and dicts of them. Everything else is
refused when the checkpoint is taken, with the place where it was found, and not weeks later when it is
needed.
"""

from __future__ import annotations

import codecs
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from slurm_robust.checkpoint.errors import UnsupportedState

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_DICTS = (dict, OrderedDict, Counter)
# What torch 2.4 does not read back as plain data yet; later releases do.
torch.serialization.add_safe_globals([complex, set, codecs.encode])
# torch 2.4 has no Buffer.
_TENSORS = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))


def plain(value: Any, where: str, *, compact: bool = True) -> Any:
    """Return ``value`` with new containers and the same atoms; tensors detached, still sharing their memory.

    ``compact``: copy tensors that are only a part of their memory, because files hold whole memories.
    ``where`` says in errors which value it is. Raises :class:`UnsupportedState`.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value, where, compact)
    if kind in _DICTS:
        made: Any = kind()
        for key, item in value.items():
            made[_plain_key(key, where)] = plain(item, f"{where}[{key!r}]", compact=compact)
        if hasattr(value, "_metadata"):  # versions of modules, without which torch assumes the oldest
            made._metadata = plain(value._metadata, f"{where}._metadata", compact=compact)
        return made
    if kind in (list, tuple):
        items = enumerate(value)
        return kind(plain(item, f"{where}[{index}]", compact=compact) for index, item in items)
    if kind is set:
        return {_plain_key(item, where) for item in value}
    if isinstance(value, float):  # numpy.float64 is one, and computes the same
        return float(value)
    raise UnsupportedState(
        f"{where} is a {kind.__module__}.{kind.__qualname__}: a checkpoint holds only plain data (numbers, "
        "strings, bytes, None, tensors, and lists, tuples, sets, dicts of them). Let state_dict() return "
        f"that and load_state_dict() convert it back{_hint(value)}"
    )


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return plain data with ``change`` applied to every tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        made = type(value)()
        for key, item in value.items():
            made[key] = map_tensors(change, item)
        if hasattr(value, "_metadata"):
            made._metadata = value._metadata  # type: ignore[attr-defined]  # as torch's own state dicts do
        return made
    if type(value) in (list, tuple):
        return type(value)(map_tensors(change, item) for item in value)
    return value


def merge(first: Any, second: Any) -> Any:
    """Return the union of two trees of dicts; if both hold something else at a place, ``second`` counts."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    made = map_tensors(lambda tensor: tensor, second)
    for key, item in first.items():
        made[key] = merge(item, second[key]) if key in second else item
    return made


def _plain_tensor(value: torch.Tensor, where: str, compact: bool) -> torch.Tensor:
    if value.is_meta:
        raise UnsupportedState(f"{where} is on the meta device: materialise it before the first checkpoint")
    if type(value) not in _TENSORS:
        kind = type(value)
        raise UnsupportedState(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored by rank: "
            "let state_dict() return ordinary tensors"
        )
    tensor = value.detach()
    strided = tensor.layout == torch.strided and not tensor.is_quantized
    if compact and strided and tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
        return tensor.clone()  # a view: torch.save would write all that it is a view of
    return tensor


def _plain_key(key: Any, where: str) -> Any:
    if type(key) in (str, int, float, bool, bytes, type(None)):
        return key
    if type(key) is tuple:
        return tuple(_plain_key(item, where) for item in key)
    raise UnsupportedState(
        f"{where} has a key of type {type(key).__qualname__}: use strings, numbers or tuples of them as keys"
    )


def _hint(value: Any) -> str:
    if type(value).__module__ == "numpy":
        return " (for NumPy: torch.from_numpy(array), or value.item())"
    if callable(value):
        return " (code is not state: leave it out)"
    return ""
