"""The last stage, and the two that only watch."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from slurm_robust.analysis.logs import root_exit
from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import ORDERED_S, RECONNECT_S
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Exit, Say
from slurm_robust.engine.stages.watch import (
    all_done,
    current_agents,
    ended_with,
    is_taken_host_lost,
    leave,
    with_cause,
)
from slurm_robust.engine.transitions import (
    ToEnding,
    ToObserving,
    ToReconnecting,
    ToRunning,
    ToStopping,
    Transition,
)
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Fault, NodeExit, Symptom
from slurm_robust.model.record import Record
from slurm_robust.policy import decide
from slurm_robust.policy.leaving import cancelled
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import one_line
from slurm_robust.wire.messages import Heartbeat, Phase, Shutdown

AT_ONCE_S = 1.0
"""Seconds for the agents' end after a second order to leave."""


class Fate(Record):
    """How far a generation has come to its end."""

    exits: tuple[NodeExit, ...]
    lost: tuple[str, ...]
    """Silent nodes."""
    ended: bool
    """The workers of all other nodes have ended."""
    has_new_step: bool
    """All ranks have completed a step since the incident began."""

    @property
    def has_failures(self) -> bool:
        """Whether a worker has failed."""
        return any(exit.exit.failed for exit in self.exits)

    @property
    def goes_on(self) -> bool:
        """Whether training goes on by itself and must be watched again."""
        return not (self.ended or self.lost or self.has_failures) and self.has_new_step

    def is_unclear(self, waited_s: float, dead_s: float) -> bool:
        """Return whether to wait before judging: a worker may have lost a peer whose node is silent soon.

        ``waited_s``: since the fault was detected; ``dead_s``: silence that counts.
        """
        return self.has_failures and not (self.lost or self.ended) and waited_s <= dead_s


def own_end(root: NodeExit | None) -> tuple[int, str]:
    """Return the exit code and reason of a job whose training ended by itself, first with ``root``."""
    if root is None:
        return 1, "the workers ended without an exit that explains it"
    code = root.exit.code if root.exit.code is not None else 128 + (root.exit.signal or 0)
    return code, f"{root.exit.describe()} on {root.node}"


def end_agents(core: Core, *, keep_copies: bool) -> None:
    """Order all agents to end, with their copies or without.

    What only memory holds stays for a run that may come back to these nodes. Copies of what storage has, too,
    are removed: later this job could not remove them from nodes that it does not get again.
    """
    grace_s = 0.0 if core.departure.at_once else core.config.timings.stop_grace_s
    order = Shutdown(epoch=core.state.epoch, grace_s=grace_s, keep_copies=keep_copies)
    for node in core.fleet.heartbeats():
        core.send(node, order)


MAX_WHY = 300
"""Characters of why a run ends; the line of the decision has all of it."""

RESEND_S = 1.0


class Ending:
    """Ends the agents, bounded, and then the controller.

    If an earlier controller has begun with it, the stage waits for agents that were not told.
    """

    def __init__(self, begin: ToEnding) -> None:
        self._begin = begin
        self._since = self._sent = 0.0
        self._awaited: frozenset[str] = frozenset()
        self._is_said = self._done = False

    def enter(self, core: Core, now: Now) -> None:
        """Order the agents to end, and say so in the journal."""
        self._since = self._sent = now.mono
        if now.mono == core.started:
            self._awaited = frozenset(core.state.joined)
        self._end_agents(core)
        core.companions.end_all("the job leaves its nodes", now)
        self._say(core, now)

    def _say(self, core: Core, now: Now) -> None:
        """Write down the end, and why; of an order that came from outside Slurm may yet say what it means."""
        begin, reason = self._begin, self._begin.reason
        is_ordered = reason == core.leaving and not begin.final
        meaning = core.departure.meaning(reason, now) if is_ordered else None
        if meaning is not None and core.state.ended is None and meaning.is_open:
            return
        self._is_said = True
        reason = meaning.reason if meaning is not None else reason
        is_cancelled = meaning is not None and not (meaning.preempted or meaning.requeued)
        why = cancelled(int(begin.code)) if is_cancelled else one_line(reason, MAX_WHY)
        text = f"end, exit code {int(begin.code)}: {why}"
        if core.state.ended is not None:
            text = f"this run is over, says the journal: {text}"
        elif begin.code != ExitCode.REQUEUED:  # the next run goes on
            core.record(
                ev.RunEnded(
                    t=now.wall,
                    code=begin.code,
                    reason=reason,
                    final=begin.final,
                    preempted=meaning is not None and meaning.preempted,
                    requeued=meaning is not None and meaning.requeued,
                )
            )
        core.emit(Say(text=text))

    def step(self, core: Core, now: Now) -> Transition | None:
        """End the controller when the agents are gone or have had their time."""
        waited = now.mono - self._since
        if not self._is_said:
            self._say(core, now)
        if self._done or not self._is_said:
            return None
        if now.mono - self._sent > RESEND_S:
            self._sent = now.mono
            self._end_agents(core)
        most_s = AT_ONCE_S if core.departure.at_once else core.config.timings.shutdown_s
        if core.starts.all_ended or self._are_silent(core, now) or waited > most_s:
            self._done = True
            core.emit(Exit(code=int(self._begin.code)))
        return None

    def _end_agents(self, core: Core) -> None:
        end_agents(core, keep_copies=not self._begin.final and core.checkpoints.need_memory())

    def _are_silent(self, core: Core, now: Now) -> bool:
        """Return whether no agent is heard any more, and none is awaited."""
        agents, quiet_s = core.fleet.heartbeats(), 2 * core.config.timings.heartbeat_s + 0.5
        awaited = self._awaited - agents.keys() - core.starts.ends(self._awaited, now).agents.keys()
        if awaited and now.mono - self._since <= RECONNECT_S:
            return False
        return not core.fleet.heard(agents, quiet_s, now.mono)


class Observing:
    """Observe mode: the policy is asked and its answer printed, but training is left to its fate.

    If it goes on by itself, it is watched again.
    """

    def __init__(self, begin: ToObserving) -> None:
        self._agents, self._fault = begin.agents, begin.fault
        self._asked = False
        self._since = 0.0

    def enter(self, core: Core, now: Now) -> None:
        """Touch nothing."""
        self._since = now.mono

    def step(self, core: Core, now: Now) -> Transition | None:
        """End with the workers' code when all of them have ended or their nodes are silent."""
        if core.leaving:
            return ToStopping(reason=core.leaving)
        fate = self._fate(core, now)
        waited = now.mono - self._since
        if not self._asked and not fate.is_unclear(waited, core.config.timings.node_dead_s):
            self._asked = True
            self._say_decision(core, fate, now)
        if fate.goes_on:
            return ToRunning(agents=self._agents)
        if not fate.ended:
            return None
        code, why = own_end(root_exit(fate.exits, core.log_rules))
        return ToEnding(code=code, reason=f"observe mode, nothing was done about it: {why}")

    def _fate(self, core: Core, now: Now) -> Fate:
        slots, limit = core.world.slots, core.config.timings.node_dead_s
        lost = tuple(
            n
            for n in slots
            if core.fleet.heartbeat(n) is None or core.fleet.is_silent(n, limit, now.mono, core.started)
        )
        ended = all(
            n in lost or ((b := core.fleet.heartbeat(n)) is not None and b.phase in (Phase.ENDED, Phase.IDLE))
            for n in slots
        )
        state, records = core.state, core.progress(now)
        before = state.world.incident.step if state.world.incident is not None else -1
        has_new_step = (
            len(records) == state.world.placement.world_size and min(r.step for r in records) > before
        )
        return Fate(exits=core.exits(now), lost=lost, ended=ended, has_new_step=has_new_step)

    def _say_decision(self, core: Core, fate: Fate, now: Now) -> None:
        fault = with_cause(core, ended_with(core, self._fault, fate.exits, fate.lost, {}, now=now), now)
        decided = structs.replace(decide(core.state, fault, now.wall, core.rules), carried_out=False)
        core.record(decided)
        core.emit(Say(text=f"observe mode, would do: {decided.reason}"))


def _go_on_stopping(begun: ev.StopStarted) -> ToStopping:
    """Return to the stage of the earlier controller, with what is known of the fault."""
    fault = Fault(symptom=begun.symptom, detail=begun.reason) if begun.symptom is not None else None
    return ToStopping(reason=begun.reason, fault=fault, update=begun.update, relaunch=begun.relaunch)


class Reconnecting:
    """A new controller finds the agents of a generation that runs; training never noticed.

    One that has taken over from a dead host does not wait as long for that host's agent.
    """

    def __init__(self, begin: ToReconnecting) -> None:
        self._since = 0.0
        self._agents: dict[str, str] = {}  # by node, as the earlier controllers knew them

    def enter(self, core: Core, now: Now) -> None:
        """Wait for the agents to find us."""
        self._since = now.mono
        self._agents = {node: joined.agent for node, joined in core.state.joined.items()}

    def step(self, core: Core, now: Now) -> Transition | None:
        """Go to Running when every slot answers for the generation; after a while also when not.

        Running then sees the silent nodes as lost and the rest goes its usual way.
        """
        state, waited_s = core.state, now.mono - self._since
        heartbeats = core.fleet.heartbeats(state.world.slots)
        if core.leaving and (waited_s > ORDERED_S or len(heartbeats) == len(state.world.slots)):
            is_done = all_done(core, now)
            return ToRunning(agents=current_agents(core)) if is_done else ToStopping(reason=core.leaving)
        here = {n: b.agent for n, b in heartbeats.items() if b.generation == state.world.generation}
        if state.world.stopping is not None and (
            len(here) == len(state.world.slots) or waited_s > RECONNECT_S
        ):
            return _go_on_stopping(state.world.stopping)
        if len(here) == len(state.world.slots) or all_done(core, now):
            core.note(f"generation {state.world.generation} found again on all {len(here)} nodes", "", now)
            return ToRunning(agents=here)
        taken = state.taken_from
        missing = (
            set(state.world.slots) - here.keys() - core.starts.ends(state.world.slots, now).agents.keys()
        )
        if not missing:
            return ToRunning(agents=here)  # it sees the agents that ended
        if len(heartbeats) == len(state.world.slots) and missing <= self._missed(core, heartbeats):
            reason = (
                f"the launch of generation {state.world.generation} has not reached {fold(sorted(missing))}, "
                "since its controller ended before: it is launched again"
            )
            core.note(reason, "", now)
            core.emit(Say(text=reason))
            return ToStopping(reason=reason, relaunch=True)
        if missing == {taken} and is_taken_host_lost(core, taken, waited_s, now):
            silent_s = max(waited_s, core.incidents.unwatched_s(now))
            detail = f"{taken}, from which this controller took over, has not been heard for {silent_s:.0f} s"
            fault = Fault(symptom=Symptom.NODE_LOST, detail=detail, detect_s=silent_s)
            return leave(core, {**here, taken: "gone"}, fault, now)
        if waited_s > RECONNECT_S:
            # An agent without our generation is another one than the launch saw. One that was never heard may
            # be that one, and not have found this controller yet: storage, which names it, may hang.
            silent = {n: joined.agent for n, joined in state.joined.items() if n not in heartbeats}
            return ToRunning(agents={n: here.get(n) or silent.get(n, "gone") for n in state.world.slots})
        return None

    def _missed(self, core: Core, heartbeats: Mapping[str, Heartbeat]) -> set[str]:
        """Return the nodes whose agents have not got the launch and never will: they obey this controller."""
        world, epoch = core.world, core.state.epoch
        return {
            node
            for node, heartbeat in heartbeats.items()
            if heartbeat.epoch == epoch
            and heartbeat.generation < world.generation
            and heartbeat.phase in (Phase.IDLE, Phase.ENDED)
            and heartbeat.agent == self._agents.get(node)
        }
