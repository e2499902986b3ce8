"""Of which steps snapshots are taken, and which of these go to peers: two strides, the same for all ranks.

A rank keeps the newest two snapshots, and the newest two of those that go to peers. So all ranks have a step
in common, though they hear of a new local stride at different times: it is never more than the stride of
peers, and it is ordered when all agents have shown that one, and all ranks a snapshot that they keep because
of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.model import events as ev
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.policy.checkpoints import common_steps, next_local_stride, next_stride, power_of_two
from slurm_robust.wire.messages import Heartbeat, Pace, Progress

RESEND_S = 3.0
# Between two changes of a stride its reason must be measured anew.
SETTLE_S = 5.0
# A local stride that turned out to be needed is tried a half of less and less often.
MAX_SETTLE_S = 1200.0
# All copies of the largest jobs take 0.05 s to look through.
LOOK_EVERY_S = 0.25
# While the local stride rises, the job's log says so once a fault would repeat this many seconds of steps.
# Two lines are at least TELL_EVERY_S apart, and a later value is said only after it has held for that long.
REPEATS_S = 1.0
TELL_EVERY_S = 30.0
# The local stride is raised in parts if it would take longer than this to come to a step that all ranks keep.
NEAR_S = 2.0


@dataclass
class StridesTold:
    """What the job's log says of the local stride; of one controller, for all its generations."""

    local: int
    rising: bool
    at: float = -math.inf
    """When it was said; before anything was, it is what the generation before had."""


class Strides:
    """Serves one generation."""

    def __init__(self, context: Context, told: StridesTold, now: Now) -> None:
        self._context, self._told = context, told
        self._since = now.mono  # of the local stride
        self._paced = self._changed = now.mono
        self._wanted = 0  # the local stride that is about to be ordered, 0 for none
        self._known, self._newest = 0, -1  # the stride that all agents have shown, and the newest step then
        self._settle_s, self._was_lowered = SETTLE_S, False
        self._looked = now.mono

    def step(self, records: list[Progress], step_s: float, now: Now) -> None:
        """Take in the progress of all ranks, and the seconds a step takes, 0 while unknown."""
        world = self._context.world
        heartbeats = {
            node: heartbeat
            for node, heartbeat in self._context.fleet.heartbeats(world.slots).items()
            if heartbeat.generation == world.generation
        }
        self._see(heartbeats, records)
        times = self._times(heartbeats)
        share = self._context.config.checkpoint.max_blocked_share
        target = next_local_stride(times, share) if times is not None else 0
        local = self._next_local(heartbeats, target, step_s, now)
        rising = local > world.local_stride or (world.rising and not 0 < target <= world.local_stride)
        lag_s = max((b.lag_s for b in heartbeats.values()), default=0.0)
        stride = world.stride
        if now.mono - self._changed > SETTLE_S:
            stride = next_stride(stride, step_s, lag_s)
        # Agents that still take fewer snapshots have no others to send.
        shown = max((b.local_stride for b in heartbeats.values()), default=0)
        stride = max(stride, local, self._wanted, shown)
        if (stride, local, rising) != (world.stride, world.local_stride, world.rising):
            change = ev.StrideChanged(
                t=now.wall,
                generation=world.generation,
                stride=stride,
                seconds_per_step=step_s,
                lag_s=lag_s,
                local_stride=local,
                snapshots=times,
                rising=rising,
            )
            self._change(change, now)
        elif now.mono - self._paced > RESEND_S:
            self._send(now)
        if times is not None:
            self._tell(times, target, now)

    def _see(self, heartbeats: Mapping[str, Heartbeat], records: list[Progress]) -> None:
        """Note since when all agents know the stride; agents of older releases do not show it."""
        world = self._context.world
        is_known = len(heartbeats) == len(world.slots) and all(
            b.stride == world.stride for b in heartbeats.values()
        )
        if not is_known:
            self._known = 0
        elif self._known != world.stride:
            self._known, self._newest = world.stride, max(p.step for p in records)

    def _times(self, heartbeats: Mapping[str, Heartbeat]) -> SnapshotTimes | None:
        """Return what snapshots take at the local stride of now, None if that is not known yet."""
        times = SnapshotTimes.worst(b.snapshots for b in heartbeats.values())
        is_new = times is not None and times.stride == self._context.world.local_stride
        return times if is_new else None

    def _next_local(self, heartbeats: Mapping[str, Heartbeat], target: int, step_s: float, now: Now) -> int:
        """Return the local stride from now on; ``target``: what it should be, 0 while that is unknown."""
        world = self._context.world
        if target:
            if target < world.local_stride:
                self._wanted = 0
                return target if now.mono - self._changed > self._settle_s else world.local_stride
            near = power_of_two(NEAR_S / step_s) if step_s > 0 else 1
            target = min(target, max(2 * world.local_stride, near))
            if target <= world.local_stride:
                self._wanted = 0
            elif self._wanted or self._known:
                self._wanted = target
        if self._wanted and self._known >= self._wanted and now.mono - self._looked > LOOK_EVERY_S:
            self._looked = now.mono
            if self._is_kept(heartbeats):
                return self._wanted
        return world.local_stride

    def _is_kept(self, heartbeats: Mapping[str, Heartbeat]) -> bool:
        """Return whether all ranks have a snapshot in common that they keep, since they know the stride."""
        world, found = self._context.world, None
        for node, heartbeat in heartbeats.items():
            steps = common_steps(heartbeat.copies, world.generation, world.placement.ranks_of(node))
            found = steps if found is None else found & steps
            if not any(step > self._newest and step % self._known == 0 for step in found):
                return False
        return found is not None

    def _change(self, change: ev.StrideChanged, now: Now) -> None:
        before, local = self._context.world.local_stride, change.local_stride
        self._changed = now.mono
        self._context.record(change)
        self._send(now)
        if local == before:
            return
        self._since = now.mono
        if local > before:
            self._wanted = 0
            if self._was_lowered:
                self._settle_s = min(2 * self._settle_s, MAX_SETTLE_S)
        self._was_lowered = local < before

    def _tell(self, times: SnapshotTimes, target: int, now: Now) -> None:
        """Say in the job's log of which steps snapshots are taken, when that is as it has to be.

        Later generations find their stride anew: what they try on the way is not said again.
        """
        local, rising, told = self._context.world.local_stride, self._context.world.rising, self._told
        if (local, rising) == (told.local, told.rising):
            return
        is_due = times.repeats_s(local) >= REPEATS_S and now.mono - told.at >= TELL_EVERY_S
        is_first = told.at == -math.inf or told.rising
        is_found = target == local and (is_first or now.mono - self._since >= TELL_EVERY_S)
        if is_found if not rising else is_due and local > told.local:
            told.local, told.rising, told.at = local, rising, now.mono
            self._context.emit(Say(text=_told(local, times, rising=rising)))

    def _send(self, now: Now) -> None:
        self._paced, state = now.mono, self._context.state
        order = Pace(
            epoch=state.epoch,
            generation=state.world.generation,
            stride=state.world.stride,
            local_stride=state.world.local_stride,
        )
        for node in state.world.slots:
            self._context.send(node, order)


def _told(stride: int, times: SnapshotTimes, *, rising: bool) -> str:
    """Return the line for the job's log."""
    why = f"since {times.describe()} (checkpoint.max_blocked_share)"
    if stride == 1:
        return f"snapshots in memory of every step again, {why}"
    return (
        f"snapshots in memory of steps that are multiples of {times.taken_of(stride)} only, {why}; "
        f"{times.repeats(stride, rising=rising)}"
    )
