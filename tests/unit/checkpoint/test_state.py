"""A captured state put back into fresh objects gives the same objects, and owes nothing to the file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.errors import EntryMismatch, UnsupportedState
from slurm_robust.checkpoint.generators import capture_rng, restore_rng
from slurm_robust.checkpoint.state import (
    Snapshot,
    Stateful,
    apply,
    capture,
    changed_by_optimizers,
    key_of,
    unwrapped,
)
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tree import flatten
from slurm_robust.model.copies import CheckpointId
from tests.builders.checkpoints import named
from tests.torch_features import needs_fsdp2

REF = CheckpointId(generation=1, step=5)


class Notes:
    """A user's own stateful object."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(6, 3)).sum().backward()
    optimizer.step()
    return optimizer


def through_a_file(snapshot: Snapshot, folder: Path) -> Snapshot:
    tier = DiskTier(CheckpointStore(folder), run_id="run", rank=0, world_size=1)
    tier.save(REF, snapshot)
    return tier.load(REF, named(*snapshot.own))


@pytest.mark.slow  # imports of torch
def test_parameters_under_ddp_are_shared_and_buffers_are_not(process_group: None) -> None:
    model = DistributedDataParallel(network())
    snapshot = capture({"model": model, "optimizer": trained(model)})
    assert set(snapshot.shared["model"]) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
    assert set(snapshot.own["model"]) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(snapshot.shared["optimizer"]["state"]) == set(range(6))
    assert snapshot.own["optimizer"]["state"] == {}


def test_ddp_can_be_told_to_leave_parameters_alone(process_group: None) -> None:
    inner = network()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["0.weight"])
    snapshot = capture({"model": DistributedDataParallel(inner)})
    assert "0.weight" in snapshot.own["model"]


def test_everything_is_own_without_ddp_or_without_deduplication(process_group: None) -> None:
    model = network()
    assert capture({"model": model, "optimizer": trained(model)}).shared == {}
    assert capture({"model": DistributedDataParallel(model)}, deduplicate=False).shared == {}


def test_an_optimizer_over_both_kinds_of_parameters_is_split(process_group: None) -> None:
    replicated, private = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*private.parameters(), *replicated.parameters()], momentum=0.9)
    private(replicated(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    entries: dict[str, Stateful] = {"m": DistributedDataParallel(replicated), "p": private, "o": optimizer}
    snapshot = capture(entries)
    assert set(snapshot.own["o"]["state"]) == {0, 1}
    assert set(snapshot.shared["o"]["state"]) == {2, 3}


@pytest.mark.slow  # imports of torch
def test_wrappers_may_come_and_go(process_group: None) -> None:
    inner = network()
    snapshot = capture({"model": DistributedDataParallel(inner)})
    other = network()
    apply({"model": other}, snapshot)
    assert all(torch.equal(a, b) for a, b in zip(inner.parameters(), other.parameters(), strict=True))
    assert unwrapped(torch.compile(other)) is other


def test_restored_state_does_not_lie_in_the_file(tmp_path: Path) -> None:
    """Another host may delete the file while it is mapped, and on NFS reading it then kills the process."""
    model, notes = network(), Notes({"t": torch.ones(4)})
    entries = {"model": model, "optimizer": trained(model), "notes": notes}
    snapshot = through_a_file(capture(entries), tmp_path)
    fresh = network()
    optimizer = torch.optim.AdamW(fresh.parameters())
    back = Notes()
    apply({"model": fresh, "optimizer": optimizer, "notes": back}, snapshot)
    live = [back.state["t"], *fresh.parameters(), *fresh.buffers()]
    live += [t for state in optimizer.state.values() for t in state.values()]
    assert len(live) == 1 + 6 + 3 + 6 * 3
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    mapped = mapped_ranges(str(tmp_path))
    assert not [t for t in live if any(low <= t.data_ptr() < high for low, high in mapped)]


def mapped_ranges(path: str) -> list[tuple[int, int]]:
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if path in line]
    ends = [line.split()[0].split("-") for line in lines]
    return [(int(low, 16), int(high, 16)) for low, high in ends]


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    first, second = nn.Linear(100, 100), nn.Linear(100, 100)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    through_a_file(capture({"model": model}), tmp_path)
    assert CheckpointStore(tmp_path).parts(REF)[0].stat().st_size < 60_000


def test_random_numbers_go_on_as_they_were() -> None:
    state = capture_rng()
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    restore_rng(state)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_an_entry_that_refuses_its_state_is_named() -> None:
    snapshot = capture({"model": nn.Linear(2, 2)})
    with pytest.raises(
        EntryMismatch, match=r"(?s)entry 'model'.*size mismatch.*to begin anew, submit a new job"
    ):
        apply({"model": nn.Linear(3, 3)}, snapshot)


def test_state_that_is_not_plain_is_refused_with_its_entry() -> None:
    with pytest.raises(UnsupportedState, match=r"entry 'notes': state_dict\(\)\['x'\] is a"):
        capture({"notes": Notes({"x": object()})})


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6, 6]),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=50),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 0.2),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, total_iters=4),
                torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
            ],
            milestones=[4],
        ),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
    ],
    ids=["multistep", "lambda", "onecycle", "cosine", "cyclic", "sequential", "plateau"],
)
def test_schedulers_of_torch_are_stored(make: Any, tmp_path: Path) -> None:
    def built() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
        return optimizer, make(optimizer)

    def rates(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            optimizer.step()
            schedule.step(*([1.0] if "Plateau" in type(schedule).__name__ else []))
            found.append(float(optimizer.param_groups[0]["lr"]))
        return found

    optimizer, schedule = built()
    rates(optimizer, schedule, 5)
    snapshot = through_a_file(capture({"optimizer": optimizer, "schedule": schedule}), tmp_path)
    again, schedule_again = built()
    apply({"optimizer": again, "schedule": schedule_again}, snapshot)
    assert rates(again, schedule_again, 20) == rates(optimizer, schedule, 20)


def test_lbfgs_keeps_its_history(tmp_path: Path) -> None:
    """Its state holds lists of tensors, and all of it hangs on the first parameter."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.LBFGS([parameter])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (parameter**4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    snapshot = through_a_file(capture({"o": optimizer}), tmp_path)
    again = torch.optim.LBFGS([nn.Parameter(torch.ones(3))])
    apply({"o": again}, snapshot)
    first, second = optimizer.state[parameter], next(iter(again.state.values()))
    assert first["n_iter"] == second["n_iter"]
    assert all(torch.equal(a, b) for a, b in zip(first["old_dirs"], second["old_dirs"], strict=True))


@needs_fsdp2
@pytest.mark.slow  # imports of torch
def test_updates_of_sharded_parameters_are_counted(process_group: None) -> None:
    """A shard's own version says nothing: torch counts what is done to the DTensor around it."""
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    optimizer = trained(model)
    late = changed_by_optimizers({"model": model, "optimizer": optimizer})
    snapshot = capture({"model": model, "optimizer": optimizer}, compact=False)
    stored = {key_of(tensor) for tensor in flatten({"own": snapshot.own})[1]}
    assert len(late) == 6 + 6 * 3
    assert stored >= set(late)
    before = {key: tensor._version for key, tensor in late.items()}
    model(torch.randn(6, 3)).sum().backward()
    assert {key: tensor._version for key, tensor in late.items()} == before
    optimizer.step()
    assert all(tensor._version != before[key] for key, tensor in late.items())


# -- types ----------------------------------------------------------------------------------------


class Master(torch.optim.Optimizer):
    """As mixed-precision optimizers do: of a parameter in bfloat16 a master copy and moments in float32."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.float()
                    state["moments"] = {"first": torch.zeros_like(state["master"])}
                    state["seen"] = torch.zeros((), dtype=torch.int64)
                state["seen"] += 1
                state["moments"]["first"].mul_(0.9).add_(parameter.grad.float(), alpha=0.1)
                state["master"].sub_(state["moments"]["first"], alpha=group["lr"])
                parameter.copy_(state["master"])


class Compact(Master):
    """Stores its master copies in float64, and knows how to read them."""

    def state_dict(self) -> Any:
        made = super().state_dict()
        for state in made["state"].values():
            state["master"] = state["master"].double()
        return made


def in_bfloat16(kind: type[Master], steps: int) -> tuple[nn.Module, Master]:
    model = nn.Linear(5, 3).bfloat16()
    optimizer = kind(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 5).bfloat16()).sum().backward()
        optimizer.step()
    return model, optimizer


def values_of(optimizer: Master) -> list[torch.Tensor]:
    return [t for s in optimizer.state.values() for t in (s["master"], s["moments"]["first"], s["seen"])]


@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "with a state of its own"])
def test_a_restore_keeps_every_type_and_bit(tmp_path: Path, steps: int) -> None:
    """torch's load_state_dict() casts state of a parameter to the parameter's type."""
    model, optimizer = in_bfloat16(Master, 3)
    other, fresh = in_bfloat16(Master, steps)
    snapshot = through_a_file(capture({"model": model, "optimizer": optimizer}), tmp_path)
    apply({"model": other, "optimizer": fresh}, snapshot)
    for stored, restored in zip(values_of(optimizer), values_of(fresh), strict=True):
        assert stored.dtype == restored.dtype
        assert torch.equal(stored, restored)
    del snapshot
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_an_optimizer_that_stores_another_type_than_it_keeps_is_left_to_itself(tmp_path: Path) -> None:
    model, optimizer = in_bfloat16(Compact, 3)
    other, fresh = in_bfloat16(Compact, 0)
    snapshot = through_a_file(capture({"model": model, "optimizer": optimizer}), tmp_path)
    apply({"model": other, "optimizer": fresh}, snapshot)
    assert {tensor.dtype for tensor in values_of(fresh)} == {torch.bfloat16}


# -- scalers of gradients -------------------------------------------------------------------------


class NoItem(TorchDispatchMode):
    """Reading a number out of a tensor, for which a GPU's must be waited for, is an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def scaled(scale: float) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(1))
    return scaler


def test_the_state_of_a_scaler_is_taken_without_waiting_for_the_gpu(tmp_path: Path) -> None:
    scaler = scaled(1024.0)
    with NoItem():
        capture({"scaler": scaler})
    scaler.update(512.0)
    for other in (scaled(8.0), torch.amp.GradScaler("cpu")):
        apply({"scaler": other}, through_a_file(capture({"scaler": scaler}), tmp_path))
        assert other.state_dict() == scaler.state_dict()
        assert type(other.state_dict()["scale"]) is float


def test_a_scaler_has_the_same_tensors_before_and_after_its_first_use() -> None:
    fresh, off = torch.amp.GradScaler("cpu", init_scale=4.0), torch.amp.GradScaler("cpu", enabled=False)
    before = flatten(capture({"scaler": fresh}).own)[1]
    fresh.scale(torch.ones(1))
    after = flatten(capture({"scaler": fresh}).own)[1]
    assert [(t.dtype, t.shape, float(t)) for t in before] == [(t.dtype, t.shape, float(t)) for t in after]
    assert capture({"scaler": off}).own == {"scaler": {}}


def test_a_scaler_takes_numbers_too() -> None:
    """As checkpoints hold them that were written before."""
    scaler = scaled(1024.0)
    other = scaled(8.0)
    apply({"scaler": other}, Snapshot(own={"scaler": scaler.state_dict()}, shared={}, rng=capture_rng()))
    assert other.state_dict() == scaler.state_dict()


class Counter(Notes):
    """Equal on all ranks, says its author."""

    new_rank_takes_first = True


def test_entries_say_what_only_their_own_rank_can_use(process_group: None) -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    replicated: dict[str, Stateful] = {
        "model": model,
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 5),
        "scaler": torch.amp.GradScaler("cpu"),
        "counter": Counter({"step": 3}),
        "empty": Notes({}),
    }
    assert capture(replicated).bound == set()
    other = network()
    others: dict[str, Stateful] = {
        "loader": Notes({"position": 3}),
        "average": other,
        "its optimizer": torch.optim.AdamW(other.parameters()),
    }
    assert capture({**replicated, **others}).bound == {"loader", "average"}
    other(torch.randn(2, 3)).sum().backward()
    others["its optimizer"].step()  # type: ignore[attr-defined]
    assert capture({**replicated, **others}).bound == {"loader", "average", "its optimizer"}
    assert capture(replicated, deduplicate=False).bound == {"model", "optimizer"}
