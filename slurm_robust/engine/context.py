"""What every part of the controller reads, and the few ways in which any of them acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import structs

from slurm_robust.analysis.logs import RuleSet
from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import layout_of
from slurm_robust.engine.asked_agents import A as AgentA
from slurm_robust.engine.asked_agents import AskedAgents
from slurm_robust.engine.clock import Now
from slurm_robust.engine.effects import Ask, Effect, Say, Send, Write
from slurm_robust.engine.questions import A, NoAnswer, NoMoreAnswers, PendingAnswer, Question, StageOver
from slurm_robust.engine.units.fleet import Fleet
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.progress import Progress
from slurm_robust.model.state import JobState, apply
from slurm_robust.model.world import World
from slurm_robust.policy import Rules
from slurm_robust.util.hostlist import fold
from slurm_robust.wire import messages as msg
from slurm_robust.wire.protocol import knows

RECONNECT_S = 8.0
"""Agents notice within about 3 s that their controller is gone, and search for the next one."""

ORDERED_S = 4.0
"""Time for agents to find a controller that must end the run immediately; most have by then."""


class Context:
    """The job as the controller knows it now.

    The units of the core (agent starts, checkpoints, monitor …) and the stages share one. They read it; they
    change the job only by :meth:`record`, and what is outside only by :meth:`ask`, :meth:`send` and
    :meth:`emit`.
    """

    def __init__(
        self, config: JobConfig, state: JobState, now: Now, log_rules: RuleSet | None = None
    ) -> None:
        self.config: Final = config
        self.rules = Rules(config=config)
        self.log_rules: Final = log_rules
        """Rules for the output of workers; None: those of this package."""
        self.fleet: Final = Fleet()
        self.started: Final = now.mono
        """When this controller began."""
        self._state = state
        self._ending: str | None = None
        order = state.stop_ordered  # to an earlier controller of this run
        self._leaving: str | None = order.reason if order is not None else None
        self._leaving_code = ExitCode(order.code) if order is not None else ExitCode.TERMINATED
        self._effects: list[Effect] = []
        self._notes: set[tuple[str, str]] = set()
        self._pending: dict[int, PendingAnswer[Any]] = {}
        self._number = 0  # of the newest question
        self._repeats: list[tuple[float, PendingAnswer[Any]]] = []  # questions to repeat, and when
        self._asked: dict[int, AskedAgents[Any]] = {}  # questions to agents, by their numbers
        self._asked_number = state.epoch << 20  # answers to an earlier controller fit none of our numbers

    # -- what is known -----------------------------------------------------------------------------

    @property
    def switches(self) -> Mapping[str, str]:
        """Leaf switch of each node, if Slurm tells."""
        return self.rules.leaves

    @property
    def state(self) -> JobState:
        """The fold of the journal."""
        return self._state

    @property
    def world(self) -> World:
        """The world that this engine drives."""
        return self._state.world

    @property
    def layout(self) -> ParallelLayout:
        """The parallel layout of the slots."""
        return layout_of(self.config, len(self.world.slots), self.world.nproc_per_node)

    @property
    def ending(self) -> str | None:
        """Why the end of this run approaches, once it does."""
        return self._ending

    @property
    def leaving(self) -> str | None:
        """Why the controller was ordered to end immediately, once it was."""
        return self._leaving

    @property
    def leaving_code(self) -> ExitCode:
        """The exit code with which the controller ends if :attr:`leaving` is set."""
        return self._leaving_code

    @property
    def trains(self) -> bool:
        """Whether this generation has made a step."""
        return self.world.running and self.world.steps_here >= 0

    @property
    def gets_on(self) -> bool:
        """Whether training makes steps and no incident is open."""
        return self.trains and self.world.incident is None

    def progress(self, now: Now) -> list[Progress]:
        """Step records of all ranks of this generation that are known, as old as they are ``now``."""
        return self.fleet.progress(self.world.slots, self.world.generation, now.mono)

    def spent(self, now: Now) -> dict[str, float]:
        """Return this generation's seconds in phases and checkpoints, by name, rounded for the journal."""
        found = self.fleet.spent(self.world.slots, self.world.generation, now.mono)
        return {name: round(seconds, 3) for name, seconds in found.items() if seconds >= 0.0005}

    @property
    def unkept(self) -> dict[str, str]:
        """Nodes of the running generation whose memory has no room for snapshots of some rank, with why."""
        heartbeats = self.fleet.heartbeats(self.world.slots)
        return {
            node: heartbeat.unkept
            for node, heartbeat in heartbeats.items()
            if heartbeat.unkept and heartbeat.generation == self.world.generation
        }

    def exits(self, now: Now) -> tuple[NodeExit, ...]:
        """Return the workers of this generation that have ended."""
        return tuple(self.fleet.exits(self.world.slots, self.world.generation, now.mono))

    def reached(self, now: Now) -> int:
        """Return the newest step that any rank has completed by the script's numbers, -1 if none is known.

        Steps of other generations, and those with numbers that are not finite, do not count.
        """
        records = self.progress(now)
        if self.config.detect.non_finite:
            records = [record.good for record in records]
        return max((record.step for record in records if record.reported), default=-1)

    def is_progress(self, records: Sequence[Progress]) -> bool:
        """Return whether all ranks have completed a step with a finite loss, if losses are reported.

        Otherwise a job that ends in non-finite numbers again and again would seem to progress each time, and
        no bound would stop it.
        """
        if len(records) < self.world.placement.world_size or min(p.step for p in records) < 0:
            return False
        return not self.config.detect.non_finite or all(p.is_finite for p in records)

    def end_approaches(self, reason: str) -> None:
        """Take in that the end of this run is near, for ``reason``."""
        self._ending = reason

    # -- ways to act -------------------------------------------------------------------------------

    def record(self, event: ev.AnyEvent) -> None:
        """Change the state by ``event`` and have it written; the only way in which it changes."""
        if isinstance(event, ev.WorldEvent) and event.world != self._state.focus:
            event = structs.replace(event, world=self._state.focus)
        self._state = apply(event, self._state)
        self.emit(Write(event=event))

    def emit(self, effect: Effect) -> None:
        """Ask the loop for ``effect``, after those asked for before."""
        self._effects.append(effect)

    def knows(self, node: str, order: type[msg.FromController]) -> bool:
        """Return whether the agent on ``node`` speaks a version that has this kind of order."""
        heartbeat = self.fleet.heartbeat(node)
        return heartbeat is not None and knows(heartbeat.protocol, order)

    def ask(
        self,
        question: Question[A],
        now: Now,
        then: Callable[[A | NoAnswer, Now], None] | None = None,
        *,
        within_s: float | None = None,
    ) -> None:
        """Put ``question`` to the world outside; never waits.

        ``then`` hears each answer, also a late one. Answers to two questions come in any order. ``within_s``
        replaces the question's own bound. If there is no ``then``, a failure is written down as
        ``StageDone``; lateness is not.
        """
        bound_s = question.within_s if within_s is None else within_s
        self._number += 1
        self._pending[self._number] = PendingAnswer(question, bound_s, now.mono + bound_s, then)
        self.emit(Ask(number=self._number, question=question))

    def hear(self, number: int, answer: object, now: Now) -> None:
        """Take in an answer to question ``number``, unless it is closed or another controller's."""
        pending = self._pending.get(number)
        if pending is None:
            return
        if isinstance(answer, StageOver):
            self.record(ev.StageDone(t=now.wall, what=answer.what, ok=answer.ok, detail=answer.detail))
            return
        if isinstance(answer, NoAnswer) and (answer.is_error or (pending.then is None and not answer.late)):
            what = pending.question.what
            self.record(ev.StageDone(t=now.wall, what=what, ok=False, detail=answer.reason))
        if not isinstance(answer, NoMoreAnswers):
            pending.hear(answer, now)
        if isinstance(answer, NoAnswer) and not answer.late and pending.question.again_s is not None:
            self._repeats.append((now.mono + pending.question.again_s, pending))

    def forgive(self, seconds: float) -> None:
        """Do not count the last ``seconds`` against answers: nothing was heard meanwhile."""
        for pending in self._pending.values():
            pending.due += seconds
        for asked in self._asked.values():
            asked.forgive(seconds)

    def answered(self, number: int) -> None:
        """Take in that no more answers to question ``number`` will come."""
        self._pending.pop(number, None)

    def report_overdue(self, now: Now) -> None:
        """Tell askers whose answer is overdue, and repeat questions; a later answer is still passed on."""
        due = [pending for at, pending in self._repeats if now.mono >= at]
        self._repeats = [(at, pending) for at, pending in self._repeats if now.mono < at]
        for pending in due:
            self.ask(pending.question, now, pending.then, within_s=pending.within_s)
        for pending in [p for p in self._pending.values() if now.mono >= p.due and not p.is_heard]:
            reason = f"no answer within {pending.within_s:g} s"
            pending.hear(NoAnswer(reason=reason, late=True), now)

    def number_question(self) -> int:
        """Return the number for a question to agents, which no other question to agents has."""
        self._asked_number += 1
        return self._asked_number

    def ask_agents(
        self,
        questions: Mapping[str, msg.AgentQuestion[AgentA]],
        now: Now,
        then: Callable[[AgentA, Now], None] | None = None,
    ) -> AskedAgents[AgentA]:
        """Ask agents, by node, all under one number; never waits. ``then`` hears each answer."""
        asked = AskedAgents(questions, now.mono, then)
        for node, question in questions.items():
            self._asked[question.number] = asked
            self.send(node, cast(msg.FromController, question))
        return asked

    def hear_agent(self, answer: msg.AgentAnswer, now: Now) -> None:
        """Take in what an agent answers, unless it answers another controller's question."""
        asked = self._asked.get(answer.number)
        if asked is not None:
            asked.hear(answer, now)

    def ask_agents_again(self, now: Now) -> None:
        """Ask those that have not answered again when it is due, and forget what is over for long."""
        for number, asked in list(self._asked.items()):
            for node, question in asked.due(now).items():
                self.send(node, cast(msg.FromController, question))
            if asked.is_old(now) or not asked.questions:
                asked.forget()
                del self._asked[number]

    def send(self, node: str, message: msg.FromController) -> None:
        """Send to one agent."""
        self.emit(Send(node=node, message=message))

    def note(self, text: str, node: str, now: Now, *, say: bool = False) -> None:
        """Write a fact once, however often it is reported; ``say``: in the job's log, too."""
        if (node, text) not in self._notes:
            self._notes.add((node, text))
            self.record(ev.Noted(t=now.wall, text=text, node=node))
            if say:
                self.emit(Say(text=text))

    def evidence_missing(self, asked: str, nodes: tuple[str, ...], why: str, now: Now) -> None:
        """Record that requested evidence did not arrive; the decision goes on without it."""
        number = self.world.incident.number if self.world.incident else 0
        self.record(ev.Unanswered(t=now.wall, incident=number, asked=asked, nodes=nodes, why=why))
        self.emit(Say(text=f"asked {fold(nodes)} for {asked}: {why}"))
