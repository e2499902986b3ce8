"""Under srobust run every step of a sharded training is a snapshot in memory, and it goes on from there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_robust.model.copies import CheckpointId
from tests.torch_features import needs_fsdp2
from tests.unit.integrations import test_deepspeed, test_fsdp2, test_megatron
from tests.unit.integrations.gloo_ranks import on_ranks
from tests.unit.worker.worker_node import Node

STEPS, BROKEN_AT = 4, 2


@pytest.fixture
def memory() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="test-sharded-", dir="/dev/shm"))
    yield base
    shutil.rmtree(base)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "ranks", "program", "given"),
    [
        pytest.param("torch", 4, test_fsdp2.alone, (2,), marks=needs_fsdp2),
        (
            "deepspeed",
            2,
            test_deepspeed.alone,
            ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},),
        ),
        ("deepspeed", 2, test_deepspeed.alone, ({"zero_optimization": {"stage": 3}},)),
        ("megatron.core", 2, test_megatron.alone, (torch.bfloat16, True, False)),
    ],
    ids=["fsdp2", "deepspeed-2", "deepspeed-3", "megatron"],
)
def test_a_framework_goes_on_from_memory(
    package: str, ranks: int, program: Callable[..., Any], given: Any, memory: Path, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    straight = on_ranks(ranks, tmp_path / "straight", program, *given, STEPS)
    node = Node(tmp_path, memory, ranks)
    first = [node.environ(1, rank) for rank in range(ranks)]
    on_ranks(ranks, tmp_path / "first", program, *given, BROKEN_AT, environs=first)
    newest = {
        rank: max(copy.step for copy in node.copies.inventory() if copy.rank == rank) for rank in range(ranks)
    }
    assert newest == dict.fromkeys(range(ranks), BROKEN_AT - 1)
    chosen = str(CheckpointId(generation=1, step=BROKEN_AT - 1))
    second = [node.environ(2, rank, restore=chosen, tier="memory") for rank in range(ranks)]
    resumed = on_ranks(ranks, tmp_path / "second", program, *given, STEPS, environs=second)
    for whole, rest in zip(straight, resumed, strict=True):
        assert (rest[0], rest[1]) == (BROKEN_AT, whole[1][BROKEN_AT:])
        assert rest[2] == whole[2]
