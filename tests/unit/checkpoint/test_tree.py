"""Plain data comes back from its bytes and tensors exactly, whatever it is."""

from __future__ import annotations

import math
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint.errors import CorruptPart, UnsupportedState
from slurm_robust.checkpoint.plain import plain
from slurm_robust.checkpoint.tree import flatten, path_of, specs_of, tensor_in, unflatten

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]


def raw_bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""  # torch does not look at an empty tensor with gaps as bytes
    # A single number may keep any stride, and torch looks at none but 1 as bytes.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().tobytes()


def through_bytes(value: Any) -> Any:
    """``value`` by way of a tree, a table and raw bytes, as it goes through an image."""
    tree, tensors = flatten(value)
    back = []
    for tensor, spec in zip(tensors, specs_of(tensors), strict=True):
        assert spec.nbytes == tensor.nbytes
        back.append(tensor_in(memoryview(bytearray(raw_bytes(tensor))), spec))
    return unflatten(tree, back)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or getattr(a, "_metadata", None) != getattr(b, "_metadata", None):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw_bytes(a) == raw_bytes(b)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@st.composite
def some_tensor(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    count = math.prod(shape)
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    made = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)
    tensor = made.view(dtype).view(shape)
    if shape and draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        tensor = tensor[draw(st.integers(0, 1)) :: draw(st.integers(1, 2))]
    return tensor


KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
ANY_TEXT = st.text(st.characters(), max_size=5)  # with halves of surrogate pairs
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**2_000])
    | st.floats()
    | st.complex_numbers()
    | ANY_TEXT
    | st.binary()
    | st.sampled_from(DTYPES)
    | st.just(torch.device("cpu"))
    | st.just(torch.device("cuda", 3))
    | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
    | some_tensor()
)


def with_metadata(items: dict[Any, Any]) -> OrderedDict[Any, Any]:
    made = OrderedDict(items)
    made._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]  # as nn.Module.state_dict does
    return made


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.dictionaries(KEYS, inner, max_size=4)
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(KEYS, max_size=4)
        | st.dictionaries(ANY_TEXT, inner, max_size=4)
        | items
        | items.map(OrderedDict)
        | items.map(with_metadata)
        | st.dictionaries(KEYS, st.integers(), max_size=4).map(Counter)
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(st.recursive(ATOMS, containers, max_leaves=20))
def test_whatever_is_plain_comes_back_exactly(value: Any) -> None:
    value = plain(value, "x")
    assert same(through_bytes(value), value)


def test_a_module_in_channels_last_comes_back_in_it() -> None:
    weight = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)
    _, tensors = flatten({"w": weight})
    assert tensors[0].is_contiguous()
    assert tensors[0].data_ptr() == weight.data_ptr()
    back = through_bytes({"w": weight})["w"]
    assert back.stride() == weight.stride()
    assert torch.equal(back, weight)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3.0).expand(4, 3),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(()),
        torch.empty(0, 2),
    ],
    ids=["expanded", "conjugate", "0-dim", "empty"],
)
def test_unusual_tensors_keep_their_values(tensor: torch.Tensor) -> None:
    back = through_bytes([tensor])[0]
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantised"),
    ],
    ids=["sparse", "quantised"],
)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_tensor_that_is_not_one_block_is_refused_by_name(
    make: Callable[[], torch.Tensor], what: str
) -> None:
    tensor = make()
    value = {"own": {"model": OrderedDict(a=torch.ones(1), b=[torch.ones(1), tensor])}}
    place = r"\['own'\]\['model'\]\['b'\]\[1\]"
    with pytest.raises(UnsupportedState, match=f"{place} is a {what} tensor.*dense"):
        flatten(value)


def test_places_are_named_in_the_order_of_the_tensors() -> None:
    value = {"a": torch.ones(1), 2: (torch.ones(2), [{"b": torch.ones(3)}]), "n": 1}
    names = [path_of(value, number) for number in range(3)]
    assert names == ["['a']", "[2][0]", "[2][1][0]['b']"]
    assert path_of(value, 9) == "tensor 9"


@pytest.mark.parametrize("tree", [b"", b"\xc1", b"\x92\xa1?\x01", b"\x92\xa1t\x05", b"\x92\xa1T\xa1x"])
def test_bytes_that_are_not_a_tree_are_reported(tree: bytes) -> None:
    with pytest.raises(CorruptPart):
        unflatten(tree, [])


def test_thousands_of_tensors_take_milliseconds() -> None:
    one = {"step": torch.ones(()), "m": torch.ones(4), "v": torch.ones(4)}
    value = {"state": {number: dict(one) for number in range(1000)}}
    flatten(value)
    begun = time.thread_time()
    tree, tensors = flatten(value)
    assert len(tensors) == 3000
    unflatten(tree, tensors)
    assert time.thread_time() - begun < 0.5  # tens of milliseconds; machines of tests are busy
