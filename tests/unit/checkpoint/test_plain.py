"""Only plain data gets into a checkpoint, and the refusal names the place."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slurm_robust.checkpoint.errors import UnsupportedState
from slurm_robust.checkpoint.plain import map_tensors, merge, plain


class Colour(enum.IntEnum):
    RED = 1


PLAIN: list[Any] = [
    None,
    True,
    3,
    2**100,
    1.5,
    float("inf"),
    2j,
    "text",
    b"bytes",
    torch.float16,
    torch.device("cpu"),
    torch.Size([1, 2]),
    [1, [2, (3, "x")]],
    {"a": {1: 2.0, (1, "b"): None, b"k": []}},
    OrderedDict(z=1, a=2),
    Counter({30: 1, 80: 2}),
    # Without text: the hash of text, and with it the order, differs between test processes.
    {1, (2, 3)},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_comes_back_from_a_file_as_it_was(value: Any, tmp_path: Path) -> None:
    torch.save(plain(value, "x"), tmp_path / "f")
    back = torch.load(tmp_path / "f", weights_only=True)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, np.zeros(2)]}, r"x\['a'\]\[1\] is a numpy.ndarray.*torch.from_numpy"),
        ({"f": print}, r"x\['f'\] is a builtins.builtin_function.*leave it out"),
        (Colour.RED, "Colour"),
        (np.float32(1.0), "numpy.float32"),
        (defaultdict(list), "collections.defaultdict"),
        ({Colour.RED: 1}, "key of type Colour"),
        (Path("x"), "pathlib"),
        (torch.empty(2, device="meta"), "meta device"),
    ],
    ids=repr,
)
def test_anything_else_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(UnsupportedState, match=message):
        plain(value, "x")


def test_numpy_doubles_become_floats() -> None:
    assert type(plain(np.float64(0.1), "x")) is float
    assert plain(np.float64(0.1), "x") == 0.1


def test_views_do_not_drag_along_what_they_are_views_of() -> None:
    base = torch.arange(1000)
    view = plain(base[:3], "x")
    assert view.tolist() == [0, 1, 2]
    assert view.untyped_storage().nbytes() == 24


def test_whole_tensors_share_memory_and_tied_ones_stay_tied() -> None:
    tensor = torch.nn.Parameter(torch.zeros(3))
    tree = plain({"a": tensor, "b": tensor}, "x")
    assert tree["a"].data_ptr() == tree["b"].data_ptr() == tensor.data_ptr()
    assert type(tree["a"]) is torch.Tensor
    assert not tree["a"].requires_grad


def test_versions_of_modules_survive() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    expected = state._metadata  # type: ignore[attr-defined]
    tree = plain(state, "x")
    for copy in (tree, map_tensors(torch.clone, tree), merge({}, tree)):
        assert copy._metadata == expected


def test_merge_is_the_union() -> None:
    assert merge({"s": {1: "a"}}, {"s": {2: "b"}, "g": [1]}) == {"s": {1: "a", 2: "b"}, "g": [1]}
    assert merge(None, {"x": 1}) == {"x": 1}
    assert merge(None, 7) == 7
