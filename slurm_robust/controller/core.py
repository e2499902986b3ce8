"""The controller without its hands: Beats, signals and ticks in, effects out.

Nothing here reads a clock, a socket or a file, so a test or a simulation can drive years of a job
in a second. The core holds the job's state (the fold of its journal), the fleet, and the stage in
which the job is; each stage is a class of its own in :mod:`slurm_robust.controller.stages`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from slurm_robust.analysis.logs import RuleSet
from slurm_robust.config.schema import JobConfig
from slurm_robust.controller.effects import (
    Effect,
    Now,
    Prune,
    RequeueAnswer,
    SaveEvidence,
    SaveSuspicion,
    Say,
    Send,
    Write,
)
from slurm_robust.controller.fleet import Fleet, Heard
from slurm_robust.controller.incidentclock import IncidentClock, recovery_s
from slurm_robust.controller.knocking import Knocks
from slurm_robust.controller.restoring import Listing, note_shared
from slurm_robust.controller.stackbook import StackBook
from slurm_robust.controller.starts import AgentStarts
from slurm_robust.controller.transitions import Transition
from slurm_robust.controller.vitals import Vitals
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.diagnosis import Diagnosis
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.incident import Symptom
from slurm_robust.model.progress import Progress, slowest
from slurm_robust.model.state import JobState, apply
from slurm_robust.model.steps import Witness
from slurm_robust.model.suspicion import MOST_EVIDENCE, MOST_TEXT, Suspicion
from slurm_robust.policy import Rules
from slurm_robust.util.hostlist import fold
from slurm_robust.wire import messages as msg

PROGRESS_EVERY_S = 10.0
TOLD_STALL_S = 10.0  # less is a slow disk or a crowded processor
# After a cut TCP tries again after ever longer pauses, up to two minutes (RFC 6298), and so does storage:
# training resumes some time after they do.
EXCUSED_S, MOST_EXCUSED_S = 30.0, 150.0
PRUNE_EVERY_S = 1.0  # each looks through a folder on shared storage


class Stage(Protocol):
    """One phase of a job's life.

    ``enter`` is called once; ``step`` after every input and tick, and returns what comes next or
    None to stay. A stage acts only through the core's ``record``, ``send`` and ``emit``.
    """

    def enter(self, core: Core, now: Now) -> None:
        """Do what begins this stage."""

    def step(self, core: Core, now: Now) -> Transition | None:
        """Look at the state and the fleet; name the next stage, or None."""


Table = Callable[[Transition], Stage]


class Core:
    """All that the controller knows and decides."""

    def __init__(
        self,
        config: JobConfig,
        state: JobState,
        table: Table,
        first: Transition,
        now: Now,
        log_rules: RuleSet | None = None,
    ) -> None:
        """``log_rules``: for the output of workers, without them those of this package."""
        self.config = config
        self.log_rules = log_rules
        self.rules = Rules.of(config)
        self.state = state
        self.fleet = Fleet()
        self.started = now.mono
        self._table = table
        self.stage = table(first)
        self.clock: IncidentClock | None = None
        self.ending: str | None = None  # why the end of this run approaches, once it does
        self.leaving: str | None = None  # why we were told to go at once
        self.starts = AgentStarts()
        self.knocks = Knocks()
        self.leaving_code = ExitCode.TERMINATED
        self.listing = Listing()  # of the checkpoints on storage
        self.switches: dict[str, str] = {}  # leaf switch of each node, as far as Slurm tells
        self.held = False  # nothing is decided, since the journal is behind
        self.shared_seen: set[int] = set()  # generations of which a shared part was told
        stored_s = max(0.0, now.wall - state.stored.t) if state.stored else 0.0
        self.stored_at = now.mono - stored_s  # when a checkpoint last went to storage, or was tried to
        self.stacks = StackBook(config.detect.stacks_s)
        self.diagnosis: Diagnosis | None = None  # answer to the newest TestNodes
        self._vitals: Vitals | None = None
        self.requeue: RequeueAnswer | None = None  # to the newest BeginRequeue
        self.agents_gone = False  # the step of the agents has ended
        self.slurm_answers: tuple[float, bool] | None = None  # when it was asked last, and if it answered
        self.slurm_gone: frozenset[str] = frozenset()  # nodes that it has given up, by its newest answer
        self._effects: list[Effect] = []
        self._notes: set[tuple[str, str]] = set()
        self._progress_at = self._watched_at = now.mono
        self._pruned: tuple[int, int, float] = (0, -1, now.mono)  # generation, step, when
        self.stage.enter(self, now)

    @property
    def trains(self) -> bool:
        """Whether this generation has made a step."""
        return self.state.running and self.state.steps_here >= 0

    # -- inputs ------------------------------------------------------------------------------------

    def on_beat(self, beat: msg.Beat, now: Now) -> None:
        """An agent spoke. Nothing is concluded before :meth:`on_tick`.

        After a stall of our own many Beats wait; judging anybody's silence before all of them are
        read would declare healthy nodes dead.
        """
        if self.starts.dismissed(self, beat, now):
            return
        heard = self.fleet.hear(beat, now.mono)
        if heard is not Heard.SAME:
            self.record(ev.AgentJoined(t=now.wall, node=beat.node, agent=beat.agent, address=beat.address))
            if beat.node in self.state.evicted:
                self.record(ev.NodeReturned(t=now.wall, node=beat.node))
        for text in beat.notes:
            self.note(text, beat.node, now)
        self._answer(beat, beat.seq)
        note_shared(self, beat)

    def on_pulse(self, pulse: msg.Pulse, now: Now) -> None:
        """An agent has nothing new to tell."""
        beat = self.fleet.feel(pulse, now.mono)
        if beat is not None:
            self._answer(beat, pulse.seq)

    def on_stall(self, seconds: float, now: Now) -> None:
        """We ourselves did nothing for ``seconds`` (a slow disk, a stopped process): nobody was silent."""
        self.fleet.forgive(seconds)
        if seconds >= TOLD_STALL_S:
            text = (
                f"the controller stood still for {seconds:.0f} s: the job was suspended (scontrol suspend), "
                "or this node or the storage of the job's folder hung; nobody is called silent for it, and "
                "ETTR counts it as training"
            )
            self.record(ev.Noted(t=now.wall, text=text, node=self.state.own_node))
            self.emit(Say(text=text))

    def on_tick(self, now: Now) -> list[Effect]:
        """Time has passed, or something else may have changed: go on as far as possible."""
        if not self.held:
            self._go_on(now)
        effects, self._effects = self._effects, []
        return effects

    def _go_on(self, now: Now) -> None:
        while (following := self.stage.step(self, now)) is not None:
            self.stage = self._table(following)
            self.stage.enter(self, now)
        self._ask_for_stacks(now)
        self.knocks.step(self, now)

    def on_hold_over(self, seconds: float, now: Now) -> None:
        """For ``seconds`` nothing was decided, and the clock stood still. Training may have stood, too."""
        if self.clock is not None:
            self.clock.pass_over(seconds)
        if seconds < TOLD_STALL_S:
            return
        if self.state.running:
            self.excuse_cut(seconds, now)
        text = (
            f"nothing was decided for {seconds:.0f} s, since the storage of the job's folder did not take "
            "the journal; nobody is blamed for it, and ETTR counts it as training"
        )
        self.record(ev.Noted(t=now.wall, text=text))
        self.emit(Say(text=text))

    def on_end_approaching(self, reason: str, now: Now) -> list[Effect]:
        """The time limit or a preemption is near (USR1)."""
        if self.ending is None:
            self.ending = reason
            what = (
                "taking a checkpoint first"
                if self.trains
                else "nothing trains now, so no checkpoint is taken"
            )
            self.emit(Say(text=f"{reason}: {what}"))
        return self.on_tick(now)

    def on_leave(self, reason: str, now: Now, code: ExitCode = ExitCode.TERMINATED) -> list[Effect]:
        """Slurm ends the job now (TERM), or the owner does (Ctrl-C). ``code``: what it ends with."""
        if self.leaving is None:
            self.leaving, self.leaving_code = reason, code
            self.note(reason, "", now)
        return self.on_tick(now)

    def on_checkpoints(
        self, generation: int, complete: Mapping[CheckpointId, Tier] | None, now: Now
    ) -> list[Effect]:
        """Answer to FindCheckpoint: all that are complete; None when storage does not tell."""
        self.listing.answer(generation, complete)
        return self.on_tick(now)

    def on_agents_gone(self, now: Now) -> list[Effect]:
        """The step of the agents has ended."""
        self.agents_gone = True
        return self.on_tick(now)

    def on_stacks(self, answer: msg.StacksTaken) -> None:
        """An agent sent the stacks that it was asked for. Nothing is concluded before :meth:`on_tick`."""
        if answer.generation == self.state.generation:
            self.stacks.hear(answer)

    def on_tests(self, diagnosis: Diagnosis, now: Now) -> list[Effect]:
        """Answer to TestNodes."""
        self.diagnosis = diagnosis
        return self.on_tick(now)

    def on_nodes(self, found: tuple[Witness, ...] | None, now: Now) -> list[Effect]:
        """Answer to AskAboutNodes: Slurm's word on them; None when slurmctld does not answer."""
        self.slurm_answers = (now.mono, found is not None)
        self.slurm_gone = frozenset(witness.node for witness in found or () if witness.gone)
        self.starts.on_witness(found)
        return self.on_tick(now)

    def on_requeue(self, answer: RequeueAnswer, now: Now) -> list[Effect]:
        """What Slurm says to the requeue."""
        self.requeue = answer
        return self.on_tick(now)

    def on_stage_done(self, what: str, ok: bool, detail: str, now: Now) -> list[Effect]:
        """Something longer that Slurm does for us got further."""
        self.record(ev.StageDone(t=now.wall, what=what, ok=ok, detail=detail))
        return self.on_tick(now)

    def on_drill(self, drill: msg.Drill, now: Now) -> tuple[msg.DrillReply, list[Effect]]:
        """The owner tries a fault on the own job."""
        signals = {"kill-rank": 9, "stop-rank": 19}
        world = self.state.placement.world_size
        if drill.fault not in signals:
            text = f"unknown fault '{drill.fault}'; possible: {', '.join(signals)}"
            return msg.DrillReply(ok=False, text=text), []
        if not self.state.running or not 0 <= drill.rank < world:
            text = f"rank {drill.rank} does not run now; ranks are 0 to {world - 1}"
            return msg.DrillReply(ok=False, text=text), []
        node = self.state.placement.node_of(drill.rank)
        order = msg.Inject(epoch=self.state.epoch, rank=drill.rank, signal=signals[drill.fault])
        self.emit(Send(node=node, message=order))
        text = f"drill: {drill.fault} on rank {drill.rank} ({node}, generation {self.state.generation})"
        self.record(ev.Noted(t=now.wall, text=text, node=node))
        return msg.DrillReply(ok=True, text=text), self.on_tick(now)

    def on_look(self, wish: msg.LookAtStacks, now: Now) -> tuple[msg.StacksShown, list[Effect]]:
        """The owner wants to see what all ranks do, whatever the policy thinks of it."""
        state, book = self.state, self.stacks
        if not state.running and not book.knows(wish):
            return msg.StacksShown(error="no generation of workers runs now"), []
        shown = book.show(wish, state.generation if state.running else 0, state.slots, now.mono)
        self.note(f"stacks of generation {shown.generation} were looked at by hand", "", now)
        return shown, self.on_tick(now)

    # -- what stages use ---------------------------------------------------------------------------

    def record(self, event: ev.AnyEvent) -> None:
        """Change the state by ``event`` and have it written; the only way in which it changes."""
        self.state = apply(event, self.state)
        self.emit(Write(event=event))

    def emit(self, effect: Effect) -> None:
        """Ask the loop for ``effect``, after those asked for before."""
        self._effects.append(effect)

    def send(self, node: str, message: msg.FromController) -> None:
        """Send to one agent."""
        self.emit(Send(node=node, message=message))

    def note(self, text: str, node: str, now: Now) -> None:
        """Write a fact once, however often it is told."""
        if (node, text) not in self._notes:
            self._notes.add((node, text))
            self.record(ev.Noted(t=now.wall, text=text, node=node))

    def vitals(self, now: Now) -> Vitals:
        """Those of this generation."""
        if self._vitals is None or self._vitals.generation != self.state.generation:
            self._vitals = Vitals(self, now, self.state.pace)
        return self._vitals

    def excuse(self, seconds: float, now: Now) -> None:
        """Begin the vitals anew and tell no hang for ``seconds``: what was stopped has to get going again."""
        self._vitals = Vitals(self, now, self.vitals(now).history, seconds)

    def excuse_cut(self, seconds: float, now: Now) -> None:
        """Excuse what a cut network or a silent storage of ``seconds`` has held up."""
        self.excuse(min(max(2 * seconds, EXCUSED_S), MOST_EXCUSED_S), now)

    def open_incident(self, symptom: Symptom, detail: str, detect_s: float, now: Now) -> None:
        """Training stopped being productive; a symptom of an open incident is added to it."""
        if self.state.incident is not None:
            number = self.state.incident.number
            self.record(ev.SymptomAdded(t=now.wall, incident=number, symptom=symptom, detail=detail))
        else:
            number = self.state.incidents + 1
            self.clock = IncidentClock(number, now.mono)
            self.record(
                ev.IncidentOpened(
                    t=now.wall,
                    incident=number,
                    generation=self.state.generation,
                    symptom=symptom,
                    detail=detail,
                    detect_s=max(0.0, detect_s),
                    best_step=self.state.best_step,
                )
            )
        self.emit(Say(text=f"incident {number}: {detail} (seen after {max(0.0, detect_s):.2f} s)"))

    def lacks(self, asked: str, nodes: tuple[str, ...], why: str, now: Now) -> None:
        """What would have told more did not come: it is part of the story of what is decided without it."""
        number = self.state.incident.number if self.state.incident else 0
        self.record(ev.Unanswered(t=now.wall, incident=number, asked=asked, nodes=nodes, why=why))
        self.emit(Say(text=f"asked {fold(nodes)} for {asked}: {why}"))

    def close_incident(self, step: int, age_s: float, now: Now) -> None:
        """The first new step was completed ``age_s`` seconds ago."""
        assert self.state.incident is not None
        number = self.state.incident.number
        by_itself = self.state.incident.decided is None
        recover_s = recovery_s(self, self.state.incident, age_s, now)
        self.clock = None
        self.record(
            ev.IncidentClosed(
                t=now.wall - age_s,
                incident=number,
                generation=self.state.generation,
                step=step,
                recover_s=recover_s,
            )
        )
        self.emit(SaveEvidence(number=number))
        took = f" (recovery took {recover_s:.2f} s)" if recover_s is not None else ""
        how = "; training went on by itself" if by_itself else took
        self.emit(Say(text=f"incident {number}: over, step {step} is done{how}"))

    def ask_for_stacks(self, now: Now, native: tuple[int, ...] = ()) -> None:
        """Have the stacks of all ranks taken; :attr:`stacks` has them when it is over."""
        self.stacks.ask(self.state.generation, self.state.slots, now.mono, native)

    def evict(
        self, node: str, reason: str, now: Now, incident: int = 0, evidence: tuple[str, ...] = ()
    ) -> None:
        """Use ``node`` no more in this job, and leave word why for who administers it."""
        self.record(ev.NodeEvicted(t=now.wall, node=node, reason=reason, incident=incident))
        cause = self.state.incident if incident else None
        suspicion = Suspicion(
            node=node,
            job_id=self.state.job_id,
            t=now.wall,
            reason=reason[:MOST_TEXT],
            symptom=cause.symptom.value if cause else "",
            evidence=tuple(line[:MOST_TEXT] for line in evidence[:MOST_EVIDENCE]),
        )
        self.emit(SaveSuspicion(suspicion=suspicion))

    def is_progress(self, records: Sequence[Progress]) -> bool:
        """Whether all ranks have completed a step, with a loss that is a number as far as it is told.

        Otherwise what ends in such numbers again and again would get ahead each time, and meet no bound.
        """
        if len(records) < self.state.placement.world_size or min(p.step for p in records) < 0:
            return False
        return not self.config.detect.non_finite or all(p.is_finite for p in records)

    def watch_progress(self, now: Now, *, force: bool = False) -> None:
        """Write the newest step completed by all ranks every few seconds, and at ``force``."""
        if not force and now.mono - self._watched_at < PRUNE_EVERY_S:
            return
        self._watched_at, state = now.mono, self.state
        records = self.fleet.progress(state.slots, state.generation, now.mono)
        if self.config.detect.non_finite:
            records = [record.good for record in records]
        if not self.is_progress(records):
            return
        self._watch_published(min(p.checkpoint for p in records), now)
        if not force and now.mono - self._progress_at < PROGRESS_EVERY_S:
            return
        self._progress_at = now.mono
        last = slowest(records)
        self.record(
            ev.ProgressMade(
                t=now.wall - last.age_s,
                generation=state.generation,
                step=last.step,
                reported=all(p.reported for p in records),
                loss=last.loss,
                grad_norm=last.grad_norm,
            )
        )

    def prune(self) -> None:
        """Have old checkpoints removed from storage; there is a newer one."""
        self.emit(Prune(sealed=self.state.sealed))

    def _watch_published(self, newest: int, now: Now) -> None:
        """Workers that write to storage themselves tell so in their progress."""
        generation, step, at = self._pruned
        news = newest >= 0 and (self.state.generation, newest) != (generation, step)
        if news and now.mono - at >= PRUNE_EVERY_S:
            self._pruned = (self.state.generation, newest, now.mono)
            self.stored_at = now.mono
            self.prune()

    def _ask_for_stacks(self, now: Now) -> None:
        state, book = self.state, self.stacks
        due = book.due(now.mono)
        for node in due if state.running and book.generation == state.generation else ():
            order = msg.TakeStacks(
                epoch=state.epoch,
                generation=state.generation,
                number=book.number,
                budget_s=book.budget_s,
                native=book.native,
            )
            self.send(node, order)

    def _answer(self, beat: msg.Beat, seq: int) -> None:
        """Tell the agent that it was heard, and that workers of another generation than today's must end."""
        self.send(beat.node, msg.Ack(epoch=self.state.epoch, seq=seq))
        self._stop_strays(beat)

    def _stop_strays(self, beat: msg.Beat) -> None:
        """Workers of another generation than today's on a node that came back must end."""
        busy = beat.phase in (msg.Phase.FREEING, msg.Phase.STARTING, msg.Phase.RUNNING)
        over = beat.generation < self.state.generation or not self.state.running
        stray = over or not self.state.placement.holds(beat.node)
        if busy and stray and beat.generation:
            order = msg.Stop(
                epoch=self.state.epoch,
                generation=max(beat.generation, self.state.generation - 1),
                grace_s=self.config.timings.stop_grace_s,
            )
            self.send(beat.node, order)
