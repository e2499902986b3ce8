"""Which standbys a slot may get: drops the unfit ones, and sets aside the ones that do not answer."""

from __future__ import annotations

from typing import Protocol

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.companions import Companions
from slurm_robust.engine.units.monitor import Monitor
from slurm_robust.engine.units.starts import AgentStarts
from slurm_robust.model import events as ev
from slurm_robust.policy.repeats import left_behind
from slurm_robust.policy.standbys import failed_tests

DRAINED = "drained by"
_NOT_YET = "it has not joined yet"


class EvictNode(Protocol):
    """Evicts ``node``, as :meth:`Core.evict` does."""

    def __call__(
        self, node: str, reason: str, now: Now, *, evidence: tuple[str, ...] = (), unproven: bool = False
    ) -> None:
        """Use ``node`` no more in this job."""


class StandbyWatch:
    """Called while training runs, and before a slot may need a standby."""

    def __init__(
        self,
        context: Context,
        starts: AgentStarts,
        companions: Companions,
        monitor: Monitor,
        evict: EvictNode,
    ) -> None:
        self._context, self._starts, self._companions = context, starts, companions
        self._monitor, self._evict = monitor, evict

    def step(self, now: Now) -> None:
        """Drop standbys that their inspection names (not in observe mode); set aside silent ones."""
        context = self._context
        acts = context.config.mode == "act"
        failed = failed_tests(context.state, now.wall) if acts else {}
        tested = {node: f"its quick test failed: {why}" for node, why in failed.items()}
        left = left_behind(context.state, context.rules, now.wall) if acts else {}
        unfit = tested | left | (self._monitor.unfit_spares() if acts else {})
        for node, why in unfit.items():
            reason = f"spare {node} is not fit: {why}"
            evidence = tuple(found[node] for found in (failed, left) if node in found)
            self._evict(node, reason, now, evidence=evidence, unproven=node in left)
            context.emit(Say(text=f"{reason}: it is not used any more"))
        deaths = context.fleet.deaths(context.state.spares)
        for node in context.state.spares:
            if context.fleet.is_silent(node, context.config.timings.node_dead_s, now.mono, now.mono):
                silent = context.fleet.silence(node, now.mono, now.mono)
                self._starts.let_go(node)
                self._starts.missed(node, now)
                why = "its node is dead" if node in deaths else f"silent for {silent:.1f} s"
                self._set_aside(node, why, node not in deaths, now)
        missing = tuple(node for node in context.state.spares if context.fleet.heartbeat(node) is None)
        found = self._starts.check(missing, now)
        for node, companion in found.left.items():
            self._companions.end((companion,), f"Slurm has ended it, and has {node} back", now)
        for node in context.state.spares:
            heartbeat = context.fleet.heartbeat(node)
            if heartbeat is not None and heartbeat.fatal:
                self._set_aside(node, heartbeat.fatal, False, now)
            elif heartbeat is not None and node in context.state.drained:
                self._set_aside(node, f"{DRAINED} {context.state.drained[node]}", False, now)
            elif heartbeat is not None:
                self._count_on(node, now)
            elif why := found.over.get(node) or found.failed.get(node, ""):
                self._set_aside(node, why, False, now)
            elif node not in context.state.aside:
                self._set_aside(node, _NOT_YET, True, now)

    def _set_aside(self, node: str, why: str, usable: bool, now: Now) -> None:
        context = self._context
        known = context.state.aside.get(node)
        if known is not None and known.usable == usable:
            return
        context.record(ev.SpareSetAside(t=now.wall, node=node, reason=why, usable=usable))
        if why != _NOT_YET and not why.startswith(DRAINED):
            context.emit(Say(text=f"standby {node} is set aside until it answers: {why}"))

    def _count_on(self, node: str, now: Now) -> None:
        context = self._context
        known = context.state.aside.get(node)
        if known is None:
            return
        context.record(ev.SpareAnswers(t=now.wall, node=node))
        if known.reason != _NOT_YET and not known.reason.startswith(DRAINED):
            context.emit(Say(text=f"standby {node} answers"))
