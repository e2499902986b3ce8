"""Whether the state in a checkpoint fits the live objects, as far as that can be said before it is loaded.

The code of a training changes, its checkpoints do not. What torch itself refuses when it loads is said here
before that, with the place and both shapes; what torch takes without a word and cannot use (the state of an
optimizer whose parameters are others now) is refused, too. Only what is known to load plainly is judged: an
entry that converts its state may take anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from slurm_robust.checkpoint import shards
from slurm_robust.checkpoint.errors import ANEW, EntryMismatch
from slurm_robust.checkpoint.plain import merge
from slurm_robust.checkpoint.state import Snapshot, Stateful, Training, Unread, unwrapped
from slurm_robust.util.text import some_of

_log = logging.getLogger(__name__)

WITH_OPTIMIZER = "holds_optimizer"
"""An entry with this attribute set has the optimizer's state and the weights in one."""

_MAX_NAMED = 3
_OTHER_CODE = f"Run the code that wrote it, or go on from an older checkpoint that fits; {ANEW}"
_OTHER_OPTIMIZER = f"{_OTHER_CODE}; an update can leave the optimizer's state out (--discard-optimizer)"
# Those of torch.optim whose shape is that of the parameter.
_SHAPED_LIKE_PARAMETERS = frozenset(
    (
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "acc_delta",
        "sum",
        "prev",
        "step_size",
    )
)
_CONVERTS_NOTHING = (nn.Module._load_from_state_dict, _NormBase._load_from_state_dict)


class LeftOut(Unread):
    """Stands for an optimizer whose state in the checkpoint is left out, as the owner of the job asked."""


def without_optimizers(training: Training) -> Training:
    """Return ``training`` with a stand-in for each optimizer. Raises :class:`EntryMismatch` if it cannot be.

    Schedulers stay: the step is the same, so the learning rate is that of the step.
    """
    for name, entry in training.entries.items():
        if getattr(entry, WITH_OPTIMIZER, False):
            raise EntryMismatch(
                f"entry {name!r} has weights and optimizer in one, so the optimizer's state cannot be left "
                "out: update without --discard-optimizer, or begin anew from a checkpoint of the framework's"
            )
    entries: dict[str, Stateful] = {
        name: LeftOut() if isinstance(unwrapped(entry), Optimizer) else entry
        for name, entry in training.entries.items()
    }
    left = [name for name, entry in entries.items() if isinstance(entry, LeftOut)]
    if left:
        _log.warning(
            "--discard-optimizer: the state of %s in the checkpoint is left out; it begins as the script has "
            "built it",
            some_of([repr(name) for name in left]),
        )
    elif not any(isinstance(entry, Unread) for entry in entries.values()):
        _log.warning("--discard-optimizer: no entry is an optimizer, so nothing is left out")
    return replace(training, entries=entries, discards=True)


def with_left_out(stored: Snapshot, training: Training) -> Snapshot:
    """Return ``stored`` in which optimizers stay as the script has built them, and so do their schedulers if
    they have another number of parameter groups now.
    """
    kept = {name for name, entry in training.entries.items() if isinstance(unwrapped(entry), Optimizer)}
    for name, entry in training.entries.items():
        if name in kept | stored.kept or _scheduler(entry) is None:
            continue
        if name not in stored.own or _of_scheduler(entry, stored.own[name]):
            kept.add(name)
            _log.warning("--discard-optimizer: entry %r begins anew, too: it is of another optimizer", name)
    return replace(stored, kept=stored.kept | kept)


def follow_schedules(training: Training) -> None:
    """Give optimizers whose state was left out the learning rates of their schedulers, which were restored.

    Many schedulers compute the next rate from the last one, which is in the optimizer.
    """
    for scheduler in filter(None, map(_scheduler, training.entries.values())):
        groups, rates = scheduler.optimizer.param_groups, getattr(scheduler, "_last_lr", ())
        for group, rate in zip(groups, rates, strict=False):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(float(rate))
            else:
                group["lr"] = float(rate)


def learning_rates(training: Training) -> dict[str, list[float]]:
    """Return the learning rates of each entry that is an optimizer, as its schedule began, if it has one."""
    optimizers = {name: unwrapped(entry) for name, entry in training.entries.items()}
    return {
        name: [float(group.get("initial_lr", group["lr"])) for group in one.param_groups]
        for name, one in optimizers.items()
        if isinstance(one, Optimizer)
    }


def other_rates(built: Mapping[str, list[float]], training: Training) -> Iterator[str]:
    """Say which optimizers have other learning rates by the checkpoint than the script has ``built``.

    Whoever submits with another ``--lr`` expects that it counts.
    """
    for name, restored in learning_rates(training).items():
        if name in built and built[name] != restored:
            here, there = (", ".join(f"{rate:g}" for rate in rates) for rates in (built[name], restored))
            yield (
                f"the learning rate of entry {name!r} is {there}, as the checkpoint has it, not {here} as "
                "the script built it: to train with another one, set it after restore(), in param_groups "
                "(lr, initial_lr) and in the schedule (base_lrs)"
            )


def _scheduler(entry: Any) -> LRScheduler | None:
    """Return the scheduler that ``entry`` is, or that Accelerate has wrapped."""
    inner = getattr(entry, "scheduler", entry)
    return inner if isinstance(inner, LRScheduler) else None


def _of_scheduler(entry: Any, tree: Any) -> str:
    """Say why a scheduler cannot take ``tree``, "" if it can or nothing is known."""
    scheduler = _scheduler(entry)
    then = tree.get("base_lrs") if isinstance(tree, dict) else None
    if scheduler is None or not isinstance(then, list) or not hasattr(scheduler, "base_lrs"):
        return ""
    here = len(scheduler.base_lrs)
    if len(then) == here:
        return ""
    return (
        f"it is of an optimizer with {len(then)} parameter groups in the checkpoint and {here} in the script"
    )


def refuse_other_names(where: str, stored: Mapping[str, Any], training: Training) -> None:
    """Raise :class:`EntryMismatch` unless a checkpoint holds the entries that the script names.

    ``stored``: what it holds, by name. If the optimizer is left out, optimizers may have come and gone, and
    with them their schedulers.
    """
    there, named = set(stored), set(training.entries)
    if training.discards:
        there -= {name for name in there - named if _is_of_an_optimizer(stored[name])}
        new = {name: training.entries[name] for name in named - there}
        named -= {
            n for n, entry in new.items() if isinstance(entry, LeftOut) or _scheduler(entry) is not None
        }
    if there != named:
        raise EntryMismatch(
            f"{where} holds the entries {', '.join(sorted(stored))}, the script names "
            f"{', '.join(training.entries)}: name the same entries; {ANEW}"
        )


def refuse_misfit(where: str, stored: Snapshot, training: Training) -> None:
    """Raise :class:`EntryMismatch` if an entry certainly does not take its state, with what differs.

    ``stored`` need not have any data: its tensors may be on the meta device.
    """
    for name, entry in training.entries.items():
        target = unwrapped(entry)
        if isinstance(target, Unread) or name in stored.kept or name not in stored.own:
            continue
        wrong: list[str] = []
        fix = _OTHER_CODE
        try:
            tree = merge(stored.shared.get(name), stored.own[name])
            if isinstance(target, nn.Module):
                wrong = list(_of_module(target, tree))
            elif isinstance(target, Optimizer):
                wrong, fix = list(_of_optimizer(target, tree)), _OTHER_OPTIMIZER
            elif not training.discards and (why := _of_scheduler(target, tree)):
                wrong, fix = [why], _OTHER_OPTIMIZER
        except Exception as error:  # noqa: BLE001 - what cannot be judged is left to the load
            _log.debug("whether entry %r fits cannot be said: %s", name, error)
        if wrong:
            raise EntryMismatch(f"entry {name!r} does not fit {where}: {'; '.join(_some(wrong))}. {fix}")


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _MAX_NAMED
    return [*lines[:_MAX_NAMED], f"and {more} more"] if more > 0 else lines


def _is_of_an_optimizer(tree: Any) -> bool:
    """Return whether it is the state of an optimizer, or of its scheduler."""
    return isinstance(tree, dict) and ({"state", "param_groups"} <= tree.keys() or "base_lrs" in tree)


def _of_module(module: nn.Module, tree: Mapping[str, Any]) -> Iterator[str]:
    if not _loads_plainly(module):
        return
    live = shards.localised(module, module.state_dict())
    yield from _of_names("has no", [n for n in live if n not in tree and not n.endswith(_TRACKED)])
    yield from _of_names("has", [n for n in tree if n not in live], ", which the script lacks")
    for name in tree:
        if name in live and (wrong := _difference(tree[name], live[name])):
            yield f"{name!r} {wrong}"


_TRACKED = "num_batches_tracked"
"""A buffer that old checkpoints lack, and torch makes."""


def _of_names(verb: str, names: Iterable[str], then: str = "") -> Iterator[str]:
    found = [repr(name) for name in names]
    if found:
        yield f"the checkpoint {verb} {some_of(found)}{then}"


def _loads_plainly(module: nn.Module) -> bool:
    """Return whether torch copies each tensor to the one of the same name, and refuses all else."""
    if type(module).load_state_dict is not nn.Module.load_state_dict or "load_state_dict" in vars(module):
        return False
    return all(
        type(part)._load_from_state_dict in _CONVERTS_NOTHING
        and not isinstance(part, LazyModuleMixin)
        and all(_is_of_fsdp(hook) for hook in part._load_state_dict_pre_hooks.values())
        for part in module.modules()
    )


def _is_of_fsdp(hook: Any) -> bool:
    """Return whether a hook only has the parameters sharded, as ``state_dict()`` finds them."""
    return str(getattr(hook, "__module__", "")).startswith(_FSDP2)


_FSDP2 = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")


def _difference(stored: Any, live: Any) -> str:
    """Say why ``live`` cannot take ``stored``, "" if it can or nothing is known."""
    if shards.is_shard(stored) and shards.is_shard(live):
        return _of_shapes(shards.placed(stored).whole, shards.placed(live).whole)
    if not (isinstance(stored, torch.Tensor) and isinstance(live, torch.Tensor)):
        return ""
    if live.dim() == 0 and tuple(stored.shape) == (1,):
        return ""  # torch takes it, as very old checkpoints had it
    if stored.is_floating_point() != live.is_floating_point():
        return f"is {_dtype(stored)} in the checkpoint and {_dtype(live)} in the script"
    return _of_shapes(tuple(stored.shape), tuple(live.shape))


def _of_shapes(stored: tuple[int, ...], live: tuple[int, ...]) -> str:
    if stored == live:
        return ""
    return f"has shape {list(stored)} in the checkpoint and {list(live)} in the script"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _of_optimizer(optimizer: Optimizer, tree: Any) -> Iterator[str]:
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner  # Accelerate's wrapper
    kind = type(optimizer)
    own = (kind.state_dict, kind.load_state_dict)
    if own != (Optimizer.state_dict, Optimizer.load_state_dict) or "param_groups" not in tree:
        return
    groups, live = tree["param_groups"], optimizer.param_groups
    if len(groups) != len(live):
        yield f"it has {len(groups)} parameter groups in the checkpoint and {len(live)} in the script"
        return
    for number, (stored, now) in enumerate(zip(groups, live, strict=True)):
        then, here = len(stored["params"]), len(now["params"])
        if then != here:
            yield f"parameter group {number} has {then} parameters in the checkpoint and {here} in the script"
        lacking = [key for key in optimizer.defaults if key not in stored]
        known = [key for key in stored if key not in optimizer.defaults and key not in _OF_ALL]
        if lacking and known:  # one way alone, another version of the same optimizer is enough
            yield (
                f"the checkpoint is of another kind of optimizer: it has {some_of(known)}, and "
                f"{kind.__name__} needs {some_of(lacking)}"
            )
    if kind.__module__.startswith("torch.optim."):
        yield from _of_state(optimizer, tree)


_OF_ALL = frozenset(
    (
        "params",
        "param_names",
        "initial_lr",
        "max_lr",
        "min_lr",
        "max_momentum",
        "base_momentum",
        "foreach",
        "fused",
        "capturable",
        "differentiable",
        "maximize",
        "decoupled_weight_decay",
    )
)
"""Settings of a group that schedulers add, and those that came and went with versions of torch."""


def _of_state(optimizer: Optimizer, tree: Any) -> Iterator[str]:
    for number, parameter in shards.numbered(optimizer, tree):
        for key, value in tree["state"].get(number, {}).items():
            if key not in _SHAPED_LIKE_PARAMETERS:
                continue
            whole = shards.placed(value).whole if shards.is_shard(value) else None
            if whole is None and isinstance(value, torch.Tensor):
                whole = tuple(value.shape)
            if whole is not None and whole != tuple(parameter.shape):
                yield (
                    f"{key!r} of parameter {number} has shape {list(whole)} in the checkpoint, and the "
                    f"parameter {list(parameter.shape)} in the script"
                )
