"""Whether a drill explains a fault. Pure.

All that is known of the fault must be what the drill did: the kind, the rank, the node, the generation and
the time. Whatever else is wrong beside it makes the fault a real one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from slurm_robust.analysis.logs import blames_peer
from slurm_robust.model.drill import ERROR_TYPE, DrillFault, drill_text
from slurm_robust.model.events import DrillPlanted
from slurm_robust.model.incident import Fault, NodeExit, Symptom
from slurm_robust.model.world import World

EARLY_S = 2.0
"""By so much a fault may seem to begin before its drill: ages of heartbeats are no more precise."""

SOON_S = 10.0
"""A fault that follows from its drill at once begins within this time."""

WITHIN_S = {
    DrillFault.SLOW_RANK: 300.0,
    DrillFault.GROW_MEMORY: 40.0,
    DrillFault.KILL_LOADER: 60.0,
    DrillFault.STOP_LOADER: 120.0,
}
"""Faults that begin later: a data loader has batches in stock, and slow steps are measured for a while."""


def within_s(fault: DrillFault) -> float:
    """Return the time after a drill within which what it does begins."""
    return WITHIN_S.get(fault, SOON_S)


def explains(world: World, fault: Fault) -> DrillPlanted | None:
    """Return the drill of ``world`` that explains ``fault``, None if it is a real one."""
    incident = world.incident
    if incident is None or _speaks_of_more(fault):
        return None
    slack_s = max(EARLY_S, 3 * world.pace.p99_s)
    for drill in world.drills:
        late_s = incident.begun - drill.t
        is_timely = -slack_s <= late_s <= within_s(drill.fault) + slack_s
        if is_timely and drill.generation == fault.generation and _SIGNS[drill.fault](drill, fault):
            return drill
    return None


def _speaks_of_more(fault: Fault) -> bool:
    """Return whether there is evidence that no drill leaves."""
    tested = [found for found in (fault.diagnosis, fault.replayed) if found is not None]
    return bool(
        fault.named
        or fault.unreachable
        or fault.oom
        or fault.unable
        or fault.unstarted
        or fault.refused
        or fault.stuck
        or any(found.suspects for found in tested)
    )


def _killed(drill: DrillPlanted, fault: Fault) -> bool:
    return _failed_first(drill, fault, lambda e: e.exit.signal == signal.SIGKILL and not e.exit.oom)


def _raised(drill: DrillPlanted, fault: Fault) -> bool:
    def is_planted(found: NodeExit) -> bool:
        error = found.exit.error
        own = error is not None and error.type.rpartition(".")[2] == ERROR_TYPE
        return own and error is not None and drill_text(drill.drill) in error.message

    return _failed_first(drill, fault, is_planted)


def _lost_loader(drill: DrillPlanted, fault: Fault) -> bool:
    def is_planted(found: NodeExit) -> bool:
        error = found.exit.error
        return error is not None and "DataLoader worker" in error.message and "killed" in error.message

    return _failed_first(drill, fault, is_planted)


def _out_of_memory(drill: DrillPlanted, fault: Fault) -> bool:
    return _failed_first(drill, fault, lambda e: bool(e.exit.oom))


def _hung(drill: DrillPlanted, fault: Fault) -> bool:
    return _stands(drill, fault, Symptom.HANG, halted=False)


def _stopped(drill: DrillPlanted, fault: Fault) -> bool:
    return _stands(drill, fault, Symptom.HANG, halted=True)


def _slow(drill: DrillPlanted, fault: Fault) -> bool:
    return _stands(drill, fault, Symptom.SLOW, halted=False)


def _not_finite(drill: DrillPlanted, fault: Fault) -> bool:
    is_there = fault.symptom is Symptom.NON_FINITE and fault.ranks == (drill.rank,)
    return is_there and not fault.lost and _others_only_follow(drill, fault)


def _agent_lost(drill: DrillPlanted, fault: Fault) -> bool:
    gone = {*fault.ended, *fault.step_ended}
    return fault.lost == (drill.node,) and gone == {drill.node} and _others_only_follow(drill, fault)


def _never(drill: DrillPlanted, fault: Fault) -> bool:
    return False  # training goes on without a controller


def _failed_first(drill: DrillPlanted, fault: Fault, is_planted: Callable[[NodeExit], bool]) -> bool:
    root = fault.root
    if root is None or fault.lost or root.exit.rank != drill.rank or root.node != drill.node:
        return False
    return is_planted(root) and _others_only_follow(drill, fault)


def _stands(drill: DrillPlanted, fault: Fault, symptom: Symptom, *, halted: bool) -> bool:
    found = fault.localisation
    if fault.symptom is not symptom or found is None or fault.lost or found.silent:
        return False
    is_there = found.ranks == (drill.rank,) and found.halted is halted
    return is_there and _others_only_follow(drill, fault)


def _others_only_follow(drill: DrillPlanted, fault: Fault) -> bool:
    """Return whether every other rank that failed did so because it lost a peer."""
    return all(
        blames_peer(each.exit) for each in fault.exits if each.exit.failed and each.exit.rank != drill.rank
    )


_SIGNS: dict[DrillFault, Callable[[DrillPlanted, Fault], bool]] = {
    DrillFault.KILL_RANK: _killed,
    DrillFault.STOP_RANK: _stopped,
    DrillFault.HANG_RANK: _hung,
    DrillFault.LOCK_RANK: _hung,
    DrillFault.RAISE_ERROR: _raised,
    DrillFault.NAN_LOSS: _not_finite,
    DrillFault.SLOW_RANK: _slow,
    DrillFault.GROW_MEMORY: _out_of_memory,
    DrillFault.KILL_LOADER: _lost_loader,
    DrillFault.STOP_LOADER: _stopped,
    DrillFault.KILL_AGENT: _agent_lost,
    DrillFault.KILL_CONTROLLER: _never,
}
