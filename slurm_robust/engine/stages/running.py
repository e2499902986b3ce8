"""The stages from the launch orders until something ends the generation."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.over import begun_by
from slurm_robust.engine.stages.watch import (
    current_agents,
    find_fault,
    last_exits,
    leave,
)
from slurm_robust.engine.transitions import (
    ToCheckpointing,
    ToEnding,
    ToLaunching,
    ToLocalising,
    ToRunning,
    ToSaving,
    ToStopping,
    ToUpdating,
    Transition,
)
from slurm_robust.engine.units.scheduler import CheckpointScheduler
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.release import UpdateEnd
from slurm_robust.model.world import World
from slurm_robust.policy.patience import WORKERS_LEAST_S, Growth, patience_s
from slurm_robust.policy.restore import format_tiers
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count
from slurm_robust.wire.messages import Heartbeat, Launch, Phase, Progress

RESEND_S = 2.0
# GPUs that are free within this time are not worth a line.
FREEING_S = 3.0
HEARTBEATS = 3.0
"""Within this many intervals, an agent that is heard again has sent a whole heartbeat."""


class Launching:
    """Orders are out; waits until every rank of the new generation is alive."""

    def __init__(self, begin: ToLaunching) -> None:
        self._point = begin.point
        self._agents: dict[str, str] = {}
        self._since = self._sent = 0.0
        self._orders: dict[str, Launch] = {}
        self._is_freeing_said = False
        self._started = Growth()

    def enter(self, core: Core, now: Now) -> None:
        """Choose the rendezvous, and send the orders."""
        if (update := core.updates.ready) is not None:
            self._take_along(core, update, now)
        point, plan, state = self._point, self._point.plan, core.state
        if point.given_away:
            core.note(point.given_away, "", now)
            core.emit(Say(text=point.given_away))
        first = core.fleet.heartbeat(state.world.slots[0])
        assert first is not None  # Gathering saw it
        core.record(
            ev.GenerationLaunched(
                t=now.wall,
                generation=state.world.next_generation,
                slots=state.world.slots,
                master=f"{first.address}:{first.rendezvous_port}",
                restore=plan.ref if plan else None,
                tiers=plan.tiers if plan else {},
                layout=point.layout,
                release=state.release,
            )
        )
        if plan is not None:
            text = f"resumes from step {plan.ref.step}, from {format_tiers(plan.tiers)}"
            if state.world.reports and (again := state.world.best_step - plan.ref.step) > 0:
                text += f"; repeats {count(again, 'step')}"
            if state.discards_optimizer_of(plan.ref):
                text += "; without the optimizer's state, as its owner asked (--discard-optimizer)"
            core.emit(Say(text=f"generation {core.world.generation} {text}"))
            if point.cut:
                core.note(point.cut, "", now)
                core.emit(Say(text=point.cut))
        for line in point.passed_over:
            core.emit(Say(text=line))
        if plan is None and state.world.generation:
            text = _from_nothing(state.world, point.beginning.reasons if point.beginning is not None else ())
            core.note(f"generation {core.world.generation} {text}", "", now)
            core.emit(Say(text=f"generation {core.world.generation} {text}"))
        self._write_orders(core, first)
        self._agents = current_agents(core)
        self._since = now.mono
        self._send(core, now)

    def _take_along(self, core: Core, update: ev.UpdateRequested, now: Now) -> None:
        """Have this generation run the release of the update that waits."""
        state, step = core.state, self._point.step
        if 0 <= update.from_step < step:
            reason = f"no checkpoint of step {update.from_step} or before is in reach any more"
            core.record(
                ev.UpdateEnded(t=now.wall, update=update.update, how=UpdateEnd.REFUSED, reason=reason)
            )
            core.emit(Say(text=f"update {update.update} is refused: {reason}"))
            return
        recovery = state.applying != update.update
        core.record(
            ev.UpdateApplied(
                t=now.wall,
                update=update.update,
                release=update.release,
                before=state.release,
                step=max(state.world.best_step, step),
                checkpoint=self._point.plan.ref if self._point.plan is not None else None,
                recovery=recovery,
            )
        )
        with_it = "; this recovery takes it along" if recovery else ""
        core.emit(Say(text=f"update {update.update}: ranks run release {update.release} now{with_it}"))

    def _write_orders(self, core: Core, first: Heartbeat) -> None:
        state, placement, plan = core.state, core.world.placement, self._point.plan
        for slot, node in enumerate(placement.slots):
            self._orders[node] = Launch(
                epoch=state.epoch,
                generation=state.world.generation,
                ranks=placement.ranks_of(node),
                world_size=placement.world_size,
                slot=slot,
                slots=len(placement.slots),
                master_addr=first.address,
                master_port=first.rendezvous_port,
                restore=state.world.restored,
                restart_count=state.world.generation - 1,
                layout=self._point.layout,
                restore_layout=self._point.cut_from,
                sources=plan.sources[node] if plan else (),
                peers=self._point.peers.get(node, ()),
                stride=state.world.stride,
                announce_step=state.world.incident.step + 1 if state.world.incident else 0,
                local_stride=state.world.local_stride,
                release=state.release,
                discard_optimizer=state.discards_optimizer_of(state.world.restored),
            )

    def step(self, core: Core, now: Now) -> Transition | None:
        """Go to Running when all are alive; faults are those of Running, and being too late is one, too."""
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        slots, generation = core.world.slots, core.world.generation
        fault = find_fault(core, self._agents, self._since, now)
        if fault is not None:
            return leave(core, self._agents, fault, now)
        started = self._in(core, Phase.RUNNING, Phase.ENDED)
        if len(started) == len(slots):
            return ToRunning(agents=self._agents, launched=self._since)
        waited = now.mono - self._since
        grown_s = self._started.see(len(started), now.mono)
        if waited > patience_s(core.config.timings.launch_s, WORKERS_LEAST_S, grown_s):
            late = [n for n in slots if (b := core.fleet.heartbeat(n)) is None or b.generation < generation]
            detail = f"{fold(late) or 'some ranks'} did not start workers within {waited:.0f} s"
            late_fault = Fault(symptom=Symptom.LAUNCH_FAILED, detail=detail, detect_s=waited)
            return leave(core, self._agents, late_fault, now)
        if now.mono - self._sent > RESEND_S:
            self._send(core, now)
        if not self._is_freeing_said and waited > FREEING_S:
            self._say_freeing(core)
        return None

    def _in(self, core: Core, *phases: Phase) -> list[str]:
        """Return the nodes whose workers of this generation are in one of ``phases``."""
        heartbeats, generation = core.fleet.heartbeats(core.world.slots), core.world.generation
        return [n for n, b in heartbeats.items() if b.generation == generation and b.phase in phases]

    def _say_freeing(self, core: Core) -> None:
        """Say for whose GPUs the launch waits."""
        generation = core.world.generation
        if waiting := self._in(core, Phase.FREEING):
            self._is_freeing_said = True
            core.emit(
                Say(text=f"generation {generation}: waiting for the GPUs of {fold(waiting)} to be free")
            )

    def _send(self, core: Core, now: Now) -> None:
        self._sent = now.mono
        for node, order in self._orders.items():
            heartbeat = core.fleet.heartbeat(node)
            if heartbeat is None or heartbeat.generation < order.generation:
                core.send(node, order)


def _from_nothing(world: World, reasons: Sequence[str]) -> str:
    """Say what it means that a later generation begins without a checkpoint."""
    if world.reports or world.sealed or world.best_step >= 0 or reasons:
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return f"starts again from step 0: no checkpoint can be reached{why}"
    if world.has_stepped:
        return "starts again; where it goes on is the script's affair (it has no sr.Checkpointer)"
    return "starts from step 0, or where the script resumes by itself: no step was reported so far"


class Running:
    """All ranks are alive."""

    def __init__(self, begin: ToRunning) -> None:
        self._agents = begin.agents
        self._launched = begin.launched
        self._since = 0.0
        self._scheduler: CheckpointScheduler | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Remember since when silence counts."""
        self._since = now.mono
        core.steps.begin(self._launched, now)
        self._scheduler = CheckpointScheduler(core, core.storage, core.strides_told, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Watch progress and fault; end when all ranks are done."""
        seen = core.steps.follow(now)
        if seen is not None and self._scheduler is not None:
            self._scheduler.step(seen.records, seen.slowest, now)
            core.updates.judge(seen.slowest, now)
        else:
            core.updates.judge_stepless(now.mono - self._since, now)
        if (last := last_exits(core, now)).is_done:  # before an order to end, which came too late
            core.steps.write(now, force=True)
            end = ToEnding(code=0, reason=last.reason)
            core.record(begun_by(end, now.wall, saves=True))  # first: without it a next controller trains on
            core.checkpoints.finish(end.reason, now)
            return ToSaving(then=end)
        if core.leaving:
            if seen is not None and self._keeps_last(core, seen.records, now):
                return None
            return ToStopping(reason=core.leaving)
        if core.ending and core.departure.termed:
            return ToStopping(reason=core.ending)  # the ranks were told to end, too: no newer step comes
        fault = find_fault(core, self._agents, self._since, now)
        if fault is not None:
            return leave(core, self._agents, fault, now)
        if core.departure.undecided(now):
            return None
        if (fault := self._lost_order(core, now)) is not None:
            return leave(core, self._agents, fault, now)
        if core.ending:
            # Before the first step there is nothing to checkpoint, and little time left.
            return ToCheckpointing(agents=self._agents) if core.trains else ToStopping(reason=core.ending)
        fault = core.monitor.check(now)
        if fault is not None:
            return self._on_detected(core, fault, now)
        if (fault := core.updates.slow()) is not None:
            return leave(core, self._agents, fault, now)
        if core.world.incident is None and core.updates.due(now) is not None:
            return ToUpdating(agents=self._agents)
        core.tend(now)
        return None

    def _keeps_last(self, core: Core, records: list[Progress], now: Now) -> bool:
        """Return whether a coming step is awaited before the end; an order of Slurm ends the ranks, too."""
        lives = not (core.departure.termed or core.departure.at_once or core.exits(now))
        left_s = core.departure.left_s(now)
        return lives and self._scheduler is not None and self._scheduler.keep_last(records, left_s, now)

    def _lost_order(self, core: Core, now: Now) -> Fault | None:
        """Return the fault of nodes that were cut off while their generation was launched.

        Nothing repeats their order any more, and the ranks of the others wait for theirs. Only what an agent
        has said since counts: the newest heartbeat from before may be older than the order.
        """
        generation, whole_s = core.world.generation, HEARTBEATS * core.config.timings.heartbeat_s
        without = [
            node
            for node in core.world.slots
            if (view := core.fleet.views.get(node)) is not None
            and view.heartbeat.generation < generation
            and view.heard - self._since > whole_s
        ]
        if not without:
            return None
        detail = f"{fold(without)} did not get the order to start workers of generation {generation}"
        return Fault(symptom=Symptom.LAUNCH_FAILED, detail=detail, detect_s=now.mono - self._since)

    def _on_detected(self, core: Core, fault: Fault, now: Now) -> Transition:
        if fault.symptom is Symptom.HANG and not fault.low_confidence:
            core.steps.write(now, force=True)
            core.incidents.open(fault, now)
        if fault.symptom in (Symptom.HANG, Symptom.SLOW):
            return ToLocalising(agents=self._agents, fault=fault)
        return leave(core, self._agents, fault, now)
