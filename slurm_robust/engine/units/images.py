"""Agents in the container image of the release that comes next: they end, and start again in the new one."""

from __future__ import annotations

from collections.abc import Collection

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.starts import AgentStarts
from slurm_robust.model import events as ev
from slurm_robust.model.release import UpdateEnd
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import one_line
from slurm_robust.wire.messages import Shutdown

RESEND_S = 2.0
QUIET = 2.5
"""Missing heartbeats after which an agent that was told to end is taken to have ended."""

END_S = 30.0
"""An agent that has not ended by then gets another one beside it, and ends when that is heard."""


class ImageExchange:
    """One exchange, while no ranks run. What nodes hold in memory stays.

    Each agent says in which image it runs, so a new controller goes on with it.
    """

    def __init__(self, context: Context, starts: AgentStarts) -> None:
        self._context, self._starts = context, starts
        self._ending: set[str] = set()
        self._since = 0.0
        self._sent = -RESEND_S

    def step(self, nodes: Collection[str], now: Now) -> bool:
        """Return whether agents of ``nodes`` are being exchanged; if so, nothing else is to be done."""
        context, image = self._context, self._context.state.image
        heartbeats = context.fleet.heartbeats(tuple(nodes))
        others = {node for node, heartbeat in heartbeats.items() if heartbeat.image != image}
        if not (others or self._ending):
            return False
        if not self._ending:
            self._since = now.mono
            text = f"the agents on {fold(sorted(others))} end and start again in {_named(image)}"
            context.note(text, "", now, say=True)
        self._ending |= others
        quiet_s = QUIET * context.config.timings.heartbeat_s
        alive = {node for node in others if context.fleet.silence(node, now.mono, self._since) <= quiet_s}
        if alive and now.mono - self._since <= END_S:
            if now.mono - self._sent >= RESEND_S:
                self._sent = now.mono
                for node in alive:
                    context.send(node, Shutdown(epoch=context.state.epoch, grace_s=0.0, keep_copies=True))
            return True
        begun = tuple(node for node in nodes if node in self._ending)
        self._ending, self._sent = set(), -RESEND_S
        self._starts.begin(begun, now)
        return True

    def undo(self, nodes: Collection[str], reason: str, now: Now) -> bool:
        """Refuse the update for which agents could not start in its image; False if it is not that.

        The agents of ``nodes`` start again in the image that there was.
        """
        context, state = self._context, self._context.state
        update = state.update
        if update is None or state.image == state.image_of(state.release):
            return False
        text = one_line(f"agents cannot start in {_named(state.image)}: {reason}", 300)
        context.record(ev.UpdateEnded(t=now.wall, update=update.update, how=UpdateEnd.REFUSED, reason=text))
        context.emit(Say(text=f"update {update.update} to release {update.release} is refused: {text}"))
        self._ending = {node for node in nodes if context.fleet.heartbeat(node) is None}
        self._since = now.mono
        return True


def _named(image: str) -> str:
    return f"image {image}" if image else "the image of the job's configuration"
