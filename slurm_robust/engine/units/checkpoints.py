"""The checkpoints of the job: what nodes and storage hold, and what the next generation restores."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial

from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import RECONNECT_S, Context
from slurm_robust.engine.questions import FindCheckpoint, NoAnswer, Prune
from slurm_robust.engine.units.new_parts import NewParts
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Peer, Tier
from slurm_robust.model.layout import ParallelLayout, Placement
from slurm_robust.policy import resharding, restore
from slurm_robust.policy.beginning import Beginning, beginning
from slurm_robust.policy.checkpoints import LISTING_HURRY_S, LISTING_S
from slurm_robust.policy.missing_parts import MissingParts, missing_parts
from slurm_robust.policy.peers import peer_slots
from slurm_robust.policy.resharding import Way
from slurm_robust.policy.restore import Holding, RestorePlan, ToStore
from slurm_robust.util.text import count
from slurm_robust.wire.messages import Heartbeat

PRUNE_EVERY_S = 1.0  # each reads a folder on shared storage


def layout_of(config: JobConfig, slots: int, nproc_per_node: int) -> ParallelLayout:
    """Return the parallel layout of a job. Raises :class:`~slurm_robust.model.layout.DoesNotDivide`."""
    parallel = config.parallel
    sizes = {"tp": parallel.tp, "cp": parallel.cp, "ep": parallel.ep, "pp": parallel.pp}
    return ParallelLayout.fit(slots * nproc_per_node, nproc_per_node, sizes, parallel.order)


class Checkpoints:
    """Builds the input of :mod:`slurm_robust.policy.restore` from the copies that the fleet reports."""

    def __init__(self, context: Context, now: Now) -> None:
        self._context = context
        stored = context.world.stored
        # When a checkpoint last went to storage, or was tried to.
        self._stored_at = now.mono - (max(0.0, now.wall - stored.t) if stored else 0.0)
        self._published: tuple[int, int, float] = (0, -1, now.mono)  # generation, step, when
        self._shared: set[int] = set()  # generations of which a shared part was reported
        self._listing = 0  # of the newest question
        self._asked = -1  # the newest generation when storage was asked
        self._asked_at = 0.0
        self._answered = False
        self._gave_up = -1  # the generation after which nothing can be put on storage before the next one
        self._listed: Mapping[CheckpointId, Tier] | None = None
        self._written: dict[CheckpointId, Tier] = {}  # the newest that nodes have rescued
        self.new_parts = NewParts(context, self._holdings, self.choose, self.layout)

    # -- storage -----------------------------------------------------------------------------------

    @property
    def asked(self) -> int:
        """The newest generation when storage was last asked for a list; -1 before."""
        return self._asked

    @property
    def answered(self) -> bool:
        """Whether the answer to the last question has come."""
        return self._answered

    @property
    def listed(self) -> Mapping[CheckpointId, Tier] | None:
        """What is complete on storage by its last answer; None if there is none, or if that was no list."""
        return self._listed

    def ask_storage(self, now: Now) -> None:
        """Have storage listed; the last list is no longer believed."""
        self._asked, self._asked_at = self._context.world.generation, now.mono
        self._listing += 1
        self._answered, self._listed = False, None
        self._context.ask(FindCheckpoint(), now, partial(self._on_listed, self._listing))

    def _on_listed(self, listing: int, complete: Mapping[CheckpointId, Tier] | NoAnswer, now: Now) -> None:
        """Take in a listing; an answer to an earlier question is dropped."""
        if isinstance(complete, NoAnswer) and not (complete.late or complete.is_error):
            text = f"checkpoints on storage cannot be listed: {complete.reason}"
            self._context.record(ev.StageDone(t=now.wall, what="find checkpoint", ok=False, detail=text))
        if listing == self._listing:
            self._answered = True
            self._listed = None if isinstance(complete, NoAnswer) else {**self._written, **complete}

    def on_written(self, ref: CheckpointId) -> None:
        """Remember that nodes have put ``ref`` on storage: a listing without it is behind (caches of NFS)."""
        self._written = {ref: Tier.STORAGE}

    def is_overdue(self, now: Now, *, in_a_hurry: bool = False) -> bool:
        """Return whether storage hangs."""
        limit_s = LISTING_HURRY_S if in_a_hurry else LISTING_S
        return not self._answered and now.mono - self._asked_at > limit_s

    def is_older(self, seconds: float, now: Now) -> bool:
        """Return whether storage was last asked so long ago."""
        return now.mono - self._asked_at > seconds

    def stored_s(self, now: Now) -> float:
        """Return the seconds since a checkpoint was last written to storage, or a write was tried."""
        return now.mono - self._stored_at

    def on_stored(self, now: Now) -> None:
        """Remember when a checkpoint was last written to storage, or a write was tried."""
        self._stored_at = now.mono

    def on_published(self, step: int, now: Now) -> None:
        """Take in ``step``, the newest that workers have written to storage by themselves; -1 for none."""
        generation, known, at = self._published
        is_new = step >= 0 and (self._context.world.generation, step) != (generation, known)
        if is_new and now.mono - at >= PRUNE_EVERY_S:
            generation = self._context.world.generation
            self._published = (generation, step, now.mono)
            self.on_stored(now)
            # A later run must know that there was one, even if all of this one dies and storage loses it.
            self._context.record(ev.StorageWritten(t=now.wall, generation=generation, step=step, seconds=0.0))
            self.prune(now)

    def prune(self, now: Now) -> None:
        """Have old checkpoints removed from storage; there is a newer one."""
        world = self._context.world
        self._context.ask(Prune(sealed=world.sealed, generation=world.generation), now, self._on_pruned)

    def _on_pruned(self, answer: NoAnswer | None, now: Now) -> None:
        if isinstance(answer, NoAnswer):
            self._context.note(f"old checkpoints could not be removed: {answer.reason}", "", now)

    # -- nodes -------------------------------------------------------------------------------------

    def layout(self) -> ParallelLayout:
        """Return the layout of the next generation."""
        state = self._context.state
        return layout_of(self._context.config, len(state.world.slots), state.world.nproc_per_node)

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
        for slot, peer in enumerate(peer_slots(self.layout(), switches)):
            node, heartbeat = placement.slots[slot], context.fleet.heartbeat(placement.slots[peer])
            if heartbeat is not None and heartbeat.data_port:
                to = Peer(
                    rank=0, node=heartbeat.node, address=_for_copies(heartbeat), port=heartbeat.data_port
                )
                found[node] = tuple(structs.replace(to, rank=rank) for rank in placement.ranks_of(node))
        return found

    def way(self, generation: int) -> Way:
        """Return how the next generation can use the checkpoints of an earlier one."""
        return resharding.way(self._context.world.layouts.get(generation, ""), self.layout())

    def _holdings(self, now: Now, *, of: int | None = None) -> list[Holding]:
        """Return all nodes that answer, with their copies; evicted ones last.

        A copy of another parallel layout does not count: the allocation may have come back with another size.
        ``of``: a generation of which all do.
        """
        state, fleet = self._context.state, self._context.fleet
        layout = self.layout()
        foreign = {g for g, old in state.world.layouts.items() if resharding.way(old, layout) is not Way.SAME}
        foreign.discard(of)
        found = []
        for node in sorted(fleet.views, key=lambda n: (n in state.evicted, n not in state.world.slots, n)):
            heartbeat = fleet.heartbeat(node)
            dead_s = self._context.config.timings.node_dead_s
            if heartbeat is None or fleet.is_silent(node, dead_s, now.mono, now.mono):
                continue
            copies = tuple(c for c in heartbeat.copies if c.generation not in foreign)
            found.append(
                Holding(node=node, copies=copies, address=_for_copies(heartbeat), port=heartbeat.data_port)
            )
        return found

    # -- what is restored --------------------------------------------------------------------------

    def choose(self, now: Now, *, also_banned: CheckpointId | None = None) -> RestorePlan | None:
        """Return what the next generation would be restored from now.

        While storage gives no answer, what was sealed is taken to be there. A banned checkpoint is taken
        after all when nothing else is left, unless ``also_banned`` asks what would be left without that one.
        """
        state = self._context.state
        stored = self._listed
        if stored is None:
            stored = {
                CheckpointId(step=step, generation=generation): Tier.STORAGE
                for generation, step in state.world.sealed.items()
            }
        stored = {ref: tier for ref, tier in stored.items() if self.way(ref.generation) is not Way.REFUSE}
        banned = {*state.world.banned, *((also_banned,) if also_banned is not None else ())}
        reach = self._holdings(now)
        for refused in (banned, set[CheckpointId]()):
            plan = restore.choose(
                state.world.sealed,
                reach,
                stored,
                state.world.placement,
                shared=state.world.shared,
                banned=refused,
            )
            if plan is not None or also_banned is not None:
                return plan
        return None

    def layout_to_cut(self, plan: RestorePlan | None) -> str:
        """Return the identity of the layout that took the restored checkpoint if it differs, else ""."""
        if plan is None or self.way(plan.ref.generation) is Way.SAME:
            return ""
        return self._context.world.layouts[plan.ref.generation]

    def cut_text(self, plan: RestorePlan) -> str:
        """Return what people are told if ranks have come or gone since the checkpoint was taken, else ""."""
        before, now = self._world_of(plan.ref.generation), self._context.world.placement.world_size
        if before == now:
            return ""
        return (
            f"{count(before, 'rank')} took it and {now} go on: what all ranks share and what is sharded is "
            "restored bit by bit; random number generators are new ones"
        )

    def beginning(self, now: Now) -> Beginning | None:
        """Judge whether the next generation may begin at step 0; None if it can restore a checkpoint."""
        if self.choose(now) is not None:
            return None
        state = self._context.state
        place = self._context.config.checkpoint.directory or ""
        stored = state.world.newest_on_storage
        if stored is not None and stored.step > state.world.good_steps.get(stored.generation, stored.step):
            stored = None  # it holds numbers that are not finite
        return beginning(
            state.world.sealed,
            stored,
            self._listed or (),
            state.world.layouts,
            self.layout(),
            place=place,
            in_memory=self._of_other_ranks(now),
        )

    def _of_other_ranks(self, now: Now) -> set[CheckpointId]:
        """Return the sealed checkpoints of other layouts of which the nodes hold every part."""
        state, found = self._context.state, set()
        for generation, step in state.world.sealed.items():
            if self.way(generation) is Way.SAME:
                continue
            world, shared = self._world_of(generation), generation in state.world.shared
            newest = restore.seal(
                generation, self._holdings(now, of=generation), (), world, shared=shared, newest=step
            )
            if newest >= 0:
                found.add(CheckpointId(step=newest, generation=generation))
        return found

    def goes_first(self, now: Now) -> Way | None:
        """Return in which way memory's newest checkpoint is restored that must go to storage before a launch.

        It can be restored only from there if another number of ranks took it, or if some of its parts must be
        made anew. None if no such checkpoint is newer than what is restored without it.
        """
        if self._listed is None or self._gave_up == self._context.world.generation:
            return None
        if self.new_parts.find(now) is not None:
            return Way.SAME
        found = self.to_store(now, Way.RESHARD, after=self.restorable(now))
        return Way.RESHARD if found is not None else None

    def restorable(self, now: Now) -> int:
        """Return the step from which the next generation would go on now, -1 for the beginning."""
        plan = self.choose(now)
        return plan.ref.step if plan is not None else -1

    def to_store(
        self,
        now: Now,
        way: Way,
        *,
        after: int,
        without: Collection[str] = (),
        refused: Collection[tuple[str, CheckpointId]] = (),
    ) -> ToStore | None:
        """Return the newest checkpoint later than step ``after`` that only nodes have and can write whole.

        ``way``: to the next generation; ``without``: nodes that write nothing; ``refused``: nodes that cannot
        write that one. A banned one is taken when there is no other at all.
        """
        made = self.new_parts.find(now, without, refused) if way is Way.SAME else None
        if made is not None and made.ref.step > after:
            return made
        state, found = self._context.state, []
        for generation, sealed in state.world.sealed.items():
            if self.way(generation) is way:
                reach = [h for h in self._holdings(now, of=generation) if h.node not in without]
                found += [(ref, reach) for ref in restore.held_steps(generation, reach, sealed)]
        for ref, reach in sorted(found, key=lambda f: (f[0] not in state.world.banned, f[0]), reverse=True):
            if ref.step <= after or self._is_stored(ref) or (ref in state.world.banned and after >= 0):
                continue
            fit = [holder for holder in reach if (holder.node, ref) not in refused]
            world = self._world_of(ref.generation)
            writers = restore.writers(ref, fit, world, shared=ref.generation in state.world.shared)
            if writers is not None:
                layout = state.world.layouts.get(ref.generation) or self.layout().identity()
                return ToStore(ref=ref, writers=writers, world_size=world, layout=layout)
        return None

    def give_up(self) -> None:
        """Give up what :meth:`goes_first` found: it, or the newest of it, cannot be put on storage."""
        self._gave_up = self._context.world.generation

    def only_in_memory(self, now: Now) -> RestorePlan | None:
        """Return what the next generation would be restored from, if storage does not have it; else None."""
        plan = self.choose(now)
        if plan is None or restore.from_shared_tier(plan.tiers) or self._is_stored(plan.ref):
            return None
        return plan

    def need_memory(self) -> bool:
        """Return whether the nodes' copies may hold what counts and storage does not have."""
        state = self._context.state
        if state.world.running or state.world.unsealed:
            return True
        newest = max(state.world.sealed, default=None)
        return newest is not None and not self._is_stored(
            CheckpointId(step=state.world.sealed[newest], generation=newest)
        )

    def can_spare(self, node: str, now: Now) -> bool:
        """Return whether a complete checkpoint of this generation has replaced the copies on ``node``."""
        state, heartbeat = self._context.state, self._context.fleet.heartbeat(node)
        if heartbeat is None:  # of a new controller the agent may not know yet
            return now.mono - self._context.started > RECONNECT_S
        if not heartbeat.copies:
            return True
        if state.world.stored is not None and state.world.stored.generation == state.world.generation:
            return True
        step, _ = self.seal(state.world.generation, tuple(state.evicted), now, None)
        return step >= 0

    def repeated(self, without: tuple[str, ...], now: Now) -> int:
        """Return how many steps of this generation a restore repeats that lacks the copies on ``without``."""
        context, state = self._context, self._context.state
        if not (context.config.checkpoint.memory and state.world.running and state.world.reports):
            return 0
        step, _ = self.seal(state.world.generation, without, now, None)
        if state.world.stored is not None and state.world.stored.generation == state.world.generation:
            step = max(step, state.world.stored.step)
        return max(0, state.world.steps_here - max(step, state.world.restored_step))

    def memory_suffices(self, now: Now) -> bool:
        """Return whether something can be restored without storage."""
        state = self._context.state
        plan = restore.choose(
            state.world.sealed, self._holdings(now), {}, state.world.placement, shared=state.world.shared
        )
        return plan is not None

    def _is_stored(self, ref: CheckpointId) -> bool:
        stored = self._context.world.stored
        written = stored is not None and ref == CheckpointId(step=stored.step, generation=stored.generation)
        return written or ref in (self._listed or ())

    def newest_stored(self) -> int:
        """Return the newest step on storage that a restore may take, -1 for none."""
        state, found = self._context.state, set(self._listed or ())
        if state.world.stored is not None:
            found.add(CheckpointId(step=state.world.stored.step, generation=state.world.stored.generation))
        if state.world.newest_on_storage is not None and self._listed is None:
            found.add(state.world.newest_on_storage)
        unsealed = (*state.world.unsealed, *((state.world.generation,) if state.world.running else ()))
        limits = state.world.sealed | {g: state.world.good_steps.get(g, math.inf) for g in unsealed}
        may = [r for r in found if r not in state.world.banned and r.step <= limits.get(r.generation, -1)]
        return max((ref.step for ref in may), default=-1)

    # -- the end of a generation -------------------------------------------------------------------

    def record_end(self, reason: str, now: Now) -> None:
        """Write down that all its ranks ended by themselves; what they left in memory counts."""
        generation = self._context.world.generation
        step, shared = self.seal(generation, (), now, None)
        self._context.record(
            ev.GenerationEnded(
                t=now.wall, generation=generation, reason=reason, sealed_step=step, shared=shared
            )
        )

    def seal(
        self, generation: int, lost: tuple[str, ...], now: Now, good_step: int | None
    ) -> tuple[int, bool]:
        """Return the step that seals ``generation`` now, -1 for none; whether it has a shared part.

        ``lost``: nodes whose workers may live on, so that nothing there is believed. ``good_step``: as in
        :class:`~slurm_robust.model.events.GenerationEnded`.
        """
        reach = [h for h in self._holdings(now, of=generation) if h.node not in lost]
        shared = generation in self._shared or any(
            c.rank == SHARED and c.generation == generation for h in reach for c in h.copies
        )
        # What was complete on storage counts even if storage has lost it: it may come back.
        known = self._context.world.newest_on_storage
        there = {*(self._listed or ()), *((known,) if known is not None else ())}
        world = self._world_of(generation)
        return restore.seal(generation, reach, there, world, shared=shared, newest=good_step), shared

    def is_stored(self, generation: int, step: int) -> bool:
        """Return whether storage is known to have this checkpoint."""
        return step >= 0 and self._is_stored(CheckpointId(step=step, generation=generation))

    def _world_of(self, generation: int) -> int:
        """Return how many ranks ``generation`` had."""
        if self.way(generation) is Way.SAME:
            return self._context.world.placement.world_size
        try:
            return ParallelLayout.from_identity(self._context.world.layouts[generation]).world_size
        except ValueError:
            return self._context.world.placement.world_size

    def missing(self, gone: Collection[str], now: Now, newest: int | None = None) -> MissingParts | None:
        """Return a step of this generation that needs parts on ``gone``, newer than all that do not.

        None for none. ``newest``: no later step counts.
        """
        state = self._context.state
        if not self._context.config.checkpoint.memory or state.world.generation not in state.world.layouts:
            return None
        reach = [h for h in self._holdings(now) if h.node not in gone]
        heard = {h.node for h in reach}
        away = {*gone, *(node for node in state.world.slots if node not in heard)}
        step, shared = self.seal(state.world.generation, tuple(away), now, newest)
        if state.world.stored is not None and state.world.stored.generation == state.world.generation:
            step = max(step, state.world.stored.step)
        return missing_parts(
            state.world.generation,
            reach,
            state.world.placement,
            shared=shared,
            after=step,
            newest=newest,
            gone=away,
        )

    def given_away(self, plan: RestorePlan | None, now: Now) -> MissingParts | None:
        """Return what the last generation ended with, or else began with, if nodes still hold parts of it.

        None if it is no newer than ``plan``. It was whole then: nodes were lost since.
        """
        state = self._context.state
        last = state.world.sealed.get(state.world.generation)
        refs = [CheckpointId(step=last, generation=state.world.generation)] if last is not None else []
        refs += [state.world.restored] if state.world.restored is not None else []
        reach = self._holdings(now)
        heard = {holder.node for holder in reach}
        for ref in refs:
            if state.world.running or ref in state.world.banned or (plan is not None and ref <= plan.ref):
                continue
            is_last = ref.generation == state.world.generation
            if any(self.way(g) is not Way.SAME for g in (ref.generation, state.world.generation)):
                continue  # its ranks are others
            found = missing_parts(
                ref.generation,
                reach,
                Placement(slots=state.world.trained_on, nproc_per_node=state.world.nproc_per_node),
                shared=ref.generation in state.world.shared,
                after=ref.step - 1,
                newest=ref.step,
                # Only of the last generation is it known on which nodes its ranks ran.
                gone=[node for node in state.world.trained_on if node not in heard or not is_last],
            )
            if found is not None:
                return found if is_last else structs.replace(found, nodes=())
        return None

    def left(self, gone: Collection[str], now: Now) -> str:
        """Return from which step training would go on without ``gone``: ``step 10 from storage``, say."""
        state = self._context.state
        step, _ = (
            self.seal(state.world.generation, tuple(gone), now, None) if state.world.running else (-1, False)
        )
        stored = state.world.stored
        if stored is not None and stored.generation == state.world.generation:
            step = max(step, stored.step)
        if step >= 0:
            on_storage = self._is_stored(CheckpointId(step=step, generation=state.world.generation))
            return f"step {step} from {Tier.STORAGE.value if on_storage else 'memory'}"
        plan = self.choose(now)
        return restore.format_source(plan.ref.step, plan.tiers) if plan is not None else "the beginning"

    def seal_pending(self, now: Now, *, awaited: bool = False) -> None:
        """Seal what could not be sealed when it ended; for good once storage has listed what it has.

        ``awaited``: not for good, since nodes have not reported what their memory holds.
        """
        state, pending = self._context.state, awaited or self._listed is None
        for generation in state.world.unsealed:
            step, shared = self.seal(generation, (), now, state.world.good_steps.get(generation))
            known = state.world.sealed.get(generation, -1)
            if pending and step <= known:
                continue
            self._context.record(
                ev.GenerationSealed(
                    t=now.wall,
                    generation=generation,
                    sealed_step=max(step, known),
                    pending=pending,
                    shared=shared,
                    stored=self.is_stored(generation, max(step, known)),
                )
            )


def _for_copies(heartbeat: Heartbeat) -> str:
    return heartbeat.data_address or heartbeat.address
