"""A checkpoint of one layout restored into another one: other ranks, or ranks that are sharded otherwise.

What a rank of the new layout gets:

* Shared state, and what its *replicas* (the old ranks that differ from it in data parallelism alone) hold
  alike: as it is.
* Shards (FSDP2, HSDP): cut anew out of the replicas' shards. Every byte is one that was stored.
* What differs from replica to replica: buffers of modules and entries that hold no floating-point numbers
  (a position in the data, generators) are each rank's own. A rank with an old rank of its own place goes on
  with that one's. A new rank takes the first replica's buffers, and its other entries stay as the script has
  built them, except for entries that ask for the first replica's (:data:`FIRST`).
* The global random number generators: new ones, from what the old first rank's were, the step and the rank.
  They are the same whenever the same checkpoint is restored into the same layout. If no rank has come or
  gone, each keeps its own.

Anything else raises :class:`CannotReshard`: if parameters or an optimizer's state differ from rank to rank
and are no shards, only the framework that has cut them up can put them together.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from slurm_robust.checkpoint import dcp, shards
from slurm_robust.checkpoint.errors import CannotReshard, EntryMismatch
from slurm_robust.checkpoint.fit import refuse_other_names
from slurm_robust.checkpoint.generators import new_generators
from slurm_robust.checkpoint.header import PartHeader, check_header
from slurm_robust.checkpoint.part import PartItem, Sidecar, read_sidecar, verify_items
from slurm_robust.checkpoint.state import FIRST, Snapshot, Stateful, Training, Unread, unwrapped
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tree import unflatten
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.layout import ParallelLayout, replicas, source_rank

_log = logging.getLogger(__name__)

WHOLE = "needs_its_layout"
"""An entry with this attribute can be restored only into the layout that took it.

The attribute has two texts: why that is so, and another way, with its "or".
"""


@dataclass(frozen=True)
class _Part:
    """The part of one old rank: its tree, with an item in place of each tensor."""

    rank: int
    path: Path
    sidecar: Sidecar
    own: dict[str, Any]
    rng: dict[str, Any]


@dataclass(frozen=True)
class _Piece:
    """A block of a tensor, and its place on storage."""

    part: _Part
    item: PartItem
    at: tuple[int, ...]


@dataclass
class _Reader:
    """Reads items, each verified once."""

    found: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def tensor(self, part: _Part, item: PartItem) -> torch.Tensor:
        """Return the tensor, which lies in a mapped file. Raises :class:`CorruptPart` or ``OSError``."""
        key = part.rank, item.offset
        if key not in self.found:
            verify_items(part.path, part.sidecar, [item])
            self.found[key] = dcp.read_tensors(part.path, part.sidecar, [item])[0]
        return self.found[key]


def load_resharded(
    store: CheckpointStore,
    checkpoint: CheckpointId,
    training: Training,
    *,
    runs: Sequence[str],
    rank: int,
    old: ParallelLayout,
    new: ParallelLayout,
) -> Snapshot:
    """Return the state of ``rank`` of the layout ``new`` from a checkpoint that the ranks of ``old`` wrote.

    ``runs``: the ids of the run and of those whose checkpoints it may read.

    Raises :class:`CannotReshard`, another :class:`~slurm_robust.checkpoint.errors.CheckpointError` or
    ``OSError``.
    """
    among = [_part(store, checkpoint, r, runs, old) for r in replicas(rank, old, new)]
    before = source_rank(rank, old, new)
    mine = next((part for part in among if part.rank == before), None)
    return _Resharding(training, among, mine, old, new).snapshot(
        first=among[0] if among[0].rank == 0 else _part(store, checkpoint, 0, runs, old),
        checkpoint=checkpoint,
        rank=rank,
        same_ranks=old.world_size == new.world_size,
    )


class _Resharding:
    """One rank's restore. ``mine``: the part of the old rank of its own place, None for a new rank."""

    def __init__(
        self,
        training: Training,
        among: Sequence[_Part],
        mine: _Part | None,
        old: ParallelLayout,
        new: ParallelLayout,
    ) -> None:
        self._training = training
        self._among = among
        self._mine = mine
        self._old = old
        self._new = new
        self._reader = _Reader()
        self._placed: set[int] = set()
        self._kept: set[str] = set()
        self._new_here: list[str] = []

    def snapshot(self, first: _Part, checkpoint: CheckpointId, rank: int, *, same_ranks: bool) -> Snapshot:
        """Return all of it."""
        refuse_other_names(str(first.path), first.own, self._training)
        own = {name: self._entry(name, unwrapped(entry)) for name, entry in self._training.entries.items()}
        if same_ranks and self._mine is not None:
            rng = self._read(self._mine, self._mine.rng)
        else:
            if self._new_here:
                _log.warning(
                    "rank %d is new, and each rank had another state of %s: it begins as the script built it",
                    rank,
                    ", ".join(map(repr, self._new_here)),
                )
            rng = new_generators(
                self._read(first, first.rng),
                checkpoint.step,
                rank,
                self._new.identity(),
                devices=torch.cuda.device_count(),
            )
        shared_items = [item for item in first.sidecar.items if item.shared]
        shared: dict[str, Any] = {}
        if first.sidecar.shared:
            items = [item for item in shared_items if item.dtype]
            tree = unflatten(first.sidecar.shared, [_marked(item) for item in items])
            shared = self._read(first, tree)
        return Snapshot(
            own={name: value for name, value in own.items() if name not in self._kept},
            shared=shared,
            rng=rng,
            placed=frozenset(self._placed),
            kept=frozenset(self._kept),
        )

    def _cannot(self, why: str, or_else: str = "") -> CannotReshard:
        """Return the error with what to do about it; ``or_else``: another way, with its "or"."""
        nodes, rest = divmod(self._old.world_size, self._new.nproc_per_node)
        option = "--nodes and --nproc-per-node" if rest else f"--nodes {nodes}"
        return CannotReshard(
            f"{why}; submit a new job that trains on {self._old.world_size} ranks as before (srobust run "
            f"{option}){or_else}"
        )

    def _entry(self, name: str, target: Stateful) -> Any:
        if isinstance(target, Unread) or name not in self._among[0].own:
            self._kept.add(name)
            return {}
        if reason := getattr(target, WHOLE, ""):
            raise self._cannot(
                f"entry {name!r} cannot be restored into another number of ranks: {reason[0]}", reason[1]
            )
        trees = [part.own[name] for part in self._among]
        mine = (self._mine or self._among[0]).own[name]
        if isinstance(target, nn.Module):
            return self._module(name, target, mine)
        if isinstance(target, Optimizer) and isinstance(mine, dict) and "param_groups" in mine:
            return self._optimizer(name, target, mine)
        alike = all(_alike(tree, trees[0]) for tree in trees)
        if not alike:
            # Refuse what looks like numbers of a model: rank for rank others, and no shards
            for tree in trees:
                for item in _items(tree):
                    if getattr(torch, item.dtype).is_floating_point:
                        raise self._cannot(
                            f"entry {name!r} holds different floating-point tensors on each rank, and "
                            "nothing says how they belong together",
                            ", or let state_dict() return what is equal on all ranks",
                        )
            if self._mine is None and not getattr(target, FIRST, False):
                self._new_here.append(name)
                self._kept.add(name)
                return {}
        return self._read(self._mine or self._among[0], mine)

    def _module(self, name: str, target: nn.Module, mine: dict[str, Any]) -> dict[str, Any]:
        live, parameters = target.state_dict(), {n for n, _ in target.named_parameters()}
        found = _empty_like(mine)
        for key, value in mine.items():
            stored = [part.own[name].get(key) for part in self._among]
            what = f"{key!r} of entry {name!r}"
            may_differ = key not in parameters
            found[key] = self._value(value, stored, live.get(key), what, may_differ=may_differ)
        return found

    def _optimizer(self, name: str, target: Optimizer, mine: dict[str, Any]) -> dict[str, Any]:
        found = _empty_like(mine)
        for key, value in mine.items():
            if key != "state":
                stored = [part.own[name].get(key) for part in self._among]
                what = f"{key!r} of entry {name!r}"
                found[key] = self._value(value, stored, None, what, may_differ=False)
        likes = dict(shards.numbered(target, mine))
        state: dict[Any, Any] = {}
        for number, values in mine["state"].items():
            state[number] = _empty_like(values) if isinstance(values, dict) else values
            for key, value in values.items() if isinstance(values, dict) else ():
                stored = [part.own[name]["state"].get(number, {}).get(key) for part in self._among]
                what = f"{key!r} of parameter {number} of entry {name!r}"
                state[number][key] = self._value(value, stored, likes.get(number), what, may_differ=False)
        found["state"] = state
        return found

    def _value(self, value: Any, stored: Sequence[Any], like: Any, what: str, *, may_differ: bool) -> Any:
        """Return ``value`` of the part that this rank takes after; ``stored``: the same of all replicas."""
        kind = shards.dtensor()
        is_cut = kind is not None and isinstance(like, kind)
        pieces = list(self._pieces(stored, like))
        if pieces and (shards.is_shard(value) or is_cut):
            return self._cut(pieces, like, what)
        source = self._mine or self._among[0]
        if all(_alike(other, stored[0]) for other in stored):
            return self._read(source, value)
        if may_differ:
            return self._read(source, value)
        raise self._cannot(
            f"{what} differs from rank to rank and is no shard that PyTorch describes (DTensor)",
            ", or use fully_shard, whose shards can be resharded",
        )

    def _pieces(self, stored: Sequence[Any], like: Any) -> Iterator[_Piece]:
        """Return the blocks of a tensor; none if it is stored as something else."""
        seen = set()
        for part, value in zip(self._among, stored, strict=True):
            item = shards.local(value) if shards.is_shard(value) else value
            if not isinstance(item, _Marked):
                continue
            whole = item.item.whole if shards.is_shard(value) else item.item.shape
            if not shards.is_shard(value) and (like is None or tuple(like.shape) != item.item.shape):
                continue  # a number beside the shards, such as an optimizer's count of steps
            at = item.item.at if shards.is_shard(value) else tuple(0 for _ in item.item.shape)
            if whole is None or 0 in item.item.shape or (at, item.item.shape) in seen:
                continue
            seen.add((at, item.item.shape))
            yield _Piece(part, item.item, at)

    def _cut(self, pieces: Sequence[_Piece], like: Any, what: str) -> Any:
        if like is None:
            raise self._cannot(f"{what} is sharded in the checkpoint, and the script has no tensor for it")
        whole = pieces[0].item.whole if pieces[0].item.whole is not None else pieces[0].item.shape
        if tuple(like.shape) != tuple(whole):
            raise EntryMismatch(
                f"{what} had the shape {list(whole)} and has {list(like.shape)}: run the code that wrote it"
            )
        at, sizes = shards.region(like)
        local = torch.empty(sizes, dtype=getattr(torch, pieces[0].item.dtype))
        covered = 0
        for piece in pieces:
            covered += self._copy(piece, local, at)
        if covered != local.numel():
            raise self._cannot(
                f"{what} is sharded in a way that slurm_robust does not know ({covered} of {local.numel()} "
                "numbers were found)"
            )
        self._placed.add(local.untyped_storage().data_ptr())
        return shards.stored_as(like, local)

    def _copy(self, piece: _Piece, into: torch.Tensor, at: Sequence[int]) -> int:
        """Copy what of a piece is in ``into``, which begins at ``at``; returns how many numbers."""
        source, target, count = [], [], 1
        for begin, size, other, length in zip(at, into.shape, piece.at, piece.item.shape, strict=True):
            low, high = max(begin, other), min(begin + size, other + length)
            if low >= high:
                return 0
            source.append(slice(low - other, high - other))
            target.append(slice(low - begin, high - begin))
            count *= high - low
        into[tuple(target)].copy_(self._reader.tensor(piece.part, piece.item)[tuple(source)])
        return count

    def _read(self, part: _Part, tree: Any) -> Any:
        """Return ``tree`` of ``part`` with the tensors in place of their items."""
        if isinstance(tree, _Marked):
            return self._reader.tensor(part, tree.item)
        if isinstance(tree, dict):
            made = _empty_like(tree)
            for key, value in tree.items():
                made[key] = self._read(part, value)
            return made
        if type(tree) in (list, tuple):
            return type(tree)(self._read(part, value) for value in tree)
        return tree


@dataclass(frozen=True)
class _Marked:
    """Stands for a tensor in a tree."""

    item: PartItem


def _marked(item: PartItem) -> Any:
    return _Marked(item)


def _part(
    store: CheckpointStore, checkpoint: CheckpointId, rank: int, runs: Sequence[str], layout: ParallelLayout
) -> _Part:
    path = store.part_path(checkpoint, rank, layout.world_size)
    sidecar = read_sidecar(path)
    run_id = sidecar.header.run_id if sidecar.header.run_id in runs else runs[0]
    expected = PartHeader.of(checkpoint, rank, run_id=run_id, layout="", world_size=layout.world_size)
    fix = f"it was moved: remove the folder {path.parent}"
    check_header(sidecar.header, expected, path, any_layout=True, fix=fix)
    items = [_marked(item) for item in sidecar.items if item.dtype and not item.shared]
    tree = unflatten(sidecar.own, items, ("own", "rng"))
    return _Part(rank=rank, path=path, sidecar=sidecar, own=tree["own"], rng=tree["rng"])


def _alike(one: Any, other: Any) -> bool:
    """Return whether two trees are equal, their tensors by their sums."""
    if isinstance(one, _Marked) and isinstance(other, _Marked):
        a, b = one.item, other.item
        return (a.sum, a.length, a.dtype, a.shape) == (b.sum, b.length, b.dtype, b.shape)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other) or (one != one and other != other)


def _items(tree: Any) -> Iterator[PartItem]:
    if isinstance(tree, _Marked):
        yield tree.item
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _items(value)
    elif type(tree) in (list, tuple):
        for value in tree:
            yield from _items(value)


def _empty_like(tree: Any) -> dict[Any, Any]:
    made: Any = type(tree)()
    if hasattr(tree, "_metadata"):
        made._metadata = tree._metadata
    empty: dict[Any, Any] = made
    return empty
