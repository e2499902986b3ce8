"""Waiting until the node of every slot has an agent that can start workers immediately."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import RECONNECT_S, Context
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.stages.stopping import before_the_end
from slurm_robust.engine.stages.watch import conclude, is_taken_host_lost
from slurm_robust.engine.transitions import (
    ToDeciding,
    ToEnding,
    ToGathering,
    ToLaunching,
    ToStopping,
    ToStoring,
    Transition,
)
from slurm_robust.engine.units.checkpoints import RestorePoint
from slurm_robust.engine.units.images import ImageExchange
from slurm_robust.engine.units.starts import Unstarted
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.policy.beginning import May
from slurm_robust.policy.patience import Growth, patience_s
from slurm_robust.policy.starting import IMPORT_S, STORAGE_S, is_everywhere, silence_s
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Phase

ROLL_CALL_S = 10.0
"""Agents that start within this time are not worth a line."""


class MissingAgentsLog:
    """Says which agents are waited for, ever more rarely."""

    def __init__(self, now: Now) -> None:
        self._since = now.mono
        self._next_s = ROLL_CALL_S

    def step(self, context: Context, now: Now) -> None:
        """Say it when it is due."""
        waited = now.mono - self._since
        if waited < self._next_s:
            return
        self._next_s = 2 * waited
        nodes = (*context.world.slots, *context.state.spares)
        heartbeats = context.fleet.heartbeats(nodes)
        away = [node for node in nodes if node not in heartbeats]
        importing = [node for node, heartbeat in heartbeats.items() if not heartbeat.ready]
        who = "agent has" if len(nodes) == 1 else "agents have"
        joined = f"{len(nodes) - len(away):,} of {len(nodes):,} {who} joined after {waited:.0f} s"
        missing = f"; not yet: {fold(away)}" if away else ""
        imported = f"{len(nodes) - len(away) - len(importing):,} of {len(nodes):,} nodes have imported torch"
        busy = f"; {imported}; importing: {fold(importing)}" if importing else ""
        context.emit(Say(text=joined + missing + busy))


class Gathering:
    """Starts agents on nodes that expect none, then waits for the slots' zygotes.

    Agents of an earlier controller may still be there and come by themselves (``expected``); then only the
    missing ones are started anew.
    """

    def __init__(self, begin: ToGathering) -> None:
        self._start = begin.start
        self._expected = begin.expected
        self._since = 0.0
        self._roll_call: MissingAgentsLog | None = None
        self._ready = Growth()
        self._is_waiting_said = False
        self._images: ImageExchange | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Start the agents, unless they are there or may come by themselves."""
        self._since = now.mono
        self._roll_call = MissingAgentsLog(now)
        self._images = ImageExchange(core, core.starts)
        core.storage.settle(now)  # it is asked early
        if self._start and not self._expected:
            core.starts.begin((*core.world.slots, *core.state.spares), now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Launch when all slots are ready; fail when one cannot become so in time."""
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        slots = core.world.slots
        assert self._images is not None
        if self._images.step((*slots, *core.state.spares), now):
            self._since = now.mono
            return None
        if core.starts.refused and (refusal := self._refusal(core)) is not None:
            return None if self._undoes(core, refusal.reason, now) else refusal
        if all((b := core.fleet.heartbeat(n)) is not None and b.ready and not b.fatal for n in slots):
            if core.starts.ends(slots, now).soon:
                return self._check_deadlines(core, now)
            if (point := self._choose(core, now)) is not None:
                return self._begin(core, point, now)
            if now.mono - self._since > STORAGE_S:
                return before_the_end(core, f"storage has not answered for {STORAGE_S:.0f} s", now)
            return None
        if self._roll_call is not None:
            self._roll_call.step(core, now)
        waited = now.mono - self._since
        if self._expected and self._start and waited > RECONNECT_S:
            self._expected = False
            nodes = (*slots, *core.state.spares)
            core.starts.begin(tuple(n for n in nodes if core.fleet.heartbeat(n) is None), now)
        return self._check_deadlines(core, now)

    def _begin(self, core: Core, point: RestorePoint, now: Now) -> Transition | None:
        """Launch, unless that would be step 0 of a job that has got further."""
        if point.goes_first is not None:
            return ToStoring(way=point.goes_first, after=point.step)
        found = point.beginning
        if found is None or found.may is May.BEGIN:
            return ToLaunching(point=point)
        if found.may is May.REFUSE or core.config.checkpoint.if_unusable == "end":
            core.note(found.text, "", now)
            return ToEnding(code=found.code, reason=found.text, final=False)
        if not self._is_waiting_said:
            self._is_waiting_said = True
            core.note(found.waits, "", now)
            core.emit(Say(text=found.waits))
        if core.storage.ask_again(now):
            self._since = now.mono
        return None

    def _choose(self, core: Core, now: Now) -> RestorePoint | None:
        """Return from where to begin, when all that the choice depends on has been reported."""
        state, timings = core.state, core.config.timings
        # Workers of a generation without a seal would go on replacing the copies that it is sealed with.
        heartbeats = core.fleet.heartbeats(state.world.slots).values()
        busy = any(b.phase not in (Phase.IDLE, Phase.ENDED) for b in heartbeats)
        stopping_s = timings.stop_grace_s + timings.kill_wait_s
        if state.world.unsealed and busy and now.mono - self._since < stopping_s:
            return None
        if not core.storage.settle(now):
            return None
        update = core.updates.ready
        point = core.checkpoints.restore_point(now, until=update.from_step if update is not None else -1)
        if point is None:
            core.storage.ask_again(now)
        return point

    def _undoes(self, core: Core, reason: str, now: Now) -> bool:
        """Return whether an update is refused, as agents cannot start in its image: they get the old one."""
        assert self._images is not None
        return self._images.undo((*core.world.slots, *core.state.spares), reason, now)

    def _refusal(self, core: Core) -> ToEnding | None:
        """Return the end of the run if too many nodes do not see the job directory: no node is at fault."""
        refused = {node: why for node, why in core.starts.refused.items() if node in core.world.slots}
        fit = [node for node in core.state.spares if node not in core.starts.refused]
        if not is_everywhere(len(refused), len(fit), first=core.world.generation == 0):
            return None
        node, refusal = next(iter(refused.items()))
        return ToEnding(
            code=refusal.code,
            reason=f"agents cannot start on {fold(refused)}; {node} says: {refusal.text}",
            final=False,
        )

    def _check_deadlines(self, core: Core, now: Now) -> Transition | None:
        timings, refused, slots = core.config.timings, core.starts.refused, core.world.slots
        waited = now.mono - self._since
        ready = sum((b := core.fleet.heartbeat(node)) is not None and b.ready for node in slots)
        limit_s = timings.agent_start_s + timings.launch_s
        patience = patience_s(limit_s, IMPORT_S, self._ready.see(ready, now.mono))
        silent_s = silence_s(timings.agent_start_s, timings.node_dead_s, first=self._start)
        lost, unable = [], {node: refused[node].text for node in slots if node in refused}
        for node in slots:
            heartbeat = core.fleet.heartbeat(node)
            if is_taken_host_lost(core, node, waited, now):
                lost.append(node)
            if node in unable or heartbeat is None:
                continue
            if core.fleet.silence(node, now.mono, self._since) > silent_s:
                if core.starts.ends((node,), now).steps:
                    core.starts.missed(node, now)  # it is started again, and the node is not at fault
                else:
                    lost.append(node)
            elif heartbeat.fatal:
                unable[node] = heartbeat.fatal
            elif not heartbeat.ready and waited > patience:
                unable[node] = f"its zygote is not ready after {waited:.0f} s"
        missing = [n for n in slots if core.fleet.heartbeat(n) is None and n not in unable]
        found = self._missing(core, missing, now)
        if found.failed and self._undoes(core, _each(found.failed), now):
            return None  # in an image that works, other starts may be tried for long
        over = (*lost, *found.down, *found.silent, *found.refused)
        undecided = [n for n in slots if n not in over and n not in unable]
        waiting = any((b := core.fleet.heartbeat(n)) is None or not (b.ready or b.fatal) for n in undecided)
        if not (over or unable) or (waiting and not over):
            return None
        reasons = [f"the agent of {n} does not respond" for n in lost]
        if told := unable | found.down | found.silent | found.refused:
            reasons.append(_each(told))
        if self._undoes(core, "; ".join(reasons), now):
            return None
        returned = self._returned(found, over, unable)
        fault = Fault(
            symptom=Symptom.LAUNCH_FAILED,
            detail="; ".join(reasons),
            detect_s=waited,
            generation=core.world.generation,
            lost=(*lost, *returned),
            unreachable=f"Slurm has ended what lent {fold(returned)}" if returned else "",
            unable=unable,
            alive=tuple(n for n in slots if n not in over),
            named={node: why for node, why in found.down.items() if node not in returned},
            unstarted=found.silent,
            refused=found.refused,
        )
        core.incidents.open(fault, now)
        return ToDeciding(fault=fault) if returned else conclude(core, fault, now)

    def _returned(self, found: Unstarted, over: Collection[str], unable: Collection[str]) -> tuple[str, ...]:
        """Return the nodes lost only because their companion was cancelled."""
        return tuple(found.left) if found.left.keys() == {*over, *unable} else ()

    def _missing(self, core: Core, nodes: list[str], now: Now) -> Unstarted:
        """Return the nodes among ``nodes`` without an agent for which the wait is over."""
        if self._expected and self._start:
            return Unstarted()  # agents of the earlier controller may come yet
        found = core.starts.check(nodes, now)
        if found.down:
            # Whatever else is wrong, they may be why: the next check is without them.
            return Unstarted(down=found.down, left=found.left, failed=found.failed)
        if core.fleet.heartbeats():
            return found
        # If not one agent comes, the nodes are not at fault; while some may yet come, the cause is open.
        over = found.refused | found.silent
        return Unstarted(refused=over if len(over) == len(nodes) else {}, failed=found.failed)


def _each(told: Mapping[str, str]) -> str:
    """Return what is told of each node, as one text."""
    return "; ".join(f"{node}: {text}" for node, text in told.items())
