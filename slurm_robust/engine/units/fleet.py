"""What the controller knows of its agents: the newest heartbeat of each node and when it came."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from msgspec import structs

from slurm_robust.model.incident import NodeExit
from slurm_robust.model.progress import LASTING, most
from slurm_robust.policy.silence import counted
from slurm_robust.wire.messages import Heartbeat, Progress, Pulse


class Heard(Enum):
    """What a heartbeat means for our picture of the node."""

    JOINED = "joined"  # the first of this node
    RESTARTED = "restarted"  # the node had another agent before: its workers are gone
    SAME = "same"


@dataclass
class AgentView:
    """What the controller knows of one node's agent. Times are monotonic."""

    heartbeat: Heartbeat
    """The newest one."""
    heard: float
    """When the newest heartbeat or Pulse came."""
    received: float
    """When ``heartbeat`` came."""
    replaced: int = 0
    """How often the node's agent was another one than before."""
    sign: float = -math.inf
    """When the node last gave another sign of life."""
    dead: tuple[str, float] | None = None
    """Why the node is known to be dead, and since when nothing has come of it."""


class Fleet:
    """All agents that ever spoke to this controller, by node."""

    def __init__(self) -> None:
        self._views: dict[str, AgentView] = {}
        self.views: Final[Mapping[str, AgentView]] = MappingProxyType(self._views)
        """What is known of each agent; only to be read."""
        # The newest answer of progress(), which is asked for several times in one turn.
        self._aged: tuple[tuple[str, ...], int, float, list[Progress]] | None = None
        self._with_exits: set[str] = set()  # nodes whose newest heartbeat tells of some
        self._joined = -math.inf  # when the newest agent came

    def hear(self, heartbeat: Heartbeat, now: float) -> Heard:
        """Take in a heartbeat that came at ``now``."""
        self._aged = None
        if heartbeat.exits:
            self._with_exits.add(heartbeat.node)
        else:
            self._with_exits.discard(heartbeat.node)
        known = self._views.get(heartbeat.node)
        if known is None:
            self._views[heartbeat.node] = AgentView(heartbeat, now, now)
            self._joined = now
            return Heard.JOINED
        if known.heartbeat.agent != heartbeat.agent:
            self._views[heartbeat.node] = AgentView(heartbeat, now, now, known.replaced + 1)
            return Heard.RESTARTED
        if heartbeat.seq >= known.heartbeat.seq:
            known.heartbeat, known.received = heartbeat, now
        known.heard, known.dead = now, None
        return Heard.SAME

    def feel(self, pulse: Pulse, now: float) -> Heartbeat | None:
        """Take in a Pulse that came at ``now``; the heartbeat that still holds, None if it is not here."""
        known = self._views.get(pulse.node)
        if known is None or known.heartbeat.agent != pulse.agent:
            return None
        known.heard, known.dead = now, None
        return known.heartbeat if known.heartbeat.seq == pulse.base else None

    def forget(self, node: str) -> AgentView | None:
        """Return what was known of the agent of ``node``, and forget it: it is gone."""
        self._aged = None
        return self._views.pop(node, None)

    def forget_silent(self, now: float, dead_s: float) -> None:
        """Forget the agents of nodes that are silent for more than ``dead_s``."""
        for node in [n for n in self._views if self.silence(n, now, now) > dead_s]:
            self.forget(node)

    def give_sign(self, node: str, at: float) -> None:
        """Note a sign of life of ``node`` other than a heartbeat; a node without an agent is passed over."""
        if (view := self._views.get(node)) is not None:
            view.sign = max(view.sign, at)

    def declare_dead(self, node: str, why: str, since: float) -> None:
        """Declare ``node`` dead: nothing of it answers, and waiting longer would show no more."""
        if (view := self._views.get(node)) is not None:
            view.dead = why, since

    def declare_alive(self, node: str) -> None:
        """Declare ``node`` alive: something of it is heard again."""
        if (view := self._views.get(node)) is not None:
            view.dead = None

    def deaths(self, nodes: Iterable[str]) -> dict[str, tuple[str, float]]:
        """Return which of ``nodes`` are known to be dead: why, and since when they are silent."""
        views = {node: self._views[node] for node in nodes if node in self._views}
        return {node: view.dead for node, view in views.items() if view.dead is not None}

    def forgive(self, seconds: float, *, younger: bool) -> None:
        """Do not count the last ``seconds`` as silence of any agent.

        ``younger``: they do not make steps older either, since heartbeats that wait may tell of newer ones.
        """
        self._aged = None
        for view in self._views.values():
            view.heard += seconds
            view.received += seconds if younger else 0.0

    def joined_s(self, now: float) -> float | None:
        """Return the seconds since the newest agent came, None while there is none."""
        return now - self._joined if self._views else None

    def heartbeat(self, node: str) -> Heartbeat | None:
        """Return the newest heartbeat of ``node``."""
        view = self._views.get(node)
        return view.heartbeat if view else None

    def heartbeats(self, nodes: Iterable[str] | None = None) -> dict[str, Heartbeat]:
        """Return the newest heartbeat of each of ``nodes`` that has sent one, in their order; by default of
        all nodes.
        """
        nodes = self._views if nodes is None else nodes
        return {node: self._views[node].heartbeat for node in nodes if node in self._views}

    def heard(self, nodes: Iterable[str], within_s: float, now: float) -> list[str]:
        """Return which of ``nodes`` were heard within the last ``within_s`` and are not known to be dead."""
        views = {node: self._views[node] for node in nodes if node in self._views}
        return [node for node, view in views.items() if view.dead is None and now - view.heard <= within_s]

    def silence(self, node: str, now: float, since: float) -> float:
        """Return the seconds without a sign of life; for a node never heard of, seconds after ``since``."""
        view = self._views.get(node)
        return counted(now - view.heard, now - view.sign) if view else now - since

    def is_silent(self, node: str, limit_s: float, now: float, since: float) -> bool:
        """Return whether ``node`` is known to be dead, or its :meth:`silence` is longer than ``limit_s``."""
        view = self._views.get(node)
        return (view is not None and view.dead is not None) or self.silence(node, now, since) > limit_s

    def exits(self, nodes: Iterable[str], generation: int, now: float) -> list[NodeExit]:
        """Return the ends of workers of ``generation``; their ``age_s`` is counted until ``now``."""
        found: list[NodeExit] = []
        if not self._with_exits:
            return found
        for node in nodes:
            view = self._views.get(node) if node in self._with_exits else None
            if view is None or view.heartbeat.generation != generation:
                continue
            for exit in view.heartbeat.exits:
                aged = structs.replace(exit, age_s=exit.age_s + now - view.received)
                found.append(NodeExit(node=node, exit=aged))
        return found

    def spent(self, nodes: tuple[str, ...], generation: int, now: float) -> dict[str, float]:
        """Return the seconds of ``generation`` in phases and checkpoints until ``now``, the most of a
        rank.
        """
        views = (self._views.get(node) for node in nodes)
        heartbeats = [v.heartbeat for v in views if v is not None and v.heartbeat.generation == generation]
        found = most(heartbeat.spent for heartbeat in heartbeats)
        going_on = most(
            {record.phase: record.phase_s}
            for record in self.progress(nodes, generation, now)
            if record.phase and record.phase not in LASTING
        )
        return {name: found.get(name, 0.0) + going_on.get(name, 0.0) for name in found | going_on}

    def progress(self, nodes: tuple[str, ...], generation: int, now: float) -> list[Progress]:
        """Step records of all ranks of ``generation`` that are known, as old as they are ``now``."""
        if self._aged is not None and self._aged[:3] == (nodes, generation, now):
            return self._aged[3]
        found: list[Progress] = []
        for node in nodes:
            view = self._views.get(node)
            if view is not None and view.heartbeat.generation == generation:
                seconds = max(0.0, now - view.received)
                records = view.heartbeat.progress
                found.extend([record.aged(seconds) for record in records] if seconds else records)
        self._aged = nodes, generation, now, found
        return found
