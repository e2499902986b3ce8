"""Ending a generation: TERM, then KILL, and never waiting for a node that is gone."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.analysis.logs import root_exit
from slurm_robust.analysis.progress.metrics import where_it_began
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.stages.watch import conclude, current_agents, ended_with
from slurm_robust.engine.transitions import (
    ToEnding,
    ToGathering,
    ToRequeueing,
    ToSaving,
    ToStopping,
    Transition,
)
from slurm_robust.model import events as ev
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import Fault, NodeExit, Requeue, Symptom
from slurm_robust.model.job import LEAVING_S
from slurm_robust.policy import at_the_end
from slurm_robust.policy.finishing import LastExits, judge
from slurm_robust.policy.patience import MARGIN_S, is_stuck
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Phase, Stop

RESEND_S = 1.0
# The job's log reports workers that take longer to die than this.
SLOW_S = 10.0


class Stopping:
    """Stops the workers, seals the generation's newest checkpoint, and says what happened.

    Serves failures, the approaching end, an order to leave and updates alike; they differ in what follows.
    """

    def __init__(self, begin: ToStopping) -> None:
        self._reason, self._fault, self._waited = begin.reason, begin.fault, begin.waited
        self._update, self._relaunch = begin.update, begin.relaunch
        self._since = self._sent = 0.0
        self._agents: dict[str, str] = {}
        self._exits: tuple[NodeExit, ...] = ()
        self._last = LastExits(is_done=False)
        self._lost: list[str] = []
        self._stuck: list[str] = []
        self._stopped = self._is_slow_said = False

    def enter(self, core: Core, now: Now) -> None:
        """Send the orders. Exits seen from now on may be our own doing, so they are taken here."""
        self._since = now.mono
        self._agents = current_agents(core)
        begun = core.world.stopping
        if begun is not None:  # by an earlier controller
            self._since -= max(0.0, now.wall - begun.t)
        elif core.world.running:
            symptom = self._fault.symptom if self._fault is not None else None
            begun = ev.StopStarted(
                t=now.wall,
                generation=core.world.generation,
                reason=self._reason,
                symptom=symptom,
                update=self._update,
                relaunch=self._relaunch,
            )
            core.record(begun)
        before_s = now.mono - self._since
        # What came before the last end of a generation is judged already.
        exits = core.exits(now) if core.world.running else ()
        self._exits = tuple(e for e in exits if e.exit.age_s >= before_s)
        self._send(core, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Wait for the workers, then for the checkpoint, then go on as the reason demands."""
        if core.leaving and core.departure.at_once:
            return ToSaving(then=ToEnding(code=core.leaving_code, reason=core.leaving, final=False))
        if not self._stopped and not self._wait_for_workers(core, now):
            return None
        if not self._stopped:
            self._stopped = True
            self._take_late_exits(core, now)
        if not core.storage.settle(now):
            return None
        if core.departure.asks(now) and not (core.leaving or core.ending):
            return None
        self._name_where_it_began(core, now)
        self._record_end(core, now)
        return self._follow(core, now)

    def _name_where_it_began(self, core: Core, now: Now) -> None:
        """Name the rank that had the first loss or gradient norm that is not finite.

        The last records of all ranks say which, whatever rank was heard first.
        """
        fault = self._fault
        if fault is None or fault.symptom is not Symptom.NON_FINITE:
            return
        if (detail := where_it_began(core.progress(now))) and detail != fault.detail:
            self._fault = structs.replace(fault, detail=detail)
            self._reason = detail if self._reason == fault.detail else self._reason

    def _take_late_exits(self, core: Core, now: Now) -> None:
        """Add exits from before the orders that are reported only now; one of them may explain the others."""
        waited_s, known = now.mono - self._since, {e.exit.rank for e in self._exits}
        exits = core.exits(now) if core.world.running else ()
        # A script may answer TERM by an exit with code 0, which does not mean that training is done.
        ended_before = (e for e in exits if e.exit.age_s > waited_s)
        self._last = judge(ended_before, core.progress(now), core.world.placement.world_size)
        late = (e for e in exits if e.exit.rank not in known and e.exit.age_s > waited_s)
        as_before = (
            structs.replace(e, exit=structs.replace(e.exit, age_s=e.exit.age_s - waited_s)) for e in late
        )
        self._exits = (*self._exits, *as_before)

    def _send(self, core: Core, now: Now) -> None:
        self._sent = now.mono
        order = Stop(
            epoch=core.state.epoch,
            generation=core.world.generation,
            grace_s=core.config.timings.stop_grace_s,
        )
        for node in core.world.slots:
            if not self._is_stopped(core, node):
                core.send(node, order)

    def _is_stopped(self, core: Core, node: str) -> bool:
        heartbeat = core.fleet.heartbeat(node)
        if heartbeat is None or heartbeat.agent != self._agents.get(node):
            return True  # no agent, or a new one: whatever ran there ended with the old one
        return heartbeat.generation >= core.world.generation and heartbeat.phase in (
            Phase.ENDED,
            Phase.IDLE,
        )

    def _wait_for_workers(self, core: Core, now: Now) -> bool:
        """Return whether every node has stopped, is lost, or cannot stop its workers."""
        core.steps.write(now)
        timings = core.config.timings
        waited = now.mono - self._since
        most_s = min(timings.kill_wait_s, LEAVING_S) if core.leaving else timings.kill_wait_s
        done = True
        self._stuck = []  # anew: what stood still may move again while others are waited for
        for node in core.world.slots:
            if node in self._lost:
                continue
            heartbeat = core.fleet.heartbeat(node)
            if heartbeat is None or heartbeat.agent != self._agents.get(node):
                if core.world.running:  # the agent that launched there is gone
                    self._lost.append(node)
            elif self._is_stopped(core, node):
                continue
            elif self._is_lost(core, node, now):
                self._lost.append(node)
            elif is_stuck(waited - timings.stop_grace_s - MARGIN_S, heartbeat.still_s, most_s):
                self._stuck.append(node)
            else:
                done = False
        if not done and now.mono - self._sent > RESEND_S:
            self._send(core, now)
        if not done and not self._is_slow_said and waited > timings.stop_grace_s + SLOW_S:
            self._is_slow_said = True
            self._say_slow(core, most_s, now)
        return done

    def _is_lost(self, core: Core, node: str, now: Now) -> bool:
        """Return whether ``node`` cannot say that its workers have stopped; those of an agent die with it."""
        if core.fleet.is_silent(node, core.config.timings.node_dead_s, now.mono, self._since):
            return True
        return not core.leaving and node in core.starts.ends((node,), now).sure

    def _say_slow(self, core: Core, most_s: float, now: Now) -> None:
        over = (*self._lost, *self._stuck)
        slow = [n for n in core.world.slots if n not in over and not self._is_stopped(core, n)]
        text = (
            f"killed workers on {fold(slow)} are still there: waiting up to {most_s:.0f} s, as long as their "
            "memory is being freed"
        )
        core.note(text, "", now)
        core.emit(Say(text=text))

    def _record_end(self, core: Core, now: Now) -> None:
        if not core.world.running:
            return  # nothing was launched since the last end
        core.steps.end(now)
        # A node with a new agent is lost for this generation, but its workers are dead and it can be asked.
        silent = tuple(
            n
            for n in self._lost
            if (b := core.fleet.heartbeat(n)) is None or b.agent == self._agents.get(b.node)
        )
        root = root_exit(self._exits, core.log_rules)
        # What is in the memory of nodes that lost only their agents, the next agents report: those of nodes
        # that had stopped before, too.
        gone = core.starts.ends(core.world.slots, now).silent
        core.checkpoints.end(
            self._reason,
            self._exits,
            root.exit.rank if root is not None else -1,
            now,
            silent=silent,
            may_return=set(silent) >= set(core.world.slots) or bool(gone),
            good_step=self._good_step(core, now),
        )

    def _good_step(self, core: Core, now: Now) -> int | None:
        """Return the newest step that may be restored, None if nothing speaks against any.

        The rank that was spoiled first may be the last to be heard: its gradients spoil the others.
        """
        seen = self._fault.good_step if self._fault is not None else None
        if seen is None:
            return None
        records = core.progress(now)
        return min([seen, *(record.bad_step - 1 for record in records if record.bad_step >= 0)])

    def _follow(self, core: Core, now: Now) -> Transition:
        if self._last.is_done:  # the order came too late to change that
            return ToSaving(then=ToEnding(code=0, reason=self._last.reason))
        if core.leaving:
            return ToSaving(then=ToEnding(code=core.leaving_code, reason=core.leaving, final=False))
        is_well = not any(e.exit.failed for e in self._exits) and not self._lost
        goes_on = bool(self._update) or self._relaunch
        follows = self._fault is not None or self._waited or goes_on
        ending = core.ending or (None if follows else self._reason)
        if ending and (is_well or core.departure.termed):
            return before_the_end(core, ending, now, warned=True)
        if goes_on and is_well and not self._stuck:
            return ToGathering()
        fault = self._ended_with(core, now)
        if goes_on:
            fault = _met_meanwhile(fault)
            core.incidents.open(fault, now)
        return conclude(core, fault, now, waited=self._waited)

    def _ended_with(self, core: Core, now: Now) -> Fault:
        root = root_exit(self._exits, core.log_rules)
        if root is not None and (lines := _last_lines(root.exit)):
            core.emit(Say(text=f"{root.exit.describe()} on {root.node}; its last lines:\n{lines}"))
        elif root is not None and (why := root.exit.says_nothing):
            core.emit(Say(text=f"{root.exit.describe()} on {root.node}; it {why}"))
        heartbeats = core.fleet.heartbeats(core.world.slots)
        unable = {n: b.fatal for n, b in heartbeats.items() if b.fatal and n not in self._lost}
        lost, stuck = tuple(self._lost), tuple(self._stuck)
        return ended_with(core, self._fault, self._exits, lost, unable, stuck, now=now)


def _met_meanwhile(fault: Fault) -> Fault:
    """Return the fault that came while ranks were stopped for no fault, with what shows it."""
    if fault.root is not None:
        detail = f"{fault.root.exit.describe()} on {fault.root.node}"
        return structs.replace(fault, symptom=Symptom.WORKER_EXIT, detail=detail)
    nodes = fault.lost or fault.stuck
    what = "did not answer" if fault.lost else "could not end their workers"
    return structs.replace(fault, symptom=Symptom.NODE_LOST, detail=f"{fold(nodes)} {what}")


def _last_lines(exit: WorkerExit) -> str:
    """Return the last lines of a failed rank for the job's own output; "" if they do not explain its end."""
    if exit.says_nothing:
        return ""
    lines = exit.tail or (exit.error.traceback.splitlines()[-12:] if exit.error else ())
    return "\n".join(f"  rank {exit.rank} | {line}" for line in lines)


def before_the_end(core: Core, reason: str, now: Now, *, warned: bool = False) -> Transition:
    """Return what the policy wants when this run ends for ``reason`` and the job is not done."""
    action = at_the_end(core.state, reason, now.wall, core.rules, warned=warned)
    if isinstance(action, Requeue):
        return ToSaving(then=ToRequeueing(exclude=action.exclude, reason=action.reason, failure=False))
    return ToSaving(then=ToEnding(code=action.code, reason=action.reason))
