"""A checkpoint of so many ranks restored into another number: each byte is one that was stored."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.errors import CannotReshard, CorruptPart
from slurm_robust.checkpoint.generators import capture_rng
from slurm_robust.checkpoint.state import Snapshot, Training, Unread, apply, capture
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.layout import ParallelLayout
from tests.torch_features import tensors

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
pytestmark = pytest.mark.skipif(
    "src_data_rank" not in tensors.distribute_tensor.__code__.co_varnames,
    reason="before torch 2.6 a tensor is distributed by talking to the other ranks, which are not there",
)

REF = CheckpointId(generation=1, step=7)
ROWS = 7  # no number of ranks divides it


def layout(world: int, nproc: int = 1, **sizes: int) -> str:
    every = {"tp": 1, "cp": 1, "ep": 1, "pp": 1, **sizes}
    return ParallelLayout.fit(world, nproc, every, "tp-cp-ep-dp-pp").identity()


def as_rank(rank: int, world: int, do: Callable[[], None], *, alone: bool = False) -> None:
    """Run ``do`` as a rank of a world whose other ranks are never met. A process of its own, as torch wants.

    ``alone``: it does not ask for the world.
    """
    if alone:
        do()
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=world)
            do()
            code = 0
        finally:  # pytest must not run on in the fork; the parent sees that it failed
            if code:
                traceback.print_exc()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"rank {rank} of {world}"


class Position:
    """An entry of the script's own, another one on each rank."""

    def __init__(self, number: int) -> None:
        self.number = number

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


class Model(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(scale * torch.arange(ROWS * 3.0).reshape(ROWS, 3))
        self.bias = nn.Parameter(scale * torch.arange(2.0))  # some ranks get nothing of it
        self.register_buffer("seen", torch.zeros(1))


def gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.arange(float(parameter.numel())).reshape(parameter.shape) - 3


def build(kind: str, world: int, scale: float) -> Training:
    """A model (sharded, or replicated) with the state of an optimizer that has made a step."""
    model: nn.Module = Model(scale)
    if kind == "ddp" and world > 1:
        model = DistributedDataParallel(model, init_sync=False)
    elif kind in ("fsdp", "hsdp"):
        shape = (2, world // 2) if kind == "hsdp" and world % 2 == 0 else (world,)
        mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        placements = [*[tensors.Replicate()] * (len(shape) - 1), tensors.Shard(0)]
        for name, value in list(model.named_parameters()):
            cut = tensors.distribute_tensor(value.detach(), mesh, placements, src_data_rank=None)
            setattr(model, name, nn.Parameter(cut))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        whole = gradient(parameter)
        parameter.grad = whole
        if type(parameter.data) is not torch.Tensor:
            parameter.grad = tensors.distribute_tensor(
                whole, parameter.device_mesh, parameter.placements, src_data_rank=None
            )
    optimizer.step()
    return Training(entries={"model": model, "optimizer": optimizer, "position": Position(0)})


def position_of(training: Training) -> Position:
    found = training.entries["position"]
    assert isinstance(found, Position)
    return found


def save(path: Path, kind: str, world: int) -> None:
    def rank_of(rank: int) -> Callable[[], None]:
        def do() -> None:
            training = build(kind, world, scale=1.0)
            position_of(training).number = 10 + rank
            inner = getattr(training.entries["model"], "module", training.entries["model"])
            inner.seen.fill_(rank)
            torch.manual_seed(rank)
            tier = DiskTier(
                CheckpointStore(path), run_id="r", rank=rank, world_size=world, layout=layout(world)
            )
            tier.save(REF, capture(training.entries))

        return do

    for rank in range(world):
        as_rank(rank, world, rank_of(rank), alone=kind == "plain")


def load(path: Path, training: Training, rank: int, old: int, new: int) -> Snapshot:
    tier = DiskTier(CheckpointStore(path), run_id="r", rank=rank, world_size=new, layout=layout(new))
    return tier.load_resharded(REF, training, layout(old), layout(new))


def local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [("fsdp", 3, 2), ("fsdp", 2, 4), ("hsdp", 4, 2), ("hsdp", 2, 4), ("ddp", 3, 2), ("ddp", 1, 3)],
)
def test_each_rank_gets_its_part_of_what_was_stored(kind: str, old: int, new: int, tmp_path: Path) -> None:
    save(tmp_path, kind, old)

    def rank_of(rank: int) -> Callable[[], None]:
        def do() -> None:
            expected = build(kind, new, scale=1.0)
            training = build(kind, new, scale=-5.0)
            position_of(training).number = 99
            snapshot = load(tmp_path, training, rank, old, new)
            apply(training.entries, snapshot)
            got = training.entries["model"].state_dict()
            for name, value in expected.entries["model"].state_dict().items():
                if not name.endswith("seen"):
                    assert torch.equal(local(got[name]), local(value)), name
            stored = expected.entries["optimizer"].state_dict()["state"]
            for number, values in training.entries["optimizer"].state_dict()["state"].items():
                for name, value in values.items():
                    assert torch.equal(local(value), local(stored[number][name])), (number, name)
            seen = next(value for name, value in got.items() if name.endswith("seen"))
            assert seen == (rank if rank < old else 0), "a buffer of the rank's own, or the first one's"
            number = position_of(training).number
            # A new rank's stays as the script built it; what an only rank had, all get.
            assert number == (10 if old == 1 else 10 + rank if rank < old else 99)

        return do

    for rank in range(new):
        as_rank(rank, new, rank_of(rank))


@pytest.mark.slow
def test_resharding_to_two_and_to_four_ranks_is_bitwise_the_same(tmp_path: Path) -> None:
    """3, 2, 4 ranks: what the four hold together is what the three held."""
    save(tmp_path / "3", "fsdp", 3)
    for old, new in ((3, 2), (2, 4)):
        for rank in range(new):

            def go_on(rank: int = rank, old: int = old, new: int = new) -> None:
                training = build("fsdp", new, scale=0.0)
                apply(training.entries, load(tmp_path / str(old), training, rank, old, new))
                store = CheckpointStore(tmp_path / str(new))
                DiskTier(store, run_id="r", rank=rank, world_size=new, layout=layout(new)).save(
                    REF, capture(training.entries)
                )

            as_rank(rank, new, go_on)

    def compare() -> None:
        training, expected = (build("plain", 1, scale) for scale in (0.0, 1.0))
        apply(training.entries, load(tmp_path / "4", training, 0, 4, 1))
        for name in ("weight", "bias"):
            got, wanted = (getattr(t.entries["model"], name) for t in (training, expected))
            assert torch.equal(got, wanted)

    as_rank(0, 1, compare, alone=True)


def test_generators_are_new_and_always_the_same_new_ones(tmp_path: Path) -> None:
    save(tmp_path, "plain", 2)

    def rng(rank: int, new: int) -> dict[str, Any]:
        return load(tmp_path, build("plain", new, 0.0), rank, 2, new).rng

    found = [rng(rank, 3) for rank in range(3)]
    assert torch.equal(found[1]["torch"], rng(1, 3)["torch"])
    different = {bytes(one["torch"].numpy().tobytes()) for one in (*found, rng(0, 4))}
    assert len(different) == 4
    assert set(found[0]) == set(capture_rng())
    before = capture_rng()["torch"]
    rng(0, 3)
    assert torch.equal(before, capture_rng()["torch"]), "the process's own are left alone"


def test_ranks_that_only_moved_keep_their_generators(tmp_path: Path) -> None:
    save(tmp_path, "plain", 2)
    tier = DiskTier(CheckpointStore(tmp_path), run_id="r", rank=1, world_size=2, layout=layout(2, 2))
    snapshot = tier.load_resharded(REF, build("plain", 2, 0.0), layout(2), layout(2, 2))
    torch.manual_seed(1)
    assert torch.equal(snapshot.rng["torch"], torch.get_rng_state())
    assert snapshot.own["position"] == {"number": 11}


def refused(entries: list[dict[str, Any]], tmp_path: Path) -> str:
    """Save one state a rank, and have one rank more restore it."""
    for rank, state in enumerate(entries):
        tier = DiskTier(CheckpointStore(tmp_path), run_id="r", rank=rank, world_size=len(entries))
        tier.save(REF, capture(state, deduplicate=False))
    with pytest.raises(CannotReshard) as error:
        load(tmp_path, Training(entries=entries[0]), 0, len(entries), len(entries) + 1)
    return str(error.value)


class Averages:
    """Floating-point numbers of each rank's own."""

    def __init__(self, value: float) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"mean": torch.full((3,), self.value)}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OfItsLayout(Averages):
    needs_its_layout = ("the optimizer is cut into one piece for each rank", ", or use its own checkpoints")


def test_what_nobody_can_put_together_is_refused(tmp_path: Path) -> None:
    fix = "submit a new job that trains on 2 ranks as before (srobust run --nodes 2), or "
    models = [{"model": Model(scale)} for scale in (1.0, 2.0)]
    text = refused(models, tmp_path / "a")
    assert text.startswith("'weight' of entry 'model' differs from rank to rank")
    assert f"; {fix}use fully_shard" in text
    averages = [{"mean": Averages(value)} for value in (1.0, 2.0)]
    text = refused(averages, tmp_path / "b")
    assert "different floating-point tensors on each rank" in text
    assert f"; {fix}let state_dict() return" in text
    fixed = [{"engine": OfItsLayout(1.0)} for _ in range(2)]
    text = refused(fixed, tmp_path / "c")
    assert f"cut into one piece for each rank; {fix}use its own checkpoints" in text


def test_the_number_of_nodes_that_fits_follows_from_the_processes_on_each(tmp_path: Path) -> None:
    for nproc, option in ((2, "--nodes 2"), (3, "--nodes and --nproc-per-node")):
        for rank in range(4):
            tier = DiskTier(CheckpointStore(tmp_path / option), run_id="r", rank=rank, world_size=4)
            tier.save(REF, capture({"engine": OfItsLayout(1.0)}, deduplicate=False))
        new = layout(6, nproc)
        tier = DiskTier(CheckpointStore(tmp_path / option), run_id="r", rank=0, world_size=6, layout=new)
        with pytest.raises(CannotReshard) as error:
            tier.load_resharded(REF, Training(entries={"engine": OfItsLayout(1.0)}), layout(4), new)
        assert f"trains on 4 ranks as before (srobust run {option})" in str(error.value)


class Counters(Position):
    new_rank_takes_first = True


def test_an_entry_may_ask_for_the_first_ranks_state_and_another_not_be_read(tmp_path: Path) -> None:
    for rank in range(2):
        state = {"counters": Counters(rank), "position": Position(rank), "other": Averages(float(rank))}
        DiskTier(CheckpointStore(tmp_path), run_id="r", rank=rank, world_size=2).save(REF, capture(state))
    counters, position = Counters(9), Position(9)
    training = Training(entries={"counters": counters, "position": position, "other": Unread()})
    apply(training.entries, load(tmp_path, training, 2, 2, 3))
    assert (counters.number, position.number) == (0, 9)


def test_what_differs_only_between_stages_of_a_pipeline_is_no_obstacle(tmp_path: Path) -> None:
    """Two stages, two replicas of each: ranks 0, 1 | 2, 3. The third replica of stage 1 is rank 5."""
    for rank in range(4):
        tier = DiskTier(CheckpointStore(tmp_path), run_id="r", rank=rank, world_size=4)
        tier.save(REF, capture({"model": Model(1.0 + rank // 2)}))
    tier = DiskTier(CheckpointStore(tmp_path), run_id="r", rank=5, world_size=6)
    model = Model(0.0)
    training = Training(entries={"model": model})
    apply(training.entries, tier.load_resharded(REF, training, layout(4, pp=2), layout(6, pp=2)))
    assert torch.equal(model.weight, Model(2.0).weight)


def test_a_damaged_part_is_found(tmp_path: Path) -> None:
    save(tmp_path, "plain", 2)
    data = CheckpointStore(tmp_path).data_path(REF, 0)
    content = bytearray(data.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    data.write_bytes(content)
    training = build("plain", 3, 0.0)
    with pytest.raises(CorruptPart):
        load(tmp_path, training, 0, 2, 3)
