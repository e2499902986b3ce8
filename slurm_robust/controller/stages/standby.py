"""Standbys are checked before a slot needs one of them."""

from __future__ import annotations

from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, Say
from slurm_robust.model import events as ev

_NOT_YET = "it has not joined yet"


def watch_spares(core: Core, now: Now) -> None:
    """Drop those that their node's inspection names; set aside those that do not answer."""
    for node, why in core.monitor.unfit_spares().items():
        _drop(core, node, f"is not fit: {why}", now)
    for node in core.state.spares:
        if core.fleet.is_silent(node, core.config.timings.node_dead_s, now.mono, now.mono):
            silent = core.fleet.silence(node, now.mono, now.mono)
            core.starts.missed(node, now)
            _set_aside(core, node, f"silent for {silent:.1f} s", True, now)
    missing = tuple(node for node in core.state.spares if core.fleet.heartbeat(node) is None)
    found = core.starts.check(missing, now)
    over = found.down | found.silent | found.refused
    for node in core.state.spares:
        if node not in missing:
            _count_on(core, node, now)
        elif why := over.get(node) or core.starts.failed(node):
            _set_aside(core, node, why, False, now)
        elif node not in core.state.aside:
            _set_aside(core, node, _NOT_YET, True, now)


def _set_aside(core: Core, node: str, why: str, usable: bool, now: Now) -> None:
    known = core.state.aside.get(node)
    if known is not None and known.usable == usable:
        return
    core.record(ev.SpareSetAside(t=now.wall, node=node, reason=why, usable=usable))
    if why != _NOT_YET:
        core.emit(Say(text=f"standby {node} is set aside until it answers: {why}"))


def _count_on(core: Core, node: str, now: Now) -> None:
    known = core.state.aside.get(node)
    if known is None:
        return
    core.record(ev.SpareAnswers(t=now.wall, node=node))
    if known.reason != _NOT_YET:
        core.emit(Say(text=f"standby {node} answers"))


def _drop(core: Core, node: str, why: str, now: Now) -> None:
    """Count on ``node`` no more; ``why`` follows its name."""
    reason = f"spare {node} {why}"
    core.evict(node, reason, now)
    core.emit(Say(text=f"{reason}: it is not used any more"))
