"""What the core knows of copies of checkpoints, put before the pure choice of what to restore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from slurm_robust.checkpoint.peers import peer_slots
from slurm_robust.config.schema import JobConfig
from slurm_robust.controller.effects import FindCheckpoint, Now, Say
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Peer, Tier
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.policy import restore
from slurm_robust.policy.restore import Holding, RestorePlan
from slurm_robust.wire.messages import Beat

if TYPE_CHECKING:
    from slurm_robust.controller.core import Core

# Shared storage that does not answer for so long is gone on without, where memory has all that is needed.
LISTING_S = 20.0
# After TERM the journal has to hold the end before Slurm kills us (KillWait: 30 s).
HURRY_S = 5.0


class Listing:
    """What is complete on storage, as far as the answer has come."""

    def __init__(self) -> None:
        self.generation = -1  # when it was asked for, this one was the newest
        self.since = 0.0
        self.answered = False
        self.complete: Mapping[CheckpointId, Tier] | None = None  # None: storage gave no answer

    def ask(self, core: Core, now: Now) -> None:
        """Have storage listed; the last listing is no longer believed."""
        self.generation, self.since = core.state.generation, now.mono
        self.answered, self.complete = False, None
        core.emit(FindCheckpoint(generation=self.generation))

    def answer(self, generation: int, complete: Mapping[CheckpointId, Tier] | None) -> None:
        """The answer to :meth:`ask`; one to an earlier question is dropped."""
        if generation == self.generation:
            self.answered, self.complete = True, complete

    def overdue(self, now: Now, *, in_a_hurry: bool = False) -> bool:
        """Whether storage hangs."""
        return not self.answered and now.mono - self.since > (HURRY_S if in_a_hurry else LISTING_S)


def layout_of(config: JobConfig, slots: int, nproc_per_node: int) -> ParallelLayout:
    """The parallel layout of a job. Raises :class:`~slurm_robust.model.layout.DoesNotDivide`."""
    parallel = config.parallel
    sizes = {"tp": parallel.tp, "cp": parallel.cp, "ep": parallel.ep, "pp": parallel.pp}
    return ParallelLayout.fit(slots * nproc_per_node, nproc_per_node, sizes, parallel.order)


def layout_now(core: Core) -> ParallelLayout:
    """The layout of the next generation."""
    return layout_of(core.config, len(core.state.slots), core.state.nproc_per_node)


def holdings(core: Core, now: Now) -> list[Holding]:
    """All nodes that answer, with their copies; evicted ones last.

    A copy of another parallel layout is none: the allocation may have come back with another size.
    """
    state = core.state
    identity = layout_now(core).identity()
    foreign = {generation for generation, layout in state.layouts.items() if layout != identity}
    found = []
    for node in sorted(core.fleet.views, key=lambda n: (n in state.evicted, n not in state.slots, n)):
        beat = core.fleet.beat(node)
        silence = core.fleet.silence(node, now.mono, now.mono)
        if beat is None or silence > core.config.timings.node_dead_s:
            continue
        copies = tuple(c for c in beat.copies if c.generation not in foreign)
        found.append(Holding(node=node, copies=copies, address=_for_copies(beat), port=beat.data_port))
    return found


def choose(core: Core, now: Now, *, also_banned: CheckpointId | None = None) -> RestorePlan | None:
    """What the next generation would be restored from now.

    While storage gives no answer, what was sealed is taken to be there. What is banned is taken after
    all when nothing else is left, unless ``also_banned`` asks what would be left without that one too.
    """
    state = core.state
    stored = core.listing.complete
    if stored is None:
        stored = {
            CheckpointId(step=step, generation=generation): Tier.STORAGE
            for generation, step in state.sealed.items()
        }
    banned = {*state.banned, *((also_banned,) if also_banned is not None else ())}
    reach = holdings(core, now)
    for refused in (banned, set[CheckpointId]()):
        plan = restore.choose(
            state.sealed, reach, stored, state.placement, shared=state.shared, banned=refused
        )
        if plan is not None or also_banned is not None:
            return plan
    return None


def only_in_memory(core: Core, now: Now) -> RestorePlan | None:
    """What the next generation would be restored from, if storage does not have it; else None."""
    plan = choose(core, now)
    return (
        None if plan is None or restore.from_shared_tier(plan.tiers) or _is_stored(core, plan.ref) else plan
    )


def needs_memory(core: Core) -> bool:
    """Whether the nodes' copies may hold what counts and storage does not have."""
    state = core.state
    if state.running or state.unsealed:
        return True
    newest = max(state.sealed, default=None)
    return newest is not None and not _is_stored(
        core, CheckpointId(step=state.sealed[newest], generation=newest)
    )


def _is_stored(core: Core, ref: CheckpointId) -> bool:
    stored = core.state.stored
    written = stored is not None and ref == CheckpointId(step=stored.step, generation=stored.generation)
    return written or ref in (core.listing.complete or ())


def memory_suffices(core: Core, now: Now) -> bool:
    """Whether something can be restored without storage."""
    return restore.choose(
        core.state.sealed, holdings(core, now), {}, core.state.placement, shared=core.state.shared
    ) is not None  # fmt: skip


def seal(
    core: Core, generation: int, lost: tuple[str, ...], now: Now, good_step: int | None
) -> tuple[int, bool]:
    """The step with which ``generation`` is sealed now, -1 for none; whether it has a shared part.

    ``lost``: nodes whose workers may live on, so that nothing there is believed. ``good_step``: as in
    :class:`~slurm_robust.model.events.GenerationEnded`.
    """
    state = core.state
    reach = [h for h in holdings(core, now) if h.node not in lost]
    shared = generation in core.shared_seen or any(
        c.rank == SHARED and c.generation == generation for h in reach for c in h.copies
    )
    stored = core.listing.complete or ()
    world = state.placement.world_size
    step = restore.seal(generation, reach, stored, world, shared=shared, newest=good_step)
    return step, shared


def seal_pending(core: Core, now: Now) -> None:
    """Seal what could not be sealed when it ended; for good once storage has told what it has."""
    pending = core.listing.complete is None
    for generation in core.state.unsealed:
        step, shared = seal(core, generation, (), now, core.state.good_steps.get(generation))
        known = core.state.sealed.get(generation, -1)
        if pending and step <= known:
            continue
        core.record(
            ev.GenerationSealed(
                t=now.wall,
                generation=generation,
                sealed_step=max(step, known),
                pending=pending,
                shared=shared,
            )
        )


def judge_restored(
    core: Core, exits: tuple[NodeExit, ...], lost: bool, now: Now, good_step: int | None
) -> None:
    """Ban the checkpoint that the ended generation began with, if its end speaks against it.

    A copy in memory that failed is gone, so the same step may be restored from another one; it is banned
    when that fails too. What storage holds cannot get better. The last one that is left is never banned.
    """
    state = core.state
    restored, failed = state.restored, [e.exit for e in exits if e.exit.failed]
    if restored is None or restored in state.banned:
        return
    signature = f"restore failed: {restored}"
    again = any(a.signature == signature for a in state.in_vain)
    new_steps = state.steps_here > restored.step
    if any(map(restore.failed_to_restore, failed)):
        if not (again or restore.from_shared_tier(state.restored_tiers)):
            return
        reason = "it could not be restored"
    elif good_step == -1:
        reason = "all steps after it had a loss that is no number"
    elif restore.spoils(failed, lost=lost, new_steps=new_steps):
        reason = "training failed with it before a new step was done"
    else:
        return
    if choose(core, now, also_banned=restored) is not None:
        core.record(ev.CheckpointBanned(t=now.wall, checkpoint=restored, reason=reason))
        core.emit(Say(text=f"checkpoint {restored} is not used again: {reason}"))


def note_shared(core: Core, beat: Beat) -> None:
    """Remember of which generations a shared part was ever told: restoring them needs it."""
    core.shared_seen.update(c.generation for c in beat.copies if c.rank == SHARED)


def peers_of(core: Core) -> dict[str, tuple[Peer, ...]]:
    """For each node of the placement where the copies of its ranks go."""
    checkpoint = core.config.checkpoint
    if not (checkpoint.memory and checkpoint.peers):
        return {}
    placement, found = core.state.placement, {}
    known = all(node in core.switches for node in placement.slots)
    switches = tuple(core.switches[node] for node in placement.slots) if known else ()
    for slot, peer in enumerate(peer_slots(layout_now(core), switches)):
        node, beat = placement.slots[slot], core.fleet.beat(placement.slots[peer])
        if beat is not None and beat.data_port:
            to = Peer(rank=0, node=beat.node, address=_for_copies(beat), port=beat.data_port)
            found[node] = tuple(structs.replace(to, rank=rank) for rank in placement.ranks_of(node))
    return found


def _for_copies(beat: Beat) -> str:
    return beat.data_address or beat.address
