"""An update is due: all ranks keep one step in memory and wait there, so that none is lost."""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.stages.watch import all_done, find_fault, leave
from slurm_robust.engine.transitions import ToRunning, ToStopping, ToUpdating, Transition
from slurm_robust.engine.units.scheduler import StepPace
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.model.progress import UPDATE, Progress, slowest
from slurm_robust.policy.checkpoints import LEAD_S, agreed_step, common_steps
from slurm_robust.wire.messages import RequestCheckpoint

HOLD_S = 60.0
"""The longest that ranks are held. Then they train on: the controller may have died."""

RESEND_S = 2.0
UNKNOWN_STEP_S = 1.0


class Updating:
    """Asks for a snapshot of one step, after which ranks begin no other, bounded by ``timings.checkpoint_s``.

    Whatever else ends the generation meanwhile wins; the update waits then.
    """

    def __init__(self, begin: ToUpdating) -> None:
        self._agents = begin.agents
        self._since = self._sent = 0.0
        self._step = -1
        self._pace = StepPace()

    def enter(self, core: Core, now: Now) -> None:
        """Write down the pace of the release that is about to end: the next one is compared with it."""
        self._since = now.mono
        core.monitor.remember(now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Ask, wait until all ranks have kept the step, then end them."""
        update = core.updates.due(now)
        if update is None or all_done(core, now):
            return ToRunning(agents=self._agents)  # the end of the run is ordered there, and begins there
        fault = find_fault(core, self._agents, self._since, now) or core.monitor.check(now)
        if fault is not None and fault.symptom not in (Symptom.HANG, Symptom.SLOW):  # the stop ends these
            return leave(core, self._agents, fault, now)
        reason = f"update {update.update} to release {update.release}"
        stop = ToStopping(reason=reason, update=update.update)
        records = core.progress(now)
        if len(records) < core.world.placement.world_size or min(p.step for p in records) < 0:
            return stop  # it has done nothing that could be lost
        if not all(p.reported for p in records):
            text = "training goes on where the script resumes by itself, since it does not use Checkpointer"
            core.note(f"{reason}: {text}", "", now)
            core.emit(Say(text=f"{reason}: {text}"))
            return stop
        self._pace.see(slowest(records), now)
        if self._is_kept(core, records) and core.is_progress(records):
            return stop
        if now.mono - self._since > core.config.timings.checkpoint_s:
            text = (
                f"ranks did not keep one step in time; those after step {self._kept(core, now)} are repeated"
            )
            core.note(f"{reason}: {text}", "", now)
            core.emit(Say(text=f"{reason}: {text}"))
            return stop
        if max(p.step for p in records) > self._step:
            self._choose(core, records, reason, update.update, now)
        if now.mono - self._sent >= RESEND_S:
            self._send(core, now)
        return None

    def _is_kept(self, core: Core, records: list[Progress]) -> bool:
        if core.unkept:
            return self._step >= 0 and min(p.checkpoint for p in records) >= self._step
        return _is_kept(core, records, self._step)

    def _kept(self, core: Core, now: Now) -> int:
        return max(core.checkpoints.copies.newest_without((), now), core.world.restored_step)

    def _choose(self, core: Core, records: list[Progress], reason: str, update: int, now: Now) -> None:
        """Choose the step, again if it was missed."""
        step_s = self._pace.fastest or core.monitor.pace.p50_s or UNKNOWN_STEP_S
        self._step = agreed_step(max(p.step for p in records), step_s, LEAD_S)
        core.record(
            ev.CheckpointRequested(
                t=now.wall,
                generation=core.world.generation,
                step=self._step,
                reason=reason,
                update=update,
            )
        )
        self._send(core, now)

    def _send(self, core: Core, now: Now) -> None:
        self._sent = now.mono
        order = RequestCheckpoint(
            epoch=core.state.epoch,
            generation=core.world.generation,
            step=self._step,
            # Ranks that are held keep the step in memory only; one without room there cannot.
            hold_s=0.0 if core.unkept else HOLD_S,
        )
        for node in core.world.slots:
            core.send(node, order)


def _is_kept(core: Core, records: list[Progress], step: int) -> bool:
    """Return whether all ranks have kept ``step``, or a step at which all wait for an earlier controller.

    One that did not hear of it in time may have kept it nevertheless; it waits for the others now.
    """
    steps, world = {p.step for p in records}, core.world
    if all(p.phase == UPDATE for p in records) and len(steps) == 1:
        step = steps.pop()
    kept = {p.rank for p in records if p.checkpoint >= step}
    return step >= 0 and all(
        kept.issuperset(world.placement.ranks_of(node))
        or step in common_steps(heartbeat.copies, world.generation, world.placement.ranks_of(node))
        for node, heartbeat in core.fleet.heartbeats(world.slots).items()
    )
