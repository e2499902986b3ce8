"""A rescue: what only the nodes' memory has goes to storage, so that any node can restore it.

First the newest checkpoint that nodes can write whole. A node that refuses one writes no part of it any more,
and a silent node writes nothing: others that hold the same parts do, else an older checkpoint goes there.
"""

from __future__ import annotations

from collections import defaultdict

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.checkpoints import Checkpoints
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.policy.resharding import Way
from slurm_robust.policy.restore import ToStore
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Heartbeat, Save

RESEND_S = 2.0


class Rescue:
    """Orders the nodes to write, until one checkpoint is on storage or none can get there.

    Whoever steps it sets the time limit. Writing that is only slow is never given up for an older checkpoint:
    both would have to share the way to storage.
    """

    def __init__(
        self,
        context: Context,
        checkpoints: Checkpoints,
        now: Now,
        way: Way,
        *,
        after: int,
        wanted: CheckpointId | None = None,
        only: CheckpointId | None = None,
    ) -> None:
        """``way``, ``after``, ``only``: of :meth:`Checkpoints.to_store`; ``wanted``: the newest there is."""
        self._context, self._checkpoints = context, checkpoints
        self._way, self._after, self._only = way, after, only
        self._since, self._begun = now.mono, now.wall
        self._sent: float | None = None
        self._refused: set[tuple[str, CheckpointId]] = set()
        self._silent: set[str] = set()
        self._why: dict[str, str] = {}  # what a node said first
        self._written: defaultdict[CheckpointId, set[int]] = defaultdict(set)  # ranks
        self._now = self._choose(now)
        self._stored: CheckpointId | None = None
        self.newest = wanted or (self._now.ref if self._now is not None else None)
        """What would be lost, None if memory has nothing that storage lacks."""

    @property
    def what(self) -> ToStore | None:
        """What the nodes write now; None when nothing is left that they could."""
        return self._now

    @property
    def stored(self) -> CheckpointId | None:
        """What is on storage now."""
        return self._stored

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self._now is None or self._stored is not None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is lost."""
        return self._stored == self.newest

    def give_up(self) -> None:
        """Have no further rescue before the next generation: what did not get onto storage never will."""
        self._checkpoints.give_up()

    def waited_s(self, now: Now) -> float:
        """Return the seconds since it began."""
        return now.mono - self._since

    def why(self) -> str:
        """Return why the newest did not get onto storage: which nodes did not write, and what others said."""
        silent = {*self._silent, *(self._late() if self._stored is None else ())} - self._why.keys()
        said = [f"{node}: {text}" for node, text in self._why.items()]
        if silent:
            said.insert(0, f"{fold(sorted(silent))} did not write it to storage")
        return "; ".join(said) or "no node has both its shared part and that of rank 0"

    def holders(self, now: Now) -> tuple[str, ...]:
        """Return living nodes that together have all parts of the newest checkpoint, () if they lack some."""
        if self.newest is None:
            return ()
        after = self.newest.step - 1
        found = self._checkpoints.to_store(now, self._way, after=after, without=self._silent)
        return tuple(found.writers) if found is not None and found.ref == self.newest else ()

    def step(self, now: Now) -> None:
        """Hear the nodes; order again, or order something else if nodes fail."""
        context, what = self._context, self._now
        if what is None or self._stored is not None:
            return
        is_first = not (self._refused or self._silent)
        for node, ranks in what.writers.items():
            heartbeat = context.fleet.heartbeat(node)
            if heartbeat is not None and heartbeat.saved is not None:
                # An agent of an earlier release names no ranks: it has written those of the first order.
                asked = ranks if is_first and heartbeat.saved == what.ref else ()
                self._written[heartbeat.saved].update(heartbeat.saved_ranks or asked)
        late = self._late()
        if not late:
            ref, seconds = what.ref, self.waited_s(now)
            self._stored = ref
            context.record(
                ev.StorageWritten(t=now.wall, generation=ref.generation, step=ref.step, seconds=seconds)
            )
            self._checkpoints.storage.on_written(ref)
            if what.anew:
                self._checkpoints.new_parts.on_stored(what, now)
        elif self._sent is not None and self._fails(what.ref, late, now):
            self._now = self._choose(now)
            self._say_turn(what.ref, now)
            self._send(now)
        elif self._sent is None or now.mono - self._sent > RESEND_S:
            self._send(now)

    def _choose(self, now: Now) -> ToStore | None:
        return self._checkpoints.to_store(
            now,
            self._way,
            after=self._after,
            without=self._silent,
            refused=self._refused,
            only=self._only,
        )

    def _late(self) -> list[str]:
        """Return the nodes whose parts are not on storage yet."""
        if self._now is None:
            return []
        written = self._written[self._now.ref]
        return [node for node, ranks in self._now.writers.items() if not written.issuperset(ranks)]

    def _fails(self, ref: CheckpointId, late: list[str], now: Now) -> bool:
        """Return whether one of these says that it cannot write ``ref``, or has died."""
        fleet, dead_s = self._context.fleet, self._context.config.timings.node_dead_s
        known = len(self._refused) + len(self._silent)
        for node in late:
            heartbeat = fleet.heartbeat(node)
            if heartbeat is not None and self._refuses(heartbeat, ref):
                self._refused.add((node, ref))
                self._why.setdefault(node, heartbeat.unsaved)
            elif fleet.silence(node, now.mono, self._since) > dead_s:
                self._silent.add(node)
        return len(self._refused) + len(self._silent) > known

    def _refuses(self, heartbeat: Heartbeat, ref: CheckpointId) -> bool:
        """Return whether this answers an order of this rescue; agents of an earlier release do not tell."""
        return heartbeat.unsaved.startswith(f"{ref}: ") and heartbeat.save_begun in (self._begun, 0.0)

    def _say_turn(self, ref: CheckpointId, now: Now) -> None:
        """Say what is written in place of ``ref``, or by whom that is."""
        if self._now is None:
            return
        if self._now.ref == ref:
            text = f"{self.why()}: {ref} goes to storage from {fold(sorted(self._now.writers))}"
        else:
            text = f"{ref} could not be put on storage: {self.why()}; {self._now.ref} goes there instead"
        self._context.note(text, "", now)
        self._context.emit(Say(text=text))

    def _send(self, now: Now) -> None:
        self._sent = now.mono
        if self._now is None:
            return
        for node, ranks in self._now.writers.items():
            order = Save(
                epoch=self._context.state.epoch,
                checkpoint=self._now.ref,
                ranks=ranks,
                world_size=self._now.world_size,
                layout=self._now.layout,
                begun=self._begun,
                anew={rank: source for rank, source in self._now.anew.items() if rank in ranks},
            )
            self._context.send(node, order)


def last_rescue(context: Context, checkpoints: Checkpoints, now: Now) -> Rescue | None:
    """Begin the rescue before the job leaves its nodes: what can be restored, and only memory has.

    None if memory has nothing that storage lacks.
    """
    if not context.config.checkpoint.memory:
        return None
    checkpoints.copies.seal_pending(now, awaited=_may_report(context, now))
    # If nothing has begun yet with this number of ranks, the checkpoint of the earlier ones is newest.
    way = checkpoints.copies.way(context.world.generation)
    plan = checkpoints.only_in_memory(now) if way is Way.SAME else None
    made = checkpoints.new_parts.find(now)  # newer than the plan
    if plan is None and made is None and way is Way.SAME:
        return None
    after = checkpoints.storage.newest_step
    if plan is not None:  # storage may have a later step that no restore would take
        after = min(after, plan.ref.step - 1)
    wanted = plan.ref if plan is not None and not made else None
    rescue = Rescue(context, checkpoints, now, way, after=after, wanted=wanted)
    return rescue if rescue.newest is not None else None


def _may_report(context: Context, now: Now) -> bool:
    """Return whether a node that does not answer may come back to the job, with what its memory holds."""
    state, fleet, dead_s = context.state, context.fleet, context.config.timings.node_dead_s
    kept = (node for node in (*state.world.slots, *state.spares) if node not in state.evicted)
    return any(
        fleet.heartbeat(node) is None or fleet.is_silent(node, dead_s, now.mono, now.mono) for node in kept
    )
