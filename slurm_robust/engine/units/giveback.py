"""Giving evicted nodes back while the job runs on, so that Slurm's epilog tests them now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import GiveBack, NoAnswer, RequeueStatus, SlurmAnswer
from slurm_robust.engine.units.checkpoints import Checkpoints
from slurm_robust.engine.units.companions import Companions
from slurm_robust.model import events as ev
from slurm_robust.wire.messages import Shutdown

LOOK_EVERY_S = 1.0
RESEND_S = 2.0
STUBBORN_S = 30.0
"""An agent that does not end within this time after the order is left to Slurm, which kills it."""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 900.0
"""Seconds between two attempts, doubled each time."""
LOST_S = 180.0
"""An attempt without an answer for this long is lost; its commands are bounded, and take less."""


@dataclass
class _Return:
    """One evicted node on its way; times are monotonic seconds."""

    ordered: float | None = None  # when its agent was first told to end
    sent: float = -math.inf
    is_asked: bool = False  # Slurm is, and has not answered yet
    again: float = -math.inf
    pause_s: float = PAUSE_S
    is_over: bool = False  # refused for good


class GivingBack:
    """Ends the agent of an evicted node once a newer checkpoint has replaced its copies; then frees the node.

    All of it may be forgotten: the next controller finds the node evicted and held, and does the same.
    """

    def __init__(self, context: Context, checkpoints: Checkpoints, companions: Companions) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._companions = companions
        self._returns: dict[str, _Return] = {}
        self._looked = -math.inf

    def step(self, now: Now) -> None:
        """Get further with each evicted node while training gets on."""
        context = self._context
        if not context.gets_on or context.config.mode != "act" or now.mono - self._looked < LOOK_EVERY_S:
            return
        self._looked, state = now.mono, context.state
        self._returns = {node: known for node, known in self._returns.items() if node in state.evicted}
        held = state.held if context.config.slurm.give_back else ()
        for node in (*held, *state.lenders):
            if node in state.evicted and node not in state.world.slots and node != state.own_node:
                self._follow(node, self._returns.setdefault(node, _Return()), now)

    def is_leaving(self, node: str, now: Now) -> bool:
        """Return whether ``node`` may be gone in a moment: its agent was told to end, or Slurm to take it."""
        known = self._returns.get(node)
        if known is None:
            return False
        return known.is_asked or (known.ordered is not None and now.mono - known.ordered < STUBBORN_S)

    def _on_answer(self, node: str, answer: SlurmAnswer | NoAnswer, now: Now) -> None:
        if isinstance(answer, NoAnswer):
            answer = SlurmAnswer(said=RequeueStatus.NOTHING, detail=answer.reason)
        context, known = self._context, self._returns.setdefault(node, _Return())
        if node not in context.state.held:
            return
        known.is_asked = False
        if answer.said is RequeueStatus.DONE:
            del self._returns[node]
            context.record(ev.NodeGivenBack(t=now.wall, node=node, how=answer.detail))
            context.fleet.forget(node)
            context.emit(Say(text=f"{node} is given back: {answer.detail}"))
            return
        known.is_over = answer.said is RequeueStatus.REFUSED
        yet = "" if known.is_over else " yet"
        context.note(f"not given back{yet}: {answer.detail}", node, now)
        known.again, known.pause_s = now.mono + known.pause_s, min(2 * known.pause_s, LONGEST_PAUSE_S)

    def _follow(self, node: str, known: _Return, now: Now) -> None:
        if known.is_over or known.is_asked or now.mono < known.again:
            return
        if not self._checkpoints.can_spare(node, now) or self._is_ending(node, known, now):
            return
        if (companion := self._context.state.lenders.get(node)) is not None:
            del self._returns[node]
            self._context.fleet.forget(node)
            self._companions.end((companion,), f"{node} is evicted", now)
            return
        known.is_asked = True
        question = GiveBack(node=node)
        self._context.ask(question, now, partial(self._on_answer, node), within_s=LOST_S)

    def _is_ending(self, node: str, known: _Return, now: Now) -> bool:
        """Return whether the agent of ``node`` is there, and is waited for to end by itself."""
        context = self._context
        view, quiet_s = context.fleet.views.get(node), 2 * context.config.timings.heartbeat_s + 0.5
        if view is None or now.mono - view.heard > quiet_s:
            return False
        if known.ordered is None:
            known.ordered = now.mono
        if now.mono - known.ordered > STUBBORN_S:
            return False
        if now.mono - known.sent > RESEND_S:
            known.sent = now.mono
            order = Shutdown(
                epoch=context.state.epoch, grace_s=context.config.timings.stop_grace_s, keep_copies=False
            )
            context.send(node, order)
        return True
