"""What comes of a drill, by the same rules that decide about real faults. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_robust.model.drill import ERROR_TYPE, DrillFault, DrillPromise, drill_text
from slurm_robust.model.events import DrillPlanted
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import Fault, NodeExit, Replace, Symptom
from slurm_robust.model.stacks import Localisation
from slurm_robust.model.state import JobState
from slurm_robust.policy.decide import decide_first
from slurm_robust.policy.drills import within_s
from slurm_robust.policy.rules import Rules

EXIT_S = 5.0
"""The end of a worker, or of an agent, is seen within this time: a heartbeat, and what Slurm says."""

STACKS_S = 10.0
"""Beyond its bound a hang takes this long: two samples of the stacks."""

SLOW_S = 180.0
"""Slow steps are measured for a minute, and then sampled five times."""


def promise(drill: DrillPlanted, state: JobState, rules: Rules, hang_s: float) -> DrillPromise:
    """Return what is done about ``drill`` if nothing else goes wrong.

    ``hang_s``: how long there may be no step until training is taken for hanging.
    """
    fault, observe = played(drill, state), rules.config.mode == "observe"
    seen_s = detect_s(drill.fault, state, hang_s + STACKS_S)
    if fault is None:
        return DrillPromise(symptom=None, detect_s=seen_s, observe=observe, standbys=len(state.spares))
    decided = decide_first(state, fault, drill.t, rules)
    taken = {action.standby for action in decided.actions if isinstance(action, Replace)}
    return DrillPromise(
        symptom=fault.symptom,
        detect_s=seen_s,
        actions=decided.actions,
        observe=observe,
        standbys=len(set(state.spares) - taken),
    )


def detect_s(fault: DrillFault, state: JobState, hang_s: float) -> float:
    """Return the time within which a fault of this kind is seen; a hang takes ``hang_s``."""
    match fault:
        case DrillFault.STOP_RANK | DrillFault.HANG_RANK | DrillFault.LOCK_RANK:
            return hang_s
        case DrillFault.STOP_LOADER:
            return within_s(fault) + hang_s
        case DrillFault.SLOW_RANK:
            return SLOW_S
        case DrillFault.KILL_LOADER | DrillFault.GROW_MEMORY:
            return within_s(fault)
        case DrillFault.KILL_CONTROLLER:
            return within_s(fault) + EXIT_S
    return EXIT_S + 2 * state.world.pace.p99_s


def played(drill: DrillPlanted, state: JobState) -> Fault | None:
    """Return the fault as it is seen, None if none is: as :func:`~.policy.drills.explains` knows it."""
    rank, node, base = drill.rank, drill.node, Fault(generation=drill.generation, alive=state.world.slots)
    match drill.fault:
        case DrillFault.GROW_MEMORY | DrillFault.KILL_CONTROLLER:
            return None
        case DrillFault.KILL_RANK:
            exit = WorkerExit(rank=rank, signal=9)
        case DrillFault.RAISE_ERROR:
            text = drill_text(drill.drill)
            exit = WorkerExit(rank=rank, code=1, error=WorkerError(type=ERROR_TYPE, message=text, file="-"))
        case DrillFault.KILL_LOADER:
            text = "DataLoader worker (pid 1) is killed by signal: Killed."
            exit = WorkerExit(
                rank=rank, code=1, error=WorkerError(type="RuntimeError", message=text, file="-")
            )
        case DrillFault.NAN_LOSS:
            return replace(base, symptom=Symptom.NON_FINITE, ranks=(rank,))
        case DrillFault.KILL_AGENT:
            rest = tuple(other for other in state.world.slots if other != node)
            return replace(
                base, symptom=Symptom.AGENTS_LOST, lost=(node,), ended={node: "killed"}, alive=rest
            )
        case DrillFault.SLOW_RANK:
            return replace(base, symptom=Symptom.SLOW, localisation=_at(rank))
        case _:
            halted = drill.fault in (DrillFault.STOP_RANK, DrillFault.STOP_LOADER)
            return replace(base, symptom=Symptom.HANG, localisation=_at(rank, halted=halted))
    root = NodeExit(node=node, exit=exit)
    symptom = Symptom.WORKER_EXIT if exit.error is None else Symptom.USER_EXCEPTION
    return replace(base, symptom=symptom, root=root, exits=(root,))


def _at(rank: int, *, halted: bool = False) -> Localisation:
    return Localisation(outliers=(rank,), ranks=(rank,), exact=True, confidence=0.9, halted=halted)
