"""Witnesses beside an agent's silence, asked before it counts: its node's kernel, and the other ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slurm_robust.controller.effects import AskAboutNodes, Knock, Now, Say
from slurm_robust.policy.silence import STALLED_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slurm_robust.controller.core import Core

LOOK_EVERY_S = 0.25
EVERY_S = 1.5
ASK_EVERY_S = 5.0
# More of them have one cause, which is judged without.
_MOST = 64


class Knocks:
    """Checks on nodes whose agents miss heartbeats, until these count as silent or speak again."""

    def __init__(self) -> None:
        self._looked = self._knocked = self._asked = -math.inf
        self._told: set[str] = set()

    def step(self, core: Core, now: Now) -> None:
        """Ask the witnesses when it is due."""
        dead_s, views = core.config.timings.node_dead_s, core.fleet.views
        if now.mono - self._looked < LOOK_EVERY_S or now.mono - self._knocked < EVERY_S:
            return
        self._looked = now.mono
        silent = {
            node: views[node].heard
            for node in (*core.state.slots, *core.state.spares)
            if node in views and dead_s / 2 < now.mono - views[node].heard <= STALLED_S
        }
        self._told &= silent.keys()
        if not silent or len(silent) > _MOST:
            return
        self._knocked = now.mono
        for node, heard in silent.items():
            step_at = _step_after(core, node, silent, heard + dead_s / 2)
            if step_at is not None:
                self._sign(core, node, step_at, "its ranks go on", now)
        heartbeats = {node: views[node].heartbeat for node in silent}
        places = {
            node: (b.address, b.data_port) for node, b in heartbeats.items() if b.address and b.data_port
        }
        if places:
            core.emit(Knock(places=places))
        stalled = tuple(node for node, heard in silent.items() if now.mono - heard > dead_s)
        if stalled and now.mono - self._asked > ASK_EVERY_S:
            self._asked = now.mono
            core.emit(AskAboutNodes(nodes=stalled))

    def hear(self, core: Core, answering: Iterable[str], now: Now) -> None:
        """The kernels of these nodes have answered."""
        for node in answering:
            if node in core.fleet.views:
                self._sign(core, node, now.mono, "its node answers", now)

    def _sign(self, core: Core, node: str, at: float, why: str, now: Now) -> None:
        if node in core.slurm_gone:
            return
        view = core.fleet.views[node]
        view.sign = max(view.sign, at)
        if node not in self._told and now.mono - view.heard > core.config.timings.node_dead_s:
            self._told.add(node)
            text = f"the agent of {node} is silent, but {why}: it is waited for up to {STALLED_S:.0f} s"
            core.note(text, node, now)
            core.emit(Say(text=text))


def _step_after(core: Core, node: str, silent: Iterable[str], since: float) -> float | None:
    """When all ranks of nodes that are heard had completed a step that ``node`` must have taken part in.

    None if that was not later than ``since``: the step that was under way when a node died may still end.
    """
    state, views = core.state, core.fleet.views
    newest = max((p.step for p in views[node].heartbeat.progress), default=None)
    if newest is None or views[node].heartbeat.generation != state.generation:
        return None
    at, count = math.inf, 0
    for other in state.slots:
        if other in silent or other not in views or views[other].heartbeat.generation != state.generation:
            continue
        for record in views[other].heartbeat.progress:
            count += 1
            if record.step < newest + 2:
                return None
            at = min(at, views[other].told - record.age_s)
    return at if count and at > since else None
