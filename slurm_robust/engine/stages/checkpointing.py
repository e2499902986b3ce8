"""The end of the run is near: one more checkpoint, at a step that all ranks agree on."""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.stages.watch import all_done, find_fault
from slurm_robust.engine.transitions import ToCheckpointing, ToRunning, ToStopping, Transition
from slurm_robust.engine.units.departure import NO_CHECKPOINT
from slurm_robust.model import events as ev
from slurm_robust.policy.checkpoints import LEAD_S, agreed_step
from slurm_robust.policy.leaving import newer_s
from slurm_robust.wire.messages import Flush, Progress, RequestCheckpoint

STILL_S = 3.0
"""If no rank completes a step for so long, the checkpoint in memory goes to storage while the stage waits for
a newer one."""

MIN_S = 1.0
"""So long the speed is measured at least: reports that were late come together, and look like fast steps."""

RESEND_S = 2.0


class Checkpointing:
    """Asks for the checkpoint and waits for all parts of it, bounded by ``timings.checkpoint_s``.

    It waits for at most half of the time that Slurm leaves: the rest is for the checkpoint in memory. If no
    rank gets on, that one goes to storage meanwhile.
    """

    def __init__(self, begin: ToCheckpointing) -> None:
        self._agents = begin.agents
        self._since = 0.0
        self._step = -1
        self._seen: tuple[int, float] = (-1, 0.0)  # newest step and when, to learn the speed
        self._moved: tuple[int, float] = (-1, 0.0)  # newest step of any rank, and since when it is that
        self._kept, self._sent = (
            -1,
            0.0,
        )  # what memory has, and goes to storage; when it was asked for

    def enter(self, core: Core, now: Now) -> None:
        """Remember the step that training has reached; the order follows when its speed is known."""
        self._since = now.mono

    def step(self, core: Core, now: Now) -> Transition | None:
        """Ask, wait, then stop; a failure meanwhile is handled as ever, and the end comes after it."""
        reason = core.leaving or core.ending or ""
        if core.leaving:
            return ToStopping(reason=reason)
        if all_done(core, now):
            return ToRunning(agents=self._agents)  # training was faster than its end; it finishes there
        fault = find_fault(core, self._agents, self._since, now)
        if fault is not None:
            core.incidents.open(fault, now)
            return ToStopping(reason=fault.detail, fault=fault)
        records = core.progress(now)
        reported = [p for p in records if p.reported]
        if len(reported) < core.world.placement.world_size:
            core.note(f"{reason}: {NO_CHECKPOINT}", "", now)
            return ToStopping(reason=reason)
        self._keep_what_is_there(core, reported, now)
        waited_s, left_s = now.mono - self._since, core.departure.left_s(now)
        left_s = None if left_s is None else left_s + waited_s
        if waited_s > newer_s(left_s, core.config.timings.checkpoint_s):
            core.note(f"{reason}: the checkpoint of step {self._step} was not complete in time", "", now)
            return ToStopping(reason=reason)
        if self._step < 0 or max(p.step for p in reported) > self._step + 1:
            self._ask(core, reported, now)
        elif all(p.checkpoint >= self._step for p in reported):
            return ToStopping(reason=reason)
        return None

    def _keep_what_is_there(self, core: Core, records: list[Progress], now: Now) -> None:
        """Have the newest step of memory written while no rank gets on, so that its copies stay."""
        newest, state = max(p.step for p in records), core.state
        if newest != self._moved[0]:
            self._moved = newest, now.mono
        if self._kept < 0 and now.mono - self._moved[1] >= STILL_S and core.config.checkpoint.memory:
            self._kept = core.checkpoints.unstored_step(now)
        if self._kept < 0:
            return
        heartbeats = core.fleet.heartbeats(state.world.slots).values()
        if len(heartbeats) == len(state.world.slots) and all(b.flushed >= self._kept for b in heartbeats):
            is_new = state.world.stored is None or (state.world.generation, self._kept) > (
                state.world.stored.generation,
                state.world.stored.step,
            )
            if is_new:
                core.record(
                    ev.StorageWritten(
                        t=now.wall,
                        generation=state.world.generation,
                        step=self._kept,
                        seconds=now.mono - self._moved[1],
                    )
                )
        elif now.mono - self._sent > RESEND_S:
            self._sent = now.mono
            for node in state.world.slots:
                core.send(node, Flush(epoch=state.epoch, generation=state.world.generation, step=self._kept))

    def _ask(self, core: Core, records: list[Progress], now: Now) -> None:
        """Order the checkpoint once two samples show the speed (again if the step was missed)."""
        newest = max(p.step for p in records)
        step, at = self._seen
        if step < 0:
            self._seen = (newest, now.mono)
            return
        if now.mono - at < (LEAD_S if newest == step else MIN_S):
            return
        speed = (now.mono - at) / max(1, newest - step)
        self._step = agreed_step(newest, speed)
        self._seen = (newest, now.mono)
        state = core.state
        core.record(
            ev.CheckpointRequested(
                t=now.wall, generation=state.world.generation, step=self._step, reason=core.ending or ""
            )
        )
        for node in state.world.slots:
            order = RequestCheckpoint(epoch=state.epoch, generation=state.world.generation, step=self._step)
            core.send(node, order)
