"""What is complete on shared storage: storage is asked for a list, and what goes there meanwhile is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.questions import FindCheckpoint, NoAnswer, Prune
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.policy.beginning import RELIST_S
from slurm_robust.policy.checkpoints import LISTING_HURRY_S, LISTING_S

PRUNE_EVERY_S = 1.0  # each reads a folder on shared storage


class StorageListing:
    """The newest list of storage. It is made once a generation; ranks report what they write after that."""

    def __init__(self, context: Context, now: Now) -> None:
        self._context = context
        stored = context.world.stored
        # When a checkpoint last went to storage, or was tried to.
        self._stored_at = now.mono - (max(0.0, now.wall - stored.t) if stored else 0.0)
        self._published: tuple[int, int, float] = (0, -1, now.mono)  # generation, step, when
        self._number = 0  # of the newest question
        self._asked = -1  # the newest generation when storage was asked; -1: it must be asked
        self._asked_at = 0.0
        self._answered = False
        self._listed: Mapping[CheckpointId, Tier] | None = None
        self._written: dict[CheckpointId, Tier] = {}  # the newest that nodes have rescued

    @property
    def listed(self) -> Mapping[CheckpointId, Tier] | None:
        """The complete checkpoints that storage has listed; None without a list."""
        return self._listed

    def settle(self, now: Now) -> bool:
        """Have storage listed once for each generation; return whether the list is known or given up."""
        world = self._context.world
        if not (world.running or world.sealed or world.unsealed):
            return True  # nothing was trained that could be there
        if self._asked != world.generation:
            self._ask(now)
        limit_s = LISTING_HURRY_S if self._context.leaving else LISTING_S
        return self._answered or now.mono - self._asked_at > limit_s

    def ask_again(self, now: Now) -> bool:
        """Ask again if the last answer is old; return whether it was asked."""
        is_due = (self._answered or self._asked < 0) and now.mono - self._asked_at > RELIST_S
        if is_due:
            self._ask(now)
        return is_due

    def _ask(self, now: Now) -> None:
        """Have storage listed; the last list is no longer believed."""
        self._asked, self._asked_at = self._context.world.generation, now.mono
        self._number += 1
        self._answered, self._listed = False, None
        self._context.ask(FindCheckpoint(), now, partial(self._on_listed, self._number))

    def _on_listed(self, number: int, complete: Mapping[CheckpointId, Tier] | NoAnswer, now: Now) -> None:
        """Take in a listing; an answer to an earlier question is dropped."""
        if isinstance(complete, NoAnswer) and not (complete.late or complete.is_error):
            text = f"checkpoints on storage cannot be listed: {complete.reason}"
            self._context.record(ev.StageDone(t=now.wall, what="find checkpoint", ok=False, detail=text))
        if number == self._number:
            self._answered = True
            self._listed = None if isinstance(complete, NoAnswer) else {**self._written, **complete}

    def find(self, now: Now, then: Callable[[list[CheckpointId] | NoAnswer, Now], None]) -> None:
        """Have storage listed now, and tell ``then`` which of its checkpoints count, newest first."""

        def on_listed(complete: Mapping[CheckpointId, Tier] | NoAnswer, now: Now) -> None:
            if isinstance(complete, NoAnswer):
                then(complete, now)
                return
            if self._listed is not None:
                self._listed = {**self._written, **complete}
            then(self._counting(complete), now)

        self._context.ask(FindCheckpoint(), now, on_listed)

    def _counting(self, complete: Iterable[CheckpointId]) -> list[CheckpointId]:
        world = self._context.world
        unsealed = (*world.unsealed, *((world.generation,) if world.running else ()))
        limits = world.sealed | {g: world.good_steps.get(g, math.inf) for g in unsealed}
        may = (r for r in complete if r not in world.banned and r.step <= limits.get(r.generation, -1))
        return sorted(may, reverse=True)

    def has(self, ref: CheckpointId) -> bool:
        """Return whether storage is known to have this checkpoint."""
        stored = self._context.world.stored
        written = stored is not None and ref == CheckpointId(step=stored.step, generation=stored.generation)
        return written or ref in self._written or ref in (self._listed or ())

    @property
    def newest_step(self) -> int:
        """The newest step on storage that a restore may take, -1 for none."""
        return next((ref.step for ref in self.counting), -1)

    @property
    def counting(self) -> list[CheckpointId]:
        """Those on storage that a restore may take, by what is known, newest first."""
        world, found = self._context.world, {*(self._listed or ()), *self._written}
        if world.stored is not None:
            found.add(CheckpointId(step=world.stored.step, generation=world.stored.generation))
        if world.newest_on_storage is not None and self._listed is None:
            found.add(world.newest_on_storage)
        return self._counting(found)

    # -- what goes there ---------------------------------------------------------------------------

    def on_written(self, ref: CheckpointId) -> None:
        """Take in that nodes have put ``ref`` there: the list is behind, and so may be the next one (caches
        of NFS).
        """
        self._written, self._asked = {ref: Tier.STORAGE}, -1

    def stored_s(self, now: Now) -> float:
        """Return the seconds since a checkpoint was last written to storage, or a write was tried."""
        return now.mono - self._stored_at

    def on_stored(self, now: Now) -> None:
        """Remember when a checkpoint was last written to storage, or a write was tried."""
        self._stored_at = now.mono

    def on_published(self, step: int, now: Now) -> None:
        """Take in ``step``, the newest that workers have written to storage by themselves; -1 for none."""
        world = self._context.world
        if self._context.config.checkpoint.memory and step in world.held_steps and not self._context.unkept:
            return  # ranks that wait for an update have kept it in memory only
        if self.has(CheckpointId(step=step, generation=world.generation)):
            return
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
        """Have old checkpoints removed from storage; there is a newer one.

        What a candidate may have to go back to stays, and what a waiting update is to go on from.
        """
        state, world = self._context.state, self._context.world
        back = state.candidate.checkpoint if state.candidate is not None else None
        asked = Prune(
            sealed=world.sealed,
            generation=world.generation,
            needed=(back,) if back is not None else (),
            until=state.update.from_step if state.update is not None else -1,
        )
        self._context.ask(asked, now, self._on_pruned)

    def _on_pruned(self, answer: NoAnswer | None, now: Now) -> None:
        if isinstance(answer, NoAnswer):
            self._context.note(f"old checkpoints could not be removed: {answer.reason}", "", now)
