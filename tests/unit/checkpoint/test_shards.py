"""A shard knows its place in the whole, also where the whole does not divide evenly."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from slurm_robust.checkpoint import shards
from tests.torch_features import tensors

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

pytestmark = pytest.mark.skipif(
    "src_data_rank" not in inspect.signature(tensors.distribute_tensor).parameters,
    reason="before torch 2.6 a tensor is distributed by talking to the other ranks, which are not there",
)


def as_rank(rank: int, check: Callable[[Any], None]) -> None:
    """Run ``check`` in a process that is a rank of four which never talk, with their 2 x 2 mesh.

    A process of its own, because torch keeps the mesh of the first rank that a process was.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=4)
            check(dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))
            code = 0
        except (AssertionError, RuntimeError, ValueError):
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Whole(nn.Module):
    def __init__(self, mesh: Any, rows: int, placements: list[Any]) -> None:
        super().__init__()
        weight = torch.arange(rows * 4.0).reshape(rows, 4)
        self.weight = nn.Parameter(tensors.distribute_tensor(weight, mesh, placements, src_data_rank=None))


@pytest.mark.parametrize(
    ("rank", "rows", "sizes", "at"),
    [
        (0, 3, (1, 4), (0, 0)),
        (1, 3, (1, 4), (1, 0)),
        (2, 3, (1, 4), (2, 0)),
        (3, 3, (0, 4), (3, 0)),
        (3, 8, (2, 4), (6, 0)),
    ],
)
def test_rows_over_two_dimensions_of_the_mesh(
    rank: int, rows: int, sizes: tuple[int, ...], at: tuple[int, ...]
) -> None:
    def check(mesh: Any) -> None:
        model = Whole(mesh, rows, [tensors.Shard(0), tensors.Shard(0)])
        stored = shards.localised(model, model.state_dict())["weight"]
        placed = shards.placed(stored)
        assert shards.is_shard(stored)
        assert (tuple(placed.local.shape), placed.whole, placed.at) == (sizes, (rows, 4), at)

    as_rank(rank, check)


def test_rows_and_columns_and_back() -> None:
    def check(mesh: Any) -> None:
        model = Whole(mesh, 6, [tensors.Shard(0), tensors.Shard(1)])
        state = shards.localised(model, model.state_dict())
        assert shards.placed(state["weight"]).at == (0, 2)
        assert shards.placed(state["weight"]).local.tolist() == [[2, 3], [6, 7], [10, 11]]
        back = shards.globalised(model, state)["weight"]
        assert torch.equal(back.to_local(), model.weight.to_local())  # type: ignore[operator]
        assert back.placements == model.weight.placements

    as_rank(1, check)


def test_a_replica_of_a_shard_has_its_place() -> None:
    def check(mesh: Any) -> None:
        model = Whole(mesh, 6, [tensors.Replicate(), tensors.Shard(0)])
        assert shards.placed(shards.localised(model, model.state_dict())["weight"]).at == (3, 0)

    as_rank(3, check)


def test_a_rank_beside_the_mesh_has_no_place() -> None:
    stored = {"slurm_robust local shard": torch.zeros(0), "shape": [4, 4], "offsets": []}
    assert shards.placed(stored).at is None
