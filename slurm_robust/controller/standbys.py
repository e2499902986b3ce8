"""Standbys on their way to be fit: follows how far each is, and has them rehearse, one after the other."""

from __future__ import annotations

from slurm_robust.controller.context import Context
from slurm_robust.controller.effects import Now, Say
from slurm_robust.model import events as ev
from slurm_robust.model.standby import Rehearsal, RehearsalState, StandbyStage
from slurm_robust.policy.standbys import SETTLED_S, failed_alike
from slurm_robust.wire.messages import Heartbeat, Rehearse

RESEND_S = 2.0
MOST_SENT = 5
"""Orders to one agent that it does not take: another version of it, or it cannot."""

_STAGES = {
    RehearsalState.RUNNING: StandbyStage.REHEARSING,
    RehearsalState.PASSED: StandbyStage.REHEARSED,
    RehearsalState.FAILED: StandbyStage.REHEARSAL_FAILED,
}


class Standbys:
    """Called while training runs. A rehearsal is no matter of life and death: what is lost comes again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._generation = 0
        self._since = 0.0  # when this generation was first seen to train
        self._sent: dict[str, tuple[str, int, float]] = {}  # by node: to which agent, how often, when last
        self._told = ""

    def step(self, now: Now) -> None:
        """Write down what has changed, and order the next rehearsal when it is due."""
        context, state = self._context, self._context.state
        heartbeats = context.fleet.heartbeats(state.spares)
        changes = [self._follow(node, heartbeat, now) for node, heartbeat in heartbeats.items()]
        if any(changes):
            self._tell_if_alike(now)
        if not context.trains or context.leaving or context.ending or state.incident is not None:
            self._generation = 0
            return
        if self._generation != state.generation:
            self._generation, self._since = state.generation, now.mono
        wanted = context.config.standby.rehearse and context.config.mode == "act"
        if wanted and now.mono - self._since >= SETTLED_S:
            self._order(heartbeats, now)

    def _follow(self, node: str, heartbeat: Heartbeat, now: Now) -> bool:
        """Whether anything has changed."""
        rehearsal = heartbeat.rehearsal or Rehearsal(number=0, state=RehearsalState.ENDED)
        stage = _STAGES.get(rehearsal.state, StandbyStage.LOADED)
        if not heartbeat.ready:
            stage = StandbyStage.LOADING
        found = ev.StandbyChanged(
            t=now.wall, node=node, stage=stage, reason=rehearsal.reason, took_s=rehearsal.took_s
        )
        known = self._context.state.standbys.get(node)
        if known is not None and (known.stage, known.reason) == (found.stage, found.reason):
            return False
        self._context.record(found)
        if stage is StandbyStage.REHEARSED:
            self._context.emit(Say(text=f"standby {node} has rehearsed in {rehearsal.took_s:.0f} s"))
        elif stage is StandbyStage.REHEARSAL_FAILED:
            text = f"standby {node} is taken last: its rehearsal failed after {rehearsal.took_s:.0f} s "
            self._context.emit(Say(text=f"{text}({rehearsal.reason})"))
        return True

    def _tell_if_alike(self, now: Now) -> None:
        reason = failed_alike(self._context.state)
        if reason and reason != self._told:
            text = f"rehearsals fail alike on all standbys, so it is not the nodes ({reason})"
            self._context.note(text, "", now)
            self._context.emit(Say(text=f"{text}; standbys are taken in their usual order"))
        self._told = reason

    def _order(self, heartbeats: dict[str, Heartbeat], now: Now) -> None:
        """One at a time: they read the same storage as the training."""
        rehearsals = {n: h.rehearsal for n, h in heartbeats.items() if h.rehearsal is not None}
        if any(r.state is RehearsalState.RUNNING for r in rehearsals.values()):
            return
        for node, heartbeat in heartbeats.items():
            last = rehearsals.get(node)
            is_due = last is None or last.state is RehearsalState.ENDED
            if not is_due or not heartbeat.ready or node in self._context.state.aside:
                continue
            agent, times, at = self._sent.get(node, ("", 0, 0.0))
            times = times if agent == heartbeat.agent else 0
            if times >= MOST_SENT:
                continue
            if times == 0 or now.mono - at >= RESEND_S:
                self._sent[node] = heartbeat.agent, times + 1, now.mono
                self._context.send(node, self._make(last.number + 1 if last is not None else 1))
            return

    def _make(self, number: int) -> Rehearse:
        state, config = self._context.state, self._context.config.standby
        return Rehearse(
            epoch=state.epoch,
            number=number,
            slots=len(state.slots),
            steps=config.rehearse_steps,
            limit_s=config.rehearse_s,
            writes=config.rehearse_writes,
        )
