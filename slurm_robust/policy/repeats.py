"""What crashes without a cause say if they keep to one node, though training gets on in between. Pure.

One crash says nothing, and a restart answers it. Several on one node may be chance, the code of the ranks
there, or the node. So the ranks move to another node as soon as chance is unlikely; what then crashes again
shows which it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import comb

from slurm_robust.model.incident import (
    Blame,
    Fault,
    FaultKind,
    Signature,
    StackLocation,
    Symptom,
    Verdict,
)
from slurm_robust.model.state import JobState
from slurm_robust.policy.rules import DAY_S, HOUR_S, Rules, convict
from slurm_robust.util.text import named_ranks

UNLIKELY = 0.05
"""The probability of chance below which ranks move, which costs no node."""

IMPOSSIBLE = 0.001
"""The probability of chance below which a node is blamed."""

LEAST = 3
"""The fewest crashes for which a node is blamed."""

SETTLED_S = HOUR_S
"""After a move, training that has gone on for this long has not taken the fault with it."""

_CRASHES = (Symptom.WORKER_EXIT, Symptom.USER_EXCEPTION)


def by_chance(nodes: int, faults: int, here: int) -> float:
    """Return how likely it is that one of ``nodes``, which are alike, has ``here`` or more of ``faults``."""
    p = 1 / nodes
    tail = sum(comb(faults, k) * p**k * (1 - p) ** (faults - k) for k in range(here, faults + 1))
    return min(1.0, nodes * tail)


def crash_place(fault: Fault, state: JobState) -> StackLocation | None:
    """Return where a crash was whose output names neither a node nor a want of memory; None for others."""
    root = fault.root
    if root is None or fault.symptom not in _CRASHES or fault.blames_peer or fault.lost or root.exit.oom:
        return None
    return StackLocation(
        symptom=Symptom.WORKER_EXIT,
        step=max(state.world.steps_here, state.world.restored_step),
        ranks=tuple(state.world.placement.ranks_of(root.node)),
        nodes=(root.node,),
        t=state.world.incident.begun if state.world.incident is not None else 0.0,
    )


def crashes_here(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 4 that one node has too many of the last day's crashes for chance.

    A crash that comes again without a new step is judged by other rungs, and so is a new release.
    """
    place = crash_place(fault, state)
    if place is None or fault.root is None or state.candidate is not None or state.world.without_progress:
        return None
    known = [p for p in state.world.places if p.symptom is place.symptom]
    day = [p for p in known if 0 <= place.t - p.t < DAY_S]
    here = [p for p in day if p.nodes == place.nodes]
    crashes, nodes = 1 + len(here), len(state.world.slots)
    chance = by_chance(nodes, 1 + len(day), crashes)
    others = _others(place, known)
    # Where other ranks crashed as well, it was the node.
    elsewhere = [
        p for p in day if p.ranks == place.ranks and p.nodes != place.nodes and not _others(p, known)
    ]
    reason = (
        f"{fault.root.exit.describe()} on {fault.root.node}, which had {crashes} of the "
        f"{1 + len(day)} crashes within a day"
    )
    if others and crashes >= LEAST and chance < IMPOSSIBLE:
        why = f"{reason}, also with {named_ranks(others)}: it stays with the node"
        return convict(place.nodes, rules, rung=4, reason=why, confidence=0.7)
    if others or elsewhere or chance >= UNLIKELY:
        return None
    return Verdict(
        rung=4,
        blame=Blame.NOBODY,
        signature=Signature(kind=FaultKind.RANKS, key=f"crash of {named_ranks(place.ranks)}"),
        reason=reason,
        suspects=place.nodes,
        confidence=0.5,
        allowed=rules.limits.per_signature,
    )


def _others(place: StackLocation, known: Iterable[StackLocation]) -> tuple[int, ...]:
    """Return other ranks that have crashed on the same node; empty for none."""
    return next((p.ranks for p in known if p.nodes == place.nodes and p.ranks != place.ranks), ())


def suspected(state: JobState) -> frozenset[str]:
    """Return the standbys from which ranks were moved away, since a fault had come there again."""
    return frozenset(node for place in state.world.places for node in place.nodes).intersection(state.spares)


def left_behind(state: JobState, rules: Rules, now: float) -> dict[str, str]:
    """Return the suspected standbys to evict, with the reason: the fault came only where they had ranks.

    ``now``: wall clock. Only if others can take their place as standbys.
    """
    world, found = state.world, dict[str, str]()
    suspects = suspected(state) if rules.replenish_sources and world.incident is None else ()
    for node in suspects:
        own = [p for p in world.places if p.nodes == (node,)]
        if not own or not SETTLED_S <= now - own[-1].t < DAY_S:
            continue
        alike = [p for p in world.places if p.symptom is own[-1].symptom and own[-1].t - p.t < DAY_S]
        here = [p for p in alike if p.nodes == (node,)]
        moved = any(p.ranks == own[-1].ranks and p.t > own[-1].t for p in alike)
        if len(here) > 1 and not moved and by_chance(len(world.slots), len(alike), len(here)) < UNLIKELY:
            found[node] = (
                f"{own[-1].symptom.value} came {len(here)} times there, and not since its ranks moved"
            )
    return found
