"""What nodes hold of checkpoints: the copies that their agents report, and what is whole among them."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.units.storage import StorageListing
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Peer
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.policy import resharding, restore
from slurm_robust.policy.missing_parts import MissingParts, missing_parts
from slurm_robust.policy.peers import peer_slots
from slurm_robust.policy.resharding import Way
from slurm_robust.policy.restore import Holding
from slurm_robust.wire.messages import Heartbeat


class HeldCopies:
    """Builds the input of :mod:`slurm_robust.policy.restore`, and seals generations by it."""

    def __init__(self, context: Context, storage: StorageListing) -> None:
        self._context, self._storage = context, storage
        self._shared: set[int] = set()  # generations of which a shared part was reported

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Remember of which generations a shared part was ever reported: restoring them needs it."""
        self._shared.update(c.generation for c in heartbeat.copies if c.rank == SHARED)

    def peers(self) -> dict[str, tuple[Peer, ...]]:
        """Return where the copies of its ranks go, for each node of the placement."""
        context, config = self._context, self._context.config.checkpoint
        if not (config.memory and config.peers):
            return {}
        placement, found = context.world.placement, {}
        known = all(node in context.switches for node in placement.slots)
        switches = tuple(context.switches[node] for node in placement.slots) if known else ()
        for slot, peer in enumerate(peer_slots(self._context.layout, switches)):
            node, heartbeat = placement.slots[slot], context.fleet.heartbeat(placement.slots[peer])
            if heartbeat is not None and heartbeat.data_port:
                to = Peer(
                    rank=0, node=heartbeat.node, address=_for_copies(heartbeat), port=heartbeat.data_port
                )
                found[node] = tuple(structs.replace(to, rank=rank) for rank in placement.ranks_of(node))
        return found

    def way(self, generation: int) -> Way:
        """Return how the next generation can use the checkpoints of an earlier one."""
        return resharding.way(self._context.world.layouts.get(generation, ""), self._context.layout)

    def reach(self, now: Now, *, of: int | None = None) -> list[Holding]:
        """Return all nodes that answer, with their copies; evicted ones last.

        A copy of another parallel layout does not count: the allocation may have come back with another size.
        ``of``: a generation of which all do.
        """
        state, fleet = self._context.state, self._context.fleet
        layout, placement = self._context.layout, state.world.placement
        foreign = {g for g, old in state.world.layouts.items() if resharding.way(old, layout) is not Way.SAME}
        foreign.discard(of)
        found = []
        for node in sorted(fleet.views, key=lambda n: (n in state.evicted, not placement.holds(n), n)):
            heartbeat = fleet.heartbeat(node)
            dead_s = self._context.config.timings.node_dead_s
            if heartbeat is None or fleet.is_silent(node, dead_s, now.mono, now.mono):
                continue
            copies = tuple(c for c in heartbeat.copies if c.generation not in foreign)
            found.append(
                Holding(node=node, copies=copies, address=_for_copies(heartbeat), port=heartbeat.data_port)
            )
        return found

    def world_of(self, generation: int) -> int:
        """Return how many ranks ``generation`` had."""
        if self.way(generation) is Way.SAME:
            return self._context.world.placement.world_size
        try:
            return ParallelLayout.from_identity(self._context.world.layouts[generation]).world_size
        except ValueError:
            return self._context.world.placement.world_size

    def of_other_ranks(self, now: Now) -> set[CheckpointId]:
        """Return the sealed checkpoints of other layouts of which the nodes hold every part."""
        state, found = self._context.state, set()
        for generation, step in state.world.sealed.items():
            if self.way(generation) is Way.SAME:
                continue
            world, shared = self.world_of(generation), generation in state.world.shared
            newest = restore.seal(
                generation, self.reach(now, of=generation), (), world, shared=shared, newest=step
            )
            if newest >= 0:
                found.add(CheckpointId(step=newest, generation=generation))
        return found

    # -- what is whole -----------------------------------------------------------------------------

    def seal(
        self, generation: int, lost: tuple[str, ...], now: Now, good_step: int | None
    ) -> tuple[int, bool]:
        """Return the step that seals ``generation`` now, -1 for none; whether it has a shared part.

        ``lost``: nodes whose workers may live on, so that nothing there is believed. ``good_step``: as in
        :class:`~slurm_robust.model.events.GenerationEnded`.
        """
        reach = [h for h in self.reach(now, of=generation) if h.node not in lost]
        shared = generation in self._shared or any(
            c.rank == SHARED and c.generation == generation for h in reach for c in h.copies
        )
        # What was complete on storage counts even if storage has lost it: it may come back.
        known = self._context.world.newest_on_storage
        there = {*(self._storage.listed or ()), *((known,) if known is not None else ())}
        world = self.world_of(generation)
        return restore.seal(generation, reach, there, world, shared=shared, newest=good_step), shared

    def newest_without(self, gone: Collection[str], now: Now, newest: int | None = None) -> int:
        """Return the newest step of this generation that is whole without ``gone``, -1 for none.

        ``newest``: no later step of memory counts.
        """
        world = self._context.world
        step, _ = self.seal(world.generation, tuple(gone), now, newest)
        here = world.stored is not None and world.stored.generation == world.generation
        return max(step, world.stored.step) if here and world.stored is not None else step

    def seal_pending(self, now: Now, *, awaited: bool = False) -> None:
        """Seal what could not be sealed when it ended; for good once storage has listed what it has.

        ``awaited``: not for good, since nodes have not reported what their memory holds.
        """
        state, pending = self._context.state, awaited or self._storage.listed is None
        for generation in state.world.unsealed:
            step, shared = self.seal(generation, (), now, state.world.good_steps.get(generation))
            known = state.world.sealed.get(generation, -1)
            if pending and step <= known:
                continue
            sealed = CheckpointId(step=max(step, known), generation=generation)
            self._context.record(
                ev.GenerationSealed(
                    t=now.wall,
                    generation=generation,
                    sealed_step=sealed.step,
                    pending=pending,
                    shared=shared,
                    stored=self._storage.has(sealed),
                )
            )

    def missing(self, gone: Collection[str], now: Now, newest: int | None = None) -> MissingParts | None:
        """Return a step of this generation that needs parts on ``gone``, newer than all that do not.

        None for none. ``newest``: no later step counts.
        """
        state = self._context.state
        if not self._context.config.checkpoint.memory or state.world.generation not in state.world.layouts:
            return None
        reach = [h for h in self.reach(now) if h.node not in gone]
        heard = {h.node for h in reach}
        away = {*gone, *(node for node in state.world.slots if node not in heard)}
        _, shared = self.seal(state.world.generation, tuple(away), now, newest)
        return missing_parts(
            state.world.generation,
            reach,
            state.world.placement,
            shared=shared,
            after=self.newest_without(away, now, newest),
            newest=newest,
            gone=away,
        )


def _for_copies(heartbeat: Heartbeat) -> str:
    return heartbeat.data_address or heartbeat.address
