"""What slurm_robust saves, torch.distributed.checkpoint loads by itself, into other world sizes too."""

from __future__ import annotations

import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from slurm_robust.checkpoint.disk import DiskTier, read_part
from slurm_robust.checkpoint.part import read_sidecar
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId
from tests.ranks import run_ranks
from tests.torch_features import needs_fsdp2
from tests.unit.checkpoint import dcp_load, dcp_save

REF = CheckpointId(generation=1, step=7)


def save(folder: Path, own: list[Any], shared: Any = None) -> Path:
    """One part per rank; the folder for torch.distributed.checkpoint."""
    store = CheckpointStore(folder)
    for rank, tree in enumerate(own):
        snapshot = Snapshot(own=tree, shared=shared or {}, rng={})
        DiskTier(store, run_id="run", rank=rank, world_size=len(own)).save(REF, snapshot)
    return store.folder(REF)


def keys_in(folder: Path) -> set[str]:
    return set(FileSystemReader(folder).read_metadata().state_dict_metadata)


def as_torch(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(str(folder), str(folder / "whole.pt"))
    return torch.load(folder / "whole.pt", weights_only=False)


def run(main: Callable[[], None], world_size: int, *arguments: str | Path) -> None:
    """Run a program as that many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        # Not at a port, which a process of another test could take.
        common = {"WORLD_SIZE": str(world_size), "STORE": f"file://{folder}/store"}
        run_ranks(main, *arguments, environs=[{**common, "RANK": str(rank)} for rank in range(world_size)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "world_size"),
    [
        ("plain", 1),
        ("ddp", 2),
        pytest.param("fsdp", 2, marks=needs_fsdp2),
        pytest.param("fsdp", 4, marks=needs_fsdp2),
    ],
)
def test_dcp_alone_loads_it(kind: str, world_size: int, tmp_path: Path) -> None:
    """Bitwise, in one process, and sharded over two and four ranks, of which some get nothing."""
    folder, expected = tmp_path / str(REF), tmp_path / "expected.pt"
    run(dcp_save.main, world_size, tmp_path, expected, kind)
    run(dcp_load.main, 1, folder, expected, "whole")
    if kind == "fsdp":
        run(dcp_load.main, 6 - world_size, folder, expected, "sharded")
    content = as_torch(folder)
    for name, value in torch.load(expected, weights_only=True)["model"].items():
        assert torch.equal(content["model"][name], value)


TREE = {
    "model": OrderedDict(weight=torch.arange(6.0).reshape(2, 3), empty=torch.zeros(0, 4)),
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 3, dtype=torch.bfloat16)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
    },
    "loader": {"position": 5, "order": [[1, 2], [3]], "queue": [torch.ones(2), "x"], "nothing": {}},
    "bare": torch.tensor(True),
    "flat": torch.ones(2, 8, 3, 3).to(memory_format=torch.channels_last),
    "view": torch.arange(100)[10:20],
    "complex": torch.tensor([1 + 2j]).conj(),
}


def test_keys_are_those_of_dcp(tmp_path: Path) -> None:
    folder = save(tmp_path, [TREE])
    assert keys_in(folder) == set(flatten_state_dict(TREE)[0])  # type: ignore[arg-type]


def test_values_come_back_by_both_ways(tmp_path: Path) -> None:
    """Also those that torch has to read: empty ones and views that are lazily conjugated."""
    folder = save(tmp_path, [TREE])
    path = CheckpointStore(tmp_path).parts(REF)[0]
    sidecar = read_sidecar(path)
    raw = {".".join(map(str, item.path)): item.raw for item in sidecar.items if item.dtype}
    assert {key for key, at in raw.items() if at < 0} == {"model.empty", "complex"}
    ours = read_part(path, sidecar).own
    for content in (ours, as_torch(folder)):
        assert torch.equal(content["model"]["weight"], TREE["model"]["weight"])  # type: ignore[call-overload]
        assert content["model"]["empty"].shape == (0, 4)
        assert content["optimizer"]["param_groups"] == [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}]
        assert content["loader"]["order"] == [[1, 2], [3]]
        assert content["loader"]["queue"][0].tolist() == [1.0, 1.0]
        assert content["bare"].dtype == torch.bool
        assert content["view"].tolist() == list(range(10, 20))
        assert content["complex"].tolist() == [1 - 2j]
    assert type(ours["model"]) is OrderedDict
    assert ours["optimizer"]["state"][0]["exp_avg"].dtype == torch.bfloat16
    assert ours["loader"]["nothing"] == {}
    assert ours["flat"].is_contiguous(memory_format=torch.channels_last)
    ours["model"]["weight"].add_(1)  # a private mapping: nothing is written into the file
    assert read_part(path, sidecar).own["model"]["weight"][0, 0] == 0


def test_a_tuple_of_tensors_comes_back_and_is_one_key(tmp_path: Path) -> None:
    pair = (torch.ones(2), {"deep": torch.zeros(3)})
    folder = save(tmp_path, [{"loader": {"pair": pair}}])
    assert keys_in(folder) == {"loader.pair"}
    path = CheckpointStore(tmp_path).parts(REF)[0]
    found = read_part(path, read_sidecar(path)).own["loader"]["pair"]
    assert type(found) is tuple
    assert found[1]["deep"].tolist() == [0.0] * 3
    assert as_torch(folder)["loader"]["pair"][0].tolist() == [1.0, 1.0]


def test_what_differs_is_there_for_each_rank(tmp_path: Path) -> None:
    ranks = [
        {"model": {"buffer": torch.tensor([rank]), "same": torch.ones(1)}, "loader": {"position": 10 + rank}}
        for rank in range(3)
    ]
    folder = save(tmp_path, ranks, {"model": {"weight": torch.arange(3)}})
    content = as_torch(folder)
    assert content["model"]["buffer"].tolist() == [0]
    assert content["model"]["weight"].tolist() == [0, 1, 2]
    assert content["loader"]["position"] == 10
    assert content["rank-00002"]["model"]["buffer"].tolist() == [2]
    assert content["rank-00002"]["loader"]["position"] == 12
    assert "same" not in content["rank-00002"]["model"]


def test_ranks_with_parts_of_the_model_give_the_whole(tmp_path: Path) -> None:
    """A pipeline: each rank has layers of its own."""
    folder = save(tmp_path, [{"model": {f"layers.{rank}": torch.tensor([rank])}} for rank in range(2)])
    assert keys_in(folder) == {"model.layers.0", "model.layers.1"}


def test_trees_that_contradict_each_other_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    """A value here, a container there; numbers and strings that read the same as keys."""
    folder = save(
        tmp_path,
        [
            {"loader": {"at": None, "rows": [torch.ones(1)], "twice": {1: "int", "1": "str"}}},
            {"loader": {"at": {"epoch": 3}, "rows": {"a": 1}, "twice": {}}},
            {"loader": {"at": {"epoch": 4}, "rows": {"a": 2}, "twice": {}}},
        ],
    )
    content = as_torch(folder)
    assert content["loader"]["at"] is None
    assert content["rank-00001"]["loader"]["at"] == {"epoch": 3}
    assert content["rank-00002"]["loader"]["rows"] == {"a": 2}
    path = CheckpointStore(tmp_path).parts(REF)[0]
    assert read_part(path, read_sidecar(path)).own["loader"]["twice"] == {1: "int", "1": "str"}
