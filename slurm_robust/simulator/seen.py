"""What a controller sees of a simulated fault: the evidence that the policy gets. Pure."""

from __future__ import annotations

from functools import partial
from random import Random

from msgspec import structs

from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import Cause, Classification, Fault, NodeExit, Remedy, Symptom
from slurm_robust.model.stacks import Localisation
from slurm_robust.model.world import World
from slurm_robust.simulator.faults import SimulatedFault
from slurm_robust.simulator.spec import FaultOf, SimulatedJob

SIGNAL = 6
"""By which a rank ends whose CUDA context is lost: abort()."""

_SYMPTOMS = {
    FaultOf.NODE: Symptom.NODE_LOST,
    FaultOf.GPU: Symptom.NODE_FAULT,
    FaultOf.NETWORK: Symptom.NETWORK,
    FaultOf.SWITCH: Symptom.UNREACHABLE,
    FaultOf.STORAGE: Symptom.HANG,
    FaultOf.CRASH: Symptom.WORKER_EXIT,
    FaultOf.EXCEPTION: Symptom.USER_EXCEPTION,
    FaultOf.OUT_OF_MEMORY: Symptom.WORKER_EXIT,
    FaultOf.HANG: Symptom.HANG,
    FaultOf.SLOW: Symptom.SLOW,
    FaultOf.NAN: Symptom.NON_FINITE,
    FaultOf.CORRUPTION: Symptom.SPIKE,
    FaultOf.AGENT: Symptom.AGENTS_LOST,
}


class Strike(SimulatedFault):
    """A fault that has struck the job: on these ``nodes`` of it."""

    nodes: tuple[str, ...] = ()


def fault_seen(strike: Strike, world: World, job: SimulatedJob, *, good_step: int, chance: Random) -> Fault:
    """Return what is seen of ``strike``, as detected and as the generation ended.

    ``good_step``: the newest step before wrong numbers.
    """
    kind, node = strike.source.kind, strike.nodes[0]
    symptom = _SYMPTOMS[kind]
    rank = next(iter(world.placement.ranks_of(node)), 0)
    seen = Fault(
        symptom=symptom,
        generation=world.generation,
        alive=tuple(one for one in world.slots if one not in strike.nodes),
        restore=world.restored,
        all_restored=True,
    )
    exit = WorkerExit(rank=rank, signal=SIGNAL)

    change = partial(structs.replace, seen)

    match kind:
        case FaultOf.NODE:
            return change(detail=f"{node} does not respond", lost=strike.nodes)
        case FaultOf.GPU:
            text = "a GPU fell off the bus (XID 79)"
            named = dict.fromkeys(strike.nodes, text)
            return change(detail=f"{node}: {text}", named=named, alive=world.slots)
        case FaultOf.NETWORK:
            text = "two network alerts: the link went down"
            named = dict.fromkeys(strike.nodes, text)
            return change(detail=f"{node}: {text}", named=named, alive=world.slots)
        case FaultOf.SWITCH:
            text = f"{len(strike.nodes)} nodes behind one leaf switch fell silent together"
            return change(detail=text, lost=strike.nodes, unreachable=text)
        case FaultOf.AGENT:
            ended = dict.fromkeys(strike.nodes, "task 0: Killed")
            return change(detail=f"the agent on {node} ended", lost=strike.nodes, ended=ended)
        case FaultOf.EXCEPTION:
            error = WorkerError(
                type="RuntimeError", message="wrong shape", file="train.py", line=_line(strike)
            )
            root = NodeExit(node=node, exit=WorkerExit(rank=rank, code=1, error=error))
            return change(detail=root.exit.describe(), root=root, exits=(root,), alive=world.slots)
        case FaultOf.OUT_OF_MEMORY:
            root = NodeExit(node=node, exit=WorkerExit(rank=rank, signal=9, oom="killed by the kernel"))
            return change(detail=root.exit.describe(), root=root, exits=(root,), alive=world.slots)
        case FaultOf.NAN | FaultOf.CORRUPTION:
            text = f"the loss of rank {rank} is wrong"
            return change(detail=text, ranks=(rank,), good_step=good_step, alive=world.slots)
        case FaultOf.HANG | FaultOf.SLOW | FaultOf.STORAGE:
            return change(
                detail="no step" if symptom is Symptom.HANG else "steps take too long",
                localisation=_stacks(strike, world, job, chance),
                alive=world.slots,
            )
    root = NodeExit(node=node, exit=exit)
    names = strike.at_node and chance.random() < strike.source.named
    cause = Classification(
        symptom="cuda_error",
        blame=Cause.INFRASTRUCTURE if names else Cause.UNKNOWN,
        action=Remedy.EVICT if names else Remedy.RESTART,
        line="CUDA error: uncorrectable ECC error" if names else "CUDA error: unspecified launch failure",
    )
    return change(detail=exit.describe(), root=root, exits=(root,), cause=cause, alive=world.slots)


def _line(strike: Strike) -> int:
    """Return at which line of the script: a fault has the same one each time."""
    return 1 + strike.number % 997


def _stacks(strike: Strike, world: World, job: SimulatedJob, chance: Random) -> Localisation | None:
    """Return what stacks show of a hang or a slowdown: the rank, its pipeline, or nothing."""
    kind, node = strike.source.kind, strike.nodes[0]
    nowhere = Localisation(reason="all ranks do the same", healthy=world.placement.world_size)
    if kind is FaultOf.STORAGE or chance.random() >= strike.source.placed:
        return nowhere
    halted = kind is FaultOf.HANG and strike.at_node and chance.random() < strike.source.named
    nodes: tuple[str, ...] = (node,)  # a process that is stopped or gone shows itself
    if job.layout == "pipeline" and not halted:
        slot = world.slots.index(node)
        first = slot - slot % job.group
        nodes = world.slots[first : first + job.group]
        if len(nodes) > 1 and 2 * len(nodes) > len(world.slots):
            return nowhere  # most ranks are no outliers
    ranks = tuple(rank for one in nodes for rank in world.placement.ranks_of(one))
    return Localisation(
        outliers=ranks,
        ranks=ranks,
        exact=len(nodes) == 1,
        confidence=0.8,
        healthy=world.placement.world_size - len(ranks),
        reason="these ranks do something else than most",
        stack="wait@kernel.py" if strike.at_node else f"step@train.py:{_line(strike)}",
        halted=halted,
    )
