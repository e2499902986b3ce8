"""Modules that the job was seen to import, and the agents that import them before the next start."""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.model import events as ev
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.util.modules import clean_names
from slurm_robust.wire.messages import Heartbeat, Load

RESEND_S = 5.0
AT_ONCE = 16
"""Agents that import at a time, while training runs and from the same storage: standbys first."""
MAX_LEARNED = 20
"""A job that imports something else each time is not followed for ever."""


class Learning:
    """Called while training runs. A load is no matter of life and death: what is lost comes again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._generation = 0
        self._since = 0.0  # when this generation was first seen to train
        self._sent: dict[str, tuple[str, int, float]] = {}  # by node: to which agent, which number, when

    def on_heartbeat(self, heartbeat: Heartbeat, now: Now) -> None:
        """Write down what is new of what rank 0 has imported."""
        context, known = self._context, self._context.state.learned
        if not heartbeat.learned or not self._is_wanted or heartbeat.node not in context.world.slots:
            return
        before = known.modules if known is not None else ()
        modules = clean_names((*before, *heartbeat.learned))
        number = known.number + 1 if known is not None else 1
        if set(modules) <= set(before) or number > MAX_LEARNED:
            return
        context.record(ev.ModulesLearned(t=now.wall, number=number, modules=modules, node=heartbeat.node))

    @property
    def _is_wanted(self) -> bool:
        config = self._context.config
        return config.standby.learn and config.mode == "act"

    def step(self, now: Now) -> None:
        """Order the agents to import what was learned, when training has settled."""
        context, state = self._context, self._context.state
        if not context.trains or context.leaving or context.ending or state.world.incident is not None:
            self._generation = 0
            return
        if self._generation != state.world.generation:
            self._generation, self._since = state.world.generation, now.mono
        if state.learned is None or not self._is_wanted or now.mono - self._since < SETTLED_S:
            return
        waiting = 0
        for node, heartbeat in context.fleet.heartbeats((*state.spares, *state.world.slots)).items():
            number, agent = state.learned.number, heartbeat.agent
            if heartbeat.loaded >= number or not heartbeat.ready or node in state.aside:
                continue
            if not context.knows(node, Load):
                continue
            known, sent, at = self._sent.get(node, ("", 0, 0.0))
            if (known, sent) != (agent, number) or now.mono - at >= RESEND_S:
                self._sent[node] = agent, number, now.mono
                context.send(node, Load(epoch=state.epoch, number=number, modules=state.learned.modules))
            waiting += 1
            if waiting >= AT_ONCE:
                return
