"""The way back from an update: the checkpoint of its step goes to storage while the candidate trains.

Often only memory has it, where newer snapshots take its place. The order goes out right behind the launch,
while all nodes still hold it: an agent locks what it writes, so its workers fill other buffers.
"""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import RECONNECT_S, Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.checkpoints import Checkpoints
from slurm_robust.engine.units.rescue import Rescue
from slurm_robust.model.copies import CheckpointId
from slurm_robust.policy.resharding import Way

LOOK_S = 2.0
"""Nodes that have not reported their copies yet are looked at again after this long."""


class WayBack:
    """A rescue of one checkpoint beside training, once in each generation of the candidate."""

    def __init__(self, context: Context, checkpoints: Checkpoints) -> None:
        self._context, self._checkpoints = context, checkpoints
        self._generation = -1
        self._since = self._looked = 0.0
        self._rescue: Rescue | None = None
        self._is_over = False

    def step(self, now: Now) -> None:
        """Go on with it as long as the candidate trains and storage lacks the checkpoint."""
        context, world = self._context, self._context.world
        ref = self._wanted()
        if ref is None:
            self._generation = -1
            return
        if self._generation != world.generation:
            self._generation, self._since, self._looked = world.generation, now.mono, -LOOK_S
            self._rescue, self._is_over = None, False
        storage = self._checkpoints.storage
        if self._is_over or (storage.listed is None and not storage.settle(now)):
            return
        if storage.has(ref):
            self._is_over = True
            return
        if self._rescue is None and now.mono - self._looked >= LOOK_S:
            self._looked = now.mono
            found = Rescue(context, self._checkpoints, now, Way.SAME, after=-1, only=ref)
            if found.what is not None or now.mono - self._since > RECONNECT_S:
                self._rescue = found
        if self._rescue is None:
            return
        self._rescue.step(now)
        if self._rescue.is_over:
            self._is_over = True
            if self._rescue.stored is None:
                self._say_lost(ref, self._rescue, now)

    def _wanted(self) -> CheckpointId | None:
        """Return what has to get to storage, None while nothing may be written beside training."""
        context, candidate = self._context, self._context.state.candidate
        if candidate is None or candidate.stored or not context.config.checkpoint.memory:
            return None
        is_at_work = context.world.running and context.world.stopping is None
        return candidate.checkpoint if is_at_work and not (context.leaving or context.ending) else None

    def _say_lost(self, ref: CheckpointId, rescue: Rescue, now: Now) -> None:
        why = "no node has all of it" if rescue.newest is None else rescue.why()
        text = (
            f"step {ref.step}, at which the update was applied, could not be put on storage: {why}; "
            "a rollback goes on from what the nodes' memory has of it, else from an older step"
        )
        self._context.note(text, "", now)
        self._context.emit(Say(text=text))
