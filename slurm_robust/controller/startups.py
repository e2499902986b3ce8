"""How long each node took for the start of a generation, phase by phase."""

from __future__ import annotations

from slurm_robust.controller.context import Context
from slurm_robust.controller.effects import Now
from slurm_robust.controller.starts import AgentStarts
from slurm_robust.model import events as ev
from slurm_robust.model.startup import AGENT, ZYGOTE, phase_times
from slurm_robust.wire.messages import Heartbeat


class Startups:
    """Nodes measure their phases; which agents and zygotes the start waited for is known here."""

    def __init__(self, context: Context, starts: AgentStarts) -> None:
        self._context = context
        self._starts = starts
        self._agents: dict[str, float] = {}
        self._zygotes: set[str] = set()

    def hear(self, before: Heartbeat | None, heartbeat: Heartbeat, now: Now) -> None:
        """A heartbeat came after ``before``. While a generation runs, nothing waits for agents."""
        if self._context.state.running:
            return
        node, is_same = heartbeat.node, before is not None and before.agent == heartbeat.agent
        if not is_same and (waited_s := self._starts.waited_s(node, now)) is not None:
            self._agents[node] = waited_s
        if heartbeat.ready and not (is_same and before is not None and before.ready):
            self._zygotes.add(node)

    def record(self, now: Now, took_s: float | None = None) -> None:
        """Write down the phases of this generation that are over; ``took_s``: launch to first step."""
        state, found = self._context.state, {}
        for node, heartbeat in self._context.fleet.heartbeats(state.slots).items():
            if heartbeat.generation != state.generation:
                continue
            found[node] = {p: s for p, s in heartbeat.timings.items() if p != ZYGOTE or node in self._zygotes}
            if node in self._agents:
                found[node][AGENT] = self._agents[node]
        self._agents.clear()
        self._zygotes.clear()
        if phases := phase_times(found):
            event = ev.StartMeasured(t=now.wall, generation=state.generation, phases=phases, took_s=took_s)
            self._context.record(event)
