"""Nodes of the job that were drained from outside, by an administrator or a health check of the site.

Slurm lets the job go on there, so nothing is done immediately. A standby of them gets no slot, and the next
restart leaves a node that trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import AskForDrains, NoAnswer
from slurm_robust.model import events as ev

EVERY_S = 25.0
"""Seconds between two questions to Slurm; an answer that is missing is waited for as long."""


class Drains:
    """Asks Slurm now and then, and writes down what has changed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked = -math.inf

    def step(self, now: Now) -> None:
        """Ask when it is due."""
        context = self._context
        if context.leaving or now.mono - self._asked < EVERY_S:
            return
        self._asked = now.mono
        if nodes := self._nodes():
            context.ask(AskForDrains(nodes=nodes), now, self._on_answer)

    def _on_answer(self, drained: Mapping[str, str] | NoAnswer, now: Now) -> None:
        if isinstance(drained, NoAnswer):
            return  # it is asked again
        context, known = self._context, self._context.state.drained
        for node in self._nodes():
            if node in drained and node not in known:
                context.record(ev.NodeDrained(t=now.wall, node=node, reason=drained[node]))
                context.emit(Say(text=f"{node} is drained by {drained[node]}: {self._what_follows(node)}"))
            elif node in known and node not in drained:
                context.record(ev.NodeUndrained(t=now.wall, node=node))
                context.emit(Say(text=f"{node} is drained no more"))

    def _nodes(self) -> tuple[str, ...]:
        """Return the nodes whose drain matters: the job leaves an evicted node anyway."""
        state = self._context.state
        return tuple(n for n in (*state.world.slots, *state.spares) if n not in state.evicted)

    def _what_follows(self, node: str) -> str:
        if node in self._context.state.spares:
            return "it gets no slot as long as it is"
        return "training goes on there, and the next restart leaves it if there is a standby"
