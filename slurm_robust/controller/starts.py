"""The starts of agents: which were made, what Slurm said of them, and what to do where no agent came."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_robust.controller.effects import AskAboutNodes, Now, Say, StartAgents
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.steps import Outlook, StepEnd, Witness
from slurm_robust.policy.lateness import patience_s
from slurm_robust.policy.starting import Answer, Start, in_words, judge
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Heartbeat, Shutdown

if TYPE_CHECKING:
    from slurm_robust.controller.core import Core

# An agent has at least this time to come, however early the others came.
LEAST_S = 60.0


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


@dataclass
class Unstarted:
    """Nodes without an agent for which waiting is over, with the reason in words.

    ``down``: Slurm says so; ``silent``: nothing says why; ``refused``: Slurm does not start the agent.
    """

    down: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class AgentStarts:
    """Starts by node, of nodes whose agent is wanted; ``refused``: why an agent could not begin."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeStart] = {}
        self.refused: dict[str, str] = {}
        self.refusal_code: int = ExitCode.JOB_DIR  # what the job ends with where too many are refused

    def begin(self, core: Core, nodes: tuple[str, ...], now: Now) -> None:
        """Start agents on ``nodes``: nothing that was before counts."""
        for node in nodes:
            self._nodes[node] = _NodeStart(first=now.mono, at=now.mono)
            core.fleet.views.pop(node, None)
            self.refused.pop(node, None)
        if nodes:
            core.agents_gone = False
            core.emit(Say(text=f"starting agents on {fold(nodes)}"))
            core.emit(StartAgents(nodes=nodes))

    def expect(self, nodes: Iterable[str], now: Now) -> None:
        """Agents of ``nodes`` may come by themselves, and have the time of a start."""
        for node in nodes:
            self._nodes.setdefault(node, _NodeStart(first=now.mono, at=now.mono))

    def on_refusal(self, node: str, text: str, code: int = ExitCode.JOB_DIR) -> None:
        """The agent of ``node`` could not begin (its own words from the step's output)."""
        self.refused.setdefault(node, text)
        self.refusal_code = code

    def on_end(self, core: Core, end: StepEnd, now: Now) -> None:
        """An srun, or some of its tasks, ended: whoever of them is still there speaks again at once."""
        if end.code and not core.leaving:
            core.note(f"agents on {fold(end.nodes)} ended: {end.words}", "", now)
        for node in end.nodes:
            if not core.state.running:
                core.fleet.views.pop(node, None)
            start = self._nodes.get(node)
            if start is not None and not (start.end is not None and node in start.end.named):
                start.end, start.ended = end, now.mono

    def on_witness(self, found: Iterable[Witness] | None) -> None:
        """Slurm's word on nodes that it was asked about; None: it has none, and is waited for no longer."""
        if found is None:
            for asked in self._nodes.values():
                asked.asked = asked.asked and -math.inf
        for witness in found or ():
            if (start := self._nodes.get(witness.node)) is not None:
                start.witness = witness

    def dismissed(self, core: Core, heartbeat: Heartbeat, now: Now) -> bool:
        """End the second agent of a node on which one was started twice, and both came."""
        known, start = core.fleet.views.get(heartbeat.node), self._nodes.get(heartbeat.node)
        if known is None or known.heartbeat.agent == heartbeat.agent or start is None or start.times < 2:
            return False
        if now.mono - known.heard > core.config.timings.node_dead_s:
            return False
        core.send(heartbeat.agent, Shutdown(epoch=core.state.epoch, grace_s=0.0, keep_copies=True))
        return True

    def look(self, core: Core, nodes: Iterable[str], now: Now) -> Unstarted:
        """Of ``nodes``, none of which has an agent: ask, start again, and tell for which waiting is over."""
        missing = tuple(nodes)
        self.expect(missing, now)
        starts = {node: self._seen(node, now) for node in missing}
        joined_s = core.fleet.joined_s(now.mono)
        patience = patience_s(core.config.timings.agent_start_s, LEAST_S, joined_s)
        answers = {node: judge(start, patience) for node, start in starts.items()}
        if asked := _nodes_of(answers, Answer.ASK):
            for node in asked:
                self._nodes[node].asked = now.mono
            core.emit(AskAboutNodes(nodes=asked))
        found = {answer: {n: self._why(starts[n]) for n in _nodes_of(answers, answer)} for answer in _TOLD}
        if again := found[Answer.AGAIN]:
            self._start_again(core, again, now)
        return Unstarted(found[Answer.DOWN], found[Answer.UNSTARTED], found[Answer.REFUSED])

    def missed(self, core: Core, node: str, now: Now) -> None:
        """The agent of ``node``, which had joined, is silent: it may come back as if it were started now."""
        heard = core.fleet.forget(node).heard
        old = self._nodes.get(node, _NodeStart(first=now.mono, at=now.mono))
        new = _NodeStart(first=now.mono, at=now.mono, times=old.times)
        if old.ended >= heard:
            new.end, new.ended = old.end, old.ended
        self._nodes[node] = new

    def out_of_memory(self, nodes: Iterable[str]) -> dict[str, str]:
        """Of ``nodes`` those whose agent Slurm says ended for want of memory, with its words."""
        ends = {node: start.end for node in nodes if (start := self._nodes.get(node)) is not None}
        return {node: end.words for node, end in ends.items() if end is not None and _OOM.search(end.words)}

    def ended(self, core: Core, nodes: Iterable[str]) -> dict[str, str]:
        """Of ``nodes`` those whose agent Slurm says ended and was not heard since, with its words."""
        found: dict[str, str] = {}
        for node in nodes:
            start, view = self._nodes.get(node), core.fleet.views.get(node)
            if start is None or start.end is None or not start.end.is_task or view is None:
                continue
            if view.heard <= start.ended:
                found[node] = start.end.words
        return found

    def failed(self, node: str) -> str:
        """Why the first start of an agent on ``node`` came to nothing; "" while it may succeed."""
        return self._nodes[node].failed

    def _why(self, start: Start) -> str:
        refusal = self.refused.get(start.node)
        fix = f"; fix: {start.end.fix}" if start.end is not None and start.end.fix else ""
        return (f"{refusal}; " if refusal else "") + in_words(start) + fix

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
        )

    def _start_again(self, core: Core, why: dict[str, str], now: Now) -> None:
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
            self.refused.pop(node, None)
        core.agents_gone = False
        text = f"starting the agents on {fold(why)} again: {next(iter(why.values()))}"
        core.note(text, "", now)
        core.emit(Say(text=text))
        core.emit(StartAgents(nodes=tuple(why)))


_OOM = re.compile(r"out of memory|oom.kill", re.IGNORECASE)
_TOLD = (Answer.AGAIN, Answer.DOWN, Answer.UNSTARTED, Answer.REFUSED)


def _nodes_of(answers: dict[str, Answer], wanted: Answer) -> tuple[str, ...]:
    """Those for which the answer is ``wanted``."""
    return tuple(node for node, answer in answers.items() if answer is wanted)
