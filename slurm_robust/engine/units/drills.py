"""Drills: faults that the owner has planted in the own job."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.monitor import Monitor
from slurm_robust.model import events as ev
from slurm_robust.model.drill import DrillFault, DrillPromise
from slurm_robust.policy.promises import promise
from slurm_robust.util.text import one_line
from slurm_robust.wire import messages as msg

_PATIENCE = 2.0  # times what is promised, until a fault that comes is no longer the drill's
_QUIET = 2.5  # heartbeats after which no order is expected to reach an agent


class Drills:
    """Plants faults, and ends drills that have caused none."""

    def __init__(self, context: Context, monitor: Monitor) -> None:
        self._context = context
        self._monitor = monitor
        drills = context.world.drills
        self._inherited = tuple(one for one in drills if one.fault is DrillFault.KILL_CONTROLLER)

    def plant(self, drill: msg.Drill, now: Now) -> msg.DrillReply:
        """Have the fault planted, or say why not."""
        context = self._context
        try:
            fault = DrillFault(drill.fault)
        except ValueError:
            known = ", ".join(one.value for one in DrillFault)
            return _refused(f"unknown fault '{one_line(drill.fault, 40)}'; possible: {known}")
        number, world = context.state.drills + 1, context.world
        if fault is DrillFault.KILL_CONTROLLER:
            node, rank, what = context.state.own_node, -1, "the controller"
        else:
            size, rank = world.placement.world_size, drill.rank
            if not world.running or not 0 <= rank < size:
                return _refused(f"rank {rank} does not run now; ranks are 0 to {size - 1}")
            node = world.placement.node_of(rank)
            what = f"the agent of rank {rank}" if fault is DrillFault.KILL_AGENT else f"rank {rank}"
        if why := self._why_not(fault, rank, node, now):
            return _refused(f"{why}; nothing was done to {what}")
        event = ev.DrillPlanted(
            t=now.wall,
            drill=number,
            fault=fault,
            rank=rank,
            node=node,
            generation=world.generation,
            step=world.steps_here,
            by=drill.by,
        )
        hang_s = min(self._monitor.hang_s(now), context.config.detect.phase_s)  # finite: people wait for it
        promised = promise(event, context.state, context.rules, hang_s)
        if drill.plan:
            return msg.DrillReply(ok=True, text=f"{fault.value} on {what}", node=node, promise=promised)
        context.record(structs.replace(event, promise=promised))
        if fault is not DrillFault.KILL_CONTROLLER:
            order = msg.Inject(
                epoch=context.state.epoch,
                rank=rank,
                signal=fault.signal,
                fault=fault.value,
                drill=number,
            )
            context.send(node, order)
        by = f" by {one_line(drill.by.user, 40)}" if drill.by is not None else ""
        text = f"drill {number}{by}: {fault.value} on {what} ({node}, generation {world.generation})"
        context.emit(Say(text=text))
        return msg.DrillReply(ok=True, text=text, drill=number, node=node, promise=promised)

    def _why_not(self, fault: DrillFault, rank: int, node: str, now: Now) -> str:
        """Return why this cannot be tried now, "" if it can."""
        context = self._context
        if context.world.incident is not None:
            return f"incident {context.world.incident.number} is open"
        if context.leaving or context.ending:
            return "the run is about to end"
        if waiting := context.world.drills:
            return f"drill {waiting[-1].drill} is not over"
        if fault is DrillFault.KILL_CONTROLLER:
            return ""
        view, quiet_s = context.fleet.views.get(node), _QUIET * context.config.timings.heartbeat_s
        if view is None or view.dead is not None or now.mono - view.heard > quiet_s:
            return f"node {node} does not respond"
        if not context.trains:
            return (
                f"generation {context.world.generation} has completed no step that can be counted yet (of a "
                "script without Checkpointer and torch optimizer none can)"
            )
        if fault is DrillFault.NAN_LOSS:
            own = [record for record in context.progress(now) if record.rank == rank]
            if not own or not own[0].reported or own[0].loss is None:
                return "the script reports no loss (ckpt.step(step, loss=loss))"
            if not context.config.detect.non_finite:
                return "detect.non_finite is off"
        return ""

    def on_heartbeat(self, heartbeat: msg.Heartbeat, now: Now) -> None:
        """Take in which drills the agent could not carry out."""
        for drill in self._context.world.drills:
            if (why := heartbeat.undrilled.get(drill.drill)) is not None:
                self._end(drill, one_line(why), now, ok=False)

    def step(self, now: Now) -> None:
        """End drills for which what they do would have begun by now, and been seen."""
        context = self._context
        for drill in self._inherited:
            self._end(drill, f"controller {context.state.epoch} goes on", now, ok=True)
        self._inherited = ()
        if context.world.incident is not None:
            return
        for drill in context.world.drills:
            promised = drill.promise or DrillPromise(symptom=None, detect_s=0.0)
            patience = _PATIENCE if promised.symptom is not None else 1.0
            if now.wall - drill.t > patience * promised.detect_s:
                self._end(drill, "no fault was seen", now, ok=True)

    def _end(self, drill: ev.DrillPlanted, why: str, now: Now, *, ok: bool) -> None:
        self._context.record(ev.DrillOver(t=now.wall, drill=drill.drill, reason=why, ok=ok))
        text = f"drill {drill.drill}: " + (why if ok else f"not carried out: {why}")
        self._context.emit(Say(text=text))


def _refused(text: str) -> msg.DrillReply:
    return msg.DrillReply(ok=False, text=text)
