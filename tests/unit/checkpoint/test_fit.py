"""Code that has changed meets a checkpoint of before: what does not fit is named, all else is taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from slurm_robust.checkpoint.errors import EntryMismatch
from slurm_robust.checkpoint.fit import (
    follow_schedules,
    learning_rates,
    other_rates,
    refuse_misfit,
    refuse_other_names,
    with_left_out,
    without_optimizers,
)
from slurm_robust.checkpoint.plain import map_tensors
from slurm_robust.checkpoint.state import Snapshot, Stateful, Training, apply, capture
from slurm_robust.integrations.deepspeed import EngineState
from slurm_robust.integrations.megatron import TrainingState
from tests.torch_features import needs_fsdp2


def network(width: int = 4, *, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width, bias=bias), nn.BatchNorm1d(width), nn.Linear(width, 1))


def adamw(module: nn.Module, *, groups: int = 1) -> torch.optim.Optimizer:
    parameters = list(module.parameters())
    return torch.optim.AdamW([{"params": parameters[i::groups]} for i in range(groups)], lr=0.1)


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def stored(entries: Mapping[str, Stateful]) -> Snapshot:
    """What a checkpoint of these says of itself without its data."""
    taken = capture(entries)
    own, shared = (map_tensors(lambda t: t.to("meta"), tree) for tree in (taken.own, taken.shared))
    return Snapshot(own=own, shared=shared, rng={})


def check(before: Mapping[str, Stateful], now: Mapping[str, Stateful]) -> None:
    refuse_misfit("checkpoint 7", stored(before), Training(entries=now))


def refused(before: Mapping[str, Stateful], now: Mapping[str, Stateful]) -> str:
    with pytest.raises(EntryMismatch) as caught:
        check(before, now)
    return str(caught.value)


# -- modules --------------------------------------------------------------------------------------


def test_the_same_code_fits_whatever_wraps_it() -> None:
    check({"model": network()}, {"model": torch.compile(network())})  # type: ignore[dict-item]


def test_another_shape_is_named_with_both_shapes() -> None:
    text = refused({"model": network(4)}, {"model": network(8)})
    assert "entry 'model' does not fit checkpoint 7" in text
    assert "'0.weight' has shape [4, 3] in the checkpoint and [8, 3] in the script" in text
    assert "and 4 more" in text


def test_parameters_that_came_or_went_are_named() -> None:
    assert "the checkpoint has no '0.bias'" in refused({"m": network(bias=False)}, {"m": network()})
    assert "the checkpoint has '0.bias', which the script lacks" in refused(
        {"m": network()}, {"m": network(bias=False)}
    )


def test_another_precision_fits_and_another_kind_of_number_does_not() -> None:
    check({"model": network()}, {"model": network().bfloat16()})
    counted = nn.Module()
    counted.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
    other = nn.Module()
    other.register_buffer("seen", torch.zeros(2))
    assert "'seen' is int64 in the checkpoint and float32 in the script" in refused(
        {"m": counted}, {"m": other}
    )


class Renamed(nn.Module):
    """Knows the names that its parameters had before."""

    def __init__(self) -> None:
        super().__init__()
        self.new = nn.Parameter(torch.zeros(2))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state_dict[f"{prefix}new"] = state_dict.pop(f"{prefix}old")
        super()._load_from_state_dict(state_dict, prefix, *rest)


def test_of_a_module_that_converts_what_it_loads_nothing_is_said() -> None:
    before = nn.Module()
    before.old = nn.Parameter(torch.ones(2))
    module = Renamed()
    check({"model": before}, {"model": module})
    apply({"model": module}, capture({"model": before}))
    assert module.new.tolist() == [1.0, 1.0]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@needs_fsdp2
def test_shards_are_compared_by_the_whole_tensor(process_group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    def sharded(width: int) -> dict[str, Any]:
        module = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))
        fully_shard(module)
        return {"model": module, "optimizer": stepped(adamw(module))}

    check(sharded(4), sharded(4))
    text = refused(sharded(4), sharded(8))
    assert "'0.weight' has shape [4, 3] in the checkpoint and [8, 3] in the script" in text
    text = refused({"o": sharded(4)["optimizer"]}, {"o": sharded(8)["optimizer"]})
    assert "'exp_avg' of parameter 0 has shape [4, 3] in the checkpoint, and the parameter [8, 3]" in text


# -- optimizers -----------------------------------------------------------------------------------


def test_other_parameter_groups_are_named() -> None:
    before = {"optimizer": adamw(network())}
    assert "has 1 parameter groups in the checkpoint and 2 in the script" in refused(
        before, {"optimizer": adamw(network(), groups=2)}
    )
    text = refused(before, {"optimizer": adamw(network(bias=False))})
    assert "parameter group 0 has 6 parameters in the checkpoint and 5 in the script" in text
    assert "--discard-optimizer" in text


def test_state_of_parameters_of_another_shape_is_refused_though_torch_takes_it() -> None:
    text = refused({"optimizer": stepped(adamw(network(4)))}, {"optimizer": adamw(network(8))})
    assert "'exp_avg' of parameter 0 has shape [4, 3] in the checkpoint, and the parameter [8, 3]" in text


def test_another_kind_of_optimizer_is_refused() -> None:
    module = network()
    text = refused({"optimizer": adamw(module)}, {"optimizer": torch.optim.SGD(module.parameters(), lr=0.1)})
    assert "of another kind of optimizer" in text
    assert "SGD needs momentum" in text


def test_settings_that_a_later_torch_adds_do_no_harm() -> None:
    module = network()
    older = stored({"optimizer": adamw(module)})
    for group in older.own["optimizer"]["param_groups"]:
        del group["fused"], group["decoupled_weight_decay"]
        group["initial_lr"] = 0.1
    refuse_misfit("checkpoint 7", older, Training(entries={"optimizer": adamw(module)}))


def test_an_optimizer_of_ones_own_is_left_to_its_own_code() -> None:
    class LowRank(torch.optim.AdamW):
        """Keeps averages of another shape than the parameters."""

    check({"optimizer": stepped(adamw(network(4)))}, {"optimizer": LowRank(network(8).parameters())})


def test_a_scheduler_of_other_groups_is_refused() -> None:
    def scheduled(groups: int) -> LRScheduler:
        return CosineAnnealingLR(adamw(network(), groups=groups), 10)

    text = refused({"scheduler": scheduled(1)}, {"scheduler": scheduled(2)})
    assert "of an optimizer with 1 parameter groups in the checkpoint and 2 in the script" in text


# -- without the optimizer ------------------------------------------------------------------------


def scheduled(make: Callable[[nn.Module], torch.optim.Optimizer] = adamw) -> dict[str, Any]:
    module = network()
    optimizer = make(module)
    return {"model": module, "optimizer": optimizer, "scheduler": CosineAnnealingLR(optimizer, 10)}


def discard(taken: Snapshot, entries: Mapping[str, Stateful]) -> None:
    """Restore as a rank does whose optimizer is left out."""
    training = Training(entries=entries)
    asked = without_optimizers(training)
    refuse_other_names("checkpoint 7", taken.own, asked)
    refuse_misfit("checkpoint 7", taken, asked)
    apply(entries, with_left_out(taken, training))
    follow_schedules(training)


def test_all_but_the_optimizer_is_restored_and_the_learning_rate_is_that_of_the_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = scheduled()
    for _ in range(3):
        stepped(before["optimizer"])
        before["scheduler"].step()
    now = scheduled(lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    with caplog.at_level(logging.WARNING):
        discard(capture(before), now)
    assert torch.equal(now["model"][0].weight, before["model"][0].weight)
    assert not now["optimizer"].state
    assert now["optimizer"].param_groups[0]["momentum"] == 0.9
    rates = [one["optimizer"].param_groups[0]["lr"] for one in (before, now)]
    assert rates[0] == rates[1] < 0.1
    assert "--discard-optimizer: the state of 'optimizer' in the checkpoint is left out" in caplog.text


def test_a_scheduler_of_other_groups_begins_anew_then_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = scheduled(lambda module: adamw(module, groups=2))
    with caplog.at_level(logging.WARNING):
        discard(capture(scheduled()), now)
    assert "entry 'scheduler' begins anew, too" in caplog.text


def test_optimizers_may_come_and_go_and_nothing_else_may() -> None:
    before, now = scheduled(), scheduled()
    now["muon"] = now.pop("optimizer")
    discard(capture(before), now)
    with pytest.raises(EntryMismatch, match="name the same entries"):
        refuse_other_names("checkpoint 7", capture(before).own, Training(entries=now))
    now["loader"] = network()
    with pytest.raises(EntryMismatch, match="name the same entries"):
        discard(capture(before), now)


@pytest.mark.parametrize("kind", [EngineState, TrainingState])
def test_what_has_weights_and_optimizer_in_one_cannot_be_left_out(kind: type[Any]) -> None:
    with pytest.raises(EntryMismatch, match="entry 'all' has weights and optimizer in one"):
        without_optimizers(Training(entries={"all": kind.__new__(kind)}))


# -- learning rates -------------------------------------------------------------------------------


def with_rate(rate: float, *, schedule: bool) -> dict[str, Any]:
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    entries: dict[str, Any] = {"model": module, "optimizer": optimizer}
    return entries | ({"schedule": CosineAnnealingLR(optimizer, 10)} if schedule else {})


@pytest.mark.parametrize("schedule", [True, False])
def test_a_learning_rate_that_the_checkpoint_has_otherwise_is_said(schedule: bool) -> None:
    before, now = with_rate(0.3, schedule=schedule), with_rate(0.1, schedule=schedule)
    training = Training(entries=now)
    built = learning_rates(training)
    apply(now, capture(before))
    (text,) = other_rates(built, training)
    assert "of entry 'optimizer' is 0.3, as the checkpoint has it, not 0.1 as the script built it" in text


def test_a_schedule_that_has_moved_the_learning_rate_is_no_other_one() -> None:
    before, now = with_rate(0.3, schedule=True), with_rate(0.3, schedule=True)
    for _ in range(3):
        stepped(before["optimizer"])
        before["schedule"].step()
    training = Training(entries=now)
    built = learning_rates(training)
    apply(now, capture(before))
    assert now["optimizer"].param_groups[0]["lr"] < 0.3
    assert not list(other_rates(built, training))
