"""Which step is restored and where each node gets its parts from. Pure.

A checkpoint is named by its step and the generation that took it. Whatever is chosen was *sealed*: it
lies at or before the step with which the end of its generation was written down. Copies beyond that may
exist (of a rank that lives on behind a cut network, say) and never count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from slurm_robust.model.copies import SHARED, Copy, Source, Tier
from slurm_robust.model.exitcodes import UNUSABLE_COPY
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import FaultKind, Signature
from slurm_robust.model.layout import Placement
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState

_IN_MEMORY = (Tier.MEMORY, Tier.PEER)


class Ref(Record, order=True):
    """A checkpoint: the step after which it was taken, the generation that took it. Newest is greatest."""

    step: int
    generation: int


class Holding(Record):
    """A node within reach: its copies, and where other nodes get them (``port`` 0: nowhere)."""

    node: str
    copies: tuple[Copy, ...]
    address: str = ""
    port: int = 0


class RestorePlan(Record):
    """What the next generation continues from.

    ``sources``: for each node where it finds its parts; for no node any when all is taken from storage.
    ``tiers``: how many ranks get their own part from which tier, as people count: ``memory`` of the
    node itself, a ``peer``'s memory, a ``local`` disk, ``storage``.
    """

    ref: Ref
    sources: dict[str, tuple[Source, ...]]
    tiers: dict[str, int]


class _Where(Record, gc=False):
    """One copy with the node that has it."""

    holder: Holding
    tier: Tier


_Index = dict[Ref, dict[int, list[_Where]]]


def seal(
    generation: int,
    holdings: Iterable[Holding],
    storage: Collection[Ref],
    world_size: int,
    *,
    shared: bool,
    newest: int | None = None,
) -> int:
    """The newest step of ``generation`` of which every part is in reach in any tier, -1 for none.

    ``shared``: copies of a part that is equal on all ranks were seen in this generation, so that part
    is needed too. ``storage`` lists what is complete there. ``newest``: no later step counts.
    """
    steps = [ref.step for ref in storage if ref.generation == generation]
    for ref, parts in _index(holdings).items():
        if ref.generation == generation and _whole(parts, world_size, shared):
            steps.append(ref.step)
    return max((step for step in steps if newest is None or step <= newest), default=-1)


def choose(
    sealed: Mapping[int, int],
    holdings: Sequence[Holding],
    storage: Collection[Ref],
    placement: Placement,
    *,
    shared: Collection[int] = (),
    banned: Collection[Ref] = (),
) -> RestorePlan | None:
    """The newest sealed checkpoint that is within reach, each part from the nearest copy; None for none.

    ``sealed``: newest step that counts, by generation; ``holdings``: nodes in reach, those that others
    should rather ask first; ``storage``: what is complete there; ``shared``: generations with a part
    that is equal on all ranks; ``banned``: what is not to be taken. A checkpoint is taken from storage
    whole or not at all.
    """
    index = _index(holdings)
    for ref in sorted({*index, *storage}, reverse=True):
        if ref in banned or not 0 <= ref.step <= sealed.get(ref.generation, -1):
            continue
        parts = index.get(ref, {})
        plan = _from_nodes(ref, parts, placement, SHARED in parts or ref.generation in shared)
        if plan is not None:
            return plan
        if ref in storage:
            none: dict[str, tuple[Source, ...]] = dict.fromkeys(placement.slots, ())
            return RestorePlan(ref=ref, sources=none, tiers={"storage": placement.world_size})
    return None


def keepers(sealed: Mapping[int, int], storage: Iterable[Ref], keep: int) -> list[Ref]:
    """The newest ``keep`` checkpoints on storage that could be restored, newest first."""
    good = [ref for ref in storage if ref.step <= sealed.get(ref.generation, -1)]
    return sorted(good, reverse=True)[:keep]


def failed_to_restore(exit: WorkerExit) -> bool:
    """Whether this worker ended because a copy that it was to restore was missing or damaged.

    A script that exits with the same number leaves no error.
    """
    return exit.code == UNUSABLE_COPY and exit.error is not None


def spoils(exits: Iterable[WorkerExit], *, lost: bool, new_steps: bool) -> bool:
    """Whether a generation that ended so speaks against the (undamaged) state that it began with.

    It does when workers failed before the first new step for no reason outside of them.
    """
    failed = [exit for exit in exits if exit.failed]
    return bool(failed) and not lost and not new_steps and not any(map(failed_to_restore, failed))


def against(state: JobState, exits: Iterable[WorkerExit], *, lost: bool, good_step: int | None) -> str:
    """Why the checkpoint that a generation began with is not to be used again, "" if it may be.

    ``exits``: of the generation that ended; ``lost``: it also lost nodes; ``good_step``: as in
    :class:`~slurm_robust.model.events.GenerationEnded`.

    A copy in memory that failed is gone, so the same step may be restored from another one; it is banned when
    that fails too. What storage holds cannot get better.
    """
    failed = [exit for exit in exits if exit.failed]
    if any(map(failed_to_restore, failed)):
        signature = restore_failure(state.restored)
        again = any(attempt.signature == signature for attempt in state.in_vain)
        return "it could not be restored" if again or "storage" in state.restored_tiers else ""
    if good_step == -1:
        return "all steps after it had a loss that is no number"
    if spoils(failed, lost=lost, new_steps=state.steps_here > state.restored_step):
        return "training failed with it before a new step was done"
    return ""


def restore_failure(token: str) -> Signature:
    """The signature of a checkpoint that could not be restored."""
    return Signature(kind=FaultKind.RESTORE, key=token)


def _index(holdings: Iterable[Holding]) -> _Index:
    # A large job has a hundred thousand copies, of few steps: what is equal for many is made once.
    found: dict[tuple[int, int], dict[int, list[_Where]]] = defaultdict(lambda: defaultdict(list))
    for holder in holdings:
        where = {tier: _Where(holder=holder, tier=tier) for tier in Tier}
        for copy in holder.copies:
            found[copy.step, copy.generation][copy.rank].append(where[copy.tier])
    return {Ref(step=step, generation=generation): parts for (step, generation), parts in found.items()}


def _whole(parts: Mapping[int, object], world_size: int, shared: bool) -> bool:
    return all(rank in parts for rank in range(world_size)) and (SHARED in parts or not shared)


def _from_nodes(
    ref: Ref, parts: Mapping[int, list[_Where]], placement: Placement, shared: bool
) -> RestorePlan | None:
    if not _whole(parts, placement.world_size, shared):
        return None
    sources: dict[str, tuple[Source, ...]] = {}
    tiers: Counter[str] = Counter()
    asked: Counter[str] = Counter()  # so that not every node asks the same one for the shared part
    for node in placement.slots:
        mine = []
        for rank in (*placement.ranks_of(node), *((SHARED,) if shared else ())):
            found = _nearest(rank, node, parts[rank], asked)
            if found is None:
                return None
            source, tier = found
            mine.append(source)
            if rank != SHARED:
                tiers[tier] += 1
        sources[node] = tuple(mine)
    return RestorePlan(ref=ref, sources=sources, tiers=dict(tiers))


def _nearest(
    rank: int, node: str, copies: Sequence[_Where], asked: Counter[str]
) -> tuple[Source, str] | None:
    """The copy of ``rank`` that ``node`` should take, with the tier as people call it."""
    for tiers, here, far in ((_IN_MEMORY, "memory", "peer"), ((Tier.LOCAL,), "local", "local")):
        near = [c for c in copies if c.tier in tiers and c.holder.node == node]
        if near:
            return Source(rank=rank, tier=near[0].tier), here
        others = [c for c in copies if c.tier in tiers and c.holder.port]
        if others:
            best = min(others, key=lambda c: asked[c.holder.node])
            asked[best.holder.node] += 1
            holder = best.holder
            return Source(rank=rank, tier=best.tier, address=holder.address, port=holder.port), far
    return None


def in_words(step: int, tiers: Mapping[str, int]) -> str:
    """``step 1234 from memory (14 parts), peer (2)``."""
    return f"step {step} from {tiers_in_words(tiers)}"


def tiers_in_words(tiers: Mapping[str, int]) -> str:
    """``memory (14 parts), peer (2)``."""
    return ", ".join(_parts(tiers))


def _parts(tiers: Mapping[str, int]) -> Iterator[str]:
    for i, tier in enumerate(t.value for t in Tier if t.value in tiers):
        unit = "" if i else " part" if tiers[tier] == 1 else " parts"
        yield f"{tier} ({tiers[tier]}{unit})"
