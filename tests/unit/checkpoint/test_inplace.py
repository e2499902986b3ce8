"""A state that is read into the live tensors is the one that was stored, and what does not fit is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_robust.checkpoint.errors import CorruptPart
from slurm_robust.checkpoint.gpus import CUDA, Gpus
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, Image, open_image
from slurm_robust.checkpoint.inplace import fill, moved, places_for
from slurm_robust.checkpoint.state import Snapshot, Stateful, Training, apply, capture
from slurm_robust.checkpoint.tree import flatten, specs_of, tensor_in, unflatten
from slurm_robust.testing.lagging_gpus import LaggingGpus
from slurm_robust.util.text import version_numbers
from tests.torch_features import needs_fsdp2

HEADER = PartHeader(run_id="7-ab", layout="", generation=1, step=5, rank=0, world_size=1)
Entries = Mapping[str, Stateful]


class Mixed(nn.Module):
    """Parameters and buffers of all sorts."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.pointwise = nn.Conv2d(4, 4, 1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm2d(4)
        self.short = nn.Parameter(torch.randn(7, 3).bfloat16())
        self.scalar = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("mask", torch.rand(9) > 0.5)
        self.register_buffer("spectrum", torch.randn(5, dtype=torch.complex64))
        self.register_buffer("turned", torch.randn(4, 6).t())
        self.register_buffer("sliced", torch.randn(6, 8)[:, ::2])


class Tied(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight


class Converting(nn.Linear):
    """Version 2 stores what version 1 stored transposed."""

    _version = 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata["version"] == 1:
            state_dict[prefix + "weight"] = state_dict[prefix + "weight"].t()
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)


def stored(path: Path, entries: Entries) -> tuple[Image, list[torch.Tensor], Snapshot]:
    """``entries`` in an image, and its state."""
    snapshot = capture(entries, compact=False)
    tree, tensors = flatten({"own": snapshot.own, "shared": snapshot.shared, "rng": snapshot.rng})
    buffer = Buffer(path)
    views = buffer.begin(HEADER, specs_of(tensors), tree)
    for view, spec, tensor in zip(views, specs_of(tensors), tensors, strict=True):
        tensor_in(view, spec).copy_(tensor)
    buffer.commit()
    buffer.close()
    image = open_image(path)
    mapped = [tensor_in(data, spec) for data, spec in zip(image.data(), image.tensors, strict=True)]
    return image, mapped, Snapshot(**unflatten(image.tree, mapped))


def restore(
    path: Path, source: Entries, entries: Entries, *, deduplicate: bool = True, gpus: Gpus = CUDA
) -> set[str]:
    """Put the state of ``source`` into ``entries`` in place; the entries of the model that were filled."""
    image, mapped, state = stored(path, source)
    places = places_for(state, Training(entries=entries, deduplicate=deduplicate), gpus)
    fill(image, mapped, places, gpus, 2)
    model = state.shared.get("model", {}) | state.own["model"]
    apply(entries, moved(state, places))
    image.close()
    return {name for name, one in model.items() if torch.is_tensor(one) and one.data_ptr() in places}


def trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def tensors_of(*entries: Any) -> list[torch.Tensor]:
    return flatten(capture(dict(enumerate(entries)), compact=False).own)[1]


def order(tensor: torch.Tensor) -> list[int]:
    """Strides that matter."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        assert order(a) == order(b)
        assert torch.equal(a, b)


def test_all_sorts_of_tensors_get_their_values(tmp_path: Path) -> None:
    model, live = Mixed(), Mixed(seed=1)
    before = {name: value.data_ptr() for name, value in live.state_dict().items()}
    filled = restore(tmp_path / "i", {"model": model}, {"model": live})
    assert set(before) - filled == {"empty", "sliced"}
    assert_same(tensors_of(model), tensors_of(live))
    assert {name: value.data_ptr() for name, value in live.state_dict().items()} == before


def test_the_state_of_an_optimizer_stays_where_it_is(tmp_path: Path) -> None:
    model, live = Mixed(), Mixed(seed=1)
    optimizer, of_live = trained(model), trained(live)
    before = [tensor.data_ptr() for tensor in tensors_of(of_live)]
    restore(tmp_path / "i", {"model": model, "o": optimizer}, {"model": live, "o": of_live})
    assert_same(tensors_of(model, optimizer), tensors_of(live, of_live))
    assert [tensor.data_ptr() for tensor in tensors_of(of_live)] == before


def test_an_optimizer_without_state_gets_it_in_memory_of_its_own(tmp_path: Path) -> None:
    model, live = Mixed(), Mixed(seed=1)
    optimizer, fresh = trained(model), torch.optim.AdamW(live.parameters(), amsgrad=True)
    path = tmp_path / "image"
    restore(path, {"model": model, "o": optimizer}, {"model": live, "o": fresh})
    assert_same(tensors_of(model, optimizer), tensors_of(live, fresh))
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_of_tied_weights_the_first_is_filled(tmp_path: Path) -> None:
    model, live = Tied(), Tied(seed=1)
    assert restore(tmp_path / "i", {"model": model}, {"model": live}) == {"embed.weight"}
    assert torch.equal(live.head.weight, model.embed.weight)
    assert live.head.weight is live.embed.weight


def test_weights_that_are_no_longer_tied_get_their_values(tmp_path: Path) -> None:
    model, live = Tied(), Tied(seed=1)
    model.head.weight = nn.Parameter(torch.randn(50, 8))
    assert restore(tmp_path / "i", {"model": model}, {"model": live}) == {"embed.weight"}
    assert torch.equal(live.embed.weight, model.head.weight)  # as load_state_dict does: the last one counts


def test_what_has_another_dtype_now_is_converted(tmp_path: Path) -> None:
    model, live = nn.Linear(5, 4), nn.Linear(5, 4).double()
    assert restore(tmp_path / "i", {"model": model}, {"model": live}) == set()
    assert torch.equal(live.weight, model.weight.double())


def test_what_lies_otherwise_in_memory_now_gets_its_values(tmp_path: Path) -> None:
    model, live = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert restore(tmp_path / "i", {"model": model}, {"model": live}) == {"bias"}
    assert torch.equal(live.weight, model.weight)
    assert live.weight.is_contiguous(memory_format=torch.channels_last)


def test_modules_that_convert_what_they_load_are_not_filled(tmp_path: Path) -> None:
    """Else the transposed copy would be made of what it overwrites."""
    model, live = nn.Linear(6, 6), Converting(6, 6)
    assert restore(tmp_path / "i", {"model": model}, {"model": live}) == set()
    assert torch.equal(live.weight, model.weight.t())


def test_an_entry_that_has_no_state_yet_is_read_as_ever(tmp_path: Path) -> None:
    model, live = nn.Linear(6, 3), nn.LazyLinear(3)
    assert restore(tmp_path / "i", {"model": model}, {"model": live}) == set()
    assert torch.equal(live.weight, model.weight)


@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 5), reason="gloo of torch 2.4 has no bfloat16")
def test_what_ranks_share_is_filled_too(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model, live = DistributedDataParallel(Mixed()), DistributedDataParallel(Mixed(seed=1))
        source = {"model": model, "o": trained(model)}
        filled = restore(tmp_path / "i", source, {"model": live, "o": trained(live)})
        assert {"conv.weight", "norm.running_mean"} < filled
        assert_same(tensors_of(model), tensors_of(live))
        assert (
            restore(tmp_path / "j", source, {"model": live, "o": trained(live)}, deduplicate=False) < filled
        )
        assert_same(tensors_of(model), tensors_of(live))
    finally:
        dist.destroy_process_group()


@needs_fsdp2
@pytest.mark.slow
def test_shards_stay_where_they_are(tmp_path: Path) -> None:
    import torch.distributed.fsdp as fsdp

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model, live = fsdp.fully_shard(nn.Linear(8, 8)), fsdp.fully_shard(nn.Linear(8, 8))
        optimizer, of_live = trained(model), trained(live)
        before = [tensor.data_ptr() for tensor in tensors_of(live, of_live)]
        restore(tmp_path / "i", {"model": model, "o": optimizer}, {"model": live, "o": of_live})
        assert_same(tensors_of(model, optimizer), tensors_of(live, of_live))
        assert [tensor.data_ptr() for tensor in tensors_of(live, of_live)] == before
    finally:
        dist.destroy_process_group()


class Clones(TorchDispatchMode):
    """Counts copies of numbers into new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            self.count += args[0].is_floating_point() and args[0].numel() > 1
        return func(*args, **(kwargs or {}))


def on_gpu(gpus: LaggingGpus, *entries: Any) -> None:
    for tensor in tensors_of(*entries):
        gpus.adopt(tensor)


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=needs_fsdp2)])
def test_what_lies_on_a_gpu_is_copied_to_there_and_nowhere_else(tmp_path: Path, sharded: bool) -> None:
    import torch.distributed.fsdp as fsdp

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    gpus = LaggingGpus()
    try:
        model, live = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8).bfloat16()
        if sharded:
            model, live = fsdp.fully_shard(model), fsdp.fully_shard(live)
        optimizer, of_live = trained(model), trained(live)
        on_gpu(gpus, live, of_live)
        before = [tensor.data_ptr() for tensor in tensors_of(live, of_live)]
        with Clones() as clones:
            source, target = {"model": model, "o": optimizer}, {"model": live, "o": of_live}
            restore(tmp_path / "i", source, target, gpus=gpus)
        assert_same(tensors_of(model, optimizer), tensors_of(live, of_live))
        assert [tensor.data_ptr() for tensor in tensors_of(live, of_live)] == before
        assert clones.count == 0
    finally:
        dist.destroy_process_group()
        gpus.close()


def test_all_sorts_of_tensors_get_to_a_gpu(tmp_path: Path) -> None:
    """In the order of memory that they have there, and in one of the machine's memory what lies in that."""
    gpus = LaggingGpus()
    model, live = Mixed(), Mixed(seed=1)
    before = {name: value.data_ptr() for name, value in live.state_dict().items()}
    for name, tensor in live.state_dict().items():
        if name not in ("mask", "short"):
            gpus.adopt(tensor)
    filled = restore(tmp_path / "i", {"model": model}, {"model": live}, gpus=gpus)
    assert set(before) - filled == {"empty", "sliced"}
    assert_same(tensors_of(model), tensors_of(live))
    assert {name: value.data_ptr() for name, value in live.state_dict().items()} == before
    assert gpus.registered() == {}
    gpus.close()


@pytest.mark.slow
def test_chunks_that_are_whole_reach_a_gpu_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    gpus = LaggingGpus()
    model = nn.ParameterList(torch.full((3_000_000,), 1.0) for _ in range(3))
    live = nn.ParameterList(torch.full((3_000_000,), 2.0) for _ in range(3))
    on_gpu(gpus, live)
    path = tmp_path / "i"
    image, mapped, state = stored(path, {"model": model})
    with path.open("r+b") as file:
        file.seek(image.nbytes - image.tensors[-1].nbytes - 4)  # the end of the model
        file.write(b"\0\0\0\0")
    with pytest.raises(CorruptPart, match="1 of 9 chunks"):
        fill(image, mapped, places_for(state, Training(entries={"model": live}), gpus), gpus, 2)
    *others, last = live
    assert all(bool((one == 1.0).all()) for one in others)
    assert sorted(last.unique().tolist()) == [1.0, 2.0]
    assert float(last[-1]) == 2.0
    assert gpus.registered() == {}
    image.close()
    gpus.close()


def test_a_gpu_that_fails_ends_the_restore(tmp_path: Path) -> None:
    """No thread waits for room that never becomes free."""
    gpus = LaggingGpus()
    model, live = nn.Linear(8, 8), nn.Linear(8, 8)
    on_gpu(gpus, live)
    gpus.failure = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        restore(tmp_path / "i", {"model": model}, {"model": live}, gpus=gpus)
    gpus.close()


def test_a_module_takes_its_own_tensors() -> None:
    """What restoring in place rests on: copying a tensor onto itself is nothing."""
    model = Mixed()
    state = model.state_dict()
    before = [tensor.clone() for tensor in state.values()]
    model.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
