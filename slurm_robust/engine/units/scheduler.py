"""The checkpoint scheduler: while training runs, which steps are kept, and when one goes to storage."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.storage import StorageListing
from slurm_robust.engine.units.strides import Strides, StridesTold
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.progress import CHECKPOINT, SnapshotTimes
from slurm_robust.policy.checkpoints import (
    LEAD_S,
    agreed_step,
    common_steps,
    is_late,
    step_to_store,
    unkept_every_s,
)
from slurm_robust.policy.leaving import newer_s
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Flush, Progress

RESEND_S = 3.0
_WINDOW = 8


class StepPace:
    """Seconds per step, from the times at which the slowest rank completed its last steps."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_WINDOW)

    def see(self, slowest: Progress, now: Now) -> None:
        """Take in the progress of the slowest rank, as old as it is ``now``."""
        if not self._seen or slowest.step > self._seen[-1][0]:
            self._seen.append((slowest.step, now.mono - slowest.age_s))

    @property
    def seconds_per_step(self) -> float:
        """Mean over the last steps, 0 while unknown."""
        if len(self._seen) < 2:
            return 0.0
        (first, begun), (last, ended) = self._seen[0], self._seen[-1]
        return max(0.0, ended - begun) / (last - first)

    def completed(self, step: int) -> float:
        """Return when all ranks had completed ``step``, which is the newest seen or not long before it."""
        last, at = self._seen[-1]
        return at - (last - step) * self.seconds_per_step

    @property
    def fastest(self) -> float:
        """The shortest of the last steps, 0 while unknown; what seems far too short is a clock's doing."""
        pairs = pairwise(self._seen)
        shortest = min(((b - a) / (after - before) for (before, a), (after, b) in pairs), default=0.0)
        return max(shortest, self.seconds_per_step / 2)


class CheckpointScheduler:
    """Serves one generation. Does nothing if training keeps no checkpoints in memory."""

    def __init__(self, context: Context, storage: StorageListing, told: StridesTold, now: Now) -> None:
        self._context = context
        self._storage = storage
        self._step_times = StepPace()
        self._strides = Strides(context, told, now)
        self._flush = -1  # step that is on its way to storage
        self._sent = 0.0
        self._reached: float | None = None  # when all ranks had completed that step
        self._is_failing = False  # the newest try did not get there
        self._last, self._last_until = -1, 0.0  # step that is kept before an order to end is carried out
        self._stored = 0  # steps of this generation that went there

    def step(self, records: list[Progress], slowest: Progress, now: Now) -> None:
        """Take in the progress of all ranks; ``slowest`` is as old as it is ``now``."""
        if not self._context.config.checkpoint.memory or not all(p.reported for p in records):
            return
        self._step_times.see(slowest, now)
        self._strides.step(records, self._step_times.seconds_per_step, now)
        if self._flush >= 0:
            self._follow_flush(records, now)
        elif self._step_times.seconds_per_step > 0:
            self._begin_flush(records, now)

    def keep_last(self, records: list[Progress], left_s: float | None, now: Now) -> bool:
        """Have a coming step kept, whatever the local stride, before ranks that live are ordered to end.

        Return whether to wait for it: only if the steps that would be lost took longer than that, and for at
        most half of what can be spared of ``left_s``, the seconds until the end.
        """
        if self._last < 0:
            step = self._choose_last(records, left_s, now)
            if step < 0:
                return False
            local, without = self._context.world.local_stride, self._context.unkept
            why = f"otherwise snapshots are taken of multiples of {local} only"
            if without:
                why = f"{fold(without)} has no room in memory for snapshots"
            text = f"step {step} is kept first: {why}"
            self._context.emit(Say(text=text))
            self._last, self._flush, self._reached = step, step, None
            self._send_flush(now)
        return now.mono < self._last_until and not self._is_kept(self._last)

    def _choose_last(self, records: list[Progress], left_s: float | None, now: Now) -> int:
        """Return the step to wait for, -1 for none."""
        context, step_s, newest = (
            self._context,
            self._step_times.seconds_per_step,
            max(p.step for p in records),
        )
        if not context.config.checkpoint.memory or not all(p.reported for p in records):
            return -1
        if step_s <= 0 or 0 <= self._flush <= newest:  # that one is kept already
            return -1
        heartbeats = context.fleet.heartbeats(context.world.slots)
        times = SnapshotTimes.worst(b.snapshots for b in heartbeats.values())
        step = self._flush if self._flush > newest else agreed_step(newest, self._step_times.fastest, LEAD_S)
        takes_s = (step - newest) * step_s + (times.whole_s if times is not None else 0.0)
        most_s = newer_s(left_s, context.config.timings.checkpoint_s)
        self._last_until = now.mono + most_s
        lost = newest % context.world.local_stride
        if context.unkept:
            lost = newest - max(self._storage.newest_step, context.world.restored_step)
        return step if takes_s < min(lost * step_s, most_s) else -1

    def _is_kept(self, step: int) -> bool:
        """Return whether all ranks have a whole snapshot of it, or storage has it."""
        world = self._context.world
        if self._storage.has(CheckpointId(step=step, generation=world.generation)):
            return True
        heartbeats = self._context.fleet.heartbeats(world.slots)
        return len(heartbeats) == len(world.slots) and all(
            step in common_steps(b.copies, world.generation, world.placement.ranks_of(node))
            for node, b in heartbeats.items()
        )

    def _begin_flush(self, records: list[Progress], now: Now) -> None:
        """Choose a step that is still to come, when one is due."""
        config = self._context.config
        newest = max(p.step for p in records)
        lead_s = max(LEAD_S, 2 * config.timings.heartbeat_s)
        agreed = agreed_step(newest, self._step_times.fastest, lead_s)
        rules, every_s = self._context.rules, config.checkpoint.every_s
        if unkept := self._context.unkept:
            spent = [b.spent.get(CHECKPOINT, 0.0) for b in self._context.fleet.heartbeats(unkept).values()]
            every_s = unkept_every_s(max(spent, default=0.0) / max(1, self._stored), rules)
        step = step_to_store(newest, agreed, self._storage.stored_s(now), rules, every_s)
        if step is not None:
            self._flush, self._reached = step, None
            self._send_flush(now)

    def _send_flush(self, now: Now) -> None:
        self._sent, state = now.mono, self._context.state
        order = Flush(epoch=state.epoch, generation=state.world.generation, step=self._flush)
        for node in state.world.slots:
            self._context.send(node, order)

    def _follow_flush(self, records: list[Progress], now: Now) -> None:
        context, state, step = self._context, self._context.state, self._flush
        if self._reached is None and min(p.step for p in records) >= step:
            self._reached = self._step_times.completed(step)
        waited_s = now.mono - self._reached if self._reached is not None else None
        heartbeats = context.fleet.heartbeats(state.world.slots)
        there = {
            n for n, b in heartbeats.items() if b.generation == state.world.generation and b.flushed >= step
        }
        if there.issuperset(state.world.slots):
            context.record(
                ev.StorageWritten(
                    t=now.wall, generation=state.world.generation, step=step, seconds=waited_s or 0.0
                )
            )
            self._stored += 1
            self._storage.prune(now)
            if self._is_failing:
                context.emit(Say(text=f"storage takes checkpoints again: step {step} is there"))
            self._is_failing = False
        else:
            why = {n: b.unflushed for n, b in heartbeats.items() if b.unflushed.startswith(f"step {step}: ")}
            # A rank without room in memory says in the training's output alone that it cannot write.
            is_over = is_late(waited_s, context.rules, refused=bool(why or context.unkept))
            if why or is_over:
                self._say_failed(why, [node for node in state.world.slots if node not in there], now)
            if not is_over:
                if now.mono - self._sent > RESEND_S:
                    self._send_flush(now)
                return
        self._flush = -1
        self._storage.on_stored(now)

    def _say_failed(self, why: dict[str, str], late: list[str], now: Now) -> None:
        """Say once in the job's log that storage fails, until a checkpoint gets there again."""
        context = self._context
        text = f"step {self._flush} did not get onto storage in time: {fold(late)}"
        if why:
            nodes = sorted(why)
            text = f"could not be put on storage by {fold(nodes)}: {why[nodes[0]]}"
        context.note(text, "", now)
        if not self._is_failing:
            stored = self._storage.newest_step
            newer = f"what is newer than step {stored}" if stored >= 0 else "all steps"
            fate = f"only the nodes' memory has {newer}"
            if without := context.unkept:
                fate = f"a fault repeats {newer}: {fold(without)} has no room in memory for snapshots"
            context.emit(Say(text=f"{text}; training goes on, {fate}"))
        self._is_failing = True
