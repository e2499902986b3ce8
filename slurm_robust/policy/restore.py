"""Which step is restored and from where each node gets its parts. Pure.

A checkpoint is named by its step and the generation that took it. Whatever is chosen was *sealed*: it
lies at or before the step with which the end of its generation was written down. Copies beyond that may
exist (of a rank that lives on behind a cut network, say) and never count.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from slurm_robust.model.copies import SHARED, CheckpointId, Copy, RestoreSource, Tier
from slurm_robust.model.errors import UNUSABLE_COPY
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import Blame, Fault, FaultKind, Signature, Verdict
from slurm_robust.model.layout import Placement
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState


class Holding(Record):
    """A node within reach: its copies, and the address at which other nodes get them."""

    node: str
    copies: tuple[Copy, ...]
    address: str = ""
    port: int = 0
    """0: nowhere."""


class RestorePlan(Record):
    """What the next generation continues from."""

    ref: CheckpointId
    sources: dict[str, tuple[RestoreSource, ...]]
    """For each node the sources of its parts."""
    tiers: dict[str, int]
    """How many ranks get their own part from which tier, as people count: ``memory`` of the node itself, a
    ``peer``'s memory, a ``local`` disk, ``storage``.
    """


class ToStore(Record):
    """A checkpoint that nodes have to put on storage."""

    ref: CheckpointId
    writers: dict[str, tuple[int, ...]]
    """Which node writes the parts of which ranks."""
    world_size: int
    layout: str
    anew: dict[int, int] = {}
    """Ranks whose parts are lost, and from which rank's they are made."""


class _Where(Record, gc=False):
    """One copy with the node that has it."""

    holder: Holding
    tier: Tier
    distance: int


_Index = dict[CheckpointId, dict[int, list[_Where]]]


def seal(
    generation: int,
    holdings: Iterable[Holding],
    storage: Collection[CheckpointId],
    world_size: int,
    *,
    shared: bool,
    newest: int | None = None,
) -> int:
    """Return the newest step of ``generation`` of which each part is in reach in any tier, -1 for none.

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
    storage: Mapping[CheckpointId, Tier],
    placement: Placement,
    *,
    shared: Collection[int] = (),
    banned: Collection[CheckpointId] = (),
) -> RestorePlan | None:
    """Choose the newest sealed checkpoint within reach, each part from the nearest copy; None for none.

    ``sealed``: newest step that counts, by generation; ``holdings``: nodes in reach, preferred ones first;
    ``storage``: what is complete on a shared tier, and on which; ``shared``: generations with a part that is
    equal on all ranks; ``banned``: what must not be taken. A checkpoint is taken from a shared tier whole or
    not at all.
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
            tier = storage[ref]
            sources = {
                node: tuple(RestoreSource(rank=rank, tier=tier) for rank in placement.ranks_of(node))
                for node in placement.slots
            }
            return RestorePlan(ref=ref, sources=sources, tiers={tier.value: placement.world_size})
    return None


def until(sealed: Mapping[int, int], step: int) -> dict[int, int]:
    """Return ``sealed`` if nothing counts that is later than ``step``."""
    return {generation: min(step, last) for generation, last in sealed.items()}


def chosen(counting: Iterable[CheckpointId], step: int) -> CheckpointId | None:
    """Return the newest of ``counting`` at or below ``step``, by which a person names a checkpoint."""
    return max((ref for ref in counting if ref.step <= step), default=None)


def from_shared_tier(tiers: Mapping[str, int]) -> bool:
    """Return whether a checkpoint with these tiers (:class:`RestorePlan`) comes from a shared one."""
    return any(Tier(tier).is_shared for tier in tiers)


def retained(sealed: Mapping[int, int], storage: Iterable[CheckpointId], keep: int) -> list[CheckpointId]:
    """Return the newest ``keep`` checkpoints on storage that could be restored, newest first."""
    good = [ref for ref in storage if ref.step <= sealed.get(ref.generation, -1)]
    return sorted(good, reverse=True)[:keep]


def protected(
    sealed: Mapping[int, int],
    generation: int,
    storage: Collection[CheckpointId],
    keep: int,
    needed: Collection[CheckpointId] = (),
    up_to: int = -1,
) -> set[CheckpointId]:
    """Return what stays on storage in any case, where ``generation`` runs.

    That is what may be restored: the newest step of each ended generation, the newest ``keep``, ``needed``,
    and the newest up to step ``up_to``, which may be of the generation that runs.
    """
    chosen = until({generation: up_to, **sealed}, up_to)
    return {
        *(CheckpointId(step=step, generation=ended) for ended, step in sealed.items()),
        *retained(sealed, storage, keep),
        *needed,
        *retained(chosen, storage, 1),
    }


def writers(
    ref: CheckpointId,
    holdings: Sequence[Holding],
    world_size: int,
    *,
    shared: bool,
    anew: Mapping[int, int] = MappingProxyType({}),
) -> dict[str, tuple[int, ...]] | None:
    """Return which node puts the parts of which ranks of ``ref`` on storage; None if they cannot all be.

    ``shared``: the generation has a part that is equal on all ranks. It is written with rank 0's, so the node
    that writes rank 0's has to hold it, too. ``anew``: ranks whose parts are made from those of others.
    """
    parts = dict(_index(holdings).get(ref, {}))
    parts |= {rank: parts[source] for rank, source in anew.items() if source in parts}
    if not _whole(parts, world_size, shared):
        return None
    found: dict[str, list[int]] = defaultdict(list)
    has_shared = {where.holder.node for where in parts.get(SHARED, ())}
    for rank in range(world_size):
        fit = [where for where in parts[rank] if rank or not shared or where.holder.node in has_shared]
        if not fit:
            return None
        best = min(fit, key=lambda where: (where.distance, where.tier is Tier.PEER, where.holder.node))
        found[best.holder.node].append(rank)
    return {node: tuple(ranks) for node, ranks in found.items()}


def held_steps(generation: int, holdings: Sequence[Holding], newest: int) -> list[CheckpointId]:
    """Return checkpoints of ``generation`` up to step ``newest`` that nodes hold parts of, newest first."""
    refs = {copy.checkpoint for holder in holdings for copy in holder.copies}
    return sorted((r for r in refs if r.generation == generation and 0 <= r.step <= newest), reverse=True)


def cannot_reshard(exit: WorkerExit) -> bool:
    """Return whether this worker ended because the checkpoint cannot be cut up for this number of ranks."""
    return exit.error is not None and exit.error.type == "slurm_robust.checkpoint.errors.CannotReshard"


def failed_to_restore(exit: WorkerExit) -> bool:
    """Return whether this worker ended because a copy that it had to restore was missing or damaged.

    A script that exits with the same number leaves no error.
    """
    return exit.code == UNUSABLE_COPY and exit.error is not None


def against(state: JobState, exits: Iterable[WorkerExit], *, good_step: int | None) -> str:
    """Say why the checkpoint that a generation began with is not to be used again, "" if it may be.

    ``exits``: of the generation that ended; ``good_step``: as in
    :class:`~slurm_robust.model.events.GenerationEnded`.

    A copy in memory that failed is gone, so the same step may be restored from another one; it is banned when
    that fails too. What storage holds cannot get better.
    """
    if state.world.restored is not None and any(map(failed_to_restore, exits)):
        signature = restore_failure(state.world.restored)
        again = any(attempt.signature == signature for attempt in state.world.without_progress)
        return "it could not be restored" if again or from_shared_tier(state.world.restored_tiers) else ""
    return "all steps after it had a non-finite loss" if good_step == -1 else ""


def spoils(fault: Fault, verdict: Verdict, state: JobState) -> bool:
    """Return whether the verdict on ``fault`` speaks against the (undamaged) state that it began with.

    ``state``: as it was before the decision. It does when training ends before the first new step, again in
    the same way, although every rank had restored, and nothing else explains it: no node, no place in code,
    no signal that comes from outside (:data:`ITS_OWN`).
    """
    root = fault.root
    if (
        root is None
        or fault.lost
        or not fault.all_restored
        or state.world.steps_here > state.world.restored_step
    ):
        return False
    unexplained = verdict.blame is Blame.NOBODY and verdict.signature.kind is FaultKind.EXIT
    again = any(attempt.signature == verdict.signature for attempt in state.world.without_progress)
    return unexplained and again and (root.exit.signal is None or root.exit.signal in ITS_OWN)


ITS_OWN = frozenset(
    (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)
"""Signals that a process gets for what it does itself. All others come from outside: from the kernel for want
of memory, from Slurm, from a person.
"""


def restore_failure(checkpoint: CheckpointId) -> Signature:
    """Return the signature of a checkpoint that could not be restored."""
    return Signature(kind=FaultKind.RESTORE, key=str(checkpoint))


def _index(holdings: Iterable[Holding]) -> _Index:
    # A large job has a hundred thousand copies, of few steps: what is equal for many is made once.
    found: dict[tuple[int, int], dict[int, list[_Where]]] = defaultdict(lambda: defaultdict(list))
    for holder in holdings:
        where = {t: _Where(holder=holder, tier=t, distance=t.distance) for t in Tier}
        for copy in holder.copies:
            found[copy.step, copy.generation][copy.rank].append(where[copy.tier])
    return {
        CheckpointId(step=step, generation=generation): parts for (step, generation), parts in found.items()
    }


def _whole(parts: Mapping[int, object], world_size: int, shared: bool) -> bool:
    return all(rank in parts for rank in range(world_size)) and (SHARED in parts or not shared)


def _from_nodes(
    ref: CheckpointId, parts: Mapping[int, list[_Where]], placement: Placement, shared: bool
) -> RestorePlan | None:
    if not _whole(parts, placement.world_size, shared):
        return None
    sources: dict[str, tuple[RestoreSource, ...]] = {}
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
) -> tuple[RestoreSource, str] | None:
    """Return the copy of ``rank`` that ``node`` should take, with the tier as people call it."""
    reach = [c for c in copies if c.holder.port or c.holder.node == node]
    if not reach:
        return None
    best = min(reach, key=lambda c: (c.distance, c.holder.node != node, asked[c.holder.node]))
    holder, tier = best.holder, best.tier
    if holder.node == node:
        return RestoreSource(rank=rank, tier=tier), Tier.MEMORY.value if tier.in_memory else tier.value
    asked[holder.node] += 1
    source = RestoreSource(rank=rank, tier=tier, address=holder.address, port=holder.port)
    return source, Tier.PEER.value if tier.in_memory else tier.value


def format_source(step: int, tiers: Mapping[str, int]) -> str:
    """Return a text such as ``step 1234 from memory (14 parts), peer (2)``."""
    return f"step {step} from {format_tiers(tiers)}"


def format_tiers(tiers: Mapping[str, int]) -> str:
    """Return a text such as ``memory (14 parts), peer (2)``."""
    return ", ".join(_parts(tiers))


def _parts(tiers: Mapping[str, int]) -> Iterator[str]:
    for i, tier in enumerate(t.value for t in Tier if t.value in tiers):
        unit = "" if i else " part" if tiers[tier] == 1 else " parts"
        yield f"{tier} ({tiers[tier]}{unit})"
