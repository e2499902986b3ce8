"""The controller without its hands: heartbeats, signals and ticks in, effects out.

Nothing here reads a clock, a socket or a file, so a test or a simulation can drive years of a job
in a second. The core holds the job's state (the fold of its journal), the fleet, and the stage in
which the job is; each stage is a class of its own in :mod:`slurm_robust.engine.stages`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import structs

from slurm_robust.analysis.logs import RuleSet
from slurm_robust.config.job import JobConfig
from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Effect, HandOver, Say
from slurm_robust.engine.questions import FindSwitches, NoAnswer, SaveSuspect
from slurm_robust.engine.transitions import ToUpdating, Transition
from slurm_robust.engine.units.checkpoints import Checkpoints
from slurm_robust.engine.units.companions import Companions
from slurm_robust.engine.units.copies import HeldCopies
from slurm_robust.engine.units.departure import Departure
from slurm_robust.engine.units.drains import Drains
from slurm_robust.engine.units.drills import Drills
from slurm_robust.engine.units.fleet import Heard
from slurm_robust.engine.units.giveback import GivingBack
from slurm_robust.engine.units.incidents import Incidents
from slurm_robust.engine.units.learning import Learning
from slurm_robust.engine.units.liveness import Liveness
from slurm_robust.engine.units.monitor import Monitor
from slurm_robust.engine.units.replenishing import Replenishing
from slurm_robust.engine.units.stackbook import StackBook
from slurm_robust.engine.units.standby_watch import StandbyWatch
from slurm_robust.engine.units.standbys import Standbys
from slurm_robust.engine.units.starts import AgentStarts, StartPhases
from slurm_robust.engine.units.steps import Steps
from slurm_robust.engine.units.storage import StorageListing
from slurm_robust.engine.units.strides import StridesTold
from slurm_robust.engine.units.trials import Trials
from slurm_robust.engine.units.updates import Updates
from slurm_robust.engine.units.way_back import WayBack
from slurm_robust.engine.units.witnesses import GONE, Witnesses
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.events import MIN_AHEAD_S
from slurm_robust.model.exits import StepEnd
from slurm_robust.model.findings import MAX_EVIDENCE, MAX_TEXT, Suspect
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.state import JobState
from slurm_robust.policy import decide
from slurm_robust.util.text import one_line, some_of
from slurm_robust.wire import messages as msg
from slurm_robust.wire.protocol import PROTOCOL, unknown_to

QUIET = 2.5  # heartbeats after which no order is expected to reach an agent
_NAME_CHARS = 80
TOLD_STALL_S = 10.0  # less is a slow disk or a crowded processor


class Stage(Protocol):
    """One phase of a job's life.

    ``enter`` is called once; ``step`` after every input and tick, and returns what comes next or None to
    stay. A stage reads the core and acts only through its methods ``record``, ``ask``, ``send``, ``emit``,
    ``note`` and the methods that the core and its units offer to stages; it sets none of their attributes.
    """

    def enter(self, core: Core, now: Now) -> None:
        """Do what begins this stage."""

    def step(self, core: Core, now: Now) -> Transition | None:
        """Return the next stage by the state and the fleet, or None to stay."""


Table = Callable[[Transition], Stage]


class Core(Context):
    """The job, the units that follow it, and the stage in which it is.

    A unit knows the context and owns its own state; only the core knows them all.
    """

    def __init__(
        self,
        config: JobConfig,
        state: JobState,
        table: Table,
        first: Transition,
        now: Now,
        log_rules: RuleSet | None = None,
    ) -> None:
        """``log_rules``: rules for the output of workers, by default those of this package."""
        super().__init__(config, state, now, log_rules)
        self.witnesses: Final = Witnesses(self, self._on_refused)
        self.starts: Final = AgentStarts(self, self.witnesses)
        self.start_phases: Final = StartPhases(self, self.starts)
        self.drains: Final = Drains(self)
        self.liveness: Final = Liveness(self)
        self.departure: Final = Departure(self, self._leave, now)
        self.storage: Final = StorageListing(self, now)
        self.copies: Final = HeldCopies(self, self.storage)
        self.checkpoints: Final = Checkpoints(self, self.storage, self.copies)
        self.way_back: Final = WayBack(self, self.checkpoints)
        self.companions: Final = Companions(self, self.starts, now)
        self.giving_back: Final = GivingBack(self, self.checkpoints, self.companions)
        self.monitor: Final = Monitor(self, now)
        self.drills: Final = Drills(self, self.monitor)
        self.incidents: Final = Incidents(self)
        self.steps: Final = Steps(self, self.storage, self.incidents, self.start_phases, now)
        self.updates: Final = Updates(self, self.checkpoints, lambda: isinstance(self.entered_by, ToUpdating))
        self.strides_told: Final = StridesTold(self.world.local_stride, self.world.rising)
        self.trials: Final = Trials(self, self.checkpoints)
        self.standbys: Final = Standbys(self, self.trials)
        self.learning: Final = Learning(self)
        self.replenishing: Final = Replenishing(self, self.companions)
        self.standby_watch: Final = StandbyWatch(self, self.starts, self.companions, self.monitor, self.evict)
        self.stacks: Final = StackBook(self)
        self.ask(FindSwitches(), now, self._on_switches)
        self._configured_by = state.release  # whose configuration this controller has
        self._table = table
        self._held = False
        self._older: set[int] = set()  # versions of agents that were named
        self._ahead_s = 0.0  # this node's clock, of slurmctld's, as it was recorded
        self._entered_by, self._stage_since = first, now.mono
        self._stage = table(first)
        self._stage.enter(self, now)

    @property
    def stage(self) -> Stage:
        """In which the job is."""
        return self._stage

    @property
    def entered_by(self) -> Transition:
        """What named the stage in which the job is, and so why."""
        return self._entered_by

    @property
    def stage_since(self) -> float:
        """Monotonic time at which the job came to its stage."""
        return self._stage_since

    @property
    def held(self) -> bool:
        """Whether nothing is decided, since the journal is behind."""
        return self._held

    @property
    def has_live_ranks(self) -> bool:
        """Whether ranks of this generation run, or are being started, as far as their agents have told.

        A launch that waits for storage has reached no agent. An agent that has told nothing shows nothing.
        """
        world = self.world
        told = self.fleet.heartbeats(world.slots)
        over = [
            heartbeat.generation != world.generation or heartbeat.phase in (msg.Phase.IDLE, msg.Phase.ENDED)
            for heartbeat in told.values()
        ]
        return world.running and not (len(over) == len(world.slots) and all(over))

    # -- inputs ------------------------------------------------------------------------------------

    def on_heartbeat(self, heartbeat: msg.Heartbeat, now: Now) -> None:
        """Take in a heartbeat of an agent. Nothing is concluded before :meth:`on_tick`.

        After a stall of our own many heartbeats wait; judging silence before all of them are read would
        declare healthy nodes dead.
        """
        if self.starts.dismissed(heartbeat, now):
            return
        before = self.fleet.heartbeat(heartbeat.node)
        heard = self.fleet.hear(heartbeat, now.mono)
        self.start_phases.hear(before, heartbeat, now)
        if heard is not Heard.SAME:
            if heartbeat.protocol < PROTOCOL:
                self._meet_older(heartbeat.node, heartbeat.protocol, now)
            self.record(
                ev.AgentJoined(
                    t=now.wall,
                    node=heartbeat.node,
                    agent=heartbeat.agent,
                    address=heartbeat.address,
                    port=heartbeat.data_port,
                    protocol=heartbeat.protocol,
                )
            )
            if heartbeat.node in self.state.evicted:
                self.record(ev.NodeReturned(t=now.wall, node=heartbeat.node))
        self._see_fabric(heartbeat, now)
        for text in heartbeat.notes:
            self.note(text, heartbeat.node, now)
        for text in heartbeat.told:
            self.note(text, heartbeat.node, now, say=True)
        if heartbeat.outside:
            self._see_outside(heartbeat, now)
        self._answer(heartbeat, heartbeat.seq)
        self.drills.on_heartbeat(heartbeat, now)
        self.learning.on_heartbeat(heartbeat, now)
        self.copies.on_heartbeat(heartbeat)
        self.departure.on_heartbeat(heartbeat, now)

    def _see_outside(self, heartbeat: msg.Heartbeat, now: Now) -> None:
        """Say which code an update does not change."""
        taken = self.state.taken.get(heartbeat.release)
        files = some_of([one_line(file, _NAME_CHARS) for file in heartbeat.outside])
        fix = "you set code.workdir: release"
        if taken is not None and taken.release.workdir:
            fix = "the script finds it by a path that begins at its own (__file__)"
        self.note(
            f"{files}: read from its place, not from the release: an update does not change it until {fix}",
            "",
            now,
            say=True,
        )

    def _see_fabric(self, heartbeat: msg.Heartbeat, now: Now) -> None:
        """Write down what is new of how the node reaches others; what is not told stays as it was known."""
        if not (heartbeat.clique or heartbeat.block or heartbeat.imex):
            return
        known = self.state.fabrics.get(heartbeat.node) or ev.FabricSeen(t=now.wall, node=heartbeat.node)
        seen = structs.replace(
            known,
            clique=heartbeat.clique or known.clique,
            block=heartbeat.block or known.block,
            imex=heartbeat.imex or known.imex,
        )
        if seen != known:
            self.record(structs.replace(seen, t=now.wall))

    def on_pulse(self, pulse: msg.Pulse, now: Now) -> None:
        """Take in that an agent has nothing new to report."""
        heartbeat = self.fleet.feel(pulse, now.mono)
        if heartbeat is not None:
            self._answer(heartbeat, pulse.seq)

    def _meet_older(self, node: str, protocol: int, now: Now) -> None:
        """Write down what this agent is not sent, and say it of the first of each version."""
        text = (
            f"agent on {node} speaks protocol {protocol}, this controller {PROTOCOL}: "
            f"it is not sent {', '.join(unknown_to(protocol))}"
        )
        self.note(text, node, now, say=protocol not in self._older)
        self._older.add(protocol)

    def on_foreign(self, message: msg.Foreign, now: Now) -> None:
        """Take in that a message of another version came and was refused."""
        known = self.fleet.heartbeat(message.node)
        protocol = message.protocol if known is None else known.protocol
        sender = f"agent on {one_line(message.node, 80)}" if message.node else "a client"
        speaks = f"protocol {protocol}" if protocol is not None else "another protocol"
        text = f"{sender} speaks {speaks}, this controller {PROTOCOL}: {message.describe()} and is refused"
        self.note(text, message.node, now, say=True)

    def on_stall(self, seconds: float, now: Now) -> None:
        """Excuse all agents: this process did nothing for ``seconds`` (a slow disk, a stopped process)."""
        self.fleet.forgive(seconds, younger=seconds < TOLD_STALL_S)
        self.starts.forgive(seconds)
        self.forgive(seconds)
        if seconds >= TOLD_STALL_S:
            if self.world.running:
                self.monitor.excuse(seconds, now)
            text = (
                f"the controller stood still for {seconds:.0f} s: the job was suspended (scontrol suspend), "
                "or this node or the storage of the job's folder hung; no node counts as silent for it, and "
                "if no step was done meanwhile, the time counts as suspended"
            )
            node = self.state.own_node
            self.record(ev.Noted(t=now.wall, text=text, node=node, stood_still_s=round(seconds, 3)))
            self.emit(Say(text=text))

    def on_tick(self, now: Now) -> list[Effect]:
        """Go on until nothing more can be done: time has passed, or something else may have changed."""
        if not self._held:
            self.report_overdue(now)
        return self._tick(now)

    def _tick(self, now: Now) -> list[Effect]:
        if not self._held:
            self._go_on(now)
        effects, self._effects = self._effects, []
        return effects

    def _go_on(self, now: Now) -> None:
        if self.liveness.has_news:
            nodes = (*self.world.slots, *self.state.spares)
            self.liveness.step(now, self.starts.ends(nodes, now).steps)
        while (following := self._stage.step(self, now)) is not None:
            self._entered_by, self._stage_since = following, now.mono
            self._stage = self._table(following)
            self.incidents.stage(type(self._stage).__name__.lower(), now)
            self._stage.enter(self, now)
        self.departure.step(now)
        self.way_back.step(now)
        self.drills.step(now)
        self.trials.step(now)
        self.starts.step(now)
        self.standbys.yield_to_training(now)
        self.companions.step(now)
        self.ask_agents_again(now)
        self.witnesses.step(now)
        self.drains.step(now)

    def hold(self, held: bool) -> None:
        """Decide nothing while ``held``: storage has not taken what was decided before."""
        self._held = held

    def on_hold_over(self, seconds: float, now: Now) -> None:
        """Go on after a hold of ``seconds``: nothing was decided, and the clock, maybe training too, stood
        still.
        """
        self.incidents.pass_over(seconds)
        if seconds < TOLD_STALL_S:
            return
        if self.world.running:
            self.monitor.excuse(seconds, now, stood_still=True)
        counts = "no rank runs, so that time is lost"
        if self.has_live_ranks:
            counts = "training went on as long as its ranks did not need the controller"
        text = (
            f"the controller decided nothing for {seconds:.0f} s, since the storage of the job's folder "
            f"did not take the journal; it blames no node for that; {counts}"
        )
        self.record(ev.Noted(t=now.wall, text=text))
        self.emit(Say(text=text))

    def on_clock(self, ahead_s: float, now: Now) -> None:
        """Take in how far this node's clock is ahead of slurmctld's: it was compared, or was set since."""
        if abs(ahead_s - self._ahead_s) >= MIN_AHEAD_S:
            self._ahead_s = ahead_s
            self.record(ev.ClockCompared(t=now.wall, epoch=self.state.epoch, ahead_s=round(ahead_s, 3)))

    def on_end_approaching(self, reason: str, now: Now) -> list[Effect]:
        """Take in that the time limit or a preemption is near (USR1)."""
        self.departure.approach(reason, now)
        return self.on_tick(now)

    def on_leave(self, reason: str, now: Now, code: ExitCode = ExitCode.TERMINATED) -> list[Effect]:
        """Take in that Slurm (TERM) or the owner (Ctrl-C) ends the job now. ``code``: the exit code.

        What only memory has is saved in the time that is left. However often the order comes, it is one.
        """
        self._leave(reason, now, code)
        return self.on_tick(now)

    def _leave(self, reason: str, now: Now, code: ExitCode = ExitCode.TERMINATED) -> None:
        self.departure.order(now)
        if self._leaving is None:
            self._leaving, self._leaving_code = reason, code
            self.record(ev.StopOrdered(t=now.wall, reason=reason, code=code))

    def on_second_order(self, now: Now) -> list[Effect]:
        """Hurry: the supervisor says that the owner does not want to wait."""
        if self._leaving is not None:
            self.departure.hurry()
        return self.on_tick(now)

    def on_agents_gone(self, now: Now) -> list[Effect]:
        """Take in that the step of the agents has ended."""
        self.starts.on_all_ended()
        return self.on_tick(now)

    def on_refusal(self, node: str, text: str, code: int = ExitCode.JOB_DIR) -> None:
        """Take in that the agent of ``node`` could not begin. If too many cannot, the job ends with
        ``code``.
        """
        self.starts.on_refusal(node, text, code)

    def on_step_end(self, end: StepEnd, now: Now) -> None:
        """Take in that an srun of agents, or some of its tasks, ended. :meth:`on_tick` draws conclusions."""
        self.starts.on_end(end, now)

    def _on_refused(self, nodes: tuple[str, ...], now: Now) -> None:
        """Take in that agents of ``nodes`` have ended: after a takeover only their ports show it."""
        for node in nodes:
            is_new = node not in self.fleet.views and self.starts.waited_s(node, now) is not None
            if not (is_new or self.liveness.hears(node) or self.starts.ends((node,), now).silent):
                self.starts.on_end(StepEnd(nodes=(node,), code=-1, message=GONE, is_task=True), now)

    def on_beacons(self, ages: Mapping[str, float]) -> None:
        """Take in the seconds since the newest beacon of each agent. :meth:`on_tick` draws conclusions."""
        self.liveness.on_beacons(ages)

    def on_agent_answer(self, answer: msg.AgentAnswer, now: Now) -> None:
        """Take in what an agent answers to a question. Nothing is concluded before :meth:`on_tick`."""
        self.hear_agent(answer, now)

    def _on_switches(self, leaves: Mapping[str, str] | NoAnswer, now: Now) -> None:
        if isinstance(leaves, NoAnswer):
            text = f"Slurm does not show the switches, so peers are chosen without them: {leaves.reason}"
            self.note(text, "", now)
            return
        self.rules = structs.replace(self.rules, leaves=dict(leaves))

    def on_answer(self, number: int, answer: object, now: Now, *, is_last: bool = True) -> list[Effect]:
        """Take in an answer to the question of :class:`~.effects.Ask` ``number``; several may come."""
        self.hear(number, answer, now)
        if is_last:
            self.answered(number)
        return self._tick(now)  # other answers may wait to be taken in: none is late yet

    def on_drill(self, drill: msg.Drill, now: Now) -> tuple[msg.DrillReply, list[Effect]]:
        """Answer a drill: the owner tries a fault on the own job."""
        reply = self.drills.plant(drill, now)
        return reply, self.on_tick(now) if reply.drill else []

    def on_update_request(self, wish: msg.UpdateJob, now: Now) -> list[Effect]:
        """Take in that the owner wants another release; the answer is sent to
        :func:`~.units.updates.to_asker`.
        """
        self.updates.request(wish, now)
        return self.on_tick(now)

    def on_stacks_request(self, wish: msg.ShowStacks, now: Now) -> tuple[msg.StacksShown, list[Effect]]:
        """Answer the owner who wants to see what all ranks do; the policy has no say in it."""
        if not self.world.running and not self.stacks.knows(wish):
            return msg.StacksShown(error="no generation of workers runs now"), []
        shown = self.stacks.show(wish, now)
        self.note(f"stacks of generation {shown.generation} were requested by hand", "", now)
        return shown, self.on_tick(now)

    # -- what stages use ---------------------------------------------------------------------------

    def decide(self, fault: Fault, now: Now) -> ev.Decided:
        """Ask the policy about ``fault``, and write down what it says before anything is done about it."""
        self.standby_watch.step(now)  # standbys were unwatched while the generation was being ended
        decided = decide(self.state, fault, now.wall, self.rules)
        if not decided.drill:
            self.checkpoints.passed_over.judge_failure(fault, decided.verdict, now)
        elif fault.symptom is Symptom.HANG:
            self.monitor.confirm_hang(now)  # the script did not stand still by itself
        self.incidents.decide(decided, now)
        return decided

    def tend(self, now: Now) -> None:
        """Step the units that work beside training while it runs."""
        self._hand_over_if_configured_anew(now)
        self.standby_watch.step(now)
        self.standbys.step(now)
        self.learning.step(now)
        self.giving_back.step(now)
        self.replenishing.step(now)

    def _hand_over_if_configured_anew(self, now: Now) -> None:
        """Let another controller go on if the release that runs now has another configuration than this one.

        Ranks do not notice, so nothing waits for it.
        """
        own, wanted = map(self.state.configuration_of, (self._configured_by, self.state.release))
        if own == wanted:
            return
        text = f"the next controller goes on, with the configuration of release {self.state.release}"
        self.note(text, "", now, say=True)
        self.emit(HandOver())

    def evict(
        self,
        node: str,
        reason: str,
        now: Now,
        incident: int = 0,
        evidence: tuple[str, ...] = (),
        *,
        unproven: bool = False,
        drill: int = 0,
    ) -> None:
        """Use ``node`` no more in this job, and leave word why for who administers it.

        ``unproven``: suspicion alone speaks against it. ``drill``: it is for this drill, so the node is
        healthy and no administrator hears of it.
        """
        self.record(
            ev.NodeEvicted(
                t=now.wall, node=node, reason=reason, incident=incident, unproven=unproven, drill=drill
            )
        )
        if self.fleet.is_silent(node, QUIET * self.config.timings.heartbeat_s, now.mono, self.started):
            self.starts.let_go(node)
        if drill:
            return
        cause = self.world.incident if incident else None
        companion = self.state.lenders.get(node, 0)  # it ends when no copy on the node is needed
        suspect = Suspect(
            node=node,
            job_id=companion or self.state.job_id,
            t=now.wall,
            reason=reason[:MAX_TEXT],
            symptom=cause.symptom.value if cause else "",
            evidence=tuple(line[:MAX_TEXT] for line in evidence[:MAX_EVIDENCE]),
        )
        self.ask(SaveSuspect(suspect=suspect), now)

    def _answer(self, heartbeat: msg.Heartbeat, seq: int) -> None:
        """Tell the agent that it was heard, and that workers of another generation than today's must end."""
        self.send(heartbeat.node, msg.Ack(epoch=self.state.epoch, seq=seq, protocol=PROTOCOL))
        self._stop_strays(heartbeat)

    def _stop_strays(self, heartbeat: msg.Heartbeat) -> None:
        """End workers of an older generation, or without a slot, on a node that came back."""
        world = self.world
        over = heartbeat.generation < world.generation or not world.running
        stray = over or not world.placement.holds(heartbeat.node)
        busy = stray and heartbeat.phase in (msg.Phase.FREEING, msg.Phase.STARTING, msg.Phase.RUNNING)
        if busy and heartbeat.generation:
            order = msg.Stop(
                epoch=self.state.epoch,
                generation=max(heartbeat.generation, world.generation - 1),
                grace_s=self.config.timings.stop_grace_s,
            )
            self.send(heartbeat.node, order)
