"""The state of training as a tree of plain data: taken from the live objects, and put back into them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from slurm_robust.checkpoint import shards
from slurm_robust.checkpoint.errors import ANEW, EntryMismatch, UnsupportedState
from slurm_robust.checkpoint.generators import capture_rng, restore_rng
from slurm_robust.checkpoint.gpus import Gpus
from slurm_robust.checkpoint.plain import map_tensors, merge, plain

_log = logging.getLogger(__name__)

FIRST = "new_rank_takes_first"
"""An entry with this attribute set goes on with the first replica's state on a rank that is new."""


@runtime_checkable
class Stateful(Protocol):
    """Anything that gives its state and takes it back: modules, optimizers, schedulers, own classes."""

    def state_dict(self) -> Any:
        """Return the whole state as plain data; what it returns may share memory with the object."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take back what ``state_dict`` returned in another process."""


class Unread:
    """Stands for an entry whose state a restore passes over."""

    def state_dict(self) -> dict[str, Any]:
        """Return no state."""
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Training:
    """The live objects of a script, by the names that it gave them."""

    entries: Mapping[str, Stateful]
    deduplicate: bool = True
    discards: bool = False
    """The state of optimizers in a checkpoint is left out."""


@dataclass(frozen=True)
class Snapshot:
    """One rank's state between two steps, by entry; an entry is the union of its two trees.

    Tensors share memory with the live ones: to keep a snapshot beyond the current step copy them.
    """

    own: dict[str, Any]
    """What is this rank's."""
    shared: dict[str, Any]
    """What is equal on all ranks."""
    rng: dict[str, Any]
    placed: frozenset[int] = frozenset()
    """For a snapshot that was read: addresses of the storages that are not in a mapped file."""
    kept: frozenset[str] = frozenset()
    """Entries that stay as the script has built them."""
    bound: frozenset[str] = frozenset()
    """In a captured snapshot: entries of which only this rank can use ``own``."""


def capture(entries: Mapping[str, Stateful], *, deduplicate: bool = True, compact: bool = True) -> Snapshot:
    """Return the state of all entries and of the random number generators.

    Shared are the parameters of modules under ``DistributedDataParallel`` and the optimizers' state for
    them, unless ``deduplicate`` is False. ``compact``: see :func:`~slurm_robust.checkpoint.plain.plain`.
    Raises :class:`UnsupportedState`.
    """
    replicated = _replicated(entries) if deduplicate else set()
    own: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    bound = set()
    for name, entry in entries.items():
        target = unwrapped(entry)
        own[name], common = _state_of(name, target, replicated, compact=compact)
        if common:
            shared[name] = common
        if _is_bound(target, own[name], has_shared=bool(common)):
            bound.add(name)
    return Snapshot(own=own, shared=shared, rng=capture_rng(), bound=frozenset(bound))


def live_state(training: Training) -> Snapshot:
    """Return the state of modules and optimizers as :func:`capture` takes it; its tensors are the live ones.

    Other entries are not asked, because giving their state may change them.
    """
    replicated = _replicated(training.entries) if training.deduplicate else set()
    live = Snapshot(own={}, shared={}, rng={})
    for name, entry in training.entries.items():
        target = unwrapped(entry)
        if isinstance(target, nn.Module | Optimizer):
            try:
                live.own[name], live.shared[name] = _state_of(name, target, replicated, compact=False)
            except Exception as error:  # noqa: BLE001  # one that is lazy has no state before it was restored
                _log.debug("entry %r is not restored in place: %s", name, error)
    return live


def key_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what is the same for two tensors that are the same memory."""
    return tensor.data_ptr(), tensor.nbytes


def changed_by_optimizers(entries: Mapping[str, Stateful]) -> dict[tuple[int, int], torch.Tensor]:
    """Return parameters and state of the optimizers among ``entries``, by :func:`key_of` their memory.

    Nothing else changes these tensors between two updates. What belongs to no such optimizer (buffers,
    averages, parameters that the script changes by hand) is not among them. A DTensor stands for its shard:
    only its own ``_version`` counts what is done to it.
    """
    found: dict[tuple[int, int], torch.Tensor] = {}
    for entry in entries.values():
        if isinstance(entry, Optimizer):
            for group in entry.param_groups:
                found.update((key_of(_local(parameter)), parameter) for parameter in group["params"])
            for state in entry.state.values():
                found.update((key_of(_local(t)), t) for t in state.values() if isinstance(t, torch.Tensor))
    return found


def gpu_of(training: Training, gpus: Gpus) -> torch.device | None:
    """Return the GPU on which tensors of modules and optimizers lie; None if there is none."""
    for entry in training.entries.values():
        tensors: list[torch.Tensor] = []
        if isinstance(entry, nn.Module):
            tensors = [*entry.parameters(), *entry.buffers()]
        elif isinstance(entry, Optimizer):
            tensors = [parameter for group in entry.param_groups for parameter in group["params"]]
        for tensor in map(_local, tensors):
            if gpus.has(tensor):
                return tensor.device
    return None


def apply(entries: Mapping[str, Stateful], snapshot: Snapshot) -> None:
    """Put a snapshot that was read back into the live objects.

    Afterwards nothing refers to the file. Raises :class:`EntryMismatch`; training cannot go on then, because
    entries before that one have the old state already.
    """
    for name, entry in entries.items():
        target = unwrapped(entry)
        if isinstance(target, Unread) or name in snapshot.kept:
            continue
        tree = merge(snapshot.shared.get(name), snapshot.own[name])
        try:
            _load(target, shards.globalised(target, tree, snapshot.placed), snapshot.placed)
        except Exception as error:  # whatever an entry's own code raises, the user must know which entry
            raise EntryMismatch(
                f"entry {name!r} does not take the state in the checkpoint ({type(error).__name__}: "
                f"{error}): run the code that wrote it; {ANEW}"
            ) from error
    restore_rng(snapshot.rng)


def unwrapped(entry: Stateful) -> Stateful:
    """Return the entry inside wrappers that only change how it runs, so that they may come and go."""
    inner: Stateful | None = None
    if isinstance(entry, DistributedDataParallel | DataParallel):
        inner = entry.module
    elif isinstance(entry, nn.Module):
        inner = getattr(entry, "_orig_mod", None)  # torch.compile
    return entry if inner is None else unwrapped(inner)


def _replicated(entries: Mapping[str, Stateful]) -> set[int]:
    """Return the ids of the parameters that DistributedDataParallel keeps equal on all ranks."""
    found = set()
    for entry in entries.values():
        for module in entry.modules() if isinstance(entry, nn.Module) else ():
            if isinstance(module, DistributedDataParallel):
                ignored = module.parameters_to_ignore
                for name, parameter in module.module.named_parameters():
                    if name not in ignored:
                        found.add(id(parameter))
    return found


def _state_of(
    name: str, target: Stateful, replicated: set[int], *, compact: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is this rank's own and what is shared of the state of entry ``name``, unwrapped."""
    state = _scaler_state(target) if _is_scaler(target) else shards.localised(target, target.state_dict())
    return _split(target, plain(state, f"entry {name!r}: state_dict()", compact=compact), replicated)


def _split(target: Stateful, tree: Any, replicated: set[int]) -> tuple[Any, Any]:
    """Split ``tree`` into what is this rank's own and what is shared; merged they give ``tree`` again."""
    if isinstance(target, nn.Module):
        names = {n for n, p in target.named_parameters(remove_duplicate=False) if id(p) in replicated}
        shared = {name: tree[name] for name in names if name in tree}
        for name in shared:
            del tree[name]
        return tree, shared
    if isinstance(target, Optimizer) and isinstance(tree, dict) and "param_groups" in tree:
        numbers = {i for i, p in shards.numbered(target, tree) if id(p) in replicated}
        state = tree["state"]
        common = {i: state.pop(i) for i in numbers if i in state}
        return tree, {"state": common} if common else {}
    return tree, {}


def _is_bound(target: Stateful, own: Any, *, has_shared: bool) -> bool:
    """Return whether ``own``, what an entry holds beside the shared state, may differ from rank to rank.

    It does not in any way that matters for buffers of a module whose parameters are all shared (under
    DistributedDataParallel rank 0's go to all), an optimizer's settings, schedulers and gradient scalers. Any
    other entry says so itself (:data:`FIRST`).
    """
    if getattr(target, FIRST, False):
        return False
    if isinstance(target, nn.Module):
        return not (has_shared or not own) or any(name in own for name, _ in target.named_parameters())
    if isinstance(target, Optimizer) and isinstance(own, dict) and "param_groups" in own:
        return bool(own["state"])
    return bool(own) and not isinstance(target, LRScheduler | GradScaler)


def _load(target: Stateful, tree: Any, placed: frozenset[int]) -> None:
    if isinstance(target, nn.Module):
        for name in [name for name in tree if name.endswith("_extra_state")]:
            tree[name] = map_tensors(torch.clone, tree[name])
        target.load_state_dict(tree)  # copies into parameters and buffers
    elif isinstance(target, Optimizer):
        _load_optimizer(target, tree, placed)
    elif _is_scaler(target):
        numbers = {key: value.item() if torch.is_tensor(value) else value for key, value in tree.items()}
        target.load_state_dict(numbers)
    else:
        target.load_state_dict(map_tensors(torch.clone, tree))


def _load_optimizer(target: Optimizer, tree: Any, placed: frozenset[int]) -> None:
    mapped: set[int | None] = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        mapped.add(_address(tensor))
        return tensor

    map_tensors(note, tree)
    mapped -= {None, *placed}
    before = {parameter: dict(state) for parameter, state in target.state.items()}
    target.load_state_dict(tree)  # keeps CPU tensors as they are
    _put_back(target, tree)
    for parameter, state in target.state.items():
        for key, value in state.items():
            state[key] = _out_of(mapped, value, before.get(parameter, {}).get(key))


def _put_back(target: Optimizer, tree: Any) -> None:
    """Undo that torch casts state to the type of its parameter: a master copy in float32 is not bfloat16.

    An optimizer whose ``state_dict()`` is its own may store other types than it keeps, and knows how.
    """
    if type(target).state_dict is not Optimizer.state_dict:
        return
    for number, parameter in shards.numbered(target, tree):
        made = target.state.get(parameter, {})
        for key, stored in tree["state"].get(number, {}).items():
            if key in made:
                made[key] = _as_stored(stored, made[key], parameter.dtype)


def _as_stored(stored: Any, made: Any, cast_to: torch.dtype) -> Any:
    """Return ``made`` with every tensor that torch has cast as it was stored, on its present device."""
    if isinstance(stored, torch.Tensor) and isinstance(made, torch.Tensor):
        return made if stored.dtype == cast_to else stored.to(made.device)
    if isinstance(stored, dict) and isinstance(made, dict):
        return {key: _as_stored(stored.get(key), value, cast_to) for key, value in made.items()}
    if type(stored) in (list, tuple) and type(made) is type(stored) and len(made) == len(stored):
        return type(made)(_as_stored(*pair, cast_to) for pair in zip(stored, made, strict=True))
    return made


def _out_of(mapped: set[int | None], value: Any, old: Any) -> Any:
    """Return ``value`` without anything that is in a mapped file; in the memory of ``old`` if that fits.

    New memory costs several times what copying does, since the kernel clears it.
    """
    fits = isinstance(value, torch.Tensor) and isinstance(old, torch.Tensor) and _address(value) in mapped
    if fits and (value.dtype, value.shape, value.device) == (old.dtype, old.shape, old.device):
        return old.copy_(value)
    return map_tensors(lambda t: t.clone() if _address(t) in mapped else t, value)


def _is_scaler(target: object) -> TypeGuard[GradScaler]:
    """Return whether its ``state_dict()`` is torch's, which waits for the GPU."""
    return isinstance(target, GradScaler) and type(target).state_dict is GradScaler.state_dict


def _scaler_state(scaler: GradScaler) -> dict[str, Any]:
    """Return its ``state_dict()``, but what it keeps on a GPU as tensors instead of ``.item()``."""
    if not scaler.is_enabled():
        return {}
    scale, tracker = scaler._scale, scaler._growth_tracker
    return {
        "scale": torch.tensor(scaler.get_scale(), dtype=torch.float32) if scale is None else scale,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": torch.tensor(scaler._get_growth_tracker(), dtype=torch.int32)
        if tracker is None
        else tracker,
    }


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the shard that a DTensor holds here."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _address(tensor: torch.Tensor) -> int | None:
    """Return the address of an ordinary CPU tensor; None for others, which are never in a mapped file."""
    ordinary = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return tensor.untyped_storage().data_ptr() if ordinary else None


_DEEPSPEED = (
    "pass slurm_robust.integrations.deepspeed.EngineState(engine) as one entry in place of the engine, its "
    "module, optimizer and scheduler"
)
_MEGATRON = (
    "pass slurm_robust.integrations.megatron.TrainingState(model_chunks, optimizer) as one entry in place of "
    "the model and the optimizer"
)


def refuse_incomplete(entries: Mapping[str, Any]) -> None:
    """Raise :class:`UnsupportedState` with the right way for an entry that does not give its whole state.

    Objects of other frameworks are known by what they are made of: none of the frameworks has to be there.
    """
    for name, entry in entries.items():
        for reason in _reasons(entry):
            raise UnsupportedState(f"entry {name!r} {reason}")


def _reasons(entry: Any) -> Iterator[str]:
    kind = f"is a {type(entry).__qualname__}"
    if isinstance(entry, torch.nn.Module):
        yield from _reasons_of_module(entry, kind)
    elif _descends(entry, "deepspeed", "DeepSpeedOptimizer"):
        yield f"{kind} of DeepSpeed, which keeps its state with the engine: {_DEEPSPEED}"
    elif _descends(entry, "torch.distributed.optim", "ZeroRedundancyOptimizer"):
        yield (
            f"{kind}, whose state_dict() gathers the state of all ranks: pass its part of this rank, "
            "optimizer.optim, and say Checkpointer(…, deduplicate=False), since each rank's is another one"
        )
    elif hasattr(entry, "sharded_state_dict"):
        yield f"{kind}, whose state_dict() lacks the sharded state: {_MEGATRON}"


def _reasons_of_module(module: torch.nn.Module, kind: str) -> Iterator[str]:
    if _descends(module, "deepspeed", "DeepSpeedEngine"):
        yield f"{kind}, whose state_dict() lacks the optimizer and what ZeRO shards: {_DEEPSPEED}"
    elif any(hasattr(parameter, "ds_tensor") for parameter in module.parameters()):
        yield f"has parameters sharded by ZeRO-3, which its state_dict() lacks: {_DEEPSPEED}"
    for inner in module.modules():
        if _descends(inner, "megatron", "MegatronFSDP") or _descends(
            inner, "megatron", "FullyShardedDataParallel"
        ):
            yield (
                "uses Megatron-FSDP, which is not supported: use Megatron's DistributedDataParallel with "
                f"use_distributed_optimizer=True, and {_MEGATRON}"
            )
        elif _descends(inner, "", "FullyShardedDataParallel"):
            yield (
                "uses FullyShardedDataParallel, whose state_dict() gathers the whole model: "
                "use torch.distributed.fsdp.fully_shard"
            )


def _descends(value: object, package: str, name: str) -> bool:
    """Return whether ``value`` is of a class ``name`` in ``package`` ("": any), or of one made from it."""
    return any(
        kind.__name__ == name and (not package or f"{kind.__module__}.".startswith(f"{package}."))
        for kind in type(value).__mro__
    )
