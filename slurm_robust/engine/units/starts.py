"""The starts of agents: which were made, what Slurm said of them, and what to do if no agent came."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import LetGo, NoAnswer, StartAgents
from slurm_robust.engine.units.witnesses import Witnesses
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import OUT_OF_MEMORY, Outlook, StepEnd, Witness
from slurm_robust.model.record import Record
from slurm_robust.model.startup import AGENT, ZYGOTE, phase_times
from slurm_robust.policy.patience import AGENT_LEAST_S, patience_s
from slurm_robust.policy.starting import (
    ASK_AGAIN_S,
    GRACE_S,
    Start,
    StartAdvice,
    apart,
    format_start,
    judge,
    may_yet_end,
    went_with_step,
)
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Heartbeat, Shutdown


@dataclass
class _NodeStart:
    """The newest start on one node; times are monotonic seconds."""

    first: float
    at: float
    times: int = 1
    end: StepEnd | None = None
    ended: float = 0.0
    asked: float | None = None
    witness: Witness | None = None
    failed: str = ""  # why the start before this one came to nothing
    unsettled: bool = False  # one before it failed because slurmctld was away
    missed: bool = False  # nothing was started: the agent that was there is silent
    ask_next: float = 0.0  # about a node that was missed


@dataclass
class Unstarted:
    """Nodes without an agent for which waiting is over, with the reason."""

    down: dict[str, str] = field(default_factory=dict)
    """Slurm says that the node is not there."""
    silent: dict[str, str] = field(default_factory=dict)
    """Nothing says why."""
    refused: dict[str, str] = field(default_factory=dict)
    """Slurm does not start the agent."""
    left: dict[str, int] = field(default_factory=dict)
    """Lent nodes of ``down`` that are up, but that Slurm has taken from the job, with their companion."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why the first start failed, also on nodes that are still waited for."""

    @property
    def over(self) -> dict[str, str]:
        """All nodes for which waiting is over."""
        return self.down | self.silent | self.refused


@dataclass
class AgentEnds:
    """Ends of agents, each with Slurm's message."""

    agents: dict[str, str] = field(default_factory=dict)
    """Agents that ended; their nodes are silent since."""
    steps: dict[str, str] = field(default_factory=dict)
    """Nodes that are silent since the step of their agents ended."""
    oom: dict[str, str] = field(default_factory=dict)
    """Agents that ended for want of memory."""
    soon: set[str] = field(default_factory=set)
    """Agents that are heard and may end soon, since their step has."""
    killed: set[str] = field(default_factory=set)
    """Nodes of ``steps`` of whose agent Slurm itself has reported the end."""

    @property
    def sure(self) -> set[str]:
        """All nodes whose agent Slurm itself has reported as ended: its workers die with it."""
        return self.killed | self.agents.keys()

    @property
    def silent(self) -> dict[str, str]:
        """All nodes whose silence is explained by an end."""
        return self.steps | self.agents


class AgentRefusal(Record):
    """An agent could not begin."""

    text: str
    code: int
    """The exit code of the job if too many agents are refused."""


class AgentStarts:
    """Starts by node, of nodes whose agent is wanted."""

    def __init__(self, context: Context, witnesses: Witnesses) -> None:
        self._context, self._witnesses = context, witnesses
        witnesses.tell(self._on_witness)
        self._nodes: dict[str, _NodeStart] = {}
        self._ended: set[str] = set()  # nodes of which an end is known
        self._refused: dict[str, AgentRefusal] = {}
        self.refused: Final[Mapping[str, AgentRefusal]] = MappingProxyType(self._refused)
        """Why the agent of a node could not begin; only to be read."""
        self._all_ended = False
        self._let_go: dict[str, bool] = {}  # silent since their newest start; whether that is done

    @property
    def all_ended(self) -> bool:
        """Whether the step of the agents has ended since the last start."""
        return self._all_ended

    def begin(self, nodes: tuple[str, ...], now: Now, *, forget_silent: bool = False) -> None:
        """Start agents on ``nodes``: nothing that was before counts.

        ``forget_silent``: nor does what other silent nodes have said, for no agent of a slot is left.
        """
        if forget_silent:
            self._context.fleet.forget_silent(now.mono, self._context.config.timings.node_dead_s)
        for node in nodes:
            self._nodes[node] = _NodeStart(first=now.mono, at=now.mono)
            self._ended.discard(node)
            self._context.fleet.forget(node)
            self._refused.pop(node, None)
            self._let_go.pop(node, None)
        if nodes:
            self._all_ended = False
            self._context.emit(Say(text=f"starting agents on {fold(nodes)}"))
            self._start(StartAgents(nodes=nodes, image=self._context.state.image), now)

    def _start(self, question: StartAgents, now: Now) -> None:
        self._context.ask(question, now, partial(self._on_started, question.nodes))

    def _on_started(self, nodes: tuple[str, ...], answer: NoAnswer | Mapping[str, str], now: Now) -> None:
        if not isinstance(answer, NoAnswer):
            reasons, fix = dict(answer), ""
        else:
            reasons, fix = {} if answer.late else dict.fromkeys(nodes, answer.reason), answer.fix
        for reason in dict.fromkeys(reasons.values()):
            failed = tuple(node for node in nodes if reasons.get(node) == reason)
            text = f"agents could not be started: {reason}"
            self.on_end(StepEnd(nodes=failed, code=-1, message=text, fix=fix), now)

    def forgive(self, seconds: float) -> None:
        """Do not count the last ``seconds``: agents that ended before them were not heard after them."""
        for start in self._nodes.values():
            start.ended += seconds

    def waited_s(self, node: str, now: Now) -> float | None:
        """Return the seconds since the newest start on ``node``; None if another controller made it."""
        start = self._nodes.get(node)
        return None if start is None else now.mono - start.at

    def on_refusal(self, node: str, text: str, code: int = ExitCode.JOB_DIR) -> None:
        """Take in that the agent of ``node`` could not begin (its own message, from the step's output)."""
        self._refused.setdefault(node, AgentRefusal(text=text, code=code))

    def on_all_ended(self) -> None:
        """Take in that the step of the agents has ended."""
        self._all_ended = True

    def on_end(self, end: StepEnd, now: Now) -> None:
        """Take in that an srun, or some of its tasks, ended: a living agent is heard again soon."""
        context = self._context
        is_over = context.state.ended is not None or context.state.requeueing is not None
        if end.code and not (context.leaving or is_over or end.age_s):
            context.note(f"agents on {fold(end.nodes)} ended: {end.message}", "", now)
        for node in end.nodes:
            if not context.world.running:
                context.fleet.forget(node)
            start = self._nodes.setdefault(node, _NodeStart(first=now.mono, at=now.mono))
            if start.end is None or node not in start.end.named:
                start.end, start.ended = end, now.mono
            self._ended.add(node)

    def _on_witness(self, found: Iterable[Witness] | None) -> None:
        """Take in Slurm's word on nodes that it was asked about; None: no answer in time."""
        if found is None:
            for asked in self._nodes.values():
                asked.asked = asked.asked and -math.inf
        for witness in found or ():
            if (start := self._nodes.get(witness.node)) is not None:
                start.witness = witness

    def dismissed(self, heartbeat: Heartbeat, now: Now) -> bool:
        """End the second agent of a node on which one was started twice, and both came."""
        context = self._context
        known, start = context.fleet.views.get(heartbeat.node), self._nodes.get(heartbeat.node)
        if known is None or known.heartbeat.agent == heartbeat.agent or start is None or start.times < 2:
            return False
        if now.mono - known.heard > context.config.timings.node_dead_s:
            return False
        context.send(heartbeat.agent, Shutdown(epoch=context.state.epoch, grace_s=0.0, keep_copies=True))
        return True

    def check(self, nodes: Iterable[str], now: Now) -> Unstarted:
        """Ask about ``nodes`` without agents, or start agents again; return the nodes whose wait is over."""
        context, missing = self._context, tuple(nodes)
        for node in missing:  # an agent may come by itself, and has the time of a start
            self._nodes.setdefault(node, _NodeStart(first=now.mono, at=now.mono))
        starts = {node: self._seen(node, now) for node in missing}
        joined_s = context.fleet.joined_s(now.mono)
        patience = patience_s(context.config.timings.agent_start_s, AGENT_LEAST_S, joined_s)
        answers = {node: judge(start, patience) for node, start in starts.items()}
        if asked := _nodes_of(answers, StartAdvice.ASK):
            for node in asked:
                start = self._nodes[node]
                start.asked, start.ask_next = now.mono, now.mono + max(ASK_AGAIN_S, now.mono - start.first)
            self._witnesses.ask_slurm(asked, now)
        found = {answer: {n: self._why(starts[n]) for n in _nodes_of(answers, answer)} for answer in _TOLD}
        if again := found[StartAdvice.AGAIN]:
            self._start_again(again, now)
        down = found[StartAdvice.DOWN]
        left = [node for node in down if (word := starts[node].witness) is not None and word.left]
        lenders = context.state.lenders
        return Unstarted(
            down,
            found[StartAdvice.UNSTARTED],
            found[StartAdvice.REFUSED],
            left={node: lenders[node] for node in left if node in lenders},
            failed={node: why for node in missing if (why := self._nodes[node].failed)},
        )

    def missed(self, node: str, now: Now) -> None:
        """Wait for the agent of ``node``, which had joined and is silent, as if it were started now."""
        known = self._context.fleet.forget(node)
        heard = known.heard if known is not None else -math.inf
        old = self._nodes.get(node, _NodeStart(first=now.mono, at=now.mono))
        times = 1 if known is not None else old.times  # the newest start led to an agent
        new = _NodeStart(first=now.mono, at=now.mono, times=times, missed=True)
        if old.ended >= heard or went_with_step(old.end, node, heard - old.ended):
            new.end, new.ended = old.end, old.ended
        self._nodes[node] = new

    def let_go(self, node: str) -> None:
        """Give up ``node``, which may be dead: when it is back, no agent elsewhere must end for it."""
        self._let_go.setdefault(node, False)

    def step(self, now: Now) -> None:
        """Let silent nodes go as soon as no agent is awaited, which may be of the same srun."""
        waiting = [node for node, is_done in self._let_go.items() if not is_done]
        if waiting and not any(self._awaits(node, now) for node in self._nodes):
            self._let_go.update(dict.fromkeys(waiting, True))
            for node in waiting:
                self._context.ask(LetGo(node=node), now)

    def _awaits(self, node: str, now: Now) -> bool:
        """Return whether an agent may yet come to ``node`` for the first time since its newest start."""
        start, view = self._nodes[node], self._context.fleet.views.get(node)
        has_come = view is not None or start.missed or node in self._let_go or start.end is not None
        return not has_come and now.mono - start.at <= self._context.config.timings.agent_start_s

    def ends(self, nodes: Iterable[str], now: Now) -> AgentEnds:
        """Return what is known of ends of the agents of ``nodes``."""
        found = AgentEnds()
        if not self._ended:
            return found
        for node in nodes:
            if node not in self._ended:
                continue
            start, view = self._nodes.get(node), self._context.fleet.views.get(node)
            if start is None or (end := start.end) is None:
                continue
            heard = view.heard if view is not None else -math.inf
            if OUT_OF_MEMORY.search(end.message):
                found.oom[node] = end.message
            if end.is_task and heard <= start.ended:
                found.agents[node] = end.message
            is_killed = node in end.killed and heard <= start.ended
            is_silent = is_killed or now.mono - heard > GRACE_S
            if is_silent and went_with_step(end, node, heard - start.ended):
                found.steps[node] = end.message or f"srun ended with exit code {end.code}"
                found.killed.update((node,) if is_killed else ())
            if view is not None and may_yet_end(end, node, heard - start.ended):
                found.soon.add(node)
        return found

    def _why(self, start: Start) -> str:
        refusal = self.refused.get(start.node)
        fix = f"; fix: {start.end.fix}" if start.end is not None and start.end.fix else ""
        return (f"{refusal.text}; " if refusal is not None else "") + format_start(start) + fix

    def _seen(self, node: str, now: Now) -> Start:
        start = self._nodes[node]
        return Start(
            node=node,
            times=start.times,
            waited_s=now.mono - start.at,
            tried_s=now.mono - start.first,
            end=start.end,
            end_s=now.mono - start.ended,
            asked_s=None if start.asked is None else now.mono - start.asked,
            witness=start.witness,
            unsettled=start.unsettled,
            came_before=self._context.world.generation > 0 and not self._context.fleet.views,
            missed=start.missed,
            asks_again=start.missed and now.mono >= start.ask_next,
        )

    def _start_again(self, why: dict[str, str], now: Now) -> None:
        ends = {node: self._nodes[node].end for node in why}
        for node, failed in why.items():
            old = self._nodes[node]
            was_away = old.end is not None and old.end.outlook is Outlook.PASSES
            self._nodes[node] = _NodeStart(
                first=old.first,
                at=now.mono,
                times=old.times + 1,
                failed=failed,
                unsettled=old.unsettled or was_away,
            )
            self._refused.pop(node, None)
            self._let_go.pop(node, None)
        self._all_ended = False
        text = f"starting the agents on {fold(why)} again: {next(iter(why.values()))}"
        self._context.note(text, "", now)
        self._context.emit(Say(text=text))
        image = self._context.state.image
        self._start(StartAgents(nodes=tuple(why), apart=apart(ends), image=image), now)


_TOLD = (StartAdvice.AGAIN, StartAdvice.DOWN, StartAdvice.UNSTARTED, StartAdvice.REFUSED)


def _nodes_of(answers: dict[str, StartAdvice], wanted: StartAdvice) -> tuple[str, ...]:
    """Return the nodes for which the answer is ``wanted``."""
    return tuple(node for node, answer in answers.items() if answer is wanted)


class StartPhases:
    """How long each node took for the start of a generation, phase by phase.

    Nodes measure their phases; which agents and zygotes the start waited for is known here.
    """

    def __init__(self, context: Context, starts: AgentStarts) -> None:
        self._context = context
        self._starts = starts
        self._agents: dict[str, float] = {}
        self._zygotes: set[str] = set()

    def hear(self, before: Heartbeat | None, heartbeat: Heartbeat, now: Now) -> None:
        """Take in a heartbeat after ``before``. While a generation runs, nothing waits for agents."""
        if self._context.world.running:
            return
        node, is_same = heartbeat.node, before is not None and before.agent == heartbeat.agent
        if not is_same and (waited_s := self._starts.waited_s(node, now)) is not None:
            self._agents[node] = waited_s
        if heartbeat.ready and not (is_same and before is not None and before.ready):
            self._zygotes.add(node)

    def record(self, now: Now, took_s: float | None = None) -> None:
        """Write down the phases of this generation that are over; ``took_s``: launch to first step."""
        state, found = self._context.state, {}
        for node, heartbeat in self._context.fleet.heartbeats(state.world.slots).items():
            if heartbeat.generation != state.world.generation:
                continue
            found[node] = {p: s for p, s in heartbeat.timings.items() if p != ZYGOTE or node in self._zygotes}
            if node in self._agents:
                found[node][AGENT] = self._agents[node]
        self._agents.clear()
        self._zygotes.clear()
        if phases := phase_times(found):
            event = ev.StartMeasured(
                t=now.wall, generation=state.world.generation, phases=phases, took_s=took_s
            )
            self._context.record(event)
