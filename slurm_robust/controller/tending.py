"""What is done about copies while training runs: which steps go to peers, and when one goes to storage."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from slurm_robust.controller.effects import Now
from slurm_robust.controller.stages.checkpointing import LEAD_S, agreed_step
from slurm_robust.model import events as ev
from slurm_robust.policy.pace import next_stride
from slurm_robust.wire.messages import Flush, Pace, Progress

if TYPE_CHECKING:
    from slurm_robust.controller.core import Core

RESEND_S = 3.0
# Between two changes of the stride the lag must be measured anew.
SETTLE_S = 5.0
# Steps are written within this time, or the next interval's are (longer with longer intervals).
WRITE_S = 60.0
_WINDOW = 8


class Tempo:
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
        """When all ranks had completed ``step``, which is the newest seen or not long before it."""
        last, at = self._seen[-1]
        return at - (last - step) * self.seconds_per_step

    @property
    def fastest(self) -> float:
        """The shortest of the last steps, 0 while unknown; what seems far too short is a clock's doing."""
        pairs = pairwise(self._seen)
        shortest = min(((b - a) / (after - before) for (before, a), (after, b) in pairs), default=0.0)
        return max(shortest, self.seconds_per_step / 2)


class Tending:
    """Looks after the copies of one generation. Does nothing where training keeps none in memory."""

    def __init__(self, now: Now) -> None:
        self._tempo = Tempo()
        self._paced = self._changed = now.mono
        self._flush = -1  # step that is on its way to storage
        self._sent = 0.0
        self._reached: float | None = None  # when all ranks had completed that step

    def step(self, core: Core, records: list[Progress], slowest: Progress, now: Now) -> None:
        """Look at the progress of all ranks; ``slowest`` is as old as it is ``now``."""
        if not core.config.checkpoint.memory or not all(p.reported for p in records):
            return
        self._tempo.see(slowest, now)
        self._tend_stride(core, now)
        if self._flush >= 0:
            self._follow_flush(core, records, now)
        elif self._tempo.seconds_per_step > 0:
            self._begin_flush(core, records, now)

    def _tend_stride(self, core: Core, now: Now) -> None:
        state = core.state
        heartbeats = [
            heartbeat for node in state.slots if (heartbeat := core.fleet.heartbeat(node)) is not None
        ]
        lag = max((b.lag_s for b in heartbeats if b.generation == state.generation), default=0.0)
        speed = self._tempo.seconds_per_step
        stride = next_stride(state.stride, speed, lag)
        if stride != state.stride and now.mono - self._changed > SETTLE_S:
            self._changed = now.mono
            core.record(
                ev.StrideChanged(
                    t=now.wall, generation=state.generation, stride=stride, seconds_per_step=speed, lag_s=lag
                )
            )
            self._send_pace(core, now)
        elif now.mono - self._paced > RESEND_S:
            self._send_pace(core, now)

    def _send_pace(self, core: Core, now: Now) -> None:
        self._paced, state = now.mono, core.state
        for node in state.slots:
            order = Pace(epoch=state.epoch, generation=state.generation, stride=state.stride)
            core.send(node, order)

    def _begin_flush(self, core: Core, records: list[Progress], now: Now) -> None:
        """Choose a step that is still to come, when one is due."""
        checkpoint = core.config.checkpoint
        newest = max(p.step for p in records)
        lead_s = max(LEAD_S, 2 * core.config.timings.heartbeat_s)
        step = agreed_step(records, self._tempo.fastest, lead_s)
        if now.mono - core.stored_at < checkpoint.every_s:
            if checkpoint.every_steps is None:
                return
            lead = step - newest
            step = -(-(step + 1) // checkpoint.every_steps) * checkpoint.every_steps - 1
            if step > newest + 2 * lead:
                return  # far away; until then it may become due by time
        self._flush, self._reached = step, None
        self._send_flush(core, now)

    def _send_flush(self, core: Core, now: Now) -> None:
        self._sent, state = now.mono, core.state
        for node in state.slots:
            order = Flush(epoch=state.epoch, generation=state.generation, step=self._flush)
            core.send(node, order)

    def _follow_flush(self, core: Core, records: list[Progress], now: Now) -> None:
        state, step = core.state, self._flush
        if self._reached is None and min(p.step for p in records) >= step:
            self._reached = self._tempo.completed(step)
        heartbeats = [core.fleet.heartbeat(node) for node in state.slots]
        if all(b is not None and b.generation == state.generation and b.flushed >= step for b in heartbeats):
            took = now.mono - self._reached if self._reached is not None else 0.0
            core.record(ev.StorageWritten(t=now.wall, generation=state.generation, step=step, seconds=took))
            core.prune()
        elif self._reached is None or now.mono - self._reached < max(WRITE_S, core.config.checkpoint.every_s):
            if now.mono - self._sent > RESEND_S:
                self._send_flush(core, now)
            return
        else:
            late = [b.node for b in heartbeats if b is not None and b.flushed < step]
            core.note(f"step {step} did not get onto storage in time: {','.join(late)}", "", now)
        self._flush, core.stored_at = -1, now.mono
